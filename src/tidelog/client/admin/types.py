"""The types that admin calls take and return: plain rows without behaviour.

No request is declared here, so importing a type doesn't load the calls that use it.
"""

from __future__ import annotations

import datetime
import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, NamedTuple

from tidelog.client.errors import BrokerError
from tidelog.client.types import Node, TopicPartition
from tidelog.common.light_dataclass import dataclass
from tidelog.protocol.config_values import (
    AlterOperation as AlterOperation,
)
from tidelog.protocol.config_values import (
    ConfigChange as ConfigChange,
)
from tidelog.protocol.config_values import (
    ConfigResource as ConfigResource,
)
from tidelog.protocol.config_values import (
    ConfigSource as ConfigSource,
)
from tidelog.protocol.config_values import (
    ResourceType as ResourceType,
)

# Topics


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; the broker's settings decide whatever is left out."""

    name: str
    partitions: int = -1  # -1: the broker's num.partitions
    replication_factor: int = -1  # -1: the broker's default.replication.factor
    configs: Mapping[str, str | None] = field(default_factory=dict)
    # The brokers of each partition, the leader first; if given, leave out the two numbers above.
    assignments: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """How many partitions a topic should have."""

    total_count: int
    # The brokers of each new partition, the leader first; None: the controller chooses.
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic as it was or would be created; brokers that don't report them leave numbers at -1 and the id at zero."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    replication_factor: int
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A deleted topic; brokers before 2.8 don't report its id."""

    name: str
    topic_id: uuid.UUID


# Settings


class ConfigSynonym(NamedTuple):
    """A level that supplies a setting's value when more specific ones don't."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting; the value of a sensitive setting is None."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False
    documentation: str | None = None
    synonyms: Sequence[ConfigSynonym] = ()

    @property
    def is_default(self) -> bool:
        """Whether the setting was never set explicitly."""
        return self.source is ConfigSource.DEFAULT_CONFIG


# Consumer groups


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as listed by ListGroups; state and type are "" from brokers that don't report them."""

    group_id: str
    protocol_type: str
    state: str
    type: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A group member and its assignment."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    # None if the members share out something other than partitions, or the bytes can't be read.
    assignment: Sequence[TopicPartition] | None
    subscribed_topics: Sequence[str]
    # The assignment that the coordinator is working towards; in classic groups the same as the assignment.
    target_assignment: Sequence[TopicPartition] | None = None
    member_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One generation of a group, and the reason for it."""

    generation: int
    cause: str
    reason: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    began_at_ms: int
    stood_still_ms: int  # -1 while consumers are still waiting
    members_before: int
    members_after: int


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as described by its coordinator."""

    group_id: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator_id: int
    members: Sequence[GroupMember]
    group_epoch: int = -1
    # None if the broker keeps no history.
    history: Sequence[Rebalance] | None = None


# Offsets and records


class OffsetSpec(enum.IntEnum):
    """Special offsets, requested by name instead of a timestamp, with their numbers in ListOffsets."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3  # of the record with the largest timestamp
    EARLIEST_LOCAL = -4  # the first on a broker's local disk
    LATEST_TIERED = -5  # the last in remote storage


EARLIEST_TIMESTAMP = int(OffsetSpec.EARLIEST)
LATEST_TIMESTAMP = int(OffsetSpec.LATEST)
MAX_TIMESTAMP = int(OffsetSpec.MAX_TIMESTAMP)

TimeOrSpec = int | datetime.datetime | OffsetSpec
"""Milliseconds since 1970, a datetime with a time zone, or one of the special offsets."""

IsolationLevel = Literal["read_uncommitted", "read_committed"]


class ListedOffset(NamedTuple):
    """A result of ListOffsets; offset and timestamp are -1 if no record matches."""

    offset: int
    timestamp: int
    leader_epoch: int


class DeletedRecords(NamedTuple):
    """The remaining range of a partition: its first offset."""

    low_watermark: int


# Transactions


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id as listed by ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as described by its coordinator."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None  # None if there has been no transaction yet
    coordinator_id: int
    # Partitions that the transaction wrote to and that are still waiting for its marker.
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class PartitionProducer:
    """A producer as known to the leader of a partition."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int  # -1 before the first marker
    transaction_start_offset: int | None  # None without an open transaction


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction in a partition."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


class ProducerIdAndEpoch(NamedTuple):
    """The state of a transactional id after its producers were fenced."""

    producer_id: int
    producer_epoch: int


# Brokers and their disks


class LogDirReplica(NamedTuple):
    """A replica in a log directory; `is_future` means that it is being moved there."""

    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory of a broker; a failed one has an error."""

    node_id: int
    path: str
    error: BrokerError | None
    total_bytes: int  # -1 if the broker doesn't report it
    usable_bytes: int
    replicas: Sequence[LogDirReplica]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers of the cluster, and its controller."""

    cluster_id: str | None
    controller_id: int
    nodes: Sequence[Node]


class ElectionType(enum.IntEnum):
    """Which replica to elect: the first one if it is in sync, or any live one, even if it lacks records."""

    PREFERRED = 0
    UNCLEAN = 1


class PartitionReassignment(NamedTuple):
    """A partition being reassigned: all its current replicas, those being added and those being removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class FeatureVersions(NamedTuple):
    """The range of versions of a feature."""

    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class FeatureMetadata:
    """The features that a broker supports (`supported`), and those the cluster has agreed on (`finalized`)."""

    supported: Mapping[str, FeatureVersions]
    finalized: Mapping[str, FeatureVersions]
    finalized_epoch: int | None  # None if the broker doesn't report it
