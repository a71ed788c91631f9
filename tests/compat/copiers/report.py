"""What a copier is told, and what it tells."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass

BATCH_RECORDS = 10
SESSION_MS = 3_000
TIMEOUT_S = 30.0
ABORTED_SHARE = 0.3

TO_COMMIT = b"to commit"
TO_ABORT = b"to abort"
STALLED = b"stalled"


@dataclass(frozen=True)
class Options:
    """What to copy; with partitions these are read whatever the group assigns, and only offsets are the group's."""

    bootstrap: str
    group: str
    source: str
    target: str
    transactional_id: str
    seed: int
    partitions: list[int] | None = None

    @classmethod
    def from_command_line(cls) -> Options:
        return cls(**json.loads(sys.argv[1]))


class Lead:
    """The lines of the standard input: `stall` in the next transaction, `go` on, and its end: leave."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._to_stall = threading.Event()
        self._going = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._read, name="lead", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()

    def next_intent(self) -> bytes:
        """What to do with the next transaction; a reader finds it in the key of each record."""
        if self._to_stall.is_set():
            self._to_stall.clear()
            return STALLED
        return TO_ABORT if self._random.random() < ABORTED_SHARE else TO_COMMIT

    def stall(self) -> None:
        """Wait inside a transaction whose records are all written, until told to go on."""
        tell("stalled")
        self._going.wait()

    def _read(self) -> None:
        for line in sys.stdin:
            {"stall": self._to_stall, "go": self._going}[line.strip()].set()
        self._ended.set()
        self._going.set()


class Assignment:
    """Tells of the partitions of this copier whenever they change."""

    def __init__(self) -> None:
        self._told: list[int] = []

    def note(self, partitions: Iterable[int]) -> None:
        now = sorted(partitions)
        if now != self._told:
            self._told = now
            tell("assigned", partitions=now)


def tell(event: str, **others: object) -> None:
    """Events: ready, assigned, stalled, committed, aborted, refused, fenced."""
    sys.stdout.write(json.dumps({"event": event, **others}) + "\n")
    sys.stdout.flush()
