"""One segment: a `.log` file, its indexes, and the positions of its batches.

What always holds: `size_bytes` covers whole batches only; a failed write is truncated; indexes may lack entries but
never point past the log, and a lost or wrong one is rebuilt. The file is opened on the first read or write, and any
thread may close it to make room for others (`open_files`), so code that uses its descriptor holds the LogFile in the
meantime. The segment knows nothing about high watermarks, producers or epochs, and its callers make sure that only one
thread changes it.
"""

from __future__ import annotations

import bisect
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tidelog.log.config import LogConfig
from tidelog.log.errors import CorruptIndexError
from tidelog.log.file_slice import LogFile
from tidelog.log.index import RELATIVE_OFFSET_MAX, OffsetIndex, TimeIndex
from tidelog.log.open_files import OPEN_FILES, open_descriptor
from tidelog.log.page_cache import is_file_in_memory
from tidelog.log.scan import LOOKUP_CHUNK_BYTES, WALK_CHUNK_BYTES, CorruptSegmentError, scan_headers
from tidelog.log.txn_index import TransactionIndex
from tidelog.records import LOG_OVERHEAD, BatchHeader, BatchSpan

logger = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
DELETED_SUFFIX = ".deleted"
# Consumers mostly read what was just written: where the latest batches lie is kept in memory, so that finding them
# costs no system call. Twice as many are held before the older half is dropped.
_TAIL_BATCHES = 512
# A page cache that loses these so soon is too small for any broker.
_RECENT_BYTES = 4 * 1024 * 1024


class BatchPosition(NamedTuple):
    position: int
    size_bytes: int


class SegmentBrokenError(OSError):
    """A failed write could not be truncated: what the file holds after `size_bytes` is unknown."""


class Segment:
    """Batches starting at a base offset, in one file."""

    __slots__ = (
        "__weakref__",
        "_bytes_since_index_entry",
        "_file",
        "_first_timestamp",
        "_index_failed",
        "_index_interval_bytes",
        "_index_is_full",
        "_is_unflushed",
        "_max_timestamp",
        "_offset_of_max_timestamp",
        "_settled_size_bytes",
        "_sync_error",
        "_tail_last_offsets",
        "_tail_positions",
        "_tail_start_offset",
        "base_offset",
        "created_ms",
        "offset_index",
        "path",
        "roll_jitter_ms",
        "size_bytes",
        "time_index",
        "txn_index",
        "was_used",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        *,
        created_ms: int,
        size_bytes: int,
        roll_jitter_ms: int = 0,
    ) -> None:
        stem = f"{base_offset:020d}"
        self.base_offset = base_offset
        self.path = directory / (stem + LOG_SUFFIX)
        self.offset_index = OffsetIndex(directory / (stem + INDEX_SUFFIX), base_offset, config.segment_index_bytes)
        self.time_index = TimeIndex(directory / (stem + TIME_INDEX_SUFFIX), base_offset, config.segment_index_bytes)
        self.txn_index = TransactionIndex(self.path)
        self.size_bytes = size_bytes
        self.created_ms = created_ms
        self.roll_jitter_ms = roll_jitter_ms
        self._index_interval_bytes = config.index_interval_bytes
        self._index_failed = False
        self._index_is_full = False
        self._bytes_since_index_entry = 0
        # How large the log was when its indexes were last complete and trimmed.
        self._settled_size_bytes = -1
        self._file: LogFile | None = None
        self._is_unflushed = False
        self._sync_error: OSError | None = None
        self.was_used = False
        # None: not looked up yet.
        self._first_timestamp: int | None = None
        self._max_timestamp: int | None = None
        self._offset_of_max_timestamp = base_offset
        self._tail_start_offset = 0
        self._tail_last_offsets: list[int] = []
        self._tail_positions: list[int] = []

    @classmethod
    def create(
        cls,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        *,
        created_ms: int,
        roll_jitter_ms: int = 0,
        in_new_directory: bool = False,
    ) -> Segment:
        """A new segment with an empty file; in a new directory nothing of an earlier one can be in the way."""
        segment = cls(
            directory, base_offset, config, created_ms=created_ms, size_bytes=0, roll_jitter_ms=roll_jitter_ms
        )
        os.close(open_descriptor(segment.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        for index in (segment.offset_index, segment.time_index):
            if in_new_directory:
                index.start_empty()
            else:
                index.remove()
        if in_new_directory:
            segment.txn_index.start_empty()
        else:
            segment.txn_index.remove()
        segment._max_timestamp = -1
        return segment

    @property
    def file(self) -> LogFile:
        """The open file. Once nobody holds it, it may be closed and its descriptor reused for another file."""
        file = self._file
        if file is None:
            file = LogFile(self.path)
            self._take_file(file)
        self.was_used = True
        return file

    def _take_file(self, file: LogFile) -> None:
        self._file = file
        OPEN_FILES.add(self)

    @property
    def knows_max_timestamp(self) -> bool:
        """Whether `max_timestamp` is known without reading the files."""
        return self._max_timestamp is not None

    @property
    def max_timestamp(self) -> int:
        return self._load_max_timestamp()[0]

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the batch that has the largest timestamp."""
        return self._load_max_timestamp()[1]

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, from which the segment's age counts; -1 if it has none."""
        if self._first_timestamp is None:
            first = next(self.headers(), None)
            if first is None:
                return -1
            self._first_timestamp = first[1].max_timestamp
        return self._first_timestamp

    def should_roll(
        self, size_bytes: int, max_timestamp: int, last_offset: int, now_ms: int, config: LogConfig
    ) -> bool:
        """Whether a batch must go to the next segment instead."""
        if last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
            return True
        if not self.size_bytes:
            return False
        if self.size_bytes + size_bytes > config.segment_bytes or self._index_is_full:
            return True
        first_timestamp = self._first_timestamp
        if first_timestamp is None:
            first_timestamp = self.first_timestamp
        waited_ms = max_timestamp - first_timestamp if first_timestamp >= 0 else now_ms - self.created_ms
        return waited_ms > config.max_segment_ms - self.roll_jitter_ms

    def write(self, buffer: memoryview) -> int:
        """Write after the last batch with one system call; returns the position. `note_batch` then adds it."""
        position = self.size_bytes
        file = self.file
        fd = file.fd
        try:
            written = os.pwrite(fd, buffer, position)
            while written < len(buffer):
                written += os.pwrite(fd, buffer[written:], position + written)
        except OSError as error:
            self._cut_off(fd, position, error)
            raise
        self._is_unflushed = True
        if self._file is not file:
            # Let go of by another thread in this very moment, which took it for flushed.
            self._take_file(file)
        return position

    def _cut_off(self, fd: int, position: int, cause: OSError) -> None:
        try:
            os.ftruncate(fd, position)
        except OSError as error:
            raise SegmentBrokenError(
                error.errno, f"{cause}, and what was written of the batch can't be removed: {error}", str(self.path)
            ) from cause

    def note_batch(self, position: int, header: BatchHeader) -> None:
        """Add a batch that has been written at the end of the file."""
        base_offset = header.base_offset
        size_bytes = LOG_OVERHEAD + header.batch_length
        last_offset = base_offset + header.last_offset_delta
        known_max_timestamp = self._max_timestamp
        if known_max_timestamp is None:
            known_max_timestamp = self._load_max_timestamp()[0]
        if header.max_timestamp > known_max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._offset_of_max_timestamp = last_offset
        if position == 0:
            self._first_timestamp = header.max_timestamp
        self.size_bytes = position + size_bytes
        if self._bytes_since_index_entry > self._index_interval_bytes:
            self._add_index_entry(last_offset, position)
        self._bytes_since_index_entry += size_bytes
        self._note_tail(base_offset, last_offset, position)

    def note_span(self, position: int, span: BatchSpan) -> None:
        """Add batches that were written at the end of the file all at once, in a segment that is not read from."""
        if span.max_timestamp > self.max_timestamp:
            self._max_timestamp, self._offset_of_max_timestamp = span.max_timestamp, span.offset_of_max_timestamp
        self.size_bytes = position + span.size_bytes
        if self._bytes_since_index_entry > self._index_interval_bytes:
            self._add_index_entry(span.first_end_offset, position)
        self._bytes_since_index_entry += span.size_bytes

    def _note_tail(self, base_offset: int, last_offset: int, position: int) -> None:
        last_offsets = self._tail_last_offsets
        if not last_offsets:
            self._tail_start_offset = base_offset
        elif len(last_offsets) >= 2 * _TAIL_BATCHES:
            self._tail_start_offset = last_offsets[_TAIL_BATCHES - 1] + 1
            del last_offsets[:_TAIL_BATCHES]
            del self._tail_positions[:_TAIL_BATCHES]
        last_offsets.append(last_offset)
        self._tail_positions.append(position)

    def _add_index_entry(self, last_offset: int, position: int) -> None:
        if self._index_failed:
            return
        try:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self._offset_of_max_timestamp)
            self._index_is_full = self.offset_index.is_full or self.time_index.is_full
        except OSError as error:
            # The records are in the log; without entries they are found more slowly, and the next start rebuilds them.
            self._index_failed = True
            logger.warning("%s gets no more index entries: %s", self.path, error)
        self._bytes_since_index_entry = 0

    def find(self, offset: int, *, in_memory: bool = False) -> BatchPosition | None:
        """The first batch that ends at this offset or later.

        `in_memory`: raise BlockingIOError rather than wait for the disk.
        """
        last_offsets = self._tail_last_offsets
        if last_offsets and offset >= self._tail_start_offset:
            slot = bisect.bisect_left(last_offsets, offset)
            if slot == len(last_offsets):
                return None
            positions = self._tail_positions
            end = positions[slot + 1] if slot + 1 < len(positions) else self.size_bytes
            return BatchPosition(positions[slot], end - positions[slot])
        if in_memory and not self.offset_index.is_mapped and not is_file_in_memory(self.offset_index.path):
            raise BlockingIOError(errno.EAGAIN, "the index is not in memory", str(self.offset_index.path))
        for position, header in self.headers_from(offset, in_memory=in_memory):
            if header.last_offset >= offset:
                return BatchPosition(position, header.size_bytes)
        return None

    def is_recent(self, position: int) -> bool:
        """Whether everything from this position was written recently, so that it is certainly in memory."""
        positions = self._tail_positions
        return bool(positions) and position >= max(positions[0], self.size_bytes - _RECENT_BYTES)

    def headers(
        self, position: int = 0, *, walk: bool = False, in_memory: bool = False
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Headers from the position of a batch on; `walk` says that all of them will be read."""
        file = self.file
        chunk_bytes = WALK_CHUNK_BYTES if walk else LOOKUP_CHUNK_BYTES
        yield from scan_headers(self.path, file.fd, position, self.size_bytes, chunk_bytes, in_memory=in_memory)

    def headers_from(
        self, offset: int, *, walk: bool = False, in_memory: bool = False
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Headers starting with some batch before the offset; notices a wrong index and rebuilds it."""
        start = self._indexed_position(offset)
        if start:
            try:
                first = next(self.headers(start, in_memory=in_memory), None)
                is_false = first is None or not self.base_offset <= first[1].base_offset <= offset
            except CorruptSegmentError:
                is_false = True
            if is_false:
                logger.warning("%s does not match its log and is rebuilt", self.offset_index.path)
                self.rebuild_indexes()
                start = self._indexed_position(offset)
        return self.headers(start, walk=walk, in_memory=in_memory)

    def headers_near(self, offset: int, size_bytes_max: int) -> Iterator[tuple[int, BatchHeader]]:
        """Headers, starting about this many bytes before an offset."""
        start = self._indexed_position(offset)
        return self.headers(self.offset_index.position_before(start - size_bytes_max), walk=True)

    def _indexed_position(self, offset: int) -> int:
        try:
            position = self.offset_index.lookup(offset)
        except FileNotFoundError:
            self.rebuild_indexes()
            position = self.offset_index.lookup(offset)
        # A false entry may point anywhere; the end of the file makes the caller look closer.
        return position if 0 <= position <= self.size_bytes else self.size_bytes

    def read_batch(self, position: int, header: BatchHeader) -> bytes:
        file = self.file
        return os.pread(file.fd, header.size_bytes, position)

    def check_indexes(self) -> None:
        """Check sizes and last entries, and rebuild what is wrong. Reads no log data unless something is."""
        if not self.size_bytes:
            self.reset_indexes()
            return
        try:
            self.offset_index.check(self.size_bytes)
            self.time_index.check()
            if not len(self.time_index):
                raise CorruptIndexError(f"{self.time_index.path} is empty")
        except CorruptIndexError as error:
            logger.warning("%s; the indexes of %s are rebuilt", error, self.path.name)
            self.rebuild_indexes()
        # Thousands of partitions are loaded at once: nothing stays open that nobody asked for.
        self.close()

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the headers in the log; raises CorruptSegmentError if those are broken."""
        self.reset_indexes()
        for position, header in self.headers(walk=True):
            self.note_batch(position, header)
        self.become_inactive()

    def reset_indexes(self) -> None:
        """Forget everything derived from the log, before it is read again."""
        self.offset_index.clear()
        self.time_index.clear()
        self._index_failed = self._index_is_full = False
        self._settled_size_bytes = -1
        self._bytes_since_index_entry = 0
        self._max_timestamp = -1
        self._offset_of_max_timestamp = self.base_offset
        self._first_timestamp = None
        self._tail_last_offsets.clear()
        self._tail_positions.clear()

    def become_inactive(self) -> None:
        """No more batches come for now: write the last time entry and trim the indexes."""
        if self._index_failed:
            self.offset_index.remove()
            self.time_index.remove()
            return
        if self._max_timestamp is None or not self.size_bytes or self._settled_size_bytes == self.size_bytes:
            return
        self.time_index.append_last(self._max_timestamp, self._offset_of_max_timestamp)
        for index in (self.offset_index, self.time_index):
            index.trim()
            index.materialize()
        self._settled_size_bytes = self.size_bytes

    def sync(self) -> None:
        """fsync with the indexes: without their last entries a segment would look older than it is. In any thread."""
        self.sync_file()
        self.sync_indexes()

    @property
    def has_unflushed_indexes(self) -> bool:
        return self.offset_index.is_unflushed or self.time_index.is_unflushed or self.txn_index.is_unflushed

    def note_indexes_flushed(self) -> None:
        """Something else has flushed them."""
        self.offset_index.is_unflushed = self.time_index.is_unflushed = self.txn_index.is_unflushed = False

    def sync_indexes(self) -> None:
        self.offset_index.flush()
        self.time_index.flush()
        self.txn_index.flush()

    def sync_file(self) -> None:
        """fsync only the log file. May run in a different thread than appends."""
        if self._sync_error is not None:
            # The kernel may have dropped the pages: another fsync would succeed and prove nothing.
            raise self._sync_error
        file = self.file
        # Before the fsync: what is written meanwhile may miss it.
        self._is_unflushed = False
        try:
            os.fsync(file.fd)
        except OSError as error:
            self._is_unflushed = True
            self._sync_error = error
            raise

    def let_go(self) -> bool:
        """Close the file, unless it has unflushed writes. May run in a different thread than appends."""
        file, self._file = self._file, None
        if file is not None and self._is_unflushed:
            self._file = file
            return False
        return True

    def truncate_to(self, position: int, offset: int) -> None:
        """Truncate the file at a batch's position and drop index entries at or above this offset."""
        file = self.file
        os.ftruncate(file.fd, position)
        self.size_bytes = position
        self.txn_index.truncate_to(offset)
        if not position:
            self.reset_indexes()
            return
        self._settled_size_bytes = -1
        self._index_is_full = False
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        slot = bisect.bisect_left(self._tail_positions, position)
        del self._tail_last_offsets[slot:]
        del self._tail_positions[slot:]
        self._bytes_since_index_entry = 0
        self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last_entry()
        for _, header in self.headers_from(self._offset_of_max_timestamp):
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp, self._offset_of_max_timestamp = header.max_timestamp, header.last_offset

    def close(self) -> None:
        """Close files and maps; slices keep theirs."""
        self.offset_index.drop()
        self.time_index.drop()
        if self._file is not None:
            self._file = None
            OPEN_FILES.remove(self)

    def move(self, directory: Path) -> None:
        """The directory was renamed."""
        self.path = directory / self.path.name
        self.offset_index.move(directory / self.offset_index.path.name)
        self.time_index.move(directory / self.time_index.path.name)
        self.txn_index.move(self.path)

    def mark_deleted(self) -> list[Path]:
        """Rename the files so that they no longer count, and close them; returns the paths to remove later.

        The log file is renamed last, so an index without a log always means that the log was lost.
        """
        self.close()
        renamed = []
        for path in (self.offset_index.path, self.time_index.path, self.txn_index.path, self.path):
            target = path.with_name(path.name + DELETED_SUFFIX)
            try:
                os.rename(path, target)
            except FileNotFoundError:
                continue
            renamed.append(target)
        return renamed

    def _load_max_timestamp(self) -> tuple[int, int]:
        """The last time entry, after checking its batch: retention and lookups must not rely on a wrong one."""
        if self._max_timestamp is None:
            entry = self.time_index.last_entry()
            if self.size_bytes and not self._has_batch(*entry):
                logger.warning("%s does not match its log and is rebuilt", self.time_index.path)
                self.rebuild_indexes()
                entry = self.time_index.last_entry()
            self._max_timestamp, self._offset_of_max_timestamp = entry
        return self._max_timestamp, self._offset_of_max_timestamp

    def _has_batch(self, max_timestamp: int, last_offset: int) -> bool:
        for _, header in self.headers_from(last_offset):
            if header.last_offset >= last_offset:
                return (header.max_timestamp, header.last_offset) == (max_timestamp, last_offset)
        return False
