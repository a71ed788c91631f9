"""Requests to the controller and its results, as plain values.

What always holds: an expected refusal is an error code and a message in a result, never an exception, and one item's
refusal leaves the others alone. These are not wire types: the broker's handlers translate.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

from tidelog.common.ids import ZERO_UUID
from tidelog.common.light_dataclass import dataclass
from tidelog.controller.image import LeaderRecoveryState, PartitionState
from tidelog.protocol import ErrorCode
from tidelog.protocol.config_values import ConfigChange, ConfigResource

NO_TIME: Final = "The request leaves no time to carry it out."
"""What a request with a time-out of 0 or less is told; nothing is done for it."""

UNKNOWN_EPOCH: Final = -1
"""The epoch of a broker that a leader doesn't know; it is not compared."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 means the broker's default; with `assignments` (partition to replicas) both must be -1."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The result for one NewTopic; the last three fields describe the topic, and are empty after an error."""

    name: str
    topic_id: uuid.UUID = ZERO_UUID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The result for one topic to delete; the name is None for an id that no topic has."""

    name: str | None
    topic_id: uuid.UUID = ZERO_UUID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic's new partition count; `assignments` gives the replicas of each added partition, in order."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class PartitionsResult:
    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class IsrMember:
    """A replica that a leader counts as in sync, with the epoch of its broker as far as the leader knows it."""

    node_id: int
    broker_epoch: int = UNKNOWN_EPOCH


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A new ISR that a partition's leader asks for, and the state that it knows (KIP-497)."""

    topic_id: uuid.UUID
    index: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[IsrMember]
    recovery: LeaderRecoveryState = LeaderRecoveryState.RECOVERED


@dataclass(frozen=True, slots=True)
class IsrResult:
    """The result for one IsrChange; the state is what holds now, and None after an error."""

    topic_id: uuid.UUID
    index: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    state: PartitionState | None = None


class ElectionType(enum.IntEnum):
    """What ElectLeaders asks for, with its numbers (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectionResult:
    topic: str
    index: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition's new replicas, or None to cancel its reassignment (KIP-455)."""

    topic: str
    index: int
    replicas: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class ReassignmentResult:
    topic: str
    index: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ConfigAlteration:
    """Changes to single settings of one resource."""

    resource: ConfigResource
    changes: Sequence[ConfigChange]


@dataclass(frozen=True, slots=True)
class ConfigReplacement:
    """All overrides of one resource; settings that are not named go back to their defaults."""

    resource: ConfigResource
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ConfigResult:
    resource: ConfigResource
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
