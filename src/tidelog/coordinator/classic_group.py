"""What moves a classic group from state to state: generations, heartbeats and time-outs.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ...

While preparing, members join until all have, or until the time to join again is over. Then a generation begins: every
member is told of it, and its leader alone who the others are. While it completes, members wait for the leader's
assignment, which is written down before anyone gets it. What requests do is in `classic_join`, `classic_sync` and
`classic_leave`; what can be asked of a group is in `classic_state`.

What always holds: a generation has one leader, who is one of its members; generations only grow; every request that
waits is answered when the phase ends, at the latest by a time-out. The group is Dead once it was deleted or moved to
another coordinator: then nothing can change it any more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tidelog.coordinator.actions import Action, Answer, CancelTimer, Now, SetTimer, TimerKey
from tidelog.coordinator.classic_member import ClassicMember
from tidelog.coordinator.classic_records import group_record
from tidelog.coordinator.classic_state import ClassicGroupState, ClassicState
from tidelog.coordinator.rebalance_history import RebalanceCause, RebalanceTrigger
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k11_join_group import JoinGroupResponse, JoinGroupResponseMember
from tidelog.protocol.messages.k12_heartbeat import HeartbeatRequest
from tidelog.protocol.messages.k14_sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidelog.coordinator.config import GroupImage
    from tidelog.coordinator.shard_state import ShardState

logger = logging.getLogger(__name__)

_JOIN: Final = "join"
_SYNC: Final = "sync"
_SESSION: Final = "session"


class ClassicGroup(ClassicGroupState):
    """One group, and what moves it."""

    def __init__(self, group_id: str, shard: ShardState, now_ms: int) -> None:
        super().__init__(group_id, shard, now_ms)
        # The first join phase of a group goes by a time of its own, which those who come late prolong.
        self._is_initial = False
        self._initial_remaining_ms = 0.0
        self._has_newcomers = False

    # What happens to the group as a whole

    def on_loaded(self, now: Now) -> list[Action]:
        out: list[Action] = []
        self.history.moved(self.generation_id, len(self.members), now)
        for member in self.members:
            self.expect_heartbeat(member, now, out)
        if len(self.members) > self.config.group_max_size:
            self.prepare_rebalance(RebalanceTrigger(RebalanceCause.GROUP_TOO_LARGE), now, out)
        elif self.is_rebalance_due:
            self.prepare_rebalance(RebalanceTrigger(RebalanceCause.MEMBER_LEFT), now, out)
        return out

    def on_unloaded(self, error: ErrorCode) -> list[Action]:
        out: list[Action] = []
        for member in self.members:
            self.refuse_waiting(member, error, out)
        for waiting in self.coming_back:
            out.append(Answer(waiting.exchange, JoinGroupResponse(error_code=error)))
        self.state = ClassicState.DEAD
        return out

    def on_deleted(self) -> list[Action]:
        return self._end(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def on_replaced(self) -> list[Action]:
        """A group of the new protocol took its place, in which its members go on."""
        return self._end(ErrorCode.REBALANCE_IN_PROGRESS)

    def _end(self, error: ErrorCode) -> list[Action]:
        out: list[Action] = [CancelTimer((self.group_id, _JOIN)), CancelTimer((self.group_id, _SYNC))]
        for member_id in (*self.members.pending_join, *(member.member_id for member in self.members)):
            out.append(CancelTimer((self.group_id, _SESSION, member_id)))
        return out + self.on_unloaded(error)

    def on_topics_changed(self, image: GroupImage, now: Now) -> list[Action]:
        # Members of a classic group watch their topics themselves, and its leader joins again when they change.
        return []

    def on_timer(self, key: TimerKey, now: Now) -> list[Action]:
        out: list[Action] = []
        if key[1] == _SESSION:
            self._on_session_timer(str(key[2]), now, out)
        elif key[1] == _JOIN:
            self._on_join_timer(now, out)
        else:
            self._on_sync_timer(now, out)
        return out

    # Heartbeats and sessions

    def on_offset_commit(self, member_id: str, now: Now) -> list[Action]:
        out: list[Action] = []
        member = self.members.get(member_id)
        if member is not None and self.is_in(ClassicState.STABLE, ClassicState.PREPARING_REBALANCE):
            self.expect_heartbeat(member, now, out)
        return out

    def heartbeat(self, request: HeartbeatRequest, now: Now, out: list[Action]) -> ErrorCode:
        member = self.members.find(request.member_id, request.group_instance_id)
        if isinstance(member, ErrorCode):
            return member
        if request.generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        self.expect_heartbeat(member, now, out)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.is_in(ClassicState.PREPARING_REBALANCE) else ErrorCode.NONE

    def expect_heartbeat(
        self, member: ClassicMember, now: Now, out: list[Action], timeout_ms: float | None = None
    ) -> None:
        """The member showed that it lives; it has its session's time from now on to do so again."""
        member.session_due_ms = now.monotonic_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.timer_due_ms is None or member.session_due_ms < member.timer_due_ms:
            member.timer_due_ms = member.session_due_ms
            out.append(SetTimer((self.group_id, _SESSION, member.member_id), member.session_due_ms))

    def expect_join(self, member_id: str, timeout_ms: float, now: Now, out: list[Action]) -> None:
        """An id was given out; whoever has it must join with it by then."""
        out.append(SetTimer((self.group_id, _SESSION, member_id), now.monotonic_ms + timeout_ms))

    def forget_session(self, member_id: str, out: list[Action]) -> None:
        out.append(CancelTimer((self.group_id, _SESSION, member_id)))

    def _on_session_timer(self, member_id: str, now: Now, out: list[Action]) -> None:
        if self.members.pending_join.pop(member_id, None) is not None:
            self.complete_join_when_all_have(now, out, even_initial=True)
            return
        member = self.members.get(member_id)
        if member is None:
            return
        member.timer_due_ms = None
        if member.session_due_ms > now.monotonic_ms:
            member.timer_due_ms = member.session_due_ms
            out.append(SetTimer((self.group_id, _SESSION, member_id), member.session_due_ms))
        elif member.is_new or not member.is_waiting:
            # One that waits can't send heartbeats on some clients, and its time begins anew when it is answered.
            logger.info("group %s: member %s timed out", self.group_id, member_id)
            self.remove_member(member, out)
            self.after_removal(member.trigger(RebalanceCause.MEMBER_TIMED_OUT), now, out, even_initial=True)

    # Members

    def remove_member(self, member: ClassicMember, out: list[Action]) -> None:
        """Take a member out and tell it so where it waits; `after_removal` must follow."""
        self.refuse_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID, out, member_id="")
        self.members.remove(member)
        self.forget_session(member.member_id, out)

    def after_removal(self, trigger: RebalanceTrigger, now: Now, out: list[Action], even_initial: bool = False) -> None:
        """Members are gone: those who are left share out anew, or wait for one less."""
        if self.is_in(ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
            self.prepare_rebalance(trigger, now, out)
        else:
            self.complete_join_when_all_have(now, out, even_initial=even_initial)

    def refuse_waiting(
        self, member: ClassicMember, error: ErrorCode, out: list[Action], member_id: str | None = None
    ) -> None:
        """Answer whatever the member waits with."""
        if member.joining is not None:
            told_id = member.member_id if member_id is None else member_id
            out.append(Answer(member.joining, JoinGroupResponse(error_code=error, member_id=told_id)))
            self.members.set_joining(member, None)
        if member.syncing is not None:
            out.append(Answer(member.syncing, SyncGroupResponse(error_code=error)))
            member.syncing = None

    # Rebalances

    def rebalance(self, trigger: RebalanceTrigger, now: Now, out: list[Action]) -> None:
        """Somebody joined, or joined anew: begin a rebalance, or go on with the one there is."""
        if self.is_in(ClassicState.PREPARING_REBALANCE):
            self.complete_join_when_all_have(now, out)
        else:
            self.prepare_rebalance(trigger, now, out)

    def prepare_rebalance(self, trigger: RebalanceTrigger, now: Now, out: list[Action]) -> None:
        """Have everybody join again."""
        who = trigger.group_instance_id or trigger.member_id or "nobody"
        logger.info(
            "group %s rebalances after generation %d: %s (%s)", self.group_id, self.generation_id, trigger.cause, who
        )
        if self.is_in(ClassicState.COMPLETING_REBALANCE):
            self.refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now, out)
        self.clear_pending_syncs(out)
        self._is_initial = self.is_empty
        self.history.needed(trigger, now)
        self._become(ClassicState.PREPARING_REBALANCE, now)
        if self._is_initial:
            # The first of many is rarely alone for long; waiting saves a rebalance for each of them.
            delay_ms = self.config.group_initial_rebalance_delay_ms
            self._initial_remaining_ms = max(self.members.rebalance_timeout_ms - delay_ms, 0)
            self._has_newcomers = False
            self._set_join_timer(delay_ms, now, out)
        elif self.members.have_all_joined:
            self.complete_join(now, out)
        else:
            self._set_join_timer(self.members.rebalance_timeout_ms, now, out)

    def complete_join_when_all_have(self, now: Now, out: list[Action], *, even_initial: bool = False) -> None:
        """End the join phase if nobody is waited for; the first one of a group goes by its own time."""
        if (
            self.is_in(ClassicState.PREPARING_REBALANCE)
            and self.members.have_all_joined
            and (even_initial or not self._is_initial)
        ):
            self.complete_join(now, out)

    def note_newcomer(self) -> None:
        """Somebody joined a group that waits for its first members; those who follow get time as well."""
        self._has_newcomers = self.is_in(ClassicState.PREPARING_REBALANCE) and self._is_initial

    def complete_join(self, now: Now, out: list[Action]) -> None:
        """The join phase ends: those who did not join are dropped, the others are a generation."""
        out.append(CancelTimer((self.group_id, _JOIN)))
        for member in self.members:
            # Static members are given until the end of their session: a bounce is not to move anything.
            if member.joining is None and not member.is_static:
                logger.info("group %s: member %s did not join again in time", self.group_id, member.member_id)
                self.remove_member(member, out)
        if len(self.members) and not self.members.elect_joined_leader():
            # Nobody is here who could make an assignment; sessions will end, or somebody comes back.
            self._set_join_timer(self.members.rebalance_timeout_ms, now, out)
            return
        self.generation_id += 1
        self.is_storing_assignment = False
        self.history.formed(self.generation_id, len(self.members), now)
        if len(self.members):
            self._begin_generation(now, out)
        else:
            self._become_empty(now, out)

    def join_response(self, member: ClassicMember, *, skip_assignment: bool = False) -> JoinGroupResponse:
        """The current generation as this member is told of it."""
        is_leader = self.members.is_leader(member.member_id)
        return JoinGroupResponse(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.members.leader_id or "",
            skip_assignment=skip_assignment,
            member_id=member.member_id,
            members=self._told_members() if is_leader else [],
        )

    def _told_members(self) -> list[JoinGroupResponseMember]:
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members
        ]

    def _begin_generation(self, now: Now, out: list[Action]) -> None:
        self.protocol_name = self.members.choose_protocol()
        self.partition_counts = self.count_partitions()
        self._become(ClassicState.COMPLETING_REBALANCE, now)
        for member in self.members:
            if member.joining is not None:
                out.append(Answer(member.joining, self.join_response(member)))
                self.members.set_joining(member, None)
            member.is_new = False
            self.expect_heartbeat(member, now, out)
            self.members.pending_sync.add(member.member_id)
        due_ms = now.monotonic_ms + self.members.rebalance_timeout_ms
        out.append(SetTimer((self.group_id, _SYNC), due_ms))

    def _become_empty(self, now: Now, out: list[Action]) -> None:
        self.protocol_name = None
        self.partition_counts = self.count_partitions()
        self._become(ClassicState.EMPTY, now)
        self.history.settled()

        def outcome(error: ErrorCode, now: Now) -> list[Action]:
            if error is not ErrorCode.NONE:
                # After a crash the last generation would be back, whose members time out: no harm is done.
                logger.warning("group %s: could not write that it is empty: %s", self.group_id, error.name)
            return []

        out.append(self.shard.appends.start([group_record(self, (), None, {})], outcome))

    def _on_join_timer(self, now: Now, out: list[Action]) -> None:
        if not self.is_in(ClassicState.PREPARING_REBALANCE):
            return
        if self._is_initial and self._has_newcomers and self._initial_remaining_ms > 0:
            self._has_newcomers = False
            delay_ms = min(self.config.group_initial_rebalance_delay_ms, self._initial_remaining_ms)
            self._initial_remaining_ms -= delay_ms
            self._set_join_timer(delay_ms, now, out)
        else:
            self.complete_join(now, out)

    def _set_join_timer(self, delay_ms: float, now: Now, out: list[Action]) -> None:
        out.append(SetTimer((self.group_id, _JOIN), now.monotonic_ms + delay_ms))

    # Assignments

    def refuse_syncs(self, error: ErrorCode, now: Now, out: list[Action]) -> None:
        """There will be no assignment for this generation: whoever waits for it is told why."""
        for member in self.members:
            member.assignment = b""
            if member.syncing is not None:
                self.refuse_waiting(member, error, out)
                self.expect_heartbeat(member, now, out)

    def hand_out(self, assignment: Mapping[str, bytes], now: Now, out: list[Action]) -> None:
        """The assignment of this generation is known and written: give everybody who waits its part."""
        for member in self.members:
            member.assignment = assignment.get(member.member_id, b"")
            if member.syncing is not None:
                out.append(Answer(member.syncing, self.sync_response(member)))
                member.syncing = None
                self.history.served(now)
                self.expect_heartbeat(member, now, out)
        self._become(ClassicState.STABLE, now)
        self.history.settled()

    def sync_response(self, member: ClassicMember) -> SyncGroupResponse:
        """What this member is assigned in this generation."""
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    def note_sync(self, member: ClassicMember, out: list[Action]) -> None:
        """The member asked for its assignment."""
        self.members.pending_sync.discard(member.member_id)
        if not self.members.pending_sync:
            out.append(CancelTimer((self.group_id, _SYNC)))

    def clear_pending_syncs(self, out: list[Action]) -> None:
        self.members.pending_sync.clear()
        out.append(CancelTimer((self.group_id, _SYNC)))

    def _on_sync_timer(self, now: Now, out: list[Action]) -> None:
        late = [member for member in self.members if member.member_id in self.members.pending_sync]
        if not late or not self.is_in(ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
            return
        for member in late:
            logger.info("group %s: member %s did not ask for its assignment in time", self.group_id, member.member_id)
            self.remove_member(member, out)
        self.prepare_rebalance(late[0].trigger(RebalanceCause.MEMBER_TIMED_OUT), now, out)

    def _become(self, state: ClassicState, now: Now) -> None:
        self.state = state
        self.state_since_ms = now.wall_ms
