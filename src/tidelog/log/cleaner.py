"""The part of a compaction that runs in a thread: the map of keys, then the segments without outdated records.

What always holds: the last record of each key in the cleaned range is kept, with its offset; nothing beyond the range
covered by the map is dropped; a tombstone, or a marker without a transaction, is removed only after its delete horizon.
The last batch of every active producer, and of every run of segments, is kept, if only as an empty batch, so that
sequence numbers and the end offsets of segments are not lost. Nothing here changes the log: its files are only read,
and new ones are written next to them (`swap_files`).
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Final, NamedTuple

from tidelog.common.light_dataclass import dataclass
from tidelog.log.cleaner_choice import Run
from tidelog.log.cleaner_io import CleanedWriter, Pace, ReadBatch, SourceSegment, TakeSmallBatches, read_batches
from tidelog.log.cleaner_transactions import CleanedTransactions, KeptAborts
from tidelog.log.config import LogConfig
from tidelog.log.producer_entry import NO_OFFSET, ProducerEntry
from tidelog.log.scan import CorruptSegmentError
from tidelog.log.swap_files import cleaned_path
from tidelog.log.txn_index import TXN_INDEX_SUFFIX, AbortedTransaction, write_txn_index
from tidelog.records import (
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    CorruptBatchError,
    check_crc,
    parse_header,
)
from tidelog.records.compaction import (
    BatchOutcome,
    KeptBatches,
    OffsetMap,
    SmallBatches,
    empty_batch,
    filter_batch,
    filter_small_batches,
    is_small,
    map_batch,
    map_small_batches,
    set_delete_horizon,
)

_TOUCHED_BYTES: Final = 1024 * 1024


class LastRecord(NamedTuple):
    """How far an active producer has got, which decides what its next sequence number must be."""

    last_offset: int  # of its last batch with records, -1 when there is none
    producer_epoch: int


def last_records(packed_producers: Iterable[bytes]) -> dict[int, LastRecord]:
    producers = map(ProducerEntry.unpack, packed_producers)
    return {entry.producer_id: LastRecord(entry.last_offset, entry.producer_epoch) for entry in producers}


@dataclass(slots=True)
class CleanStats:
    """What a compaction read and wrote."""

    bytes_mapped: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    keyless_records: int = 0
    segments_before: int = 0
    segments_after: int = 0
    map_utilization: float = 0.0


@dataclass(frozen=True, slots=True)
class CleanTerms:
    """What applies to a whole compaction."""

    directory: Path
    config: LogConfig
    now_ms: int
    chunk_bytes: int
    pace: Pace
    first_dirty_offset: int
    end_offset: int  # the first offset that may not be cleaned yet
    aborted: Sequence[AbortedTransaction] = ()
    stats: CleanStats = field(default_factory=CleanStats)

    def read(self, source: SourceSegment, take_small: TakeSmallBatches) -> Iterator[ReadBatch]:
        return read_batches(source, self.chunk_bytes, self.config.max_message_bytes, self.pace, take_small)


def make_offset_map(memory_bytes: int, load_factor: float, keys_max: int) -> OffsetMap:
    """A map for this many keys, within this much memory, all of which is already allocated.

    Otherwise the first few batches would touch all of its pages, and the event loop would wait a fifth of a second for
    the kernel to clear them: unlike the reads here, that would happen while holding the interpreter's lock.
    """
    offset_map = OffsetMap(memory_bytes, load_factor)
    offset_map.clear(keys_max=keys_max)
    if offset_map.memory is not None:
        with open("/dev/zero", "rb", buffering=0) as zeros, memoryview(offset_map.memory) as memory:
            for start in range(0, len(memory), _TOUCHED_BYTES):
                with memory[start : start + _TOUCHED_BYTES] as part:
                    zeros.readinto(part)
    return offset_map


def build_offset_map(terms: CleanTerms, sources: Sequence[SourceSegment], offset_map: OffsetMap) -> int:
    """Collect keys from the first dirty offset up to the end, or as many as fit; returns the offset after the last."""
    transactions = CleanedTransactions(item for item in terms.aborted if item.last_offset >= terms.first_dirty_offset)
    map_small = functools.partial(_map_small_batches, terms, offset_map)
    for source in sources:
        if source.next_base_offset <= terms.first_dirty_offset:
            continue
        for batch in terms.read(source, map_small):
            terms.stats.bytes_mapped += batch.header.size_bytes
            if batch.header.last_offset < terms.first_dirty_offset:
                continue
            try:
                has_room = _map_batch(terms, batch, transactions, offset_map)
            except CorruptBatchError as error:
                raise CorruptSegmentError(source.path, batch.position, error.reason) from error
            if not has_room:
                return _map_end(terms, offset_map)
        # Offsets may be missing at the end of a segment.
        offset_map.update_latest_offset(min(source.next_base_offset, terms.end_offset) - 1)
    return _map_end(terms, offset_map)


def _map_small_batches(
    terms: CleanTerms, offset_map: OffsetMap, batch: ReadBatch, next_offset: int
) -> SmallBatches | None:
    if not is_small(batch.header):
        return None
    start_offset, end_offset = terms.first_dirty_offset, terms.end_offset
    mapped = map_small_batches(
        offset_map, batch.chunk, batch.at, next_offset, start_offset=start_offset, end_offset=end_offset
    )
    terms.stats.bytes_mapped += mapped.position - batch.at
    return mapped


def _map_batch(terms: CleanTerms, batch: ReadBatch, transactions: CleanedTransactions, offset_map: OffsetMap) -> bool:
    header = batch.header
    if header.is_control:
        transactions.on_control_batch(batch.chunk, header, batch.at)
    elif not transactions.on_batch(header):
        return map_batch(
            offset_map,
            batch.chunk,
            header,
            batch.at,
            start_offset=terms.first_dirty_offset,
            end_offset=terms.end_offset,
        )
    offset_map.update_latest_offset(header.last_offset)
    return True


def _map_end(terms: CleanTerms, offset_map: OffsetMap) -> int:
    terms.stats.map_utilization = offset_map.size / offset_map.capacity
    return max(offset_map.latest_offset + 1, terms.first_dirty_offset)


class CleanedRun(NamedTuple):
    """What became of the first few of the segments to be cleaned."""

    segments_count: int
    size_bytes: int
    is_changed: bool


class RunCleaner:
    """Writes each run of segments as one segment, keeping track of transactions on the way."""

    def __init__(self, terms: CleanTerms, offset_map: OffsetMap) -> None:
        self._terms = terms
        self._offset_map = offset_map
        self._transactions = CleanedTransactions(terms.aborted)
        self._kept_aborts = KeptAborts(terms.aborted)
        self._producers: Mapping[int, LastRecord] = {}
        self._needed_offsets = array("q")
        self._kept = KeptBatches(terms.config.index_interval_bytes)
        self._is_changed = False
        self._dropped_end: BatchHeader | None = None  # the batch last read, if nothing of it was written

    def clean(self, sources: Sequence[SourceSegment], packed_producers: Iterable[bytes]) -> CleanedRun:
        """Write what remains of the first few segments as a single one next to them, and flush it."""
        terms, stats = self._terms, self._terms.stats
        self._producers = producers = last_records(packed_producers)
        self._needed_offsets = array("q", sorted(last.last_offset for last in producers.values()))
        self._is_changed = False
        run = Run(sources[0].base_offset)
        writer = CleanedWriter(terms.directory, run.base_offset, terms.config, terms.chunk_bytes, terms.pace)
        try:
            for source in sources:
                if not run.takes(source, terms.config.segment_bytes, terms.config.segment_index_bytes):
                    break
                self._copy_segment(source, writer)
                run.segments_count += 1
                run.size_bytes = writer.size_bytes + BATCH_HEADER_SIZE
                run.index_bytes, run.time_index_bytes = writer.index_bytes
            self._keep_end(writer)
            self._is_changed |= run.segments_count > 1
            size_bytes = writer.finish() if self._is_changed else writer.size_bytes
            self._write_txn_index(run.base_offset, sources[run.segments_count - 1].next_base_offset)
        finally:
            writer.close()
        stats.bytes_written += size_bytes
        stats.segments_before += run.segments_count
        stats.segments_after += 1
        return CleanedRun(run.segments_count, size_bytes, self._is_changed)

    def _write_txn_index(self, base_offset: int, end_offset: int) -> None:
        entries = self._kept_aborts.take(base_offset, end_offset)
        if entries is not None and self._is_changed:
            path = self._terms.directory / f"{base_offset:020d}{TXN_INDEX_SUFFIX}"
            write_txn_index(cleaned_path(path), entries)

    def _copy_segment(self, source: SourceSegment, writer: CleanedWriter) -> None:
        for batch in self._terms.read(source, functools.partial(self._copy_small_batches, writer)):
            try:
                kept = self._copy(batch, writer)
            except CorruptBatchError as error:
                raise CorruptSegmentError(source.path, batch.position, error.reason) from error
            self._dropped_end = None if kept else batch.header

    def _keep_end(self, writer: CleanedWriter) -> None:
        """The end of a segment must be known, so its last batch is kept even if none of its records are."""
        header, self._dropped_end = self._dropped_end, None
        if header is not None:
            writer.add(header._replace(batch_length=BATCH_HEADER_SIZE - LOG_OVERHEAD), empty_batch(header))
            self._is_changed |= header.records_count > 0

    def _copy_small_batches(self, writer: CleanedWriter, batch: ReadBatch, next_offset: int) -> SmallBatches | None:
        """Write the batches to keep from a run of small ones."""
        if not is_small(batch.header):
            return None
        chunk, at = batch.chunk, batch.at
        terms, stats = self._terms, self._terms.stats
        filtered = filter_small_batches(
            chunk,
            at,
            next_offset,
            self._offset_map,
            now_ms=terms.now_ms,
            needed_offsets=self._needed_offsets,
            kept=self._kept,
        )
        writer.add_spans(filtered.kept, filtered.data)
        stats.bytes_read += filtered.position - at
        stats.records_read += filtered.records_read
        stats.records_written += filtered.records_kept
        self._is_changed |= filtered.records_kept < filtered.records_read
        if filtered.last_dropped is not None:
            self._dropped_end = parse_header(chunk, filtered.last_dropped)
        elif filtered.kept:
            self._dropped_end = None
        return filtered

    def _copy(self, batch: ReadBatch, writer: CleanedWriter) -> bool:
        """Write what remains of a batch, if anything."""
        header, stats = batch.header, self._terms.stats
        stats.bytes_read += header.size_bytes
        stats.records_read += header.records_count
        outcome, data = self._clean_marker(batch) if header.is_control else self._clean_records(batch)
        if outcome is BatchOutcome.EMPTY and self._is_last_of_producer(header):
            outcome, data = BatchOutcome.REWRITTEN, empty_batch(header)
            if not header.records_count:
                outcome = BatchOutcome.UNCHANGED
        if outcome is BatchOutcome.UNCHANGED:
            writer.add(header, batch.data)
        elif data is not None:
            self._is_changed = True
            header = parse_header(data)
            writer.add(header, data)
        else:
            # A batch that was emptied before and ends its segment is written again unchanged.
            self._is_changed |= header.records_count > 0
            return False
        stats.records_written += header.records_count
        if header.is_control and header.records_count:
            self._kept_aborts.on_marker_kept(header.last_offset)
        return True

    def _clean_marker(self, batch: ReadBatch) -> tuple[BatchOutcome, bytearray | None]:
        header, now_ms = batch.header, self._terms.now_ms
        if not self._transactions.on_control_batch(batch.chunk, header, batch.at):
            return BatchOutcome.UNCHANGED, None
        if not header.records_count or (header.has_delete_horizon and header.base_timestamp <= now_ms):
            return BatchOutcome.EMPTY, None
        if header.has_delete_horizon:
            return BatchOutcome.UNCHANGED, None
        retention_ms = self._terms.config.delete_retention_ms
        data = set_delete_horizon(batch.chunk, header, batch.at, now_ms=now_ms, delete_retention_ms=retention_ms)
        return BatchOutcome.REWRITTEN, data

    def _clean_records(self, batch: ReadBatch) -> tuple[BatchOutcome, bytearray | None]:
        terms, header = self._terms, batch.header
        if self._transactions.on_batch(header):
            # Its records are dropped unread, but its header affects other batches and may be kept.
            check_crc(batch.chunk, header, batch.at)
            return BatchOutcome.EMPTY, None
        filtered = filter_batch(
            batch.chunk,
            header,
            batch.at,
            self._offset_map,
            now_ms=terms.now_ms,
            delete_retention_ms=terms.config.delete_retention_ms,
        )
        terms.stats.keyless_records += filtered.keyless_records
        return filtered.outcome, filtered.data

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether an active producer's next sequence number, or its epoch, is known from this batch."""
        last = self._producers.get(header.producer_id) if header.has_producer else None
        if last is None:
            return False
        if last.last_offset != NO_OFFSET:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.producer_epoch
