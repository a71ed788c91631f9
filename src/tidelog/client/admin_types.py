"""What admin calls take and give: plain rows without behaviour."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.client.cluster import Node, TopicPartition
from tidelog.client.errors import BrokerError
from tidelog.protocol.config_values import ConfigSource

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = -1  # -1: the broker's num.partitions
    replication_factor: int = -1  # -1: the broker's default.replication.factor
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """What became of one topic of a request; `error` is None when it went well."""

    name: str
    error: BrokerError | None
    topic_id: uuid.UUID | None = None
    partitions: int = -1
    replication_factor: int = -1


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An answer to ListOffsets; offset and timestamp are -1 when no record fits."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LogDirReplica:
    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    node_id: int
    path: str
    error: BrokerError | None
    total_bytes: int  # -1 when the broker doesn't say
    usable_bytes: int
    replicas: Sequence[LogDirReplica]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str | None
    controller_id: int
    nodes: Sequence[Node]
