"""The entries of the registry of pipelines, as plain values: versions, runs with their progress, switches, events.

What always holds: they are immutable; offsets are by topic and partition, and are the next offset to read, as
everywhere in Kafka; times are in milliseconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Role = Literal["live", "shadow"]
"""Whether a run writes to the declared outputs, or to its own locations beside them."""

RunOutcome = Literal["stopped", "failed", "killed"]
SwitchKind = Literal["promote", "rollback"]
SwitchOutcome = Literal["done", "abandoned"]

OLD_OFFSETS = "old_offsets"
"""In the data of a switch: where the old version stopped."""

Offsets = Mapping[str, Mapping[int, int]]
"""By topic and partition: the next offset to read."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is, as of its latest micro-batch."""

    batch_id: int = -1
    # Since the start of this run.
    rows: int = 0
    rows_per_s: float = 0.0
    batch_ms: int = 0
    # The position in each input partition after the batch, and its end offset when it was last looked up.
    processed: Offsets = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)
    state_rows: int = 0
    state_bytes: int = 0
    # Rows written to the dead-letter topic since the start of this run.
    dead_letters: int = 0
    # Anything else that a run wants to show; it must be JSON.
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def lag(self) -> dict[str, dict[int, int]]:
        """The number of unprocessed rows in each input partition."""
        return {
            topic: {
                partition: max(end - self.processed.get(topic, {}).get(partition, 0), 0)
                for partition, end in ends.items()
            }
            for topic, ends in self.ends.items()
        }

    @property
    def lag_rows(self) -> int:
        return sum(sum(partitions.values()) for partitions in self.lag.values())

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Progress:
        values = json.loads(text)
        values["processed"] = offsets_from_json(values["processed"])
        values["ends"] = offsets_from_json(values["ends"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a pipeline that has been run."""

    pipeline: str
    version: int
    # The file as it was given, and a copy of its source, because the file itself moves on to the next version.
    file: str
    source: str
    created_ms: int
    # Its position in the inputs, which is kept when it isn't running.
    processed: Offsets
    is_live: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One process that runs, or ran, a version."""

    run_id: int
    pipeline: str
    version: int
    role: Role
    pid: int
    host: str
    user: str
    started_ms: int
    heartbeat_ms: int
    ended_ms: int | None
    outcome: RunOutcome | None
    error: str | None
    spark_url: str | None
    stop_requested_ms: int | None
    stop_reason: str | None
    progress: Progress

    @property
    def is_open(self) -> bool:
        """Whether it has not been recorded as ended; its process may still have died (`Registry.running`)."""
        return self.ended_ms is None

    @property
    def is_at_work(self) -> bool:
        """Whether it has started up: it sends heartbeats from the moment it waits for rows."""
        return self.progress.batch_id >= 0 or self.heartbeat_ms > self.started_ms


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch of readers from one version to another, step by step."""

    switch_id: int
    pipeline: str
    kind: SwitchKind
    from_version: int
    to_version: int
    step: str
    # The results of the steps: offsets, counts.
    data: Mapping[str, Any]
    started_ms: int
    updated_ms: int
    finished_ms: int | None
    outcome: SwitchOutcome | None
    user: str
    host: str

    @property
    def is_open(self) -> bool:
        return self.finished_ms is None

    @property
    def is_old_stopped(self) -> bool:
        """Whether the old version has stopped for it; until then, it may be restarted to finish its last batch."""
        return OLD_OFFSETS in self.data


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a pipeline's history."""

    event_id: int
    at_ms: int
    pipeline: str
    kind: str
    version: int | None
    run_id: int | None
    switch_id: int | None
    user: str
    host: str
    details: Mapping[str, Any]


def offsets_to_json(offsets: Offsets) -> str:
    return json.dumps({topic: dict(partitions) for topic, partitions in offsets.items()}, sort_keys=True)


def offsets_from_json(value: object) -> dict[str, dict[int, int]]:
    """Offsets from JSON, in which partitions are strings."""
    document = json.loads(value) if isinstance(value, str) else value
    if not isinstance(document, dict):
        raise ValueError(f"offsets are an object of topics, not {value!r}")
    return {topic: {int(number): int(offset) for number, offset in rows.items()} for topic, rows in document.items()}


def has_reached(processed: Offsets, wanted: Offsets) -> bool:
    """Whether every wanted partition has been processed up to its offset."""
    return all(
        processed.get(topic, {}).get(partition, 0) >= offset
        for topic, partitions in wanted.items()
        for partition, offset in partitions.items()
    )
