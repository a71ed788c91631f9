"""Repairs a partition's files according to a plan: when a person has decided so, never by a broker itself.

What always holds: nothing is destroyed. Whatever is removed is on disk in a directory next to the partition's before
the partition changes; a crash in the middle leaves the old file or the new one, and the next repair continues. The data
directory is locked in the meantime, so no broker can use it. Afterwards, the data directory's checkpoints match the
repaired partition.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelog.common.checks import partition_of_directory
from tidelog.log.checkpoints import (
    LOG_END_FILE,
    LOG_START_OFFSET_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    fsync_directory,
    read_clean_shutdown,
    read_log_ends,
    read_offsets,
    write_log_ends,
    write_offsets,
)
from tidelog.log.config import LogConfig
from tidelog.log.directory import LOCK_FILE, LogDirectory
from tidelog.log.epochs import LeaderEpochs
from tidelog.log.errors import CorruptCheckpointError
from tidelog.log.inspect import flushed_offset_of
from tidelog.log.repair_plan import Covered, Moved, PartitionPlan, SegmentPlan, plan_repair
from tidelog.log.segment import Segment
from tidelog.log.segments import SegmentList
from tidelog.log.set_aside import SetAside
from tidelog.log.txn_recovery import rebuild_txn_indexes
from tidelog.records import BATCH_HEADER_SIZE, MAGIC, BatchHeader
from tidelog.records.batch import write_header

_COPY_BYTES = 1024 * 1024
_BASE_OFFSET_BYTES = 8


@contextmanager
def locked(data_directory: Path, *, changes: bool) -> Iterator[None]:
    """Lock out brokers; raises DataDirectoryLockedError if one is running. A dry run creates no file."""
    if not changes and not (data_directory / LOCK_FILE).exists():
        yield
        return
    directory = LogDirectory(data_directory, lambda path, reason: None)
    directory.lock()
    try:
        yield
    finally:
        directory.unlock()


def examine(directory: Path) -> PartitionPlan:
    """What would repair a partition, based on its files and its data directory's checkpoints."""
    key = partition_of_directory(directory.name)
    log_start_offset = None
    if key is not None and (directory.parent / LOG_START_OFFSET_FILE).exists():
        try:
            log_start_offset = read_offsets(directory.parent / LOG_START_OFFSET_FILE).get(key, 0)
        except (CorruptCheckpointError, OSError):
            # Nobody can know whether records were deleted, so nothing counts as missing at the start.
            log_start_offset = None
    return plan_repair(directory, flushed_offset=flushed_offset_of(directory), log_start_offset=log_start_offset)


def execute(plan: PartitionPlan) -> Path | None:
    """Carry out the plan; returns the directory with everything that was removed, or None if nothing was."""
    aside = SetAside(plan.directory)
    files = [path for path in plan.taken_out if path.is_file()]
    for path in plan.taken_out:
        if path.is_dir():
            aside.move_directory(path)
    for path in files:
        aside.keep_file(path)
    aside.flush()
    for path in files:
        path.unlink()
    for segment in plan.segments:
        if not segment.is_unchanged or not segment.path.exists():
            _rewrite(segment, aside)
    for segment in plan.segments:
        if segment.is_index_false:
            _rebuild_indexes(plan.directory, segment)
    if any(segment.is_index_false or not segment.is_unchanged for segment in plan.segments):
        _rebuild_txn_indexes(plan)
    if plan.are_epochs_false:
        epochs = LeaderEpochs(plan.directory)
        for epoch, start_offset in plan.epochs:
            epochs.replay(epoch, start_offset)
        epochs.finish_replay(plan.end_offset)
    for path in plan.directory.iterdir():
        if path.is_file():
            _sync(path)
    fsync_directory(plan.directory)
    _correct_checkpoints(plan)
    return None if aside.is_empty else aside.path


def _rewrite(segment: SegmentPlan, aside: SetAside) -> None:
    path, cut_position = segment.path, segment.cut_position
    if cut_position is not None and path.exists():
        if cut_position < segment.size_bytes:
            aside.keep_part(path, cut_position, segment.size_bytes)
            aside.flush()
            os.truncate(path, cut_position)
            _sync(path)
        return
    # Leftovers with this ending are removed by the broker when it opens the log.
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as target:
        if path.exists():
            with path.open("rb") as source:
                for piece in segment.pieces:
                    if isinstance(piece, Covered):
                        target.write(_cover(piece))
                        continue
                    start = piece.start
                    if isinstance(piece, Moved):
                        target.write(piece.base_offset.to_bytes(_BASE_OFFSET_BYTES, "big"))
                        start += _BASE_OFFSET_BYTES
                    source.seek(start)
                    for position in range(start, piece.end, _COPY_BYTES):
                        target.write(source.read(min(_COPY_BYTES, piece.end - position)))
        target.flush()
        os.fsync(target.fileno())
    if path.exists():
        aside.keep_file(path)
        aside.flush()
    os.replace(temporary, path)
    fsync_directory(path.parent)


def _cover(piece: Covered) -> bytes:
    """An empty batch, as compaction leaves it, for lost offsets."""
    batch = bytearray(BATCH_HEADER_SIZE)
    header = BatchHeader(
        base_offset=piece.first_offset,
        batch_length=0,
        partition_leader_epoch=piece.leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=piece.last_offset - piece.first_offset,
        base_timestamp=-1,
        max_timestamp=piece.timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=0,
    )
    write_header(batch, header)
    return bytes(batch)


def _rebuild_indexes(directory: Path, plan: SegmentPlan) -> None:
    size_bytes = plan.path.stat().st_size
    segment = Segment(directory, plan.base_offset, LogConfig(), created_ms=0, size_bytes=size_bytes)
    if size_bytes:
        segment.rebuild_indexes()
    else:
        segment.reset_indexes()
    segment.close()


def _rebuild_txn_indexes(plan: PartitionPlan) -> None:
    """A removed marker must not keep hiding what its producer wrote later."""
    segments = [
        Segment(plan.directory, item.base_offset, LogConfig(), created_ms=0, size_bytes=item.path.stat().st_size)
        for item in plan.segments
    ]
    if segments:
        rebuild_txn_indexes(plan.directory, SegmentList(plan.directory, segments), 0, plan.start_offset)


def _correct_checkpoints(plan: PartitionPlan) -> None:
    """Keep the broker from missing what was removed, and from assuming that the log is as at its last clean stop."""
    key = partition_of_directory(plan.directory.name)
    parent = plan.directory.parent
    if key is None or not (parent / META_PROPERTIES_FILE).exists():
        return
    try:
        recovery_points = read_offsets(parent / RECOVERY_POINT_FILE)
        if key in recovery_points:
            write_offsets(parent / RECOVERY_POINT_FILE, recovery_points | {key: plan.end_offset})
    except CorruptCheckpointError:
        # The broker counts it as absent, and reads all logs again.
        write_offsets(parent / RECOVERY_POINT_FILE, {})
    try:
        log_starts = read_offsets(parent / LOG_START_OFFSET_FILE)
        if log_starts.get(key, 0) < plan.start_offset:
            write_offsets(parent / LOG_START_OFFSET_FILE, log_starts | {key: plan.start_offset})
    except CorruptCheckpointError:
        write_offsets(parent / LOG_START_OFFSET_FILE, {})
    broker_epoch = read_clean_shutdown(parent)
    if broker_epoch is None:
        return  # ends of logs count only after a clean stop
    try:
        log_ends = read_log_ends(parent / LOG_END_FILE, broker_epoch)
        if log_ends.pop(key, None) is not None:
            write_log_ends(parent / LOG_END_FILE, log_ends, broker_epoch)
    except CorruptCheckpointError:
        write_log_ends(parent / LOG_END_FILE, {}, broker_epoch)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
