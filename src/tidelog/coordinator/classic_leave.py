"""LeaveGroup to a classic group: members leave immediately, on their own or removed by an administrator.

What always holds: each member of a request gets its own answer, and the remaining members rebalance once, however many
left together.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidelog.coordinator.actions import Action, Now
from tidelog.coordinator.classic_group import LOGGED_MAX, ClassicGroup
from tidelog.coordinator.rebalance_history import RebalanceCause, RebalanceTrigger
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k13_leave_group import MemberIdentity

logger = logging.getLogger(__name__)


def leave(group: ClassicGroup, leaving: Sequence[MemberIdentity], now: Now, out: list[Action]) -> list[ErrorCode]:
    """Remove them; returns the answer for each."""
    triggers: list[RebalanceTrigger] = []
    errors = [_leave_one(group, identity, triggers, out) for identity in leaving]
    if len(triggers) > LOGGED_MAX:
        logger.info("group %s: %d members leave together", group.group_id, len(triggers))
    if triggers:
        group.after_removal(triggers[0], now, out)
    elif ErrorCode.NONE in errors:
        # Only unused member ids were removed; others may have been waiting for exactly these.
        group.complete_join_when_all_have(now, out)
    return errors


def _leave_one(
    group: ClassicGroup, identity: MemberIdentity, triggers: list[RebalanceTrigger], out: list[Action]
) -> ErrorCode:
    member_id = identity.member_id
    if not member_id and identity.group_instance_id is not None:
        # An administrator knows the instance, but not its current member id.
        member_id = group.members.static_id(identity.group_instance_id) or ""
    if group.members.take_back_id(member_id):
        group.forget_session(member_id, out)
        return ErrorCode.NONE
    member = group.members.find(member_id, identity.group_instance_id)
    if isinstance(member, ErrorCode):
        return member
    if len(triggers) < LOGGED_MAX:
        logger.info("group %s: member %s leaves: %s", group.group_id, member_id, identity.reason or "no reason given")
    group.remove_member(member, out)
    triggers.append(member.trigger(RebalanceCause.MEMBER_LEFT, identity.reason))
    return ErrorCode.NONE
