"""Which data directories are full, and since when they have room again.

What always holds: a directory is full from the first write that found no room until a good part of its disk is free:
one that was taken back for every few kilobytes would fill up again at once, and leaders and ISRs would change with it.
One that fills up again soon after it had room is left alone for longer each time, as where a quota or a limit on open
files is in the way, which the disk doesn't tell of. It moves nothing itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tidelog.common.clock import Clock
from tidelog.common.light_dataclass import dataclass

ROOM_SHARE: Final = 0.05
"""Which part of a disk has to be free before it is written again, of its bytes as of its inodes."""

ROOM_BYTES_MAX: Final = 1 << 30
"""On a large disk this much is enough: a segment, by default."""

ROOM_INODES_MAX: Final = 1000

HOLD_FIRST_MS: Final = 1_000
HOLD_LONGEST_MS: Final = 300_000

REFILL_MS: Final = 60_000
"""A directory that is full again within this time had no room to speak of."""


def has_room(directory: Path) -> bool:
    """Whether enough of the directory's disk is free."""
    try:
        disk = os.statvfs(directory)
    except OSError:
        # A disk that fails is found out by whoever writes to it next.
        return True
    free_bytes, size_bytes = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    # File systems that make inodes as they need them tell of none.
    has_inodes = not disk.f_files or disk.f_favail >= min(ROOM_INODES_MAX, disk.f_files * ROOM_SHARE)
    return has_inodes and free_bytes >= min(ROOM_BYTES_MAX, size_bytes * ROOM_SHARE)


@dataclass(slots=True)
class _Fullness:
    """What is known about a directory that was full at least once."""

    hold_ms: float
    is_full: bool = True
    # When it may be written again at the earliest, while it is full; when it had room again, once it has.
    changed_ms: float = 0.0


class DiskRoom:
    """The directories of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[Path, _Fullness] = {}

    def is_full(self, directory: Path) -> bool:
        known = self._known.get(directory)
        return known is not None and known.is_full

    @property
    def full(self) -> list[Path]:
        return [directory for directory, known in self._known.items() if known.is_full]

    def note_full(self, directory: Path) -> bool:
        """A write has found no room; True if that is news."""
        now_ms = self._clock.monotonic_ms()
        known = self._known.get(directory)
        if known is None:
            known = self._known[directory] = _Fullness(HOLD_FIRST_MS)
        elif known.is_full:
            return False
        else:
            was_soon = now_ms - known.changed_ms < REFILL_MS
            known.hold_ms = min(2 * known.hold_ms, HOLD_LONGEST_MS) if was_soon else HOLD_FIRST_MS
        known.is_full = True
        known.changed_ms = now_ms + known.hold_ms
        return True

    @property
    def due(self) -> list[Path]:
        """The full directories that may be asked for room again."""
        now_ms = self._clock.monotonic_ms()
        return [directory for directory in self.full if now_ms >= self._known[directory].changed_ms]

    def note_room(self, directory: Path) -> None:
        """A directory that was full is not any more."""
        known = self._known[directory]
        known.is_full = False
        known.changed_ms = self._clock.monotonic_ms()
