"""SyncGroup to a classic group: the leader sends the assignment, and each member gets its share.

What always holds: an assignment is handed out only in the generation it was made for, and only once it is in the log;
members that ask earlier wait, and so does a leader that repeats its assignment while the first is being written.
"""

from __future__ import annotations

import logging

from tidelog.coordinator.actions import Action, Answer, Append, Now
from tidelog.coordinator.appends import coordinator_error
from tidelog.coordinator.classic_group import ClassicGroup, ClassicState
from tidelog.coordinator.classic_member import ClassicMember
from tidelog.coordinator.classic_records import group_record
from tidelog.coordinator.rebalance_history import RebalanceCause
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

logger = logging.getLogger(__name__)


def sync(group: ClassicGroup, request: SyncGroupRequest, now: Now, exchange: int) -> list[Action]:
    """Handle one request."""
    out: list[Action] = []
    member = _check(group, request)
    if isinstance(member, ErrorCode):
        out.append(Answer(exchange, SyncGroupResponse(error_code=member)))
    elif group.state is ClassicState.STABLE:
        if member.member_id in group.members.pending_sync:
            group.history.served(now)
        group.note_sync(member, out)
        out.append(Answer(exchange, group.sync_response(member)))
    else:
        _wait(group, member, request.assignments, exchange, out)
    return out


def _check(group: ClassicGroup, request: SyncGroupRequest) -> ClassicMember | ErrorCode:
    member = group.members.find(request.member_id, request.group_instance_id)
    if isinstance(member, ErrorCode):
        return member
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    # From version 5, clients say which protocol they believe the group chose (KIP-559).
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name is not None and request.protocol_name != group.protocol_name:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is ClassicState.PREPARING_REBALANCE else member


def _wait(
    group: ClassicGroup,
    member: ClassicMember,
    assignments: list[SyncGroupRequestAssignment],
    exchange: int,
    out: list[Action],
) -> None:
    if member.syncing is not None:
        # It asks again on another connection; the earlier one is no longer of use to it.
        refusal = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        out.append(Answer(member.syncing, refusal))
    member.syncing = exchange
    group.note_sync(member, out)
    if group.members.is_leader(member.member_id) and not group.is_storing_assignment:
        by_id = {assigned.member_id: bytes(assigned.assignment) for assigned in assignments}
        out.append(_store(group, member, {known.member_id: by_id.get(known.member_id, b"") for known in group.members}))


def _store(group: ClassicGroup, leader: ClassicMember, assignment: dict[str, bytes]) -> Append:
    """Write the assignment; members get it once it is written."""
    generation_id = group.generation_id
    group.is_storing_assignment = True

    def outcome(error: ErrorCode, now: Now) -> list[Action]:
        out: list[Action] = []
        if group.state is not ClassicState.COMPLETING_REBALANCE or group.generation_id != generation_id:
            return out  # somebody joined or left meanwhile; who waited was told to join again
        group.is_storing_assignment = False
        if error is ErrorCode.NONE:
            group.hand_out(assignment, now, out)
        else:
            logger.warning("group %s: could not write its assignment: %s", group.group_id, error.name)
            group.refuse_syncs(coordinator_error(error), now, out)
            group.prepare_rebalance(leader.trigger(RebalanceCause.ASSIGNMENT_NOT_STORED, error.name), now, out)
        return out

    return group.shard.appends.start([group_record(group, group.members, group.members.leader_id, assignment)], outcome)
