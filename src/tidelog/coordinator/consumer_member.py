"""A member of a group of the new protocol (KIP-848), and how it moves towards its target assignment.

What always holds: a member that has to give up partitions keeps its epoch until it reports that it has done so; a
partition is not assigned until its previous owner has given it up. So no partition ever has two owners. Members are
immutable: a change creates a new one, which takes effect when its records are written.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from enum import IntEnum
from typing import Final

from tidelog.common.light_dataclass import dataclass
from tidelog.coordinator.assignors import Partitions
from tidelog.coordinator.group_records import (
    AssignedTopicPartitions,
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMemberValue,
    TargetTopicPartitions,
)
from tidelog.coordinator.memory import MEMBER_BYTES, text_bytes

JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
STATIC_LEAVING_EPOCH: Final = -2
"""The epoch of a static member that went away for a while: what it had stays its own."""

NOTHING: Final[Partitions] = {}


class MemberState(IntEnum):
    """How far a member has got, as stored in its record."""

    STABLE = 1
    # It was asked to give up partitions and has not confirmed it yet.
    UNREVOKED_PARTITIONS = 2
    # It has every partition of its target that is free, and waits for others to give up the rest.
    UNRELEASED_PARTITIONS = 3


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member, as its two records describe it."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    # For a member that uses the classic protocol in a group of the new one.
    classic: ClassicMemberMetadata | None = None

    member_epoch: int = JOINING_EPOCH
    previous_member_epoch: int = JOINING_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Partitions = field(default_factory=dict)
    pending_revocation: Partitions = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Roughly how much memory it takes, not counting its partitions."""
        size = MEMBER_BYTES + text_bytes(
            (self.member_id, self.instance_id, self.rack_id, self.client_id, self.subscribed_topic_regex)
        )
        size += text_bytes(self.subscribed_topic_names)
        if self.classic is not None:
            for protocol in self.classic.supported_protocols:
                size += len(protocol.name) + len(protocol.metadata)
        return size

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    # Records

    def metadata_value(self) -> ConsumerGroupMemberMetadataValue:
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.subscribed_topic_names),
            subscribed_topic_regex=self.subscribed_topic_regex or None,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=self.classic,
        )

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
            subscribed_topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def assignment_value(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            assigned_partitions=_rows(self.assigned),
            partitions_pending_revocation=_rows(self.pending_revocation),
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> ConsumerMember:
        if value is None:
            return replace(
                self,
                member_epoch=JOINING_EPOCH,
                previous_member_epoch=JOINING_EPOCH,
                state=MemberState.STABLE,
                assigned=NOTHING,
                pending_revocation=NOTHING,
            )
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState(value.state),
            assigned=_partitions(value.assigned_partitions),
            pending_revocation=_partitions(value.partitions_pending_revocation),
        )


def _rows(partitions: Partitions) -> list[AssignedTopicPartitions]:
    return [
        AssignedTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
        for topic_id, numbers in sorted(partitions.items())
    ]


def _partitions(rows: Sequence[AssignedTopicPartitions]) -> Partitions:
    return {row.topic_id: frozenset(row.partitions) for row in rows if row.partitions}


def target_value(target: Partitions) -> ConsumerGroupTargetAssignmentMemberValue:
    """A member's target, as stored in its record."""
    return ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TargetTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in sorted(target.items())
        ]
    )


# On the way to the target


IsFree = Callable[[uuid.UUID, int], bool]
"""Whether nobody owns a partition, nor has yet to give it up."""


def reconcile(
    member: ConsumerMember, target_epoch: int, target: Partitions, owned: Partitions | None, is_free: IsFree
) -> ConsumerMember:
    """The member after its next step towards the target; `owned` is what it reports to own, None if it didn't say."""
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if owned is None or _overlap(owned, member.pending_revocation):
            return member
        # What it gave up stays given up in any later epoch, so it may continue from the epoch after its own.
        return _next(member, member.member_epoch + 1, target_epoch, target, owned, is_free)
    if member.state is MemberState.STABLE and member.member_epoch == target_epoch:
        return member
    return _next(member, member.member_epoch, target_epoch, target, owned, is_free)


def _next(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    is_free: IsFree,
) -> ConsumerMember:
    kept: dict[uuid.UUID, frozenset[int]] = {}
    to_revoke: dict[uuid.UUID, frozenset[int]] = {}
    has_unreleased = False
    for topic_id in {*target, *member.assigned}:
        wanted = target.get(topic_id, frozenset())
        has = member.assigned.get(topic_id, frozenset())
        if has - wanted:
            to_revoke[topic_id] = has - wanted
        missing = wanted - has
        free = frozenset(number for number in missing if is_free(topic_id, number))
        has_unreleased |= len(free) < len(missing)
        if (has & wanted) | free:
            kept[topic_id] = (has & wanted) | free
    if to_revoke and (owned is None or _overlap(owned, to_revoke)):
        staying = {
            topic_id: numbers & target[topic_id]
            for topic_id, numbers in member.assigned.items()
            if topic_id in target and numbers & target[topic_id]
        }
        return _moved(member, epoch, MemberState.UNREVOKED_PARTITIONS, staying, to_revoke)
    state = MemberState.UNRELEASED_PARTITIONS if has_unreleased else MemberState.STABLE
    return _moved(member, target_epoch, state, kept, NOTHING)


def _moved(
    member: ConsumerMember, epoch: int, state: MemberState, assigned: Partitions, pending_revocation: Partitions
) -> ConsumerMember:
    previous = member.previous_member_epoch if epoch == member.member_epoch else member.member_epoch
    return replace(
        member,
        member_epoch=epoch,
        previous_member_epoch=previous,
        state=state,
        assigned=assigned,
        pending_revocation=pending_revocation,
    )


def _overlap(some: Partitions, others: Partitions) -> bool:
    return any(numbers & some.get(topic_id, frozenset()) for topic_id, numbers in others.items())


def is_within(some: Partitions, others: Partitions) -> bool:
    """Whether the first is a subset of the second."""
    return all(numbers <= others.get(topic_id, frozenset()) for topic_id, numbers in some.items())
