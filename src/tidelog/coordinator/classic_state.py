"""What a classic group is: its state, generation and members, and what follows from them for whoever asks.

What always holds: nothing here changes the group or answers anybody; `classic_group` does. What can be restored from a
record is restored here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from tidelog.coordinator.actions import Action, GroupRecord, Now
from tidelog.coordinator.classic_member import subscribed_topics
from tidelog.coordinator.classic_members import ClassicMembers
from tidelog.coordinator.classic_records import members_of
from tidelog.coordinator.group import CONSUMER_PROTOCOL_TYPE, GroupType
from tidelog.coordinator.group_records import GroupMetadataKey, GroupMetadataValue, encode_record
from tidelog.coordinator.rebalance_history import RebalanceHistory
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k15_describe_groups import DescribedGroup, DescribedGroupMember

if TYPE_CHECKING:
    from tidelog.coordinator.offsets import CommittedOffset
    from tidelog.coordinator.shard_state import ShardState


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


class ClassicGroupState:
    """One group as it stands."""

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
        self.members = ClassicMembers()
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
