"""How far a worker is: a few numbers in a small file that the worker maps into its memory.

What always holds: writing costs a few hundred nanoseconds and no system call; a reader sees numbers of one moment or of
the next. The numbers are 64 bits, big-endian, as Java's buffers have them.
"""

from __future__ import annotations

import enum
import mmap
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NUMBERS: Final = struct.Struct(">6q")


class Phase(enum.IntEnum):
    """What a worker is doing."""

    STARTING = 0
    WORKING = 1
    QUIET = 2  # it sends nothing any more, as it was told, and only reads


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """One look at a worker's page."""

    acknowledged: int = 0
    attempted: int = 0
    failed: int = 0
    read: int = 0
    moved_ns: int = 0  # when it last got something done
    phase: Phase = Phase.STARTING


class ProgressPage:
    """The worker's side."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w+b") as file:
            file.truncate(_NUMBERS.size)
            self._memory = mmap.mmap(file.fileno(), _NUMBERS.size)
        self.acknowledged = 0
        self.attempted = 0
        self.failed = 0
        self.read = 0
        self.phase = Phase.STARTING
        self.moved()

    def moved(self) -> None:
        """Something was done: show the counters."""
        sent = (self.acknowledged, self.attempted, self.failed)
        _NUMBERS.pack_into(self._memory, 0, *sent, self.read, time.monotonic_ns(), self.phase)

    def close(self) -> None:
        self._memory.close()


def read_page(path: Path) -> WorkerProgress:
    """The parent's side; a worker that has not come so far yet has done nothing."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return WorkerProgress()
    if len(content) < _NUMBERS.size:
        return WorkerProgress()
    acknowledged, attempted, failed, read, moved_ns, phase = _NUMBERS.unpack_from(content)
    return WorkerProgress(acknowledged, attempted, failed, read, moved_ns, Phase(phase))
