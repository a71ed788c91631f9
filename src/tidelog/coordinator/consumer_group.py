"""A group of the new consumer protocol (KIP-848): its members, its epoch, and each member's target assignment.

What always holds: only records change the group, whether they have just been written or are being loaded, so both lead
to the same group. The group epoch rises with every change of members, subscriptions or topics; the target assignment
belongs to one group epoch; a member's epoch says which target it has reached. At any time, it is known who owns a
partition or still has to give it up.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog.coordinator.actions import CancelTimer, GroupRecord, Now, SetTimer, TimerKey
from tidelog.coordinator.assignors import Partitions
from tidelog.coordinator.consumer_member import NOTHING, ConsumerMember
from tidelog.coordinator.group import CONSUMER_PROTOCOL_TYPE, DEAD, EMPTY, GroupType
from tidelog.coordinator.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    encode_record,
)
from tidelog.coordinator.memory import GROUP_BYTES, Footprint
from tidelog.coordinator.rebalance_history import RebalanceHistory
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k15_describe_groups import DescribedGroup as DescribedClassicGroup

if TYPE_CHECKING:
    from tidelog.coordinator.actions import Action
    from tidelog.coordinator.config import GroupConfig, GroupConfigs, GroupImage
    from tidelog.coordinator.offsets import CommittedOffset

ASSIGNING: Final = "Assigning"
RECONCILING: Final = "Reconciling"
STABLE: Final = "Stable"

SESSION_TIMER: Final = "session"
REBALANCE_TIMER: Final = "rebalance"
# For members that use the classic protocol: the time to rejoin, and then to ask for their assignment.
JOIN_TIMER: Final = "join"
SYNC_TIMER: Final = "sync"
_TIMERS: Final = (SESSION_TIMER, REBALANCE_TIMER, JOIN_TIMER, SYNC_TIMER)

MEMBER_EPOCHS_FROM: Final = 9
"""The version of OffsetCommit and OffsetFetch from which members of this protocol can be told apart."""


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matched at some time."""

    topics: frozenset[str]
    resolved_at_ms: int


class ConsumerGroup:
    """One group; it satisfies `group.Group`."""

    def __init__(self, group_id: str, configs: GroupConfigs) -> None:
        self.group_id = group_id
        self._configs = configs
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.targets: dict[str, Partitions] = {}
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.history = RebalanceHistory()
        # Whether topics may have changed since the metadata hash was computed.
        self.topics_are_stale = True
        self.assigned_at_ms: float | None = None
        # Members of the classic protocol that were asked to rejoin and have not done so yet.
        self.told_to_join: set[str] = set()
        self.footprint = Footprint(GROUP_BYTES + len(group_id))
        self._owners: dict[tuple[uuid.UUID, int], str] = {}
        self._sizes: dict[str, int] = {}

    @property
    def config(self) -> GroupConfig:
        """The group's settings as they are now."""
        return self._configs.of(self.group_id)

    # What any kind of group provides

    @property
    def type(self) -> GroupType:
        return GroupType.CONSUMER

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> str:
        if not self.members:
            return EMPTY
        if self.epoch > self.target_epoch:
            return ASSIGNING
        return STABLE if self.is_settled else RECONCILING

    @property
    def is_settled(self) -> bool:
        """Whether every member has reached its target in the latest epoch."""
        return self.epoch == self.target_epoch and all(
            member.is_reconciled_to(self.target_epoch) for member in self.members.values()
        )

    # Members and partitions

    def is_free(self, topic_id: uuid.UUID, partition: int) -> bool:
        """Whether no member owns the partition or still has to give it up."""
        return (topic_id, partition) not in self._owners

    def size_of(self, member_id: str) -> int:
        """The bytes charged to a member; 0 if there is no such member."""
        return self._sizes.get(member_id, 0)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target_of(self, member: ConsumerMember) -> Partitions:
        """The member's target; one that replaces a static member gets that member's target."""
        target = self.targets.get(member.member_id)
        if target is None and member.instance_id is not None:
            target = self.targets.get(self.static_members.get(member.instance_id, ""))
        return NOTHING if target is None else target

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """The names of all topics that the member subscribes to, by name or by expression."""
        if not member.subscribed_topic_regex:
            return member.subscribed_topic_names
        resolved = self.regexes.get(member.subscribed_topic_regex)
        return member.subscribed_topic_names | (resolved.topics if resolved is not None else frozenset())

    def preferred_assignor(self, members: Iterable[ConsumerMember]) -> str:
        """The assignor that most members ask for; the default if none asks for one."""
        votes: dict[str, int] = {}
        for member in members:
            if member.server_assignor is not None:
                votes[member.server_assignor] = votes.get(member.server_assignor, 0) + 1
        if not votes:
            return self.config.group_consumer_assignors[0]
        return min(votes, key=lambda name: (-votes[name], name))

    # Records

    def apply(self, key: Any, value: Any | None) -> None:
        """Apply one of the group's records."""
        match key:
            case ConsumerGroupMetadataKey():
                self.epoch = 0 if value is None else value.epoch
                self.metadata_hash = 0 if value is None else value.metadata_hash
            case ConsumerGroupMemberMetadataKey():
                old = self.members.get(key.member_id)
                new = None if value is None else (old or ConsumerMember(key.member_id)).with_metadata(value)
                self._put(key.member_id, old, new)
                self._charge(key.member_id, new)
            case ConsumerGroupTargetAssignmentMetadataKey():
                self.target_epoch = 0 if value is None else value.assignment_epoch
            case ConsumerGroupTargetAssignmentMemberKey():
                if value is None:
                    self.targets.pop(key.member_id, None)
                else:
                    self.targets[key.member_id] = {
                        row.topic_id: frozenset(row.partitions) for row in value.topic_partitions if row.partitions
                    }
            case ConsumerGroupCurrentMemberAssignmentKey():
                old = self.members.get(key.member_id)
                if old is not None or value is not None:
                    self._put(key.member_id, old, (old or ConsumerMember(key.member_id)).with_assignment(value))
            case ConsumerGroupRegularExpressionKey():
                if value is None:
                    self.regexes.pop(key.regular_expression, None)
                else:
                    self.regexes[key.regular_expression] = ResolvedRegex(frozenset(value.topics), value.timestamp)
            case ConsumerGroupPartitionMetadataKey():
                # What Kafka stored before there was a hash; the next heartbeat computes the hash.
                self.topics_are_stale = True

    def _put(self, member_id: str, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        if old is not None:
            for partition in _each(old.assigned, old.pending_revocation):
                # Another member may own it by now, if this one's records were replaced in one batch.
                if self._owners.get(partition) == member_id:
                    del self._owners[partition]
            if old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
                del self.static_members[old.instance_id]
        self.told_to_join.discard(member_id)
        if new is None:
            self.members.pop(member_id, None)
            return
        self.members[member_id] = new
        for partition in _each(new.assigned, new.pending_revocation):
            self._owners[partition] = member_id
        if new.instance_id is not None:
            self.static_members[new.instance_id] = member_id

    def _charge(self, member_id: str, member: ConsumerMember | None) -> None:
        before, after = self._sizes.pop(member_id, 0), 0
        if member is not None:
            after = self._sizes[member_id] = member.size_bytes
        self.footprint.add(after - before)

    def tombstones(self) -> list[GroupRecord]:
        group_id = self.group_id
        records: list[GroupRecord] = []
        for member_id in self.members:
            records.append(
                encode_record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None)
            )
        for member_id in self.targets:
            records.append(
                encode_record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None)
            )
        records.append(encode_record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None))
        for member_id in self.members:
            records.append(encode_record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None))
        for regex in self.regexes:
            key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
            records.append(encode_record(key, None))
        records.append(encode_record(ConsumerGroupMetadataKey(group_id=group_id), None))
        return records

    # Offsets

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.topics_of(member) for member in self.members.values())

    def is_subscribed_to_any(self, topics: frozenset[str]) -> bool:
        return any(not topics.isdisjoint(self.topics_of(member)) for member in self.members.values())

    def expires_from_ms(self, offset: CommittedOffset) -> int | None:
        """Offsets of topics that no member subscribes to any more expire counting from their commit."""
        return offset.commit_timestamp_ms

    def check_offset_commit(
        self, member_id: str, group_instance_id: str | None, generation_or_epoch: int, api_version: int
    ) -> ErrorCode:
        if generation_or_epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic is None and api_version < MEMBER_EPOCHS_FROM:
            # Without a member epoch there is no telling whether the member still owns what it commits.
            return ErrorCode.UNSUPPORTED_VERSION
        return self._check_epoch(member, generation_or_epoch)

    def check_txn_offset_commit(
        self, member_id: str, group_instance_id: str | None, generation_or_epoch: int
    ) -> ErrorCode:
        if generation_or_epoch < 0 and (not self.members or (not member_id and group_instance_id is None)):
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        # Producers know generations only: TxnOffsetCommit has no error for a stale member epoch.
        return ErrorCode.NONE if generation_or_epoch == member.member_epoch else ErrorCode.ILLEGAL_GENERATION

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        return ErrorCode.UNKNOWN_MEMBER_ID if member is None else self._check_epoch(member, member_epoch)

    def _check_epoch(self, member: ConsumerMember, epoch: int) -> ErrorCode:
        if epoch == member.member_epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    def on_offset_commit(self, member_id: str, now: Now) -> list[Action]:
        return []

    def check_offset_delete(self) -> ErrorCode:
        return ErrorCode.NONE

    def check_delete(self) -> ErrorCode:
        return ErrorCode.NONE if not self.members else ErrorCode.NON_EMPTY_GROUP

    # Time

    def session_timer(self, member: ConsumerMember, now: Now) -> SetTimer:
        timeout_ms = (
            self.config.group_consumer_session_timeout_ms
            if member.classic is None
            else member.classic.session_timeout_ms
        )
        return SetTimer((self.group_id, SESSION_TIMER, member.member_id), now.monotonic_ms + timeout_ms)

    def cancelled_timers(self, member_id: str) -> list[Action]:
        return [CancelTimer((self.group_id, kind, member_id)) for kind in _TIMERS]

    def on_deleted(self) -> list[Action]:
        return [action for member_id in self.members for action in self.cancelled_timers(member_id)]

    def on_unloaded(self, error: ErrorCode) -> list[Action]:
        return []

    def on_loaded(self, now: Now) -> list[Action]:
        """Give members a full session to find the new coordinator, and their full time to give up partitions."""
        if not self.members:
            return []
        self.history.moved(self.epoch, len(self.members), now)
        actions: list[Action] = []
        for member in self.members.values():
            actions.append(self.session_timer(member, now))
            if member.pending_revocation and member.classic is None:
                actions.append(self.rebalance_timer(member, now))
        return actions

    def rebalance_timer(self, member: ConsumerMember, now: Now) -> SetTimer:
        due_ms = now.monotonic_ms + member.rebalance_timeout_ms
        return SetTimer((self.group_id, REBALANCE_TIMER, member.member_id), due_ms)

    def on_timer(self, key: TimerKey, now: Now) -> list[Action]:
        # The part of the shard that handles heartbeats writes the resulting records.
        raise RuntimeError(f"timer {key} of a consumer group reached the group itself")

    def on_topics_changed(self, image: GroupImage, now: Now) -> list[Action]:
        self.topics_are_stale = True
        return []

    def describe(self) -> DescribedClassicGroup:
        return DescribedClassicGroup(group_id=self.group_id, group_state=DEAD)


def _each(*several: Partitions) -> Iterable[tuple[uuid.UUID, int]]:
    for partitions in several:
        for topic_id, numbers in partitions.items():
            for number in numbers:
                yield topic_id, number


def metadata_hash(topics: Iterable[str], image: GroupImage) -> int:
    """A number that changes when one of these topics is created, deleted, recreated or grows."""
    import hashlib  # half a megabyte that a broker without such groups does not need

    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(topics):
        topic_id = image.topic_id(name)
        if topic_id is not None:
            digest.update(topic_id.bytes + image.partition_count(name).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)


def topic_counts(topics: Iterable[str], image: GroupImage) -> dict[uuid.UUID, int]:
    """Ids and partition counts of those topics that exist."""
    counts: dict[uuid.UUID, int] = {}
    for name in topics:
        topic_id = image.topic_id(name)
        if topic_id is not None:
            counts[topic_id] = image.partition_count(name)
    return counts
