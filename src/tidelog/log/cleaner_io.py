"""Reads batches for compaction and writes those to keep, without starving everyone else of disk and CPU.

What always holds: all cleaner threads together stay within one budget of bytes per second; a thread yields the
interpreter's lock at least every millisecond; a batch is returned only if its header fits the file and the previous
batch. CRCs are checked by the code that opens a batch.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.log.cleaning import LogCleaning
from tidelog.log.config import LogConfig
from tidelog.log.file_slice import LogFile
from tidelog.log.index import RELATIVE_OFFSET_MAX
from tidelog.log.scan import CorruptSegmentError
from tidelog.log.segment import Segment
from tidelog.log.swap_files import cleaned_path
from tidelog.records import BATCH_HEADER_SIZE, BatchHeader, BatchSpan, CorruptBatchError, parse_header

if TYPE_CHECKING:  # compiled, and not needed before there is something to clean
    from tidelog.records.compaction import SmallBatches

# The event loop waits up to five milliseconds for the interpreter's lock unless a thread yields it; a thread that
# merely releases and retakes it usually wins the race, so it has to sleep for a moment.
_WORK_MS: Final = 0.5
_BREATH_MS: Final = 0.05
# Positions in an index have 31 bits. A batch may grow when it gets its delete horizon.
_SEGMENT_BYTES_MAX: Final = 2**31 - 1
_OFFSET_ENTRY_BYTES: Final = 8
_TIME_ENTRY_BYTES: Final = 12


class Throttle:
    """A budget of bytes per second, shared by several threads."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at_ms = 0.0
        self._guard = threading.Lock()

    def take(self, size_bytes: int, now_ms: float) -> float:
        """Use some of the budget; returns how many milliseconds to wait before using more."""
        with self._guard:
            self._free_at_ms = max(self._free_at_ms, now_ms) + 1000 * size_bytes / self._bytes_per_second
            return self._free_at_ms - now_ms


class Pace:
    """How fast a compaction may run, and whether it should continue at all."""

    def __init__(self, throttle: Throttle, cleaning: LogCleaning) -> None:
        self._throttle = throttle
        self._cleaning = cleaning
        self._breathe_at_ms = 0.0

    def on_io(self, size_bytes: int) -> None:
        """Bytes were read or written; raises CleaningAbortedError."""
        wait_ms = self._throttle.take(size_bytes, _monotonic_ms())
        # Waits below a millisecond take longer than they should; the debt is carried over to the next one.
        if wait_ms > 1:
            self._cleaning.wait_ms(wait_ms)

    def on_batch(self) -> None:
        """Another batch is next; raises CleaningAbortedError."""
        self._cleaning.check()
        if _monotonic_ms() > self._breathe_at_ms:
            time.sleep(_BREATH_MS / 1000)
            self._breathe_at_ms = _monotonic_ms() + _WORK_MS


def _monotonic_ms() -> float:
    return time.monotonic_ns() / 1_000_000


class SourceSegment(NamedTuple):
    """A segment to read, as it was when the compaction started."""

    path: Path
    base_offset: int
    next_base_offset: int
    size_bytes: int
    index_bytes: int
    time_index_bytes: int


class ReadBatch(NamedTuple):
    """A batch within a chunk of its file."""

    chunk: bytes
    at: int
    header: BatchHeader
    position: int  # in the file

    @property
    def data(self) -> memoryview:
        return memoryview(self.chunk)[self.at : self.at + self.header.size_bytes]


# Processes a batch and, if it is small, the small ones that follow it in its chunk; the number is the lowest offset
# that it may have.
TakeSmallBatches = Callable[[ReadBatch, int], "SmallBatches | None"]


def read_batches(
    source: SourceSegment,
    chunk_bytes: int,
    batch_bytes_max: int,
    pace: Pace,
    take_small: TakeSmallBatches | None = None,
) -> Iterator[ReadBatch]:
    """All batches of a segment, in chunks, except for small ones that were already processed.

    A batch larger than a chunk is read as a whole. One beyond `batch_bytes_max` is read only if another batch or the
    end of the file follows it: a wrong length must not exhaust the memory.
    """
    file = LogFile(source.path, read_only=True)
    position, next_offset = 0, source.base_offset
    chunk, chunk_start = b"", 0
    while position < source.size_bytes:
        if source.size_bytes - position < BATCH_HEADER_SIZE:
            raise _corrupt(source, position, f"{source.size_bytes - position} bytes are not a batch")
        at = position - chunk_start
        header = _header_at(source, chunk, at, position) if at + BATCH_HEADER_SIZE <= len(chunk) else None
        if header is None or at + header.size_bytes > len(chunk):
            size_bytes = chunk_bytes
            if header is not None and header.size_bytes > chunk_bytes:
                size_bytes = header.size_bytes
                if size_bytes > batch_bytes_max:
                    _check_large_batch(source, file, position, header)
            chunk = _read(source, file, position, min(size_bytes, source.size_bytes - position))
            chunk_start = position
            pace.on_io(len(chunk))
            continue
        if header.base_offset < next_offset:
            raise _corrupt(source, position, f"offset {header.base_offset} follows {next_offset - 1}")
        pace.on_batch()
        batch = ReadBatch(chunk, at, header, position)
        taken = None if take_small is None else take_small(batch, next_offset)
        if taken is not None and taken.position > at:
            position, next_offset = chunk_start + taken.position, taken.next_offset
            continue
        yield batch
        next_offset = header.next_offset
        position += header.size_bytes


def _header_at(source: SourceSegment, chunk: bytes, at: int, position: int) -> BatchHeader:
    try:
        header = parse_header(chunk, at, whole_batch=False)
    except CorruptBatchError as error:
        raise _corrupt(source, position, error.reason) from error
    if position + header.size_bytes > source.size_bytes:
        left = source.size_bytes - position
        raise _corrupt(source, position, f"the batch has {header.size_bytes} bytes, {left} are there")
    return header


def _check_large_batch(source: SourceSegment, file: LogFile, position: int, header: BatchHeader) -> None:
    end = position + header.size_bytes
    if end < source.size_bytes:
        following = _header_at(source, os.pread(file.fd, BATCH_HEADER_SIZE, end), 0, end)
        if following.base_offset < header.next_offset:
            raise _corrupt(source, end, f"offset {following.base_offset} follows {header.last_offset}")


def _read(source: SourceSegment, file: LogFile, position: int, size_bytes: int) -> bytes:
    chunk = os.pread(file.fd, size_bytes, position)
    if len(chunk) < size_bytes:
        reason = f"the file has {position + len(chunk)} bytes, {source.size_bytes} were expected"
        raise _corrupt(source, position, reason)
    return chunk


def _corrupt(source: SourceSegment, position: int, reason: str) -> CorruptSegmentError:
    return CorruptSegmentError(source.path, position, reason)


class CleanedWriter:
    """The segment that a compaction writes, under its temporary name."""

    def __init__(self, directory: Path, base_offset: int, config: LogConfig, chunk_bytes: int, pace: Pace) -> None:
        segment = self._segment = Segment(directory, base_offset, config, created_ms=0, size_bytes=0)
        segment.path = cleaned_path(segment.path)
        for index in (segment.offset_index, segment.time_index):
            index.move(cleaned_path(index.path))
        os.close(os.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        segment.reset_indexes()
        self._chunk_bytes = chunk_bytes
        self._pace = pace
        self._waiting = bytearray()
        self._waiting_spans: list[BatchSpan] = []

    @property
    def size_bytes(self) -> int:
        return self._segment.size_bytes + len(self._waiting)

    @property
    def index_bytes(self) -> tuple[int, int]:
        """The current size of the offset index and of the time index."""
        return _OFFSET_ENTRY_BYTES * len(self._segment.offset_index), _TIME_ENTRY_BYTES * len(self._segment.time_index)

    def add(self, header: BatchHeader, data: memoryview | bytearray) -> None:
        """Add one batch."""
        last_offset = header.last_offset
        span = BatchSpan(header.size_bytes, last_offset, header.max_timestamp, last_offset, last_offset)
        self.add_spans([span], data)

    def add_spans(self, spans: Sequence[BatchSpan], data: memoryview | bytearray) -> None:
        """Add batches that are there in spans; the data is copied."""
        if not spans:
            return
        path, size_bytes, last_offset = self._segment.path, self.size_bytes, spans[-1].last_offset
        if last_offset - self._segment.base_offset > RELATIVE_OFFSET_MAX:
            raise CorruptSegmentError(path, size_bytes, f"offset {last_offset} is too far from the first")
        if size_bytes + len(data) > _SEGMENT_BYTES_MAX:
            raise CorruptSegmentError(
                path, size_bytes, f"the compacted segment would exceed {_SEGMENT_BYTES_MAX} bytes"
            )
        self._waiting += data
        self._waiting_spans += spans
        if len(self._waiting) >= self._chunk_bytes:
            self._write()

    def _write(self) -> None:
        position = self._segment.write(memoryview(self._waiting))
        self._pace.on_io(len(self._waiting))
        for span in self._waiting_spans:
            self._pace.on_batch()
            self._segment.note_span(position, span)
            position += span.size_bytes
        self._waiting = bytearray()
        self._waiting_spans = []

    def finish(self) -> int:
        """Write the rest and flush all files; returns the size of the log."""
        if self._waiting:
            self._write()
        segment = self._segment
        segment.become_inactive()
        for path in (segment.path, segment.offset_index.path, segment.time_index.path):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self.close()
        return segment.size_bytes

    def close(self) -> None:
        self._segment.close()
