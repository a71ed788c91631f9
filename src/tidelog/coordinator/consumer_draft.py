"""The changes a request is about to make to a group of the new protocol, as records in order.

What always holds: a draft starts as a copy of the group and changes only itself; the group adopts it when its records
are written, or not at all. However many changes call for a new assignment, the group epoch rises only once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidelog.coordinator.actions import GroupRecord, Now
from tidelog.coordinator.assignors import ASSIGNORS, Partitions, Subscriber
from tidelog.coordinator.config import GroupImage
from tidelog.coordinator.consumer_group import ConsumerGroup, ResolvedRegex, metadata_hash, topic_counts
from tidelog.coordinator.consumer_member import JOINING_EPOCH, ConsumerMember, reconcile, target_value
from tidelog.coordinator.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    encode_record,
)
from tidelog.coordinator.rebalance_history import RebalanceCause, RebalanceTrigger
from tidelog.coordinator.topic_regex import InvalidRegexError, resolve_regex
from tidelog.protocol import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidelog.coordinator.shard_state import ShardState


class GroupDraft:
    """Changes to one group that have not been made yet."""

    def __init__(self, group: ConsumerGroup, image: GroupImage, replaced: Iterable[GroupRecord] = ()) -> None:
        """`replaced` are the tombstones of the group of the other kind that this one replaces."""
        self.group = group
        self.members = dict(group.members)
        self.epoch = group.epoch
        self.target_epoch = group.target_epoch
        self.trigger: RebalanceTrigger | None = None
        self._image = image
        self._replaced = tuple(replaced)
        self._changes: list[tuple[Any, Any | None]] = []
        self._targets: dict[str, Partitions] = {}
        self._regexes: dict[str, ResolvedRegex] = {}
        self._is_assigned = False
        self._looked_at_topics = False

    def records(self) -> list[GroupRecord]:
        return [*self._replaced, *(encode_record(key, value) for key, value in self._changes)]

    def end_group(self, records: Iterable[GroupRecord]) -> None:
        """Write these records instead: another group replaces this one."""
        self._replaced = tuple(records)
        self._changes.clear()
        self._is_assigned = False

    def take_over(self, image: GroupImage, now: Now) -> None:
        """The records are written: apply them to the group; the image is the one by then."""
        group, history = self.group, self.group.history
        was_settled = bool(group.members) and group.is_settled
        if self.trigger is not None:
            history.needed(self.trigger, now)
        for key, value in self._changes:
            group.apply(key, value)
        if self._looked_at_topics and image is self._image:
            group.topics_are_stale = False
        if self._is_assigned:
            group.assigned_at_ms = now.monotonic_ms
            # A coordinator that took the group over between an epoch and its assignment does not know the cause.
            history.needed(RebalanceTrigger(RebalanceCause.COORDINATOR_MOVED), now)
            history.formed(group.target_epoch, len(group.members), now)
        if group.members and group.is_settled and not was_settled:
            history.served(now)
            history.settled()

    # Members

    def check_room(self, member: ConsumerMember, state: ShardState) -> None:
        """Raise KafkaError if there is no memory left for this member's details."""
        error = state.check_room(self.group.footprint, member.size_bytes - self.group.size_of(member.member_id))
        if error:
            raise KafkaError(error, "The group's members would take more memory than allowed.")

    def put(self, old: ConsumerMember, new: ConsumerMember) -> None:
        """Update a member's details; a change of its subscription may call for a new assignment."""
        is_new = old.member_id not in self.members
        self.members[new.member_id] = new
        if is_new or new != old:
            key = ConsumerGroupMemberMetadataKey(group_id=self.group.group_id, member_id=new.member_id)
            self._changes.append((key, new.metadata_value()))
        has_other_topics = (new.subscribed_topic_names, new.subscribed_topic_regex) != (
            old.subscribed_topic_names,
            old.subscribed_topic_regex,
        )
        if is_new:
            self.trigger = trigger_of(RebalanceCause.MEMBER_JOINED, new)
        elif has_other_topics or new.server_assignor != old.server_assignor:
            self.trigger = trigger_of(RebalanceCause.SUBSCRIPTION_CHANGED, new)

    def put_assignment(self, member: ConsumerMember) -> None:
        self.members[member.member_id] = member
        key = ConsumerGroupCurrentMemberAssignmentKey(group_id=self.group.group_id, member_id=member.member_id)
        self._changes.append((key, member.assignment_value()))

    def remove(self, member: ConsumerMember, cause: RebalanceCause) -> None:
        """Remove a member; the others get its partitions with the next assignment."""
        self._remove_records(member.member_id)
        self.trigger = trigger_of(cause, member)
        self._raise_epoch(metadata_hash(self._topics(), self._image))

    def replace_static(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member comes back under a new member id and takes over its old partitions."""
        target = self.group.target_of(old)
        self._remove_records(old.member_id)
        member = replace(
            old, member_id=member_id, member_epoch=JOINING_EPOCH, previous_member_epoch=JOINING_EPOCH, classic=None
        )
        self.members[member_id] = member
        group_id = self.group.group_id
        key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
        self._changes.append((key, member.metadata_value()))
        self._put_target(member_id, target)
        self.put_assignment(member)
        return member

    def _remove_records(self, member_id: str) -> None:
        del self.members[member_id]
        group_id = self.group.group_id
        self._changes += [
            (ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
            (ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
            (ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
        ]

    # Topics

    def note_topics(self, now: Now) -> None:
        """Resolve regular expressions, and raise the group epoch if members or topics require it; raises KafkaError."""
        self._resolve_regexes(now)
        if self.trigger is None and not self.group.topics_are_stale:
            return
        self._looked_at_topics = True
        hashed = metadata_hash(self._topics(), self._image)
        if self.trigger is None and hashed != self.group.metadata_hash:
            self.trigger = RebalanceTrigger(RebalanceCause.PARTITIONS_GREW)
        if self.trigger is not None:
            self._raise_epoch(hashed)

    def _raise_epoch(self, hashed: int) -> None:
        self.epoch += 1
        value = ConsumerGroupMetadataValue(epoch=self.epoch, metadata_hash=hashed)
        self._changes.append((ConsumerGroupMetadataKey(group_id=self.group.group_id), value))

    def _resolve_regexes(self, now: Now) -> None:
        group = self.group
        used = {member.subscribed_topic_regex for member in self.members.values() if member.subscribed_topic_regex}
        refresh_ms = group.config.group_consumer_regex_refresh_interval_ms
        for pattern in sorted(used):
            known = group.regexes.get(pattern)
            if known is not None and not group.topics_are_stale and now.wall_ms - known.resolved_at_ms < refresh_ms:
                continue
            try:
                topics = resolve_regex(pattern, self._image)
            except InvalidRegexError as error:
                raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern}: {error}") from None
            self._regexes[pattern] = ResolvedRegex(topics, now.wall_ms)
            if known is None or known.topics != topics:
                key = ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=pattern)
                value = ConsumerGroupRegularExpressionValue(topics=sorted(topics), timestamp=now.wall_ms)
                self._changes.append((key, value))
                if self.trigger is None:
                    self.trigger = RebalanceTrigger(RebalanceCause.SUBSCRIPTION_CHANGED)
        for pattern in sorted(group.regexes.keys() - used):
            key = ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=pattern)
            self._changes.append((key, None))

    def _topics_of(self, member: ConsumerMember) -> frozenset[str]:
        resolved = self._regexes.get(member.subscribed_topic_regex or "")
        if resolved is not None:
            return member.subscribed_topic_names | resolved.topics
        return self.group.topics_of(member)

    def _topics(self) -> frozenset[str]:
        return frozenset().union(*(self._topics_of(member) for member in self.members.values()))

    # The assignment

    def assign(self, now: Now) -> None:
        """Compute the target assignment for the current group epoch."""
        group = self.group
        if self.epoch <= self.target_epoch:
            return
        interval_ms = group.config.group_consumer_assignment_interval_ms
        if group.assigned_at_ms is not None and now.monotonic_ms - group.assigned_at_ms < interval_ms:
            # Members that join at about the same time share one assignment; until then, they move towards the last one.
            return
        counts = topic_counts(self._topics(), self._image)
        subscribers = {
            member_id: Subscriber(
                frozenset(topic_counts(self._topics_of(member), self._image)),
                member.instance_id,
                self.target_of(member),
            )
            for member_id, member in self.members.items()
        }
        assignor = ASSIGNORS[group.preferred_assignor(self.members.values())]
        for member_id, target in assignor(subscribers, counts).items():
            if self._targets.get(member_id, group.targets.get(member_id)) != target:
                self._put_target(member_id, target)
        self.target_epoch = self.epoch
        self._is_assigned = True
        value = ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=self.epoch, assignment_timestamp=now.wall_ms
        )
        self._changes.append((ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id), value))

    def target_of(self, member: ConsumerMember) -> Partitions:
        target = self._targets.get(member.member_id)
        return self.group.target_of(member) if target is None else target

    def _put_target(self, member_id: str, target: Partitions) -> None:
        self._targets[member_id] = target
        key = ConsumerGroupTargetAssignmentMemberKey(group_id=self.group.group_id, member_id=member_id)
        self._changes.append((key, target_value(target)))

    def reconcile(self, member: ConsumerMember, owned: Partitions | None) -> ConsumerMember:
        """Let the member take its next step towards its target."""
        moved = reconcile(member, self.target_epoch, self.target_of(member), owned, self.group.is_free)
        if moved != member:
            self.put_assignment(moved)
        return moved


def trigger_of(cause: RebalanceCause, member: ConsumerMember) -> RebalanceTrigger:
    return RebalanceTrigger(cause, member.member_id, member.instance_id, member.client_id, member.client_host)
