"""What the controller is asked to do and what it answers, as plain values.

What always holds: an expected refusal is an error code and a message in a result, never an exception, and one item's
refusal leaves the others alone. These are not wire types: the broker's handlers translate.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import ErrorCode
from tidelog.protocol.config_values import ConfigChange, ConfigResource


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to make. -1 asks for the broker's default; with `assignments` (partition to replicas) both must be -1."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What became of one NewTopic; the last three fields tell what it is made of, and are empty after an error."""

    name: str
    topic_id: uuid.UUID = ZERO_UUID
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """What became of one topic to delete; the name is None when an id was asked for that no topic has."""

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
class ConfigAlteration:
    """Changes to single settings of one resource."""

    resource: ConfigResource
    changes: Sequence[ConfigChange]


@dataclass(frozen=True, slots=True)
class ConfigReplacement:
    """All that is to be set on one resource; whatever is not named goes back to its default."""

    resource: ConfigResource
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ConfigResult:
    resource: ConfigResource
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
