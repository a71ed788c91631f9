"""Compaction of batches: noting the last offset of every key, and removing outdated records from batches.

What always holds: records keep their offsets. A batch keeps its base offset, last offset, leader epoch, producer,
sequence and codec. A batch that keeps all its records is not touched. A batch with a wrong CRC or wrong records raises
CorruptBatchError and is never rewritten. All of it may run in a thread: the loops over records release the
interpreter's lock. Choosing batches, transactions and files are the cleaner's business, not this module's.
"""

from __future__ import annotations

import enum
from array import array
from typing import NamedTuple

from tidelog.common.light_dataclass import dataclass
from tidelog.records import kernel_compact, kernel_small
from tidelog.records.batch import (
    BATCH_HEADER_SIZE,
    COMPRESSION_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    BatchSpan,
    Buffer,
    Compression,
    TimestampType,
    check_crc,
    parse_header,
    write_header,
)
from tidelog.records.codec import open_records
from tidelog.records.compression import DECOMPRESSED_BYTES_MAX, compress
from tidelog.records.errors import CorruptBatchError
from tidelog.records.kernel_offset_map import OffsetMap
from tidelog.records.kernel_small import KeptBatches
from tidelog.records.kernel_walk import RecordWalk

__all__ = [
    "BatchOutcome",
    "FilteredBatch",
    "KeptBatches",
    "OffsetMap",
    "SmallBatches",
    "empty_batch",
    "filter_batch",
    "filter_small_batches",
    "is_small",
    "map_batch",
    "map_small_batches",
    "set_delete_horizon",
]

# In larger batches the loop over the records dominates the cost, not the work around it.
SMALL_BATCH_SIZE_MAX = 2048

INT64_MAX = 0x7FFFFFFFFFFFFFFF


class BatchOutcome(enum.Enum):
    """What happened to a batch."""

    UNCHANGED = "unchanged"  # to be copied unchanged
    REWRITTEN = "rewritten"  # to be replaced by `data`
    EMPTY = "empty"  # to be left out, or replaced by `empty_batch` if offset or sequence must stay known


@dataclass(frozen=True, slots=True)
class FilteredBatch:
    """A batch after `filter_batch`. `header` is that of the batch to write; for an empty batch, the original one."""

    outcome: BatchOutcome
    header: BatchHeader
    data: bytearray | None  # the batch to write, if it was rewritten
    records_read: int
    records_kept: int
    keyless_records: int  # those removed because a compacted log can't hold them


def map_batch(
    offset_map: OffsetMap,
    buffer: Buffer,
    header: BatchHeader,
    position: int = 0,
    *,
    start_offset: int,
    end_offset: int,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> bool:
    """Note the keys of the batch's records with `start_offset` <= offset < `end_offset`; False if the map got full.

    Afterwards `offset_map.latest_offset` says how far the map covers the log: up to the last offset of the batch (or
    `end_offset` - 1 if that is lower), or if the map is full, up to the offset before the first record that had no
    room. So a cleaning run may end in the middle of a batch, and the next one start there, at `latest_offset` + 1.
    After a CorruptBatchError the map may hold a part of the batch and has to be cleared. Not for control batches and
    aborted transactions: the caller skips them with `offset_map.update_latest_offset(header.last_offset)`.
    """
    walk = _open_walk(buffer, header, position, max_bytes)
    return kernel_compact.note_keys(walk, offset_map, header.base_offset, start_offset, end_offset)


def filter_batch(
    buffer: Buffer,
    header: BatchHeader,
    position: int,
    offset_map: OffsetMap,
    *,
    now_ms: int,
    delete_retention_ms: int,
    compression_level: int | None = None,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> FilteredBatch:
    """The batch without outdated records.

    A record stays if it lies after `offset_map.latest_offset`. Otherwise it stays if the map knows no later offset of
    its key, and is removed if it has no key. A tombstone that would stay is removed once `now_ms` has reached the
    batch's delete horizon. A batch that keeps a tombstone and has no horizon yet gets one: `now_ms` +
    `delete_retention_ms`. `compression_level` is for the batch's own codec. Not for control batches, for which the
    caller decides.
    """
    if header.is_control:
        raise ValueError("control batches are kept or dropped as a whole")
    walk = _open_walk(buffer, header, position, max_bytes)
    keeps_tombstones = not header.has_delete_horizon or now_ms < header.base_timestamp
    choice = kernel_compact.choose_records(walk, offset_map, header.base_offset, keeps_tombstones)
    needs_horizon = choice.tombstones_count > 0 and not header.has_delete_horizon
    outcome, data = BatchOutcome.REWRITTEN, None
    if choice.kept_count == 0:
        outcome = BatchOutcome.EMPTY
    elif choice.kept_count == header.records_count and not needs_horizon:
        outcome = BatchOutcome.UNCHANGED
    else:
        horizon_ms = _horizon(now_ms, delete_retention_ms) if needs_horizon else None
        data = _rewrite(walk, choice, header, horizon_ms, compression_level)
        header = parse_header(data)
    return FilteredBatch(
        outcome=outcome,
        header=header,
        data=data,
        records_read=walk.count,
        records_kept=choice.kept_count,
        keyless_records=choice.keyless_count,
    )


def set_delete_horizon(
    buffer: Buffer,
    header: BatchHeader,
    position: int = 0,
    *,
    now_ms: int,
    delete_retention_ms: int,
    compression_level: int | None = None,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> bytearray:
    """The batch with all its records and a delete horizon, for a marker whose transaction has no records left."""
    if header.has_delete_horizon:
        raise ValueError("the batch already has a delete horizon")
    walk = _open_walk(buffer, header, position, max_bytes)
    choice = kernel_compact.choose_all(walk, header.base_offset)
    return _rewrite(walk, choice, header, _horizon(now_ms, delete_retention_ms), compression_level)


class SmallBatches(NamedTuple):
    """The result for a run of small batches."""

    position: int  # where the run ended in the chunk; where it began, if nothing was done
    next_offset: int
    records_read: int
    records_kept: int
    last_dropped: int | None  # position of the last batch, if it was dropped
    kept: list[BatchSpan]  # the batches that stay, as they are
    data: memoryview  # their bytes, valid until `KeptBatches` is used for another run


def is_small(header: BatchHeader) -> bool:
    """Whether it is worthwhile to treat the batch and those after it as a run of small batches."""
    special = COMPRESSION_MASK | TRANSACTIONAL_BIT | CONTROL_BIT
    return header.size_bytes <= SMALL_BATCH_SIZE_MAX and not header.attributes & special


def map_small_batches(
    offset_map: OffsetMap, chunk: bytes, position: int, next_offset: int, *, start_offset: int, end_offset: int
) -> SmallBatches:
    """`map_batch` for all consecutive small batches from `position`, with offsets from `next_offset` on.

    The run ends before the first batch that is truncated, large, compressed, damaged, part of a transaction, or too
    much for the map; that one is for `map_batch`.
    """
    run = kernel_small.BatchRun(chunk, position, next_offset, SMALL_BATCH_SIZE_MAX)
    kernel_small.note_run(run, RecordWalk(chunk, 0, 0, 0, 0, False), offset_map, start_offset, end_offset)
    return _small_batches(run, [], memoryview(b""))


def filter_small_batches(
    chunk: bytes,
    position: int,
    next_offset: int,
    offset_map: OffsetMap,
    *,
    now_ms: int,
    needed_offsets: array[int],
    kept: KeptBatches,
) -> SmallBatches:
    """`filter_batch` for all consecutive small batches that either stay unchanged or are dropped.

    `needed_offsets`, sorted and as array("q"), are the last offsets of batches that must stay, even if without records.
    A batch with such an offset that would be dropped ends the run, as does anything that ends one of
    `map_small_batches`, and a record without a key. That batch is for `filter_batch`. `kept` has the memory for what
    stays, and decides how large spans get.
    """
    run = kernel_small.BatchRun(chunk, position, next_offset, SMALL_BATCH_SIZE_MAX)
    walk = RecordWalk(chunk, 0, 0, 0, 0, False)
    with memoryview(needed_offsets) as needed:
        kernel_small.filter_run(run, walk, offset_map, now_ms, needed, kept)
    return _small_batches(run, _spans(kept), kept.data())


def _spans(kept: KeptBatches) -> list[BatchSpan]:
    rows = kept.rows()
    ends = [row[0] for row in rows[1:]]
    ends.append(kept.end)
    return [BatchSpan(end - start, *rest) for (start, *rest), end in zip(rows, ends, strict=False)]


def _small_batches(run: kernel_small.BatchRun, kept: list[BatchSpan], data: memoryview) -> SmallBatches:
    return SmallBatches(
        position=run.position,
        next_offset=run.next_offset,
        records_read=run.records_read,
        records_kept=run.records_kept,
        last_dropped=run.last_position if run.last_position >= 0 and not run.last_is_kept else None,
        kept=kept,
        data=data,
    )


def empty_batch(header: BatchHeader) -> bytearray:
    """A batch without records that keeps the offsets, leader epoch, producer and sequence of the original."""
    kept_bits = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
    data = bytearray(BATCH_HEADER_SIZE)
    write_header(
        data,
        header._replace(attributes=header.attributes & kept_bits, base_timestamp=NO_TIMESTAMP, records_count=0),
    )
    return data


def _open_walk(buffer: Buffer, header: BatchHeader, position: int, max_bytes: int) -> RecordWalk:
    check_crc(buffer, header, position)
    if header.base_offset < 0 or header.last_offset > INT64_MAX:
        raise CorruptBatchError(f"the batch's offsets from {header.base_offset} to {header.last_offset} are not valid")
    return RecordWalk(
        _open(buffer, header, position, max_bytes),
        header.records_count,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.timestamp_type is TimestampType.LOG_APPEND_TIME,
    )


def _open(buffer: Buffer, header: BatchHeader, position: int, max_bytes: int) -> bytes | memoryview:
    """The records part of the batch, decompressed; `bytes` are not copied, since nobody can change them meanwhile."""
    if isinstance(buffer, bytes) and not header.attributes & COMPRESSION_MASK:
        return memoryview(buffer)[position + BATCH_HEADER_SIZE : position + header.size_bytes]
    return open_records(buffer, header, position, max_bytes)


def _horizon(now_ms: int, delete_retention_ms: int) -> int:
    return min(now_ms + delete_retention_ms, INT64_MAX)


def _rewrite(
    walk: RecordWalk,
    choice: kernel_compact.Choice,
    header: BatchHeader,
    horizon_ms: int | None,
    compression_level: int | None,
) -> bytearray:
    """The batch with the chosen records, and optionally a new delete horizon in place of its base timestamp."""
    size = choice.kept_bytes
    if horizon_ms is not None:
        size = kernel_compact.size_with_horizon(walk, choice, horizon_ms)
        if size < 0:
            raise CorruptBatchError(f"a timestamp of the batch is more than 64 bits away from {horizon_ms}")
    data = bytearray(BATCH_HEADER_SIZE + size)
    if horizon_ms is None:
        kernel_compact.copy_records(walk, choice, kernel_compact.RecordCopy(data, BATCH_HEADER_SIZE))
    else:
        kernel_compact.copy_with_horizon(walk, choice, kernel_compact.RecordCopy(data, BATCH_HEADER_SIZE), horizon_ms)
    if header.compression is not Compression.NONE:
        with memoryview(data) as view, view[BATCH_HEADER_SIZE:] as records:
            compressed = compress(header.compression, records, compression_level)
        data[BATCH_HEADER_SIZE:] = compressed
    header = header._replace(records_count=choice.kept_count)
    if header.timestamp_type is TimestampType.CREATE_TIME:
        header = header._replace(max_timestamp=choice.max_timestamp)
    if horizon_ms is not None:
        header = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=horizon_ms)
    write_header(data, header)
    return data
