"""Opens a partition's log from its files: what is checked after a clean stop, and what is repaired after any other.

What always holds: after a clean stop no log data is read, because sizes and last index entries show that nothing has
changed; otherwise every batch from the recovery point on is checked by CRC, a torn tail is cut off, and the indexes are
rebuilt. Damage followed by good batches raises LogCorruptionError, and the partition stays offline; unless the machine
went down and the damage is in the unflushed part, any of which may then be missing: there the log ends, and what
follows is set aside. Lost indexes, snapshots and leader epochs are rebuilt from the log.
"""

from __future__ import annotations

import bisect
import logging
import mmap
import os
import uuid
from pathlib import Path

from tidelog.common.checks import offset_in_file_name
from tidelog.common.clock import Clock
from tidelog.common.light_dataclass import dataclass
from tidelog.log.checkpoints import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    LogEnd,
    fsync_directory,
    write_partition_metadata,
)
from tidelog.log.config import LogConfig
from tidelog.log.damage import checked_header, is_unwritten, next_good_batch
from tidelog.log.epochs import UNDEFINED_EPOCH, LeaderEpochs
from tidelog.log.errors import CorruptCheckpointError, LogCorruptionError
from tidelog.log.index import RELATIVE_OFFSET_MAX
from tidelog.log.moves import MOVE_FILE
from tidelog.log.partition_log import LogAtRest, LogOwner, LogState, PartitionLog
from tidelog.log.producer_limits import ProducerLimits
from tidelog.log.producer_replay import NO_SNAPSHOT, remove_doubtful_snapshots, restore_producers
from tidelog.log.producer_snapshot import SNAPSHOT_SUFFIX
from tidelog.log.producer_state import ProducerState
from tidelog.log.scan import CorruptSegmentError
from tidelog.log.segment import DELETED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment
from tidelog.log.segments import SegmentList
from tidelog.log.set_aside import SetAside
from tidelog.log.swap_files import finish_swaps
from tidelog.log.txn_index import TXN_INDEX_SUFFIX
from tidelog.log.txn_recovery import settle_txn_indexes
from tidelog.records import CorruptBatchError

logger = logging.getLogger(__name__)

# Files that a crash may leave half written: the files they were to replace still exist.
_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, ".tmp", ".cleaned")


@dataclass(frozen=True, slots=True)
class LastKnown:
    """What the checkpoints of the data directory say about a partition."""

    is_clean: bool = False
    log_end: LogEnd | None = None
    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    # Whether the machine went down, and not only the process.
    was_machine_down: bool = False


@dataclass(slots=True)
class RecoveryProgress:
    """How far one log has been read; written by the thread that opens it, read by whoever reports progress."""

    bytes_done: int = 0


@dataclass(slots=True)
class _DamageError(Exception):
    """A position from which the log can't be trusted, although good batches follow."""

    index: int  # of the segment
    position: int
    next_offset: int  # all below is sound
    path: Path
    reason: str


def bytes_to_check(directory: Path, known: LastKnown) -> int:
    """How much of a log must be read again, judging by names and sizes; 0 after a clean stop."""
    if known.is_clean:
        return 0
    bases = (offset_in_file_name(name.removesuffix(LOG_SUFFIX)) for name in os.listdir(directory))
    found = sorted(base for base in bases if base is not None)
    first = max(bisect.bisect_right(found, known.recovery_point) - 1, 0)
    return sum(os.stat(directory / f"{base:020d}{LOG_SUFFIX}").st_size for base in found[first:])


def create_log(
    topic: str,
    partition: int,
    directory: Path,
    topic_id: uuid.UUID | None,
    config: LogConfig,
    clock: Clock,
    owner: LogOwner | None = None,
    *,
    leader_epoch: int = UNDEFINED_EPOCH,
) -> PartitionLog:
    """A new, empty log in a new directory. It is flushed with its first records: an empty one can be recreated.

    `leader_epoch`: the one in which it will be appended to, if that is known, so that the first append need not write
    it down.
    """
    directory.mkdir()
    epochs = LeaderEpochs(directory)
    try:
        if topic_id is not None:
            write_partition_metadata(directory, topic_id)
        segment = Segment.create(directory, 0, config, created_ms=clock.now_ms(), in_new_directory=True)
        # Here a thread waits for the filesystem to create the file; at the first append, the event loop would.
        if leader_epoch == UNDEFINED_EPOCH:
            epochs.write()
        else:
            epochs.assign(leader_epoch, 0)
    except OSError:
        import shutil  # it brings along compression, which no other part of a broker's start needs

        # Half a partition would get in the way of the next attempt.
        shutil.rmtree(directory, ignore_errors=True)
        raise
    state = LogState(
        segments=SegmentList(directory, [segment]),
        epochs=epochs,
        producers=ProducerState(None if owner is None else owner.producer_limits),
        log_start_offset=0,
        log_end_offset=0,
        high_watermark=0,
        recovery_point=0,
        last_snapshot_offset=NO_SNAPSHOT,
    )
    return PartitionLog(topic, partition, directory, config, clock, state, topic_id, owner)


def open_log(
    topic: str,
    partition: int,
    directory: Path,
    topic_id: uuid.UUID | None,
    config: LogConfig,
    clock: Clock,
    known: LastKnown,
    progress: RecoveryProgress | None = None,
    owner: LogOwner | None = None,
) -> PartitionLog:
    """The log in the directory; raises LogCorruptionError."""
    state = _read(topic, partition, directory, config, clock, known, progress, owner)
    return PartitionLog(topic, partition, directory, config, clock, state, topic_id, owner)


def rest_log(
    topic: str,
    partition: int,
    directory: Path,
    topic_id: uuid.UUID | None,
    config: LogConfig,
    clock: Clock,
    known: LastKnown,
    owner: LogOwner,
) -> PartitionLog | None:
    """The log as it was closed, to be opened when more is needed; None if it must be opened now."""
    end = known.log_end
    if not known.is_clean or end is None or known.high_watermark < end.end_offset:
        return None
    if not known.log_start_offset <= end.end_offset or not _is_as_closed(directory, end):
        return None
    rest = LogAtRest(end, known.log_start_offset, known.high_watermark, _read_rested)
    return PartitionLog(topic, partition, directory, config, clock, rest, topic_id, owner)


def _is_as_closed(directory: Path, end: LogEnd) -> bool:
    """Whether the names and sizes of a log's files are the same as at its clean stop, with nothing to clean up."""
    sizes: dict[int, int] = {}
    indexes = set()
    with os.scandir(directory) as found:
        entries = list(found)
    for entry in entries:
        stem, dot, suffix = entry.name.partition(".")
        base_offset = offset_in_file_name(stem)
        if base_offset is None:
            if entry.name not in (LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, MOVE_FILE):
                return False
        elif dot + suffix == LOG_SUFFIX:
            sizes[base_offset] = entry.stat().st_size
        elif dot + suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
            indexes.add(base_offset)
        elif dot + suffix != SNAPSHOT_SUFFIX:
            return False
    return (
        len(sizes) == end.segments_count
        and sum(sizes.values()) == end.size_bytes
        and sizes[max(sizes)] == end.active_size_bytes
        and indexes <= sizes.keys()
    )


def _read_rested(log: PartitionLog) -> LogState:
    """The contents of the files of a log at rest; raises LogStorageError if they have changed since it was closed."""
    end = log.log_end
    known = LastKnown(
        is_clean=True,
        log_end=end,
        recovery_point=end.end_offset,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
    )
    return _read(log.topic, log.partition, log.directory, log.config, log.clock, known, owner=log.owner, is_rested=True)


def _read(
    topic: str,
    partition: int,
    directory: Path,
    config: LogConfig,
    clock: Clock,
    known: LastKnown,
    progress: RecoveryProgress | None = None,
    owner: LogOwner | None = None,
    *,
    is_rested: bool = False,
) -> LogState:
    limits = None if owner is None else owner.producer_limits
    progress = progress or RecoveryProgress()
    opening = _Opening(topic, partition, directory, config, clock, known, progress, limits, is_rested=is_rested)
    try:
        return opening.open()
    except CorruptSegmentError as error:
        raise LogCorruptionError(topic, partition, error.path, error.position, error.reason) from error


class _Opening:
    """One log while it is being opened."""

    def __init__(
        self,
        topic: str,
        partition: int,
        directory: Path,
        config: LogConfig,
        clock: Clock,
        known: LastKnown,
        progress: RecoveryProgress,
        producer_limits: ProducerLimits | None,
        *,
        is_rested: bool,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._directory = directory
        self._config = config
        self._clock = clock
        self._known = known
        self._progress = progress
        self._producer_limits = producer_limits
        # Its offsets have already been published, so the files must agree with them.
        self._is_rested = is_rested
        self._txn_indexes: dict[int, str] = {}
        # From here on transaction indexes are rewritten, if the log holds markers there.
        self._txn_indexes_doubtful_from: int | None = None
        self._has_markers = False

    def open(self) -> LogState:
        finish_swaps(self._directory)
        known = self._known
        segments = SegmentList(self._directory, self._find_segments())
        self._drop_deleted(segments)
        epochs, epochs_are_known = self._load_epochs()
        is_unchanged = known.is_clean and known.log_end is not None and _is_unchanged(segments, known.log_end)
        if is_unchanged and known.log_end is not None:
            end_offset = known.log_end.end_offset
            for segment in segments:
                segment.check_indexes()
        elif self._is_rested:
            raise self._corruption(self._directory, 0, "another program changed files since the log was closed")
        else:
            end_offset = self._recover(segments, epochs)
        log_start_offset = max(known.log_start_offset, segments[0].base_offset)
        if log_start_offset > end_offset:
            # What is left lies below what was deleted; offsets must never be given out twice.
            end_offset = log_start_offset
            self._start_over(segments, end_offset)
        if not epochs_are_known or (not is_unchanged and _has_batches_before(epochs, log_start_offset, end_offset)):
            self._rebuild_epochs(segments, epochs)
        epochs.finish_replay(end_offset)
        settle_txn_indexes(
            self._directory,
            segments,
            self._txn_indexes,
            log_start_offset,
            doubtful_from=self._txn_indexes_doubtful_from,
            has_markers=self._has_markers,
        )
        producers, snapshot_offset = restore_producers(
            self._directory, segments, log_start_offset, end_offset, self._producer_limits
        )
        producers.on_high_watermark(min(known.high_watermark, end_offset))
        return LogState(
            segments=segments,
            epochs=epochs,
            producers=producers,
            log_start_offset=log_start_offset,
            log_end_offset=end_offset,
            high_watermark=known.high_watermark,
            recovery_point=end_offset if is_unchanged else known.recovery_point,
            last_snapshot_offset=snapshot_offset,
            was_recovered=not is_unchanged,
        )

    def _drop_deleted(self, segments: SegmentList) -> None:
        """Remove segments whose deletion was on disk and their files not: in what state they are is of no interest."""
        segments.remove(0, segments.index_of(self._known.log_start_offset), self._clock.now_ms())
        segments.unlink_removed()

    def _start_over(self, segments: SegmentList, base_offset: int) -> None:
        segments.remove(0, len(segments), self._clock.now_ms())
        segments.add(Segment.create(self._directory, base_offset, self._config, created_ms=self._clock.now_ms()))
        segments.unlink_removed()

    def _find_segments(self) -> list[Segment]:
        sizes: dict[int, int] = {}
        others: dict[int, str] = {}
        for entry in list(os.scandir(self._directory)):
            stem, _, suffix = entry.name.partition(".")
            if entry.name.endswith(_LEFTOVER_SUFFIXES):
                os.unlink(entry.path)
                continue
            base_offset = offset_in_file_name(stem)
            if base_offset is None:
                continue
            if "." + suffix == LOG_SUFFIX:
                sizes[base_offset] = entry.stat().st_size
            elif "." + suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                others[base_offset] = entry.path
            elif "." + suffix == TXN_INDEX_SUFFIX:
                self._txn_indexes[base_offset] = entry.path
        for base_offset in self._txn_indexes.keys() - sizes.keys():
            os.unlink(self._txn_indexes.pop(base_offset))
        self._check_nothing_is_lost(sizes, others)
        if not sizes:
            start_offset = self._known.log_start_offset
            return [Segment.create(self._directory, start_offset, self._config, created_ms=self._clock.now_ms())]
        return [
            Segment(self._directory, base, self._config, created_ms=self._clock.now_ms(), size_bytes=sizes[base])
            for base in sorted(sizes)
        ]

    def _check_nothing_is_lost(self, sizes: dict[int, int], others: dict[int, str]) -> None:
        """An index is always removed before its log, so one without a log means that the log was lost.

        Other brokers remove the log first; what they left behind of deleted records is no loss.
        """
        first = min(sizes, default=None)
        for base_offset, path in sorted(others.items()):
            if base_offset in sizes:
                continue
            if first is None or base_offset > first or first > self._known.log_start_offset:
                raise self._corruption(
                    Path(path).with_suffix(LOG_SUFFIX), 0, "the file is missing, but its index exists"
                )
            logger.warning("%s has no log and is removed", path)
            os.unlink(path)
        log_end = self._known.log_end
        # A power cut may take the files of an empty log, which were never flushed.
        if log_end is not None and log_end.size_bytes and len(sizes) < log_end.segments_count:
            reason = f"{log_end.segments_count} log files were there at the last clean stop, {len(sizes)} are left"
            raise self._corruption(self._directory, 0, reason)
        known_end = log_end.end_offset if log_end else self._known.recovery_point
        if first is None and known_end > self._known.log_start_offset:
            lost = self._directory / f"{self._known.log_start_offset:020d}{LOG_SUFFIX}"
            raise self._corruption(lost, 0, f"there is no log file, but offsets up to {known_end - 1} were flushed")

    # Recovery

    def _recover(self, segments: SegmentList, epochs: LeaderEpochs) -> int:
        """Check all batches from the recovery point on; the log's end."""
        known = self._known
        # A size that changed since a clean stop may hide anything: then everything is read again.
        has_changed = known.is_clean and known.log_end is not None
        if known.was_machine_down:
            remove_doubtful_snapshots(self._directory, known.recovery_point)
        first = 0 if has_changed else segments.index_of(known.recovery_point)
        while first and not segments[first].size_bytes and _reaches(segments[first - 1], segments[first].base_offset):
            # It was begun by a truncation that did not come to its end.
            first -= 1
        for index in range(first):
            segments[index].check_indexes()
        if known.was_machine_down and first and segments[first].base_offset == known.recovery_point:
            # It may have been flushed for the last time while it was appended to, without the end of its indexes.
            segments[first - 1].rebuild_indexes()
            self._has_markers = any(header.is_control for _, header in segments[first - 1].headers(walk=True))
            segments[first - 1].close()
            self._txn_indexes_doubtful_from = segments[first - 1].base_offset
        else:
            self._txn_indexes_doubtful_from = segments[first].base_offset
        try:
            next_offset = self._check_segments(segments, first, epochs, may_have_gaps=not has_changed)
        except _DamageError as damage:
            if not known.was_machine_down or has_changed or damage.next_offset < known.recovery_point:
                raise self._corruption(damage.path, damage.position, damage.reason) from None
            self._cut_off(segments, damage)
            next_offset = damage.next_offset
        self._drop_empty_tail(segments, next_offset)
        end_offset = max(next_offset, segments.active.base_offset)
        if end_offset < known.recovery_point:
            logger.error(
                "%s-%d: offsets %d to %d had been flushed but are missing",
                self._topic,
                self._partition,
                end_offset,
                known.recovery_point - 1,
            )
        return end_offset

    def _drop_empty_tail(self, segments: SegmentList, end_offset: int) -> None:
        """A segment that was begun but got no batch before the crash, though the log ends elsewhere, is dropped."""
        if not segments.size_bytes and not self._known.was_machine_down:
            # A truncation was about to start the log over; the last segment shows which offsets were assigned.
            segments.remove(0, len(segments) - 1, self._clock.now_ms())
        while len(segments) > 1 and not segments.active.size_bytes and segments.active.base_offset != end_offset:
            segments.remove(len(segments) - 1, len(segments), self._clock.now_ms())
        segments.unlink_removed()

    def _check_segments(self, segments: SegmentList, first: int, epochs: LeaderEpochs, *, may_have_gaps: bool) -> int:
        """Read from the segment at `first` on; the offset behind the last sound batch. Raises _DamageError."""
        # Our own cleaner keeps the last batch of a segment, other brokers' do not; so after the machine went down a gap
        # is a hole.
        may_have_gaps = may_have_gaps and self._config.is_compacted and not self._known.was_machine_down
        next_offset = segments[first].base_offset
        epochs.begin_replay(next_offset)
        for index in range(first, len(segments)):
            segment = segments[index]
            has_more = any(later.size_bytes for later in segments[index + 1 :])
            if not segment.size_bytes and not has_more:
                # Begun and never written to; where it begins says nothing about those before it.
                segment.reset_indexes()
                continue
            if segment.base_offset < next_offset:
                reason = f"the segment starts below offset {next_offset}, where the one before it ends"
                raise _DamageError(index, 0, next_offset, segment.path, reason)
            if segment.base_offset > next_offset and not may_have_gaps:
                # Only compaction takes batches from the end of a segment.
                before = segments[index - 1]
                reason = f"the file ends with offset {next_offset - 1}, the next one starts with {segment.base_offset}"
                raise _DamageError(index, before.size_bytes, next_offset, before.path, reason)
            next_offset = self._check_segment(segment, index, epochs, has_more=has_more)
        return next_offset

    def _check_segment(self, segment: Segment, index: int, epochs: LeaderEpochs, *, has_more: bool) -> int:
        segment.reset_indexes()
        size_bytes, segment.size_bytes = segment.size_bytes, 0
        if not size_bytes:
            return segment.base_offset
        next_offset = segment.base_offset
        offset_max = segment.base_offset + RELATIVE_OFFSET_MAX
        file = segment.file  # held, so that it stays open while its descriptor is used
        with mmap.mmap(file.fd, size_bytes, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            position, reason = 0, ""
            while position < size_bytes:
                try:
                    header = checked_header(view, position, next_offset, offset_max)
                except CorruptBatchError as error:
                    reason = error.reason
                    break
                segment.note_batch(position, header)
                self._has_markers |= header.is_control
                epochs.replay(header.partition_leader_epoch, header.base_offset)
                next_offset = header.next_offset
                position += header.size_bytes
                self._progress.bytes_done += header.size_bytes
            if position < size_bytes and (
                has_more or next_good_batch(mapped, view, position, next_offset, offset_max) is not None
            ):
                segment.size_bytes = size_bytes
                raise _DamageError(index, position, next_offset, segment.path, f"{reason}, and good batches follow")
        if position < size_bytes:
            torn_bytes = size_bytes - position
            logger.warning(
                "%s: the last %d bytes are not a complete batch and are cut off: %s", segment.path, torn_bytes, reason
            )
            os.ftruncate(file.fd, position)
            os.fsync(file.fd)
        segment.become_inactive()
        segment.close()
        return next_offset

    def _cut_off(self, segments: SegmentList, damage: _DamageError) -> None:
        """Cut the log at the hole that the machine's crash left. What follows is kept beside the partition."""
        damaged = segments[damage.index]
        keeps_start = damage.path == damaged.path and damage.position > 0
        aside = SetAside(self._directory)
        try:
            if keeps_start and not _is_zeros(damaged, damage.position):
                aside.keep_part(damaged.path, damage.position, damaged.size_bytes)
            for segment in segments[damage.index + keeps_start :]:
                if segment.size_bytes:
                    aside.keep_file(segment.path)
            aside.flush()
        except OSError as error:
            aside.discard()
            reason = f"{damage.reason}; what follows can't be kept elsewhere to cut the log there: {error}"
            raise self._corruption(damage.path, damage.position, reason) from error
        logger.warning(
            "%s-%d: the machine went down before everything was flushed: %s at byte %d: %s; the log now ends before "
            "offset %d, and the %d bytes that follow are kept in %s",
            self._topic,
            self._partition,
            damage.path,
            damage.position,
            damage.reason,
            damage.next_offset,
            aside.size_bytes,
            "no file, as they are zeros" if aside.is_empty else aside.path,
        )
        for index in reversed(range(damage.index + keeps_start, len(segments))):
            segments.remove(index, index + 1, self._clock.now_ms())
        if keeps_start:
            file = damaged.file
            os.ftruncate(file.fd, damage.position)
            os.fsync(file.fd)
            damaged.size_bytes = damage.position
            damaged.become_inactive()
            damaged.close()
        if not len(segments):
            segments.add(
                Segment.create(self._directory, damage.next_offset, self._config, created_ms=self._clock.now_ms())
            )
        segments.unlink_removed()
        fsync_directory(self._directory)

    # Leader epochs

    def _load_epochs(self) -> tuple[LeaderEpochs, bool]:
        try:
            epochs = LeaderEpochs.load(self._directory)
        except CorruptCheckpointError as error:
            logger.warning("%s", error)
            epochs = None
        return (LeaderEpochs(self._directory), False) if epochs is None else (epochs, True)

    def _rebuild_epochs(self, segments: SegmentList, epochs: LeaderEpochs) -> None:
        epochs.begin_replay(0)
        if segments.size_bytes:
            logger.warning("%s-%d: %s is rebuilt from the log", self._topic, self._partition, LEADER_EPOCH_FILE)
        for segment in segments:
            for _, header in segment.headers(walk=True) if segment.size_bytes else ():
                epochs.replay(header.partition_leader_epoch, header.base_offset)
            segment.close()

    def _corruption(self, path: Path, position: int, reason: str) -> LogCorruptionError:
        return LogCorruptionError(self._topic, self._partition, path, position, reason)


def _reaches(segment: Segment, offset: int) -> bool:
    """Whether a segment has batches from an offset on, or can't tell."""
    if not segment.size_bytes:
        return False
    try:
        return any(header.last_offset >= offset for _, header in segment.headers_from(offset))
    except CorruptSegmentError:
        return True
    finally:
        segment.close()


def _has_batches_before(epochs: LeaderEpochs, log_start_offset: int, end_offset: int) -> bool:
    """Whether records lie before the first epoch: deleted ones, whose deletion was not yet on disk at the crash."""
    first_known = end_offset if epochs.earliest is None else epochs.earliest.start_offset
    return log_start_offset < min(first_known, end_offset)


def _is_unchanged(segments: SegmentList, log_end: LogEnd) -> bool:
    return (
        len(segments) == log_end.segments_count
        and segments.active.size_bytes == log_end.active_size_bytes
        and segments.size_bytes == log_end.size_bytes
    )


def _is_zeros(segment: Segment, position: int) -> bool:
    file = segment.file
    with (
        mmap.mmap(file.fd, segment.size_bytes, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        return is_unwritten(view, position)
