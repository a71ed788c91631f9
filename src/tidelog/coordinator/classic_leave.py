"""LeaveGroup to a classic group: members go at once, by their own wish or by an administrator's.

What always holds: each member of a request is answered for itself, and those who are left rebalance once, however many
went together.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidelog.coordinator.actions import Action, Now
from tidelog.coordinator.classic_group import ClassicGroup
from tidelog.coordinator.rebalance_history import RebalanceCause, RebalanceTrigger
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k13_leave_group import MemberIdentity

logger = logging.getLogger(__name__)


def leave(group: ClassicGroup, leaving: Sequence[MemberIdentity], now: Now, out: list[Action]) -> list[ErrorCode]:
    """Take them out; gives the answer for each."""
    triggers: list[RebalanceTrigger] = []
    errors = [_leave_one(group, identity, triggers, out) for identity in leaving]
    if triggers:
        group.after_removal(triggers[0], now, out)
    elif ErrorCode.NONE in errors:
        # Only ids went that nobody had joined with yet; others may have waited for just these.
        group.complete_join_when_all_have(now, out)
    return errors


def _leave_one(
    group: ClassicGroup, identity: MemberIdentity, triggers: list[RebalanceTrigger], out: list[Action]
) -> ErrorCode:
    member_id = identity.member_id
    if not member_id and identity.group_instance_id is not None:
        # An administrator knows the instance and not the member that it is just now.
        member_id = group.members.static_id(identity.group_instance_id) or ""
    if group.members.pending_join.pop(member_id, None) is not None:
        group.forget_session(member_id, out)
        return ErrorCode.NONE
    member = group.members.find(member_id, identity.group_instance_id)
    if isinstance(member, ErrorCode):
        return member
    logger.info("group %s: member %s leaves: %s", group.group_id, member_id, identity.reason or "no reason given")
    group.remove_member(member, out)
    triggers.append(member.trigger(RebalanceCause.MEMBER_LEFT, identity.reason))
    return ErrorCode.NONE
