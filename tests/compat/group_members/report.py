"""What a member tells of itself, and what it is told."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType

COMMIT_INTERVAL_MS = 250
HEARTBEAT_INTERVAL_MS = 500


@dataclass(frozen=True)
class Options:
    """How a member is to behave; assignor and session are the broker's matter in the new consumer protocol."""

    bootstrap: str
    group: str
    topic: str
    assignor: str
    session_ms: int
    instance: str | None = None
    protocol: str = "classic"

    @classmethod
    def from_command_line(cls) -> Options:
        return cls(**json.loads(sys.argv[1]))


def assigned(partitions: Iterable[int]) -> None:
    """To be called first thing when partitions are given."""
    _tell(event="assigned", at=time.monotonic(), partitions=sorted(partitions))


def revoked(partitions: Iterable[int]) -> None:
    """To be called last thing before partitions are given up."""
    _tell(event="revoked", at=time.monotonic(), partitions=sorted(partitions))


def read(records: Iterable[tuple[int, int]]) -> None:
    """Partitions and offsets of records; to be called before they are committed."""
    _tell(event="read", records=list(records))


def refused(error: Exception) -> None:
    """A commit came too late: the group has gone on without this member."""
    _tell(event="refused", error=repr(error))


class Positions:
    """Where the member goes on: behind what it told that it read.

    What a library has given is not the same: some give up records that they have taken up when a rebalance begins.
    """

    def __init__(self) -> None:
        self._next_offsets: dict[int, int] = {}

    def read(self, records: Sequence[tuple[int, int]]) -> None:
        """Tell of records, and go on behind them."""
        if records:
            read(records)
            self._next_offsets.update((partition, offset + 1) for partition, offset in records)

    def of(self, partitions: Iterable[int]) -> dict[int, int]:
        """The offsets to be committed for those of these partitions that anything was read of."""
        return {partition: self._next_offsets[partition] for partition in partitions if partition in self._next_offsets}

    def forget(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._next_offsets.pop(partition, None)


class Stop:
    """Whether it is time to leave the group."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True


class CommitTimer:
    """Says now and then that it is time to commit."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + COMMIT_INTERVAL_MS / 1000
        return True


def _tell(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
