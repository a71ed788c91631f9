"""The values that clients take and return: partitions, offsets, delivery results, cluster metadata.

They are plain and immutable, and mean what they mean in Kafka.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import NamedTuple

from tidelog.client.address import Address
from tidelog.common.light_dataclass import dataclass
from tidelog.protocol import ErrorCode


class TopicPartition(NamedTuple):
    """A partition of a topic. As text it is `topic-number`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """What a group commits for a partition: the offset of the next record to read, and optional metadata."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a given time."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class RecordMetadata(NamedTuple):
    """Where a record was stored. With acks=0 the offset is unknown: -1."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int


class ConsumerGroupMetadata(NamedTuple):
    """Identifies the member that commits offsets in a transaction; brokers refuse one that its group has replaced."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A broker of the cluster."""

    node_id: int
    address: Address
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The leader and the replicas of a partition."""

    partition: int
    leader_id: int  # -1 while there is none
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic and its partitions, in their order."""

    name: str
    topic_id: uuid.UUID  # zero from brokers before 2.8
    is_internal: bool
    partitions: tuple[PartitionMetadata, ...]


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The contents of one Metadata response."""

    cluster_id: str | None
    controller_id: int
    nodes: Mapping[int, Node]
    topics: Mapping[str, TopicMetadata]
    errors: Mapping[str, ErrorCode] = field(default_factory=dict)


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, in the order given."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics
