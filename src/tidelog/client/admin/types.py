"""The types that admin calls take and return: plain rows without behaviour.

No request is declared here, so importing a type doesn't load the calls that use it.
"""

from __future__ import annotations

import datetime
import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tidelog.client.errors import BrokerError
from tidelog.client.types import Node, TopicPartition
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
    """A topic to be made; what is left out the broker decides by its settings."""

    name: str
    partitions: int = -1  # -1: the broker's num.partitions
    replication_factor: int = -1  # -1: the broker's default.replication.factor
    configs: Mapping[str, str | None] = field(default_factory=dict)
    # The brokers of each partition, its leader first; then neither of the numbers above may be given.
    assignments: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """How many partitions a topic is to have."""

    total_count: int
    # The brokers of each new partition, its leader first; None: the controller chooses.
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic as it was made, or would be; numbers are -1 and the id is zero from brokers that don't say."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    replication_factor: int
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A topic that was deleted; brokers before 2.8 tell no id."""

    name: str
    topic_id: uuid.UUID


# Settings


class ConfigSynonym(NamedTuple):
    """A place that gives a setting its value when those before it do not."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting; the value of a sensitive one is None."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False
    documentation: str | None = None
    synonyms: Sequence[ConfigSynonym] = ()

    @property
    def is_default(self) -> bool:
        """Whether nobody has set it."""
        return self.source is ConfigSource.DEFAULT_CONFIG


# Consumer groups


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as ListGroups tells it; state and type are "" from brokers that don't say."""

    group_id: str
    protocol_type: str
    state: str
    type: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, and what it reads."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    # None where members share out something else than partitions, or the bytes can't be read.
    assignment: Sequence[TopicPartition] | None
    subscribed_topics: Sequence[str]
    # What the coordinator wants it to have; the same as the assignment in classic groups.
    target_assignment: Sequence[TopicPartition] | None = None
    member_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One generation of a group, and why there was a new one."""

    generation: int
    cause: str
    reason: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    began_at_ms: int
    stood_still_ms: int  # -1 while consumers still wait
    members_before: int
    members_after: int


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator knows it."""

    group_id: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator_id: int
    members: Sequence[GroupMember]
    group_epoch: int = -1
    # None from brokers that keep no history.
    history: Sequence[Rebalance] | None = None


# Offsets and records


class OffsetSpec(enum.IntEnum):
    """Offsets that are asked for by name instead of a timestamp, with their numbers in ListOffsets."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3  # of the record with the largest timestamp
    EARLIEST_LOCAL = -4  # the first that is on a broker's own disk
    LATEST_TIERED = -5  # the last that is in remote storage


EARLIEST_TIMESTAMP = int(OffsetSpec.EARLIEST)
LATEST_TIMESTAMP = int(OffsetSpec.LATEST)
MAX_TIMESTAMP = int(OffsetSpec.MAX_TIMESTAMP)

TimeOrSpec = int | datetime.datetime | OffsetSpec
"""Milliseconds since 1970, a datetime with a time zone, or one of the special offsets."""

IsolationLevel = Literal["read_uncommitted", "read_committed"]


class ListedOffset(NamedTuple):
    """An answer to ListOffsets; offset and timestamp are -1 when no record fits."""

    offset: int
    timestamp: int
    leader_epoch: int


class DeletedRecords(NamedTuple):
    """What is left of a partition: its first offset."""

    low_watermark: int


# Transactions


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id as ListTransactions tells it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as its coordinator knows it."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None  # None when there has been no transaction yet
    coordinator_id: int
    # Those that the transaction wrote to and that still wait for its marker.
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class PartitionProducer:
    """A producer as the leader of a partition remembers it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int  # -1 before the first marker
    transaction_start_offset: int | None  # None without an open transaction


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


class ProducerIdAndEpoch(NamedTuple):
    """What a transactional id has after its producers were fenced off."""

    producer_id: int
    producer_epoch: int


# Brokers and their disks


class LogDirReplica(NamedTuple):
    """A replica in a log directory; `is_future` says that it is being moved there."""

    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory of a broker; one that failed has its error."""

    node_id: int
    path: str
    error: BrokerError | None
    total_bytes: int  # -1 when the broker doesn't say
    usable_bytes: int
    replicas: Sequence[LogDirReplica]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """Who is in the cluster, and who leads it."""

    cluster_id: str | None
    controller_id: int
    nodes: Sequence[Node]


class ElectionType(enum.IntEnum):
    """Who may lead: the first of the replicas if it is in sync, or any that lives, even one that lacks records."""

    PREFERRED = 0
    UNCLEAN = 1


class PartitionReassignment(NamedTuple):
    """A partition that moves: all its replicas meanwhile, those that come and those that go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class FeatureVersions(NamedTuple):
    """From which version of a feature to which."""

    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class FeatureMetadata:
    """What a broker could do (`supported`), and what the cluster has agreed on (`finalized`)."""

    supported: Mapping[str, FeatureVersions]
    finalized: Mapping[str, FeatureVersions]
    finalized_epoch: int | None  # None when the broker doesn't say
