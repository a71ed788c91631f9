"""The aborted transactions whose markers are in one segment: `%020d.txnindex`, in Kafka's format.

What always holds: the file exists only if a transaction was aborted in the segment; entries are in the order of their
markers, so their last offsets increase; only the file's length and last entry are kept in memory, and a lookup reads
what it needs. `producer_state` knows what was aborted, and the log writes it here. `txn_recovery` rebuilds a lost or
wrong file from the log.
"""

from __future__ import annotations

import bisect
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tidelog.log.errors import CorruptIndexError
from tidelog.log.open_files import open_descriptor

TXN_INDEX_SUFFIX = ".txnindex"
NO_OFFSET = -1
_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")  # version, producer id, first offset, last offset, last stable offset
_LAST_OFFSET = struct.Struct(">q")
_LAST_OFFSET_AT = 18
# How many entries are read at a time: what a fetch needs is close together.
_CHUNK_ENTRIES = 256


class AbortedTransaction(NamedTuple):
    """A transaction whose records between these offsets do not count; the last one is its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    # Where the last stable offset was once this transaction was aborted: all that begins below is in the index so far.
    last_stable_offset: int


class TransactionIndex:
    """The index of one segment, named by its log file. No file stays open."""

    __slots__ = ("_count", "_last_offset", "_log_path", "is_unflushed")

    def __init__(self, log_path: Path) -> None:
        self._log_path = log_path
        self._count: int | None = None  # None: not looked up yet
        self._last_offset = NO_OFFSET
        self.is_unflushed = False

    @property
    def path(self) -> Path:
        return self._log_path.with_suffix(TXN_INDEX_SUFFIX)

    def __len__(self) -> int:
        if self._count is None:
            self._load()
        return self._count or 0

    @property
    def last_offset(self) -> int:
        """The marker of the last entry, -1 without entries."""
        if self._count is None:
            self._load()
        return self._last_offset

    def start_empty(self) -> None:
        """There is no file, as the caller knows."""
        self._count, self._last_offset = 0, NO_OFFSET

    def forget(self) -> None:
        """The file was written by somebody else."""
        self._count = None

    def _load(self) -> None:
        try:
            fd = open_descriptor(self.path, os.O_RDONLY)
        except FileNotFoundError:
            self.start_empty()
            return
        try:
            count = os.fstat(fd).st_size // _ENTRY.size
            self._last_offset = self._read(fd, count - 1, 1)[0].last_offset if count else NO_OFFSET
        finally:
            os.close(fd)
        self._count = count

    def check(self, base_offset: int) -> None:
        """Look at the size and at the first and last entry; raises CorruptIndexError."""
        self.forget()
        try:
            size_bytes = os.stat(self.path).st_size
        except FileNotFoundError:
            self.start_empty()
            return
        if size_bytes % _ENTRY.size:
            raise CorruptIndexError(f"{self.path} has {size_bytes} bytes, not a whole number of entries")
        if not len(self):
            return
        first = next(self.entries())
        if first.last_offset < base_offset or self._last_offset < first.last_offset:
            raise CorruptIndexError(f"{self.path} ends with an entry that is out of order, or outside its segment")

    def append(self, entry: AbortedTransaction) -> None:
        """Add a transaction whose marker comes after all others; a failed write is truncated."""
        if entry.last_offset <= self.last_offset:
            raise ValueError(f"{entry} does not follow a marker at {self._last_offset}")
        count = len(self)
        fd = open_descriptor(self.path, os.O_RDWR | os.O_CREAT)
        try:
            _write(fd, (entry,), count * _ENTRY.size)
        except OSError:
            os.ftruncate(fd, count * _ENTRY.size)
            raise
        finally:
            os.close(fd)
        self._count = count + 1
        self._last_offset = entry.last_offset
        self.is_unflushed = True

    def entries(self) -> Iterator[AbortedTransaction]:
        """All entries, in order."""
        return self._entries_from(NO_OFFSET)

    def collect(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """The aborted transactions that overlap these offsets, and whether later segments can't have any more."""
        found = []
        for entry in self._entries_from(fetch_offset):
            if entry.first_offset < upper_bound:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def _entries_from(self, offset: int) -> Iterator[AbortedTransaction]:
        """Entries, starting with the first whose marker is not before the offset."""
        count = len(self)
        if not count or self._last_offset < offset:
            return
        fd = open_descriptor(self.path, os.O_RDONLY)
        try:
            slot = bisect.bisect_left(range(count), offset, key=lambda slot: self._last_offset_at(fd, slot))
            for start in range(slot, count, _CHUNK_ENTRIES):
                yield from self._read(fd, start, min(_CHUNK_ENTRIES, count - start))
        finally:
            os.close(fd)

    def _last_offset_at(self, fd: int, slot: int) -> int:
        data = os.pread(fd, _LAST_OFFSET.size, slot * _ENTRY.size + _LAST_OFFSET_AT)
        if len(data) < _LAST_OFFSET.size:
            raise CorruptIndexError(f"{self.path} is shorter than it was")
        return int(_LAST_OFFSET.unpack(data)[0])

    def _read(self, fd: int, slot: int, count: int) -> list[AbortedTransaction]:
        data = os.pread(fd, count * _ENTRY.size, slot * _ENTRY.size)
        if len(data) < count * _ENTRY.size:
            raise CorruptIndexError(f"{self.path} is shorter than it was")
        entries = []
        for version, *fields in _ENTRY.iter_unpack(data):
            if version != _VERSION:
                raise CorruptIndexError(f"{self.path} has an entry of version {version}")
            entries.append(AbortedTransaction(*fields))
        return entries

    def truncate_to(self, offset: int) -> None:
        """Forget the transactions whose markers have this offset or one above."""
        if self.last_offset < offset:
            return
        fd = open_descriptor(self.path, os.O_RDWR)
        try:
            count = bisect.bisect_left(range(len(self)), offset, key=lambda slot: self._last_offset_at(fd, slot))
            os.ftruncate(fd, count * _ENTRY.size)
        finally:
            os.close(fd)
        self.forget()
        self.is_unflushed = True

    def remove(self) -> None:
        """Remove the file; there are no entries left."""
        self.path.unlink(missing_ok=True)
        self.start_empty()

    def flush(self) -> None:
        """fsync. May run in another thread than the rest."""
        if not self.is_unflushed:
            return
        # Before the fsync: what is written meanwhile may miss it.
        self.is_unflushed = False
        try:
            fd = open_descriptor(self.path, os.O_RDWR)
        except FileNotFoundError:
            # Removed with its segment, while this thread was on its way.
            return
        try:
            os.fsync(fd)
        except OSError:
            self.is_unflushed = True
            raise
        finally:
            os.close(fd)

    def move(self, log_path: Path) -> None:
        """The segment's log has another path."""
        self._log_path = log_path


def write_txn_index(path: Path, entries: Iterable[AbortedTransaction]) -> None:
    """Write a whole index, empty where there are no entries, and flush it."""
    fd = open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        _write(fd, entries, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(fd: int, entries: Iterable[AbortedTransaction], position: int) -> None:
    data = memoryview(b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries))
    while data:
        written = os.pwrite(fd, data, position)
        data, position = data[written:], position + written
