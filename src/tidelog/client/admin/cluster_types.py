"""What calls about brokers and their disks give: plain rows without behaviour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.client.errors import BrokerError
from tidelog.client.types import Node, TopicPartition


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
