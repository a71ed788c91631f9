"""The sparse indexes of a segment: offset to file position, and timestamp to offset. Memory-mapped, in Kafka's format.

What always holds: entries grow strictly (a time index: its timestamps); an index may lag behind its log but never
points past it; a file that is being written has its full size as a sparse file and is trimmed to its entries when the
segment is rolled or closed. Nothing is opened, mapped or created before an entry is read or written, since most
partitions of a broker are idle at any time; any thread may unmap what others need more (`open_files`), so whoever
reads or writes a map holds it meanwhile. It does not read the log; that is the segment's work.
"""

from __future__ import annotations

import bisect
import errno
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tidelog.log.errors import CorruptIndexError
from tidelog.log.open_files import OPEN_FILES, open_descriptor, with_room

RELATIVE_OFFSET_MAX = 2**31 - 1
# Writing to a hole of a mapped file on a full disk would end the process by SIGBUS, so space is claimed ahead by
# plain writes, which fail with an error instead. One such write serves two thousand entries.
_CLAIM_BYTES = 16 * 1024


class _Index:
    """Fixed-size entries in a mapped file."""

    __slots__ = (
        "__weakref__",
        "_base_offset",
        "_claimed_bytes",
        "_count",
        "_map",
        "_max_bytes",
        "_writable",
        "is_unflushed",
        "path",
        "was_used",
    )

    _entry: struct.Struct

    def __init__(self, path: Path, base_offset: int, max_bytes: int) -> None:
        self.path = path
        self._base_offset = base_offset
        self._max_bytes = max_bytes - max_bytes % self._entry.size
        self._map: mmap.mmap | None = None
        # Whether the map is for writing, or was before it was let go of: then the file has its full size.
        self._writable = False
        self._claimed_bytes = 0
        self._count: int | None = None
        self.is_unflushed = False
        self.was_used = False

    def __len__(self) -> int:
        if self._count is None:
            try:
                self._count = self.path.stat().st_size // self._entry.size
            except FileNotFoundError:
                self._count = 0
        return self._count

    @property
    def is_mapped(self) -> bool:
        return self._map is not None

    @property
    def is_full(self) -> bool:
        # A new file would hold no entry yet, and asking costs a system call: only a known count can be full.
        return self._count is not None and self._count >= self._max_bytes // self._entry.size

    def start_empty(self) -> None:
        """Take it that there is no file yet; the first entry creates it."""
        self._unmap()
        self._count = 0

    def materialize(self) -> None:
        """Create the file if no entry did, so that its absence later means that it was lost."""
        if not len(self):
            os.close(open_descriptor(self.path, os.O_RDWR | os.O_CREAT))

    def trim(self) -> None:
        """Cut the file to its entries and unmap it; reading maps it again."""
        if self._writable:
            self.is_unflushed = True
            count = len(self)
            self._unmap()
            os.truncate(self.path, count * self._entry.size)
        else:
            self._unmap()

    def flush(self) -> None:
        """fsync, if entries were written since the last one: mapped or not. May run in another thread."""
        if not self.is_unflushed:
            return
        self.is_unflushed = False
        with suppress(FileNotFoundError):
            fd = open_descriptor(self.path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def let_go(self) -> bool:
        """Unmap it; the next use maps it again. An entry that a crash takes with it is found missing or false then."""
        self._map = None
        return True

    def sync_file(self) -> None:
        self.flush()

    def move(self, path: Path) -> None:
        """The file was renamed, alone or with its directory."""
        self.path = path

    def clear(self) -> None:
        """Forget all entries; an empty file costs less than one that is removed and soon made again."""
        self._unmap()
        with suppress(FileNotFoundError):
            os.truncate(self.path, 0)
        self._count = 0

    def remove(self) -> None:
        self._unmap()
        self.path.unlink(missing_ok=True)
        self._count = 0

    def drop(self) -> None:
        """Let go of the map and leave the file as it is, as a crash would."""
        self._unmap()
        self._count = None

    def keep_first(self, count: int) -> None:
        if count < len(self):
            self._open_for_writing()
            self.is_unflushed = True
            self._count = count

    def _slot(self, slot: int) -> tuple[int, int]:
        mapped = self._map
        if mapped is None:
            mapped = self._open_for_reading()
        self.was_used = True
        first, second = self._entry.unpack_from(mapped, slot * self._entry.size)
        return first, second

    def _append(self, first: int, second: int) -> None:
        count = len(self)
        mapped = self._map
        if mapped is None or not self._writable:
            mapped = self._open_for_writing()
        end = (count + 1) * self._entry.size
        if end > len(mapped):
            mapped = self._open_for_writing(end)
        if end > self._claimed_bytes:
            self._claim(end)
        self.was_used = self.is_unflushed = True
        self._entry.pack_into(mapped, count * self._entry.size, first, second)
        self._count = count + 1

    def _write_entry(self, first: int, second: int) -> None:
        """As `_append`, past the map: for a single entry that costs less than mapping the file does."""
        count = len(self)
        if self._map is not None:
            self._map = None
            OPEN_FILES.remove(self)
        fd = open_descriptor(self.path, os.O_RDWR | os.O_CREAT)
        try:
            if os.pwrite(fd, self._entry.pack(first, second), count * self._entry.size) != self._entry.size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        finally:
            os.close(fd)
        self.is_unflushed = True
        self._count = count + 1

    def _lower_bound(self, target: int) -> int:
        """The last slot whose first number is not above the target, or -1."""
        low, high = 0, len(self)
        if low == high:
            return -1
        if self._slot(high - 1)[0] <= target:
            return high - 1
        while low < high:
            middle = (low + high) // 2
            if self._slot(middle)[0] <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _open_for_reading(self) -> mmap.mmap:
        if self._writable:
            return self._open_for_writing()
        fd = open_descriptor(self.path, os.O_RDONLY)
        try:
            size = len(self) * self._entry.size
            mapped = with_room(lambda: mmap.mmap(fd, size, access=mmap.ACCESS_READ))
        finally:
            os.close(fd)
        self._map = mapped
        OPEN_FILES.add(self)
        return mapped

    def _open_for_writing(self, size_min: int = 0) -> mmap.mmap:
        count = len(self)
        size = max(self._max_bytes, (count + 1) * self._entry.size, size_min)
        self._unmap()
        self._claimed_bytes = 0
        fd = open_descriptor(self.path, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(fd, size)
            self._writable = True
            mapped = with_room(lambda: mmap.mmap(fd, size, access=mmap.ACCESS_WRITE))
        finally:
            os.close(fd)
        self._map = mapped
        OPEN_FILES.add(self)
        return mapped

    def _claim(self, end: int) -> None:
        start = (end - self._entry.size) // _CLAIM_BYTES * _CLAIM_BYTES
        known = len(self) * self._entry.size
        fd = open_descriptor(self.path, os.O_RDWR)
        try:
            # What lies before `known` is entries; the rest of the stretch is written as zeros.
            begin = max(start, known)
            stretch = bytes(start + _CLAIM_BYTES - begin + self._entry.size)
            if os.pwrite(fd, stretch, begin) != len(stretch):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        finally:
            os.close(fd)
        self._claimed_bytes = begin + len(stretch)

    def _unmap(self) -> None:
        if self._map is not None:
            # Not closed here: a flush in another thread may have it, and the last to let go of it closes it.
            self._map = None
            OPEN_FILES.remove(self)
        self._writable = False

    def _check_size(self) -> None:
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            raise CorruptIndexError(f"{self.path} is missing") from None
        if size % self._entry.size:
            raise CorruptIndexError(f"{self.path} has {size} bytes, not a multiple of {self._entry.size}")
        self._count = size // self._entry.size


class OffsetIndex(_Index):
    """Entries (last offset of a batch relative to the segment's base, position of that batch)."""

    __slots__ = ()

    _entry = struct.Struct(">ii")

    def append(self, offset: int, position: int) -> None:
        self._append(offset - self._base_offset, position)

    def lookup(self, offset: int) -> int:
        """A position at or before the batch that holds the offset."""
        slot = self._lower_bound(offset - self._base_offset)
        return self._slot(slot)[1] if slot >= 0 else 0

    def truncate_to(self, offset: int) -> None:
        """Forget entries of this offset and above."""
        self.keep_first(self._lower_bound(offset - self._base_offset - 1) + 1)

    def position_before(self, position: int) -> int:
        """The last indexed position that is not above this one, or 0."""
        slot = bisect.bisect_right(range(len(self)), position, key=lambda slot: self._slot(slot)[1]) - 1
        return self._slot(slot)[1] if slot >= 0 else 0

    def offset_behind(self, position: int) -> int | None:
        """An offset above all batches that begin before this position, if the index has one."""
        slot = bisect.bisect_left(range(len(self)), position, key=lambda slot: self._slot(slot)[1])
        return self._base_offset + self._slot(slot)[0] if slot < len(self) else None

    def entries(self) -> Iterator[tuple[int, int]]:
        for slot in range(len(self)):
            relative_offset, position = self._slot(slot)
            yield self._base_offset + relative_offset, position

    def check(self, log_size_bytes: int) -> None:
        """Look at the file's size and its last entry; raises CorruptIndexError."""
        self._check_size()
        if len(self):
            relative_offset, position = self._slot(len(self) - 1)
            # The first batch of a segment never gets an entry, so neither number is ever 0.
            if relative_offset <= 0 or not 0 < position < log_size_bytes:
                raise CorruptIndexError(f"{self.path} ends with an entry that points outside its log")


class TimeIndex(_Index):
    """Entries (largest timestamp so far, last offset of the batch that has it relative to the segment's base)."""

    __slots__ = ()

    _entry = struct.Struct(">qi")

    def maybe_append(self, timestamp: int, offset: int) -> None:
        if timestamp > self.last_entry()[0]:
            self._append(timestamp, offset - self._base_offset)

    def append_last(self, timestamp: int, offset: int) -> None:
        """As `maybe_append`, when nothing more comes for now."""
        if timestamp > self.last_entry()[0]:
            self._write_entry(timestamp, offset - self._base_offset)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The last entry whose timestamp is not above this one, or (-1, base offset)."""
        return self._entry_at(self._lower_bound(timestamp))

    def last_entry(self) -> tuple[int, int]:
        return self._entry_at(len(self) - 1)

    def truncate_to(self, offset: int) -> None:
        """Forget entries of this offset and above."""
        count = len(self)
        while count and self._entry_at(count - 1)[1] >= offset:
            count -= 1
        self.keep_first(count)

    def entries(self) -> Iterator[tuple[int, int]]:
        for slot in range(len(self)):
            yield self._entry_at(slot)

    def check(self) -> None:
        """Look at the file's size and its last entry; raises CorruptIndexError."""
        self._check_size()
        # A single entry follows no other; whether it is right is seen when it is used.
        if len(self) > 1:
            timestamp, relative_offset = self._slot(len(self) - 1)
            if timestamp < self._slot(0)[0] or relative_offset < 0:
                raise CorruptIndexError(f"{self.path} ends with an entry that is before its first")

    def _entry_at(self, slot: int) -> tuple[int, int]:
        if slot < 0:
            return -1, self._base_offset
        timestamp, relative_offset = self._slot(slot)
        return timestamp, self._base_offset + relative_offset


def find_position(entries: bytes, relative_offset: int) -> int:
    """As `OffsetIndex.lookup`, in the contents of a file; entries of a file that has its full size may be zeros."""
    size = OffsetIndex._entry.size
    low, high = 0, len(entries) // size
    while low < high:
        middle = (low + high) // 2
        found, _ = OffsetIndex._entry.unpack_from(entries, middle * size)
        if 0 < found <= relative_offset:
            low = middle + 1
        else:
            high = middle
    return OffsetIndex._entry.unpack_from(entries, (low - 1) * size)[1] if low else 0
