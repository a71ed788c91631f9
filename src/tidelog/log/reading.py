"""Finds what a reader asks for: slices of segments by offset, offsets by timestamp.

What always holds: a slice starts at the batch that contains the offset and ends before the limit, so nothing above a
high watermark is ever sent; it may end inside a batch only because of `max_bytes`, and never inside the first one. One
call reads from one segment. It changes nothing, and relies on its caller that the offset is in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidelog.common.light_dataclass import dataclass
from tidelog.log.cold_lookup import ColdSegmentError
from tidelog.log.file_slice import FileSlice
from tidelog.log.scan import CorruptSegmentError
from tidelog.log.segment import BatchPosition, Segment
from tidelog.log.txn_index import AbortedTransaction
from tidelog.records import BATCH_HEADER_SIZE, BatchHeader, CorruptBatchError, check_crc, find_timestamp

logger = logging.getLogger(__name__)


# How far a batch is decompressed to look for a timestamp: the event loop waits, and a few kB can hold a GiB.
_OPENED_BYTES_MAX = 16 * 1024 * 1024


@dataclass(slots=True)
class LogRead:
    """The result of a read; no records if there are none up to the limit, or none that fit."""

    records: FileSlice | bytes = b""
    size_bytes: int = 0
    # The segment that the records are in.
    segment: Segment | None = None
    # The reader may continue in a later segment: no future records will ever be added to this read.
    ends_segment: bool = False

    @property
    def slices(self) -> list[FileSlice]:
        return [self.records] if isinstance(self.records, FileSlice) else []


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    timestamp: int
    offset: int
    leader_epoch: int


class RecordTime(NamedTuple):
    """A record found by its timestamp."""

    timestamp: int
    offset: int


def read_segments(
    segments: Sequence[Segment],
    first: int,
    offset: int,
    max_bytes: int,
    limit_offset: int,
    min_one_batch: bool,
    *,
    in_memory: bool = False,
) -> LogRead:
    """Read from the segment at index `first`, or from a later one if that has nothing at or above the offset.

    `in_memory`: raise NotInMemoryError rather than wait for the disk.
    """
    emptied = LogRead()
    for index in range(first, len(segments)):
        segment = segments[index]
        if segment.base_offset >= limit_offset:
            break
        found = _find(segment, offset, in_memory)
        if found is None:
            continue
        next_base_offset = segments[index + 1].base_offset if index + 1 < len(segments) else None
        end = _limit_position(segment, limit_offset, next_base_offset, in_memory)
        position, first_size_bytes = found
        if position >= end:
            break
        if first_size_bytes > max_bytes:
            # A reader whose limit is below one batch gets it whole or not at all: part of it would be useless.
            size_bytes = first_size_bytes if min_one_batch else 0
        else:
            size_bytes = min(max_bytes, end - position)
        if not size_bytes:
            break
        records = FileSlice(segment.file, position, size_bytes, is_recent=segment.is_recent(position))
        ends_segment = next_base_offset is not None and limit_offset >= next_base_offset
        read = LogRead(records, size_bytes, segment, ends_segment)
        if segment.size_bytes > BATCH_HEADER_SIZE:
            return read
        # All that compaction left of it is one batch without records, which librdkafka takes for a message that is too
        # large when it gets nothing else. At the end of the log it is needed: it says that there is nothing more.
        emptied = read
    return emptied


def _find(segment: Segment, offset: int, in_memory: bool) -> BatchPosition | None:
    try:
        return segment.find(offset, in_memory=in_memory)
    except BlockingIOError as error:
        raise ColdSegmentError(
            segment.path, segment.offset_index.path, offset - segment.base_offset, segment.size_bytes
        ) from error


def _limit_position(segment: Segment, limit_offset: int, next_base_offset: int | None, in_memory: bool) -> int:
    """The position in the file where the batches below the limit end."""
    if next_base_offset is not None and limit_offset >= next_base_offset:
        return segment.size_bytes
    beyond = _find(segment, limit_offset, in_memory)
    return segment.size_bytes if beyond is None else beyond.position


def offset_behind(read: LogRead, limit_offset: int) -> int:
    """An offset above all that was read, not far beyond it where the index tells."""
    if read.segment is None or not isinstance(read.records, FileSlice):
        return limit_offset
    end = read.records.position + read.records.size_bytes
    try:
        behind = read.segment.offset_index.offset_behind(end)
    except FileNotFoundError:
        behind = None  # it is lost, and rebuilt when it is needed
    return limit_offset if behind is None else min(behind, limit_offset)


def find_aborted(
    segments: Sequence[Segment], first: int, offset: int, upper_bound: int
) -> Iterator[AbortedTransaction]:
    """The aborted transactions that overlap a range of offsets, starting with the segment at `first`."""
    for index in range(first, len(segments)):
        found, is_complete = segments[index].txn_index.collect(offset, upper_bound)
        yield from found
        if is_complete:
            break


def find_by_timestamp(segments: Sequence[Segment], timestamp: int, start_offset: int) -> RecordTime | None:
    """The first record at or after an offset whose timestamp is not below this one."""
    candidates = (segment for segment in segments if segment.max_timestamp >= timestamp)
    records = (_find_in_segment(segment, timestamp, start_offset) for segment in candidates)
    return next((record for record in records if record is not None), None)


def _find_in_segment(segment: Segment, timestamp: int, start_offset: int) -> RecordTime | None:
    from_offset = max(_indexed_offset(segment, timestamp), start_offset)
    for position, header in segment.headers_from(from_offset, walk=True):
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset and not _is_empty(header):
            record = _find_in_batch(segment, position, header, timestamp, start_offset)
            if record is not None:
                return record
    return None


def _indexed_offset(segment: Segment, timestamp: int) -> int:
    """An offset before which every batch has a smaller largest timestamp. Notices a wrong index and rebuilds it."""
    entry = segment.time_index.lookup(timestamp - 1)
    if entry[0] >= 0:
        for _, header in segment.headers_from(entry[1]):
            if header.last_offset >= entry[1]:
                if (header.max_timestamp, header.last_offset) == entry:
                    return entry[1]
                break
        logger.warning("%s does not match its log and is rebuilt", segment.time_index.path)
        segment.rebuild_indexes()
        entry = segment.time_index.lookup(timestamp - 1)
    return entry[1]


def find_max_timestamp(segments: Sequence[Segment]) -> RecordTime | None:
    """The first record that has the largest timestamp of all."""
    candidates = [segment for segment in segments if segment.size_bytes]
    if not candidates:
        return None
    segment = max(candidates, key=lambda segment: segment.max_timestamp)
    max_timestamp = segment.max_timestamp
    for position, header in segment.headers_from(segment.offset_of_max_timestamp):
        if header.max_timestamp >= max_timestamp and not _is_empty(header):
            record = _find_in_batch(segment, position, header, max_timestamp, header.base_offset)
            if record is not None:
                return record
    return None


def _find_in_batch(
    segment: Segment, position: int, header: BatchHeader, timestamp: int, start_offset: int
) -> RecordTime | None:
    """The first such record of one batch in the file; raises CorruptSegmentError where its CRC is wrong."""
    batch = segment.read_batch(position, header)
    try:
        check_crc(batch, header)
    except CorruptBatchError as error:
        raise CorruptSegmentError(segment.path, position, error.reason) from error
    try:
        found = find_timestamp(batch, header, timestamp, start_offset, max_bytes=_OPENED_BYTES_MAX)
    except CorruptBatchError:
        # Its producer wrote it so, or it opens to very much. A reader who starts with the batch misses nothing.
        return RecordTime(header.max_timestamp, max(header.base_offset, start_offset))
    return None if found is None else RecordTime(*found)


def _is_empty(header: BatchHeader) -> bool:
    return header.records_count == 0
