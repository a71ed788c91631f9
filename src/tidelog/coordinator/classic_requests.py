"""The requests of classic groups to one partition of __consumer_offsets, and the records of those groups.

What always holds: a group is created with its first member, or the first id assigned to one; a refused join leaves none
behind. Groups of the new protocol are not touched here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.common.steps import Steps
from tidelog.coordinator import classic_join, classic_leave, classic_sync
from tidelog.coordinator.actions import Action, Answer, Client, Now, Prepared
from tidelog.coordinator.appends import coordinator_error
from tidelog.coordinator.classic_group import ClassicGroup
from tidelog.coordinator.classic_in_consumer import ClassicInConsumer
from tidelog.coordinator.consumer_group import ConsumerGroup
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.k13_leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from tidelog.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from tidelog.coordinator.group_records import GroupMetadataKey, GroupMetadataValue
    from tidelog.coordinator.shard_state import ShardState

_SEVERAL_MEMBERS_FROM = 3


class ClassicRequests:
    """Requests from members of classic groups."""

    def __init__(self, state: ShardState, in_consumer_groups: ClassicInConsumer) -> None:
        self._state = state
        self._in_consumer_groups = in_consumer_groups

    def replay(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        """Apply the record of a group; the last one counts."""
        if value is None:
            # The id may now belong to a group of the new protocol, which has its own records.
            if isinstance(self._state.groups.get(key.group), ClassicGroup):
                self._state.drop_group(key.group)
            return
        group = self._new_group(key.group, value.current_state_timestamp)
        group.restore(value)
        self._state.put_group(group)

    def join(self, request: JoinGroupRequest, client: Client, now: Now, exchange: int) -> list[Action]:
        config = self._state.config
        shortest_ms, longest_ms = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            return _join_refusal(exchange, ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)
        if error := self._state.check_unchanging(request.group_id):
            # It may be about to be deleted.
            return _join_refusal(exchange, error, request.member_id)
        known = self._state.groups.get(request.group_id)
        if isinstance(known, ConsumerGroup) and not known.is_empty:
            return self._in_consumer_groups.join(known, request, client, now, exchange)
        if isinstance(known, ConsumerGroup):
            return self._join_instead(known, request, client, now, exchange)
        if known is None and not request.member_id:
            known = self._new_group(request.group_id, now.wall_ms)
        elif known is None:
            return _join_refusal(exchange, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
        if not isinstance(known, ClassicGroup):
            return _join_refusal(exchange, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        actions = classic_join.join(known, request, client, now, exchange)
        if not known.is_unused:
            self._state.put_group(known)
        return actions + self._forget_oldest_ids(now)

    def _forget_oldest_ids(self, now: Now) -> list[Action]:
        """Make room for new member ids by forgetting the oldest unused ones."""
        out: list[Action] = []
        while oldest := self._state.pending_ids.oldest_in_excess():
            group_id, member_id = oldest
            group = self._state.groups[group_id]
            assert isinstance(group, ClassicGroup)  # only those give ids out, and take them back when they end
            group.forget_id(member_id, now, out)
            self._forget_unused(group)
        return out

    def on_abandoned(self, group_id: str, exchange: int, now: Now) -> list[Action]:
        group = self._state.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            return []
        actions = group.on_abandoned(exchange, now)
        self._forget_unused(group)
        return actions

    def _join_instead(
        self, empty: ConsumerGroup, request: JoinGroupRequest, client: Client, now: Now, exchange: int
    ) -> list[Action]:
        """Replace a group of the new protocol that has no members with a classic one."""

        def finish(error: ErrorCode, now: Now) -> list[Action]:
            if error:
                return _join_refusal(exchange, coordinator_error(error), request.member_id)
            if self._state.groups.get(request.group_id) is empty and empty.is_empty:
                self._state.drop_group(request.group_id)
            return self.join(request, client, now, exchange)

        return [self._state.appends.start(empty.tombstones(), finish)]

    def sync(self, request: SyncGroupRequest, now: Now, exchange: int) -> list[Action]:
        known = self._state.groups.get(request.group_id)
        if isinstance(known, ConsumerGroup):
            return self._in_consumer_groups.sync(known, request, now, exchange)
        group = self._find(request.group_id)
        if isinstance(group, ErrorCode):
            return [Answer(exchange, SyncGroupResponse(error_code=group))]
        return classic_sync.sync(group, request, now, exchange)

    def heartbeat(self, request: HeartbeatRequest, now: Now, exchange: int) -> list[Action]:
        known = self._state.groups.get(request.group_id)
        if isinstance(known, ConsumerGroup):
            return self._in_consumer_groups.heartbeat(known, request, now, exchange)
        group = self._find(request.group_id)
        out: list[Action] = []
        error = group if isinstance(group, ErrorCode) else group.heartbeat(request, now, out)
        out.append(Answer(exchange, HeartbeatResponse(error_code=error)))
        return out

    def leave(self, request: LeaveGroupRequest, client: Client) -> Steps[Prepared]:
        """The response is made in steps; then all members leave at once."""
        several = client.api_version >= _SEVERAL_MEMBERS_FROM
        leaving = request.members if several else [MemberIdentity(member_id=request.member_id)]
        response = LeaveGroupResponse()
        for identity in leaving if several else ():
            answer = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
            response.members.append(answer)
            yield 0

        def answered(errors: list[ErrorCode], exchange: int) -> list[Action]:
            if not several:
                response.error_code = errors[0]
            for answer, error in zip(response.members, errors, strict=several):
                answer.error_code = error
            return [Answer(exchange, response)]

        def carry_out(now: Now, exchange: int) -> list[Action]:
            known = self._state.groups.get(request.group_id)
            if isinstance(known, ConsumerGroup):
                return self._in_consumer_groups.leave(known, leaving, now, lambda errors: answered(errors, exchange))
            if not isinstance(known, ClassicGroup):
                return answered([ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving), exchange)
            out: list[Action] = []
            errors = classic_leave.leave(known, leaving, now, out)
            self._forget_unused(known)
            return out + answered(errors, exchange)

        return carry_out

    def forget_unused(self, group_id: str) -> None:
        """Drop a group that nobody joined after all."""
        group = self._state.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            self._forget_unused(group)

    def _forget_unused(self, group: ClassicGroup) -> None:
        if group.is_unused:
            self._state.drop_group(group.group_id)

    def _find(self, group_id: str) -> ClassicGroup | ErrorCode:
        group = self._state.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else ErrorCode.UNKNOWN_MEMBER_ID

    def _new_group(self, group_id: str, now_ms: int) -> ClassicGroup:
        return ClassicGroup(group_id, self._state, now_ms)


def _join_refusal(exchange: int, error: ErrorCode, member_id: str) -> list[Action]:
    return [Answer(exchange, JoinGroupResponse(error_code=error, member_id=member_id))]
