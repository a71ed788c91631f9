"""Which leader epoch started at which offset: the history that followers and consumers compare with theirs (KIP-101).

What always holds: epochs and start offsets both increase from entry to entry, and a new epoch is in the file before its
first record is in the log. It does not know where the log ends; the caller passes that in.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from pathlib import Path

from tidelog.common.light_dataclass import dataclass
from tidelog.log.checkpoints import LEADER_EPOCH_FILE, encode_rows, read_rows, write_unflushed

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


@dataclass(frozen=True, slots=True)
class EpochEntry:
    epoch: int
    start_offset: int


class LeaderEpochs:
    """The epochs of one partition, oldest first."""

    __slots__ = ("_directory", "_entries", "_written", "is_saved")

    def __init__(self, directory: Path, entries: Iterable[EpochEntry] = ()) -> None:
        self._directory = directory
        self._entries = list(entries)
        self._written: list[EpochEntry] | None = None  # what the file holds; None: nothing that can be read
        # False while the file lists epochs that were forgotten: nothing may be appended before it is written.
        self.is_saved = True

    @classmethod
    def load(cls, directory: Path) -> LeaderEpochs | None:
        """The contents of the file; None without a file; raises CorruptCheckpointError."""
        rows = read_rows(directory / LEADER_EPOCH_FILE, _parse_row)
        if rows is None:
            return None
        epochs = cls(directory, rows)
        epochs._written = rows
        return epochs

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int:
        return self._entries[-1].epoch if self._entries else UNDEFINED_EPOCH

    @property
    def latest_start_offset(self) -> int:
        return self._entries[-1].start_offset if self._entries else UNDEFINED_OFFSET

    @property
    def earliest(self) -> EpochEntry | None:
        return self._entries[0] if self._entries else None

    def move(self, directory: Path) -> None:
        self._directory = directory

    def assign(self, epoch: int, start_offset: int) -> None:
        """Start an epoch; one that is already known, or older, changes nothing."""
        before = self._entries.copy()
        if self._assign(epoch, start_offset):
            try:
                self.write()
            except OSError:
                # Keep memory and file in agreement, so that the append can be tried again once the disk has room.
                self._entries = before
                raise

    def begin_replay(self, from_offset: int) -> None:
        """The log is being read again from this offset: its batches count, not the file."""
        self._keep_before(from_offset)

    def replay(self, epoch: int, start_offset: int) -> None:
        """Like `assign`, for a batch found while reading the log again; `finish_replay` is called at the end."""
        self._assign(epoch, start_offset)

    def epoch_for(self, offset: int) -> int:
        """The epoch in which the offset was written."""
        slot = bisect.bisect_right(self._entries, offset, key=_start_offset) - 1
        return self._entries[slot].epoch if slot >= 0 else UNDEFINED_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch up to this one, and the offset at which it ended; (-1, -1) if that is unknown."""
        if epoch == UNDEFINED_EPOCH or not self._entries:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest_epoch:
            return epoch, log_end_offset
        slot = bisect.bisect_right(self._entries, epoch, key=_epoch)
        if slot == len(self._entries):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        # An epoch before all known ones: it ended no later than the first known one started.
        found = self._entries[slot - 1].epoch if slot else epoch
        return found, self._entries[slot].start_offset

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that started at this offset or later; `is_saved` tells whether the file could be written."""
        if self._keep_before(end_offset):
            self.is_saved = False
            self.write()

    def finish_replay(self, end_offset: int) -> None:
        """The log was read to its end: forget later epochs, and write what the file is missing.

        An epoch without records is only forgotten, not erased from the file: the next epoch does that anyway, and a
        broker with thousands of idle partitions would otherwise rewrite all the files at every start.
        """
        self._keep_before(end_offset)
        written = self._written
        if written is None or [entry for entry in written if entry.start_offset < end_offset] != self._entries:
            self.write()

    def _keep_before(self, end_offset: int) -> bool:
        count = len(self._entries)
        self._entries = [entry for entry in self._entries if entry.start_offset < end_offset]
        return len(self._entries) != count

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that ended before this offset; the one that contains it now starts there."""
        slot = bisect.bisect_right(self._entries, start_offset, key=_start_offset) - 1
        if slot < 0 or (slot == 0 and self._entries[0].start_offset == start_offset):
            return
        self._entries[: slot + 1] = [EpochEntry(self._entries[slot].epoch, start_offset)]
        self.write()

    def replace(self, entries: Iterable[EpochEntry]) -> None:
        """Have these instead."""
        self._entries = list(entries)
        self.write()

    def clear(self) -> None:
        if self._entries:
            self._entries = []
            self.write()

    def write(self) -> None:
        rows = (f"{entry.epoch} {entry.start_offset}" for entry in self._entries)
        # Flushed with the log, before anything counts as flushed; what was not flushed is recovered from the batches.
        # Otherwise, a start with thousands of partitions would wait for the disk once for each.
        write_unflushed(self._directory / LEADER_EPOCH_FILE, encode_rows(rows))
        self._written = self._entries.copy()
        self.is_saved = True

    def _assign(self, epoch: int, start_offset: int) -> bool:
        if epoch < 0 or epoch <= self.latest_epoch:
            return False
        # An epoch without records is replaced by the next one, which starts at the same offset.
        while self._entries and self._entries[-1].start_offset >= start_offset:
            self._entries.pop()
        self._entries.append(EpochEntry(epoch, start_offset))
        return True


def _parse_row(row: str) -> EpochEntry:
    epoch, start_offset = row.split()
    return EpochEntry(int(epoch), int(start_offset))


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch
