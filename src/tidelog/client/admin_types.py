"""What admin calls take and give: plain rows without behaviour."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.client.cluster import Node, TopicPartition
from tidelog.client.errors import BrokerError

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3


class ResourceType(enum.IntEnum):
    """What settings belong to, with the numbers of the protocol."""

    TOPIC = 2
    BROKER = 4


class ConfigResource(NamedTuple):
    """A topic by name, or a broker by id; a broker without a name stands for the default of all brokers."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        if self.type is ResourceType.BROKER and not self.name:
            return "all brokers"
        return f"{self.type.name.lower()} {self.name}"


class ConfigSource(enum.IntEnum):
    """Where a setting's value comes from, with the numbers of DescribeConfigs."""

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8

    @property
    def label(self) -> str:
        return self.name.removesuffix("_CONFIG").lower().replace("_", " ")


class ConfigOperation(enum.IntEnum):
    """What IncrementalAlterConfigs does with a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    name: str
    operation: ConfigOperation
    value: str | None = None


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
