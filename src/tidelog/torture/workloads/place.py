"""What a run tells a workload, and what a workload tells the run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from tidelog.torture.errors import TortureError


class WorkloadError(TortureError):
    """A worker can't work at all; the text has the end of its log."""


class StuckError(TortureError):
    """Nothing moves any more at the end of a workload; the text names who is stuck, and where."""


@dataclass(frozen=True)
class Place:
    """Where a workload runs, and how much it does."""

    bootstrap: str
    directory: Path  # of the histories of this workload
    seed: int = 0
    rate: float = 0.0  # records a second asked of the workload; 0: as fast as it goes
    command_prefix: tuple[str, ...] = ()  # to enter the clients' network
    replication_factor: int = 3
    min_isr: int = 2
    java_libs: Path | None = None  # the directory with the jars of Kafka's client


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a workload is."""

    acknowledged: int = 0  # records that are stored for certain
    attempted: int = 0
    failed: int = 0  # aborted on purpose, refused, or of unknown outcome
    read: int = 0
    restarts: int = 0
    last_moved_ns: int = 0


@dataclass(slots=True)
class Notes:
    """What a reader of the report should know: workers that were started again, pieces that were left out."""

    restarts: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


class Workload(Protocol):
    """Several worker processes with one purpose. May be used from several threads."""

    name: ClassVar[str]
    about: ClassVar[str]
    # What it may be asked for so that all workloads together keep a machine of two cores busy, but not more.
    default_rate: ClassVar[float]
    notes: Notes

    def prepare(self, place: Place) -> None:
        """Create the topics."""

    def start(self) -> None:
        """Start the workers."""

    def progress(self) -> Progress:
        """How far they are; cheap."""

    def supervise(self) -> None:
        """Start workers again that ended as applications do whose supervisor starts them again.

        Raises WorkloadError for one that can't work at all. To be called about once a second.
        """

    def kill_one(self, rng: random.Random) -> str:
        """Kill -9 of a worker; returns its name, or "" if none runs. `supervise` starts it again."""

    def finish(self) -> None:
        """No new work; what was written is read by everyone, and then once more from the beginning.

        Raises StuckError if nothing moves for two minutes; the last reads were made even then, as far as they go.
        """

    def remove_topics(self) -> None:
        """Delete its topics, for a cluster that goes on living."""

    def close(self) -> None:
        """End whatever still runs."""
