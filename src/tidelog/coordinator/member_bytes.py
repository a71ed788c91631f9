"""What consumers of the classic protocol tell each other, read and written by the coordinator.

It does so only in groups of the new protocol, where it makes the assignments for all members.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

from tidelog.coordinator.assignors import Partitions
from tidelog.coordinator.config import GroupImage
from tidelog.protocol import encode
from tidelog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    read_member_bytes,
)

_VERSION: Final = Struct(">h")
_VERSION_MAX: Final = 3


def subscription_of(metadata: bytes) -> ConsumerProtocolSubscription:
    """Raises ProtocolError."""
    return read_member_bytes(ConsumerProtocolSubscription, metadata)


def owned_partitions(subscription: ConsumerProtocolSubscription, image: GroupImage) -> Partitions:
    """What the member says that it still owns: nothing, for those that give up everything before they join."""
    return _by_id(((row.topic, row.partitions) for row in subscription.owned_partitions), image)


def assigned_partitions(assignment: bytes, image: GroupImage) -> Partitions:
    """The partitions of an assignment, without those of topics that are gone; raises ProtocolError."""
    if not assignment:
        return {}
    read = read_member_bytes(ConsumerProtocolAssignment, assignment)
    return _by_id(((row.topic, row.partitions) for row in read.assigned_partitions), image)


def assignment_bytes(partitions: Partitions, metadata: bytes, image: GroupImage) -> bytes:
    """These partitions as a member reads them, in the version in which it spoke."""
    version = min(max(_VERSION.unpack_from(metadata)[0], 0), _VERSION_MAX)
    rows = []
    for topic_id, numbers in sorted(partitions.items()):
        name = image.topic_name(topic_id)
        if name is not None:
            rows.append(ConsumerProtocolAssignmentTopicPartition(topic=name, partitions=sorted(numbers)))
    return _VERSION.pack(version) + encode(ConsumerProtocolAssignment(assigned_partitions=rows), version)


def _by_id(rows: Iterable[tuple[str, Sequence[int]]], image: GroupImage) -> Partitions:
    found = {}
    for topic, numbers in rows:
        topic_id = image.topic_id(topic)
        if topic_id is not None and numbers:
            found[topic_id] = frozenset(numbers)
    return found
