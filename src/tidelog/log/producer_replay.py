"""Restores producer state from disk: the latest readable snapshot, and the batches after it.

What always holds: the result is the same as after appending all batches below the end offset. An unreadable snapshot is
removed and an older one used; without any, the headers of the whole log are read.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tidelog.log.errors import CorruptSnapshotError
from tidelog.log.producer_entry import BatchMetadata, ProducerEntry, batch_metadata
from tidelog.log.producer_limits import ProducerLimits
from tidelog.log.producer_snapshot import read_snapshot, snapshot_offsets, snapshot_path
from tidelog.log.producer_state import ProducerState
from tidelog.log.segments import SegmentList
from tidelog.records import BatchHeader, ControlRecord, decode_records, parse_control_record

logger = logging.getLogger(__name__)

NO_SNAPSHOT = -1
# How far back a retry is looked for after a restart: more than a producer can have in flight with default settings.
_HISTORY_BYTES_MAX = 8 * 1024 * 1024


def restore_producers(
    directory: Path,
    segments: SegmentList,
    log_start_offset: int,
    end_offset: int,
    limits: ProducerLimits | None = None,
) -> tuple[ProducerState, int]:
    """The state at an offset, and the offset of the snapshot it started from (-1: none). Blocks."""
    state = ProducerState(limits)
    snapshot_offset = _restore(state, directory, segments, log_start_offset, end_offset, is_log_end=True)
    return state, snapshot_offset


def producers_at(directory: Path, segments: SegmentList, log_start_offset: int, offset: int) -> ProducerState:
    """The state at an offset before the end of the log; later snapshots stay."""
    state = ProducerState()
    _restore(state, directory, segments, log_start_offset, offset, is_log_end=False)
    return state


def _restore(
    state: ProducerState,
    directory: Path,
    segments: SegmentList,
    log_start_offset: int,
    end_offset: int,
    *,
    is_log_end: bool,
) -> int:
    snapshot_offset = _load_snapshot(directory, state, end_offset, is_log_end=is_log_end)
    # Batches below the log start are included as long as they exist: a snapshot alone would be outdated.
    replay_from = max(snapshot_offset, min(log_start_offset, segments[0].base_offset))
    if replay_from < end_offset:
        _replay(state, segments, replay_from, end_offset)
    return snapshot_offset


def _load_snapshot(directory: Path, state: ProducerState, end_offset: int, *, is_log_end: bool) -> int:
    """Load the latest readable snapshot up to an offset; unreadable ones, and those beyond the log, are removed."""
    for offset in reversed(snapshot_offsets(directory)):
        path = snapshot_path(directory, offset)
        if offset > end_offset:
            if is_log_end:
                path.unlink(missing_ok=True)
            continue
        try:
            state.load(read_snapshot(directory, offset))
        except CorruptSnapshotError as error:
            logger.warning("%s is not usable and is removed: %s", path, error)
            path.unlink(missing_ok=True)
            continue
        return offset
    return NO_SNAPSHOT


def remove_doubtful_snapshots(directory: Path, recovery_point: int) -> None:
    """Remove those that a power cut left torn, and those from beyond the recovery point.

    The latter may have come back after a truncation, and then refer to batches that are no longer in the log.
    """
    for offset in snapshot_offsets(directory):
        path = snapshot_path(directory, offset)
        if offset > recovery_point:
            path.unlink()
            continue
        try:
            read_snapshot(directory, offset)
        except CorruptSnapshotError as error:
            logger.warning("%s is not usable and is removed: %s", path, error)
            path.unlink()


def _replay(state: ProducerState, segments: SegmentList, from_offset: int, end_offset: int) -> None:
    for index in range(segments.index_of(from_offset), len(segments)):
        segment = segments[index]
        if not segment.size_bytes:
            continue
        for position, header in segment.headers_from(from_offset, walk=True):
            if header.base_offset >= end_offset:
                return
            if header.last_offset < from_offset or not header.has_producer:
                continue
            batch = segment.read_batch(position, header) if header.is_control else b""
            state.update(header, read_marker(batch, 0, header))


def read_marker(records: memoryview | bytes, position: int, header: BatchHeader) -> ControlRecord | None:
    """What a control batch says; other batches, and emptied ones, say nothing."""
    if header.is_control and header.records_count:
        return parse_control_record(decode_records(records, position, check_crc=False)[0])
    return None


def find_duplicate(state: ProducerState, segments: SegmentList, header: BatchHeader) -> BatchMetadata | None:
    """The batch in the log that this one repeats. After a restart the log itself may have to be searched, once."""
    entry = state.entry(header.producer_id)
    if entry is None:
        return None
    duplicate = entry.find_duplicate(header)
    is_unknown = duplicate is None and entry.producer_epoch == header.producer_epoch
    if is_unknown and entry.history_is_partial and not entry.is_next(header.base_sequence):
        _complete_history(entry, segments)
        duplicate = entry.find_duplicate(header)
    return duplicate


def _complete_history(entry: ProducerEntry, segments: SegmentList) -> None:
    entry.history_is_partial = False
    segment = segments[segments.index_of(entry.last_offset)]
    if not segment.size_bytes:
        return
    batches = []
    for _, header in segment.headers_near(entry.last_offset, _HISTORY_BYTES_MAX):
        if header.base_offset > entry.last_offset:
            break
        if (header.producer_id, header.producer_epoch) == (entry.producer_id, entry.producer_epoch):
            batches.append(batch_metadata(header))
    if len(batches) > len(entry.batches):
        newer = [batch for batch in entry.batches if batch.last_offset > batches[-1].last_offset]
        entry.batches = ()
        entry.add_batches(*batches, *newer)
