"""A classic group: its generations and members, and what moves it from state to state.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ...

While the group prepares a rebalance, members join until all have, or until the time to rejoin is over. Then a
generation begins: every member is told about it, and its leader learns who the others are. While the rebalance
completes, members wait for the leader's assignment, which is written to the log before anyone gets it. What requests do
is in `classic_join`, `classic_sync` and `classic_leave`.

What always holds: a generation has one leader, who is one of its members; generations only grow; every request that
waits is answered when the phase ends, at the latest by a time-out. The group is Dead once it was deleted or moved to
another coordinator: then nothing can change it any more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.coordinator.actions import Action, Answer, CancelTimer, GroupRecord, Now, SetTimer, TimerKey
from tidelog.coordinator.classic_member import ClassicMember, subscribed_topics
from tidelog.coordinator.classic_members import ClassicMembers
from tidelog.coordinator.classic_records import group_record, members_of
from tidelog.coordinator.group import CONSUMER_PROTOCOL_TYPE, GroupType
from tidelog.coordinator.group_records import GroupMetadataKey, GroupMetadataValue, encode_record
from tidelog.coordinator.memory import GROUP_BYTES, Footprint
from tidelog.coordinator.rebalance_history import RebalanceCause, RebalanceHistory, RebalanceTrigger
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k11_join_group import JoinGroupResponse, JoinGroupResponseMember
from tidelog.protocol.messages.k12_heartbeat import HeartbeatRequest
from tidelog.protocol.messages.k14_sync_group import SyncGroupResponse
from tidelog.protocol.messages.k15_describe_groups import DescribedGroup, DescribedGroupMember

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidelog.coordinator.config import GroupImage
    from tidelog.coordinator.offsets import CommittedOffset
    from tidelog.coordinator.shard_state import ShardState

logger = logging.getLogger(__name__)

LOGGED_MAX: Final = 20
"""How many members are named in the log if they leave together; a line takes longer than all else about a member."""

_JOIN: Final = "join"
_SYNC: Final = "sync"
_SESSION: Final = "session"


class ClassicState(StrEnum):
    """The states by the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ComingBack(NamedTuple):
    """A join of an instance that waits for a write; `again` looks at it anew."""

    exchange: int
    again: Callable[[Now], list[Action]]


class ClassicGroup:
    """One group; it satisfies `group.Group`."""

    type = GroupType.CLASSIC

    def __init__(self, group_id: str, shard: ShardState, now_ms: int) -> None:
        self.group_id = group_id
        self.shard = shard
        self.config = shard.config
        self.state = ClassicState.EMPTY
        # When the group came into its state, by the wall clock; -1 where records of old brokers don't tell.
        self.state_since_ms = now_ms
        self.generation_id = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.footprint = Footprint(GROUP_BYTES + len(group_id))
        self.members = ClassicMembers(group_id, self.footprint, shard.pending_ids)
        self.history = RebalanceHistory()
        # Whether the record that the group was restored from is of members that were to join again.
        self.is_rebalance_due = False
        # Whether the assignment of this generation is being written.
        self.is_storing_assignment = False
        # Instances that come back; the first one's write is under way, the others wait for it.
        self.coming_back: deque[ComingBack] = deque()
        # The topics of all members, None where that can't be known, with the partitions they had when this generation
        # was formed.
        self.partition_counts: dict[str, int] | None = None
        # The first join phase of a group goes by a time of its own, which those who come late prolong.
        self._is_initial = False
        self._initial_remaining_ms = 0.0
        self._has_newcomers = False

    # What it is

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def is_unused(self) -> bool:
        """Whether nothing would be lost with this object: nobody ever was a member, and nobody is about to be."""
        return self.is_empty and self.generation_id == 0 and not self.members.pending_join

    def is_subscribed_to(self, topic: str) -> bool:
        if self.partition_counts is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE and not self.is_empty
        return topic in self.partition_counts

    def is_subscribed_to_any(self, topics: frozenset[str]) -> bool:
        return any(map(self.is_subscribed_to, topics))

    def expires_from_ms(self, offset: CommittedOffset) -> int | None:
        if not self.protocol_type:
            return offset.commit_timestamp_ms
        if self.is_empty:
            return offset.commit_timestamp_ms if self.state_since_ms < 0 else self.state_since_ms
        if self.state is ClassicState.STABLE and self.partition_counts is not None:
            return offset.commit_timestamp_ms
        return None

    def check_offset_commit(
        self, member_id: str, group_instance_id: str | None, generation_or_epoch: int, api_version: int
    ) -> ErrorCode:
        if generation_or_epoch < 0 and self.is_empty:
            # A tool, or a consumer that assigned itself its partitions: nobody is here whom it could disturb.
            return ErrorCode.NONE
        if generation_or_epoch < 0 and not member_id and group_instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self._check_generation(member_id, group_instance_id, generation_or_epoch)
        # The member has joined but has no partitions yet; what it had may be another's by now.
        return error or (
            ErrorCode.REBALANCE_IN_PROGRESS if self.is_in(ClassicState.COMPLETING_REBALANCE) else ErrorCode.NONE
        )

    def _check_generation(self, member_id: str, group_instance_id: str | None, generation_id: int) -> ErrorCode:
        member = self.members.find(member_id, group_instance_id)
        if isinstance(member, ErrorCode):
            return member
        return ErrorCode.NONE if generation_id == self.generation_id else ErrorCode.ILLEGAL_GENERATION

    def check_txn_offset_commit(
        self, member_id: str, group_instance_id: str | None, generation_or_epoch: int
    ) -> ErrorCode:
        if generation_or_epoch < 0 and (self.is_empty or (not member_id and group_instance_id is None)):
            return ErrorCode.NONE
        return self._check_generation(member_id, group_instance_id, generation_or_epoch)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        return ErrorCode.NONE

    def check_offset_delete(self) -> ErrorCode:
        # What members of other kinds are about to read is known to none but themselves.
        may = self.is_empty or self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return ErrorCode.NONE if may else ErrorCode.NON_EMPTY_GROUP

    def check_delete(self) -> ErrorCode:
        return ErrorCode.NONE if self.is_empty else ErrorCode.NON_EMPTY_GROUP

    def tombstones(self) -> list[GroupRecord]:
        return [encode_record(GroupMetadataKey(group=self.group_id), None)]

    def describe(self) -> DescribedGroup:
        stable = self.state is ClassicState.STABLE
        return DescribedGroup(
            group_id=self.group_id,
            group_state=self.state,
            protocol_type=self.protocol_type,
            # What members say of themselves is told only where it is known which protocol they say it in.
            protocol_data=(self.protocol_name or "") if stable else "",
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(self.protocol_name) if stable else b"",
                    member_assignment=member.assignment,
                )
                for member in self.members
            ],
        )

    def restore(self, value: GroupMetadataValue) -> None:
        """Become what a record says; for a group that was just made."""
        self.generation_id = value.generation
        self.protocol_type = value.protocol_type
        self.protocol_name = value.protocol
        self.state_since_ms = value.current_state_timestamp
        for member in members_of(value):
            self.members.add(member)
        if value.leader is not None and value.leader in self.members:
            self.members.leader_id = value.leader
        self.is_rebalance_due = bool(value.members) and value.leader is None
        self.state = ClassicState.STABLE if len(self.members) else ClassicState.EMPTY
        self.partition_counts = self.count_partitions()

    def partitions_grew(self) -> bool:
        """Whether a topic of the members has more partitions than when this generation was formed."""
        counts = self.partition_counts or {}
        return any(self.shard.image.partition_count(topic) > count for topic, count in counts.items())

    def count_partitions(self) -> dict[str, int] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics: set[str] = set()
        for member in self.members:
            subscribed = subscribed_topics(member.metadata(self.protocol_name))
            if subscribed is None:
                return None
            topics |= subscribed
        return {topic: self.shard.image.partition_count(topic) for topic in topics}

    def is_in(self, *states: ClassicState) -> bool:
        return self.state in states

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
        """A group of the new protocol took its place; the members continue there."""
        return self._end(ErrorCode.REBALANCE_IN_PROGRESS)

    def _end(self, error: ErrorCode) -> list[Action]:
        out: list[Action] = [CancelTimer((self.group_id, _JOIN)), CancelTimer((self.group_id, _SYNC))]
        for member_id in (*self.members.pending_join, *(member.member_id for member in self.members)):
            out.append(CancelTimer((self.group_id, _SESSION, member_id)))
        self.members.take_back_ids()
        return out + self.on_unloaded(error)

    def on_topics_changed(self, image: GroupImage, now: Now) -> list[Action]:
        # Members of a classic group watch their topics themselves, and the leader rejoins when they change.
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
        """The member is alive; its session starts over."""
        member.session_due_ms = now.monotonic_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        if member.timer_due_ms is None or member.session_due_ms < member.timer_due_ms:
            member.timer_due_ms = member.session_due_ms
            out.append(SetTimer((self.group_id, _SESSION, member.member_id), member.session_due_ms))

    def expect_join(self, member_id: str, timeout_ms: float, now: Now, out: list[Action]) -> None:
        """An id was given out; its owner must join with it within this time."""
        out.append(SetTimer((self.group_id, _SESSION, member_id), now.monotonic_ms + timeout_ms))

    def forget_session(self, member_id: str, out: list[Action]) -> None:
        out.append(CancelTimer((self.group_id, _SESSION, member_id)))

    def _on_session_timer(self, member_id: str, now: Now, out: list[Action]) -> None:
        if self.members.take_back_id(member_id):
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
            # Some clients can't send heartbeats while they wait; their session starts over when they are answered.
            logger.info("group %s: member %s timed out", self.group_id, member_id)
            self.remove_member(member, out)
            self.after_removal(member.trigger(RebalanceCause.MEMBER_TIMED_OUT), now, out, even_initial=True)

    def forget_id(self, member_id: str, now: Now, out: list[Action]) -> None:
        """An id that was given out is not valid any more; others may have waited for its owner to join."""
        if self.members.take_back_id(member_id):
            self.forget_session(member_id, out)
            self.complete_join_when_all_have(now, out)

    # Members

    def on_abandoned(self, exchange: int, now: Now) -> list[Action]:
        """The connection of a request that waits is gone.

        A member whose first join is not answered yet goes with it: its client can't send heartbeats, and would join as
        another member. Any other member has its session to come back in.
        """
        out: list[Action] = []
        member = self.members.joining_with(exchange)
        if member is not None and member.is_new:
            logger.info("group %s: member %s went away before it was answered", self.group_id, member.member_id)
            self.remove_member(member, out)
            self.after_removal(member.trigger(RebalanceCause.MEMBER_LEFT), now, out)
        return out

    def remove_member(self, member: ClassicMember, out: list[Action]) -> None:
        """Take a member out and tell it so where it waits; `after_removal` must follow."""
        self.refuse_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID, out, member_id="")
        self.members.remove(member)
        self.forget_session(member.member_id, out)

    def _remove_late(self, late: Sequence[ClassicMember], what: str, out: list[Action]) -> None:
        if len(late) > LOGGED_MAX:
            logger.info("group %s: %d members %s", self.group_id, len(late), what)
        for member in late:
            if len(late) <= LOGGED_MAX:
                logger.info("group %s: member %s %s", self.group_id, member.member_id, what)
            self.remove_member(member, out)

    def after_removal(self, trigger: RebalanceTrigger, now: Now, out: list[Action], even_initial: bool = False) -> None:
        """Members are gone: the others rebalance, or wait for fewer."""
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
        """Somebody joined or rejoined: begin a rebalance, or continue the current one."""
        if self.is_in(ClassicState.PREPARING_REBALANCE):
            self.complete_join_when_all_have(now, out)
        else:
            self.prepare_rebalance(trigger, now, out)

    def prepare_rebalance(self, trigger: RebalanceTrigger, now: Now, out: list[Action]) -> None:
        """Have everybody rejoin."""
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
            # The first member is rarely alone for long; waiting saves a rebalance for each of the others.
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
        # Static members are given until the end of their session: a bounce is not to move anything.
        late = [member for member in self.members if member.joining is None and not member.is_static]
        self._remove_late(late, "did not rejoin in time", out)
        if not len(self.members) and self.generation_id == 0:
            # Nobody was ever told about this group, so there is nothing to write down.
            self._become(ClassicState.EMPTY, now)
            return
        if len(self.members) and not self.members.elect_joined_leader():
            # There is nobody who could make an assignment. Sessions will end, or somebody will come back.
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
                # After a crash the last generation would come back, and its members time out. That does no harm.
                logger.warning("group %s: could not record that it is empty: %s", self.group_id, error.name)
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
        """There will be no assignment for this generation: tell everyone who waits for it why."""
        for member in self.members:
            member.assignment = b""
            if member.syncing is not None:
                self.refuse_waiting(member, error, out)
                self.expect_heartbeat(member, now, out)

    def hand_out(self, assignment: Mapping[str, bytes], now: Now, out: list[Action]) -> None:
        """The assignment of this generation is in the log: give each waiting member its part."""
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
        self._remove_late(late, "did not ask for its assignment in time", out)
        self.prepare_rebalance(late[0].trigger(RebalanceCause.MEMBER_TIMED_OUT), now, out)

    def _become(self, state: ClassicState, now: Now) -> None:
        self.state = state
        self.state_since_ms = now.wall_ms
