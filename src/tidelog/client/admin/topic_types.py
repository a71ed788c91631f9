"""What calls about topics take and give: plain rows without behaviour."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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
