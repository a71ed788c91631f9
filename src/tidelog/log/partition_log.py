"""The log of one partition: appends, reads, offsets, and the state that follows from its batches.

What always holds: log_start_offset <= high_watermark <= log_end_offset; everything below `flushed_offset` was
fsynced; an append either happened completely (in the file, the indexes, the producer state) or not at all; after a disk
error with unknown effects the log is offline and refuses everything with KAFKA_STORAGE_ERROR. All methods are
called from one thread, except `flush` and `rename_dropped`, which may run in others, and truncations, which may run in
another between `begin_truncation` and `end_truncation`. `recovery` opens a log from its files, `reading` looks things
up in segments, `retention` decides what a log no longer has to keep.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tidelog.common.clock import Clock
from tidelog.common.light_dataclass import dataclass
from tidelog.log.checkpoints import LogEnd, fsync_directory, sync_files, write_partition_metadata
from tidelog.log.cleaning import LogCleaning
from tidelog.log.cold_lookup import LogNotOpenError
from tidelog.log.config import LogConfig
from tidelog.log.epochs import UNDEFINED_EPOCH, EpochEntry, LeaderEpochs
from tidelog.log.errors import BelowStartError, CorruptIndexError, LogStorageError
from tidelog.log.health import LogHealth, is_out_of_room
from tidelog.log.index import RELATIVE_OFFSET_MAX
from tidelog.log.inspect import Problem, verify
from tidelog.log.producer_entry import BatchMetadata, ProducerEntry
from tidelog.log.producer_limits import ProducerLimits
from tidelog.log.producer_replay import find_duplicate, read_marker, restore_producers
from tidelog.log.producer_snapshot import remove_snapshots, snapshot_path, write_snapshot
from tidelog.log.producer_state import ProducerState
from tidelog.log.reading import (
    LogRead,
    RecordTime,
    TimestampOffset,
    find_aborted,
    find_by_timestamp,
    find_max_timestamp,
    offset_behind,
    read_segments,
)
from tidelog.log.retention import count_expired
from tidelog.log.segment import Segment, SegmentBrokenError
from tidelog.log.segments import SegmentList
from tidelog.log.txn_guard import NOT_ASKED, TransactionGuard
from tidelog.log.txn_index import AbortedTransaction
from tidelog.log.validation import ValidatedBatch, fit_draft, split_into_runs, validate_batch
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import (
    BatchDraft,
    BatchHeader,
    ControlRecord,
    ControlRecordType,
    CorruptBatchError,
    assign_offsets,
    draft_marker,
    parse_header,
)

logger = logging.getLogger(__name__)

_FLUSHES = threading.Condition()
"""How many flushes of each log are running. One table for all logs, because most are never flushed."""


@dataclass(slots=True)
class AppendResult:
    """Where a batch was written; for a repeated one, where it was written the first time."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int  # -1 when the records keep the producer's timestamps
    log_start_offset: int
    is_duplicate: bool = False


@dataclass(slots=True)
class LogContents:
    """What is kept in memory about an open log's files."""

    segments: SegmentList
    epochs: LeaderEpochs
    producers: ProducerState
    last_snapshot_offset: int
    # No aborted transaction reaches beyond it, so readers at the end of the log need no lookup.
    last_aborted_offset: int
    # The offset of a snapshot that has yet to be written, and its contents.
    pending_snapshot: tuple[int, list[bytes]] | None = None


class LogAtRest:
    """What is known about a log that was closed cleanly and not opened since: enough for everything but changes.

    `read` opens it; it raises LogStorageError if the files have changed.
    """

    __slots__ = ("end", "high_watermark", "log_start_offset", "read")

    def __init__(
        self, end: LogEnd, log_start_offset: int, high_watermark: int, read: Callable[[PartitionLog], LogState]
    ) -> None:
        self.end = end
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark
        self.read = read

    @property
    def log_end_offset(self) -> int:
        return self.end.end_offset


@dataclass(slots=True)
class LogState:
    """What `recovery` found in a partition's directory."""

    segments: SegmentList
    epochs: LeaderEpochs
    producers: ProducerState
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int
    last_snapshot_offset: int
    was_recovered: bool = False


class FlushMark(NamedTuple):
    """The state of a log, and of the names and small files in its directory, at some time."""

    end_offset: int
    active_base_offset: int
    directory_version: int
    truncations: int
    moves: int


@dataclass(frozen=True, slots=True)
class LogOwner:
    """Callbacks for what happens to a log. They are called in whichever thread it happens."""

    # A disk error took the log offline, for this reason.
    on_failure: Callable[[str], None]
    # Segments were added or removed: there may be something to flush, rename or unlink.
    on_segments_changed: Callable[[PartitionLog], None]
    # A log that was at rest is about to be opened, and may change.
    on_opening: Callable[[PartitionLog], None]
    # Its end was cut off: what is on the disk must not tell of the old one.
    on_truncated: Callable[[PartitionLog], None]
    producer_limits: ProducerLimits
    # The data directory.
    path: Path


class PartitionLog:
    """A series of segments; the last one is appended to."""

    __slots__ = (
        "_closed_end",
        "_contents",
        "_directory_name",
        "_directory_version",
        "_flushed_directory_version",
        "_flushed_offset",
        "_flushed_truncations",
        "_flushes_are_held",
        "_flushes_running",
        "_is_truncating",
        "_last_flush_ms",
        "_lock",
        "_lowest_end_offset",
        "_moves",
        "_rest",
        "_truncations",
        "clock",
        "config",
        "first_dirty_offset",
        "health",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "owner",
        "parent",
        "partition",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        directory: Path,
        config: LogConfig,
        clock: Clock,
        state: LogState | LogAtRest,
        topic_id: uuid.UUID | None = None,
        owner: LogOwner | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.owner = owner
        self.health = LogHealth(topic, partition, None if owner is None else owner.on_failure)
        self.parent = directory.parent if owner is None else owner.path
        self._directory_name = None if directory.name == self.name else directory.name
        self.config = config
        self.topic_id = topic_id
        self.clock = clock
        # For others to read: every request asks for them, and a property would double what that costs.
        self.log_start_offset = state.log_start_offset
        self.log_end_offset = state.log_end_offset
        self.high_watermark = min(max(state.high_watermark, state.log_start_offset), state.log_end_offset)
        self._last_flush_ms = clock.now_ms()
        self._lock = threading.Lock()  # held by whatever must not run beside a truncation, or beside another opening
        # Several flushes may run at once, but none while they are held. Both under `_FLUSHES`.
        self._flushes_running = 0
        self._flushes_are_held = False
        # Counts moves to another data directory, so that a flush overtaken by one proves nothing.
        self._moves = 0
        # The lowest end that a truncation left since `take_lowest_end_offset`; None: it was not truncated.
        self._lowest_end_offset: int | None = None
        # Up to here the log is compacted, None where it never was. The cleaner keeps it, and its checkpoint.
        self.first_dirty_offset: int | None = None
        # Counts files created, renamed or written next to the log.
        self._directory_version = 0
        self._flushed_directory_version = 0
        self._is_truncating = False
        # Counts truncations, so that a flush overtaken by one proves nothing.
        self._truncations = 0
        self._flushed_truncations = 0
        self._rest: LogAtRest | None = None
        self._contents: LogContents | None = None
        self._closed_end: LogEnd | None = None
        if isinstance(state, LogAtRest):
            self._rest = state
            self._flushed_offset = state.log_end_offset
        else:
            self._flushed_offset = min(state.recovery_point, state.log_end_offset)
            self._take_over(state)

    def _take_over(self, state: LogState) -> None:
        """Hold what was read from the files."""
        if state.was_recovered:
            # Segments that were removed before a crash may come back until that is flushed; so what is appended to is
            # checked again after another crash, from the segment's start.
            self._flushed_offset = min(self._flushed_offset, state.segments.active.base_offset)
            # What a broker truncated before it crashed may come back until the log is flushed again.
            self._truncations = 1
        # What was written to open it may not be flushed yet.
        self._directory_version = 1
        self._contents = LogContents(
            segments=state.segments,
            epochs=state.epochs,
            producers=state.producers,
            last_snapshot_offset=state.last_snapshot_offset,
            last_aborted_offset=state.segments.last_aborted_offset,
        )
        self._rest = None

    # Opening

    @property
    def is_open(self) -> bool:
        """Whether the files have been read. Most logs of a large broker are at rest, and cost next to nothing."""
        return self._contents is not None

    def open(self) -> LogContents:
        """Read the files, if that hasn't been done. Blocks; in any thread. Raises LogStorageError."""
        contents = self._contents
        if contents is None:
            with self._lock:
                if self._contents is None:
                    self._open_from_rest()
                contents = self._contents
                assert contents is not None
        return contents

    def _open_from_rest(self) -> None:
        rest = self._rest
        assert rest is not None
        self.health.check_online()
        if self.owner is not None:
            self.owner.on_opening(self)
        try:
            state = rest.read(self)
        except OSError as error:
            failure = LogStorageError(f"partition {self.name} can't be opened: {error}")
            if not is_out_of_room(error):
                self.health.take_damaged_offline(str(failure.message))
            raise failure from error
        except LogStorageError as error:
            # The files changed while the broker was running: nothing known about them can be relied on.
            self.health.take_damaged_offline(str(error.message))
            raise
        self._take_over(state)

    # These read the files where that was not done before.

    @property
    def _segments(self) -> SegmentList:
        return (self._contents or self.open()).segments

    @property
    def _epochs(self) -> LeaderEpochs:
        return (self._contents or self.open()).epochs

    @property
    def _producers(self) -> ProducerState:
        return (self._contents or self.open()).producers

    def __repr__(self) -> str:
        return f"PartitionLog({self.name}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def name(self) -> str:
        return self.health.name

    @property
    def directory(self) -> Path:
        return self.parent / (self._directory_name or self.name)

    @property
    def is_offline(self) -> bool:
        return self.health.is_offline

    @property
    def last_stable_offset(self) -> int:
        """Everything below is committed or aborted for good."""
        contents = self._contents
        if contents is not None:
            unstable_offset = contents.producers.first_unstable_offset()
        else:
            unstable_offset = None if self._rest is None else self._rest.end.first_unstable_offset
        if unstable_offset is None or unstable_offset >= self.high_watermark:
            return self.high_watermark
        return max(unstable_offset, self.log_start_offset)

    @property
    def flushed_offset(self) -> int:
        return self._flushed_offset

    @property
    def has_unflushed(self) -> bool:
        """Whether records were appended or truncated since the last flush."""
        return self.recovery_point < self.log_end_offset or self._flushed_truncations < self._truncations

    @property
    def recovery_point(self) -> int:
        """The log is checked from here after a crash: records, or only indexes, may be unflushed."""
        if self._contents is None:
            return self._flushed_offset
        unflushed = self._contents.segments.with_unflushed_indexes(self._flushed_offset)
        return unflushed[-1].base_offset if unflushed else self._flushed_offset

    @property
    def flush_is_due(self) -> bool:
        """Whether flush.messages requires a flush before anything more is acknowledged."""
        return self.log_end_offset - self._flushed_offset >= self.config.flush_messages

    @property
    def last_flush_ms(self) -> int:
        return self._last_flush_ms

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes if self._rest is None else self._rest.end.size_bytes

    @property
    def segments_count(self) -> int:
        return len(self._segments) if self._rest is None else self._rest.end.segments_count

    @property
    def has_unflushed_segments(self) -> bool:
        """Whether there are unflushed rolled segments; nobody waits for them, but flushing shortens recovery."""
        return self._contents is not None and self.recovery_point < self._contents.segments.active.base_offset

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    @property
    def latest_epoch(self) -> int:
        return self._epochs.latest_epoch if self._rest is None else self._rest.end.latest_epoch

    @property
    def last_record_epoch(self) -> int:
        """The epoch in which the last record was written; -1 if that is unknown, as in an empty log.

        Of a log at rest it is the latest epoch, in which there may be no records.
        """
        if self._rest is not None:
            return self._rest.end.latest_epoch
        return self._epochs.epoch_for(self.log_end_offset - 1)

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        return self._epochs.entries

    @property
    def log_end(self) -> LogEnd:
        """What the clean-shutdown checkpoint stores about this log. Blocks."""
        if self._rest is not None:
            return self._rest.end
        if self._closed_end is not None:
            return self._closed_end
        contents = self.open()
        segments = contents.segments
        return LogEnd(
            end_offset=self.log_end_offset,
            segments_count=len(segments),
            active_size_bytes=segments.active.size_bytes,
            size_bytes=segments.size_bytes,
            first_unstable_offset=contents.producers.first_unstable_offset(),
            oldest_timestamp=segments.oldest_timestamp(),
            start_epoch=contents.epochs.epoch_for(self.log_start_offset),
            latest_epoch=contents.epochs.latest_epoch,
        )

    def may_have_expired(self, now_ms: int) -> bool:
        """Whether retention may delete segments, as far as is known without opening the log."""
        end = None if self._rest is None else self._rest.end
        if end is None:
            return True
        config = self.config
        if not end.size_bytes or "delete" not in config.cleanup_policy:
            return False
        is_too_large = 0 <= config.retention_bytes < end.size_bytes
        is_too_old = config.retention_ms >= 0 and end.oldest_timestamp < now_ms - config.retention_ms
        return is_too_large or is_too_old

    @property
    def has_work_behind(self) -> bool:
        """Whether segments wait to be flushed, or their files to be renamed or unlinked."""
        contents = self._contents
        return contents is not None and (
            self.has_unflushed_segments or contents.segments.has_dropped or contents.segments.has_removed
        )

    @property
    def has_dropped_segments(self) -> bool:
        """Whether files wait for `rename_dropped`; the log start offset must be on disk by then."""
        return self._contents is not None and self._contents.segments.has_dropped

    def update_config(self, config: LogConfig) -> None:
        """Apply new settings from the next call; index sizes apply from the next segment."""
        self.config = config

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Record the topic's id in a directory that doesn't have it yet."""
        with self.health.storage("partition metadata"):
            write_partition_metadata(self.directory, topic_id)
        self._directory_version += 1
        self.topic_id = topic_id

    # Appending

    def append_as_leader(
        self,
        records: memoryview | ValidatedBatch | BatchDraft,
        *,
        leader_epoch: int,
        guard: TransactionGuard | None = NOT_ASKED,
        on_loop: bool = False,
    ) -> AppendResult:
        """Check one batch, give it its offsets in place and write it; raises KafkaError and changes nothing else.

        A draft is a batch of the broker's own, anything else a client's. `guard` lets it begin a transaction, see
        `begin_verification`. `on_loop`: raise LongCheckError for a batch that a thread has to validate first.
        """
        self.health.check_online()
        now_ms = self.clock.now_ms()
        contents = self._contents or self.open()
        first_offset = self.log_end_offset
        marker = None
        if isinstance(records, BatchDraft):
            marker = records.marker
            log_append_time_ms = fit_draft(records, self.config, now_ms)
            header = records.seal(first_offset, leader_epoch)
            if header.producer_id >= 0 and not header.is_control:
                contents.producers.check(header, check_sequence=False, guard=guard)
            batch = memoryview(records.buffer)
        else:
            if not isinstance(records, ValidatedBatch):
                records = validate_batch(records, self.config, now_ms, on_loop=on_loop)
            batch, header, log_append_time_ms = records
            if header.producer_id >= 0:
                duplicate = find_duplicate(contents.producers, contents.segments, header)
                if duplicate is not None:
                    return self._repeated(duplicate, log_append_time_ms)
                if not header.is_control:
                    contents.producers.check(header, check_sequence=True, guard=guard)
            assign_offsets(batch, first_offset, leader_epoch)
            # As _replace would make it, which takes three times as long.
            header = BatchHeader(first_offset, header[1], leader_epoch, *header[3:])
        if leader_epoch > contents.epochs.latest_epoch:
            self.assign_epoch(leader_epoch, first_offset)
        self._write(batch, [(0, header)], now_ms, marker)
        return AppendResult(first_offset, self.log_end_offset - 1, log_append_time_ms, self.log_start_offset)

    def _repeated(self, duplicate: BatchMetadata, log_append_time_ms: int) -> AppendResult:
        """The answer for a batch that is in the log already."""
        return AppendResult(
            duplicate.first_offset,
            duplicate.last_offset,
            duplicate.timestamp if log_append_time_ms >= 0 else -1,
            self.log_start_offset,
            is_duplicate=True,
        )

    def append_as_follower(self, records: memoryview, *, leader_epoch: int) -> None:
        """Write batches that a leader gave their offsets, fetched from it in this leader epoch; raises KafkaError.

        A batch that is cut off at the end is left out; what else is, says `split_into_runs`. Raises BelowStartError for
        a batch that begins below the start of an empty log and reaches beyond it.
        """
        self.health.check_online()
        contents = self._contents or self.open()
        self._forget_empty_epochs(contents)
        self._check_start(records)
        runs = split_into_runs(
            records,
            self.log_end_offset,
            self.config.segment_bytes,
            leader_epoch=leader_epoch,
            last_epoch=contents.epochs.latest_epoch,
        )
        now_ms = self.clock.now_ms()
        for start, batches in runs:
            # Where batches are missing, a compaction has removed them, and with them perhaps the first ones of an
            # epoch. It can't have started before the last batch that is there.
            next_offset = self.log_end_offset
            for _, header in batches:
                if header.partition_leader_epoch > contents.epochs.latest_epoch:
                    self.assign_epoch(header.partition_leader_epoch, next_offset)
                next_offset = header.next_offset
            end = start + batches[-1][0] + batches[-1][1].size_bytes
            self._write(records[start:end], batches, now_ms)

    def _forget_empty_epochs(self, contents: LogContents) -> None:
        """Forget epochs in which this replica led the partition and wrote nothing: another leader may start earlier."""
        if contents.epochs.latest_start_offset >= self.log_end_offset:
            with self.health.storage("leader epoch checkpoint", is_undone=True):
                self._forget_epochs_from(self.log_end_offset)
                self._directory_version += 1

    def _check_start(self, records: memoryview) -> None:
        """Raise BelowStartError where the log has to begin with a batch that DeleteRecords has cut at the leader."""
        if self.log_start_offset == self.log_end_offset:
            try:
                first = parse_header(records, whole_batch=False)
            except CorruptBatchError:
                return  # `split_into_runs` says what is wrong
            if first.base_offset < self.log_end_offset <= first.last_offset:
                raise BelowStartError(first.base_offset)

    def _write(
        self,
        records: memoryview,
        batches: list[tuple[int, BatchHeader]],
        now_ms: int,
        marker: ControlRecord | None = None,
    ) -> None:
        """Write batches with one system call, then let everything that follows from them follow.

        `marker` is what a single control batch says, if that is known.
        """
        last = batches[-1][1]
        last_offset = last.base_offset + last.last_offset_delta
        contents = self._contents or self.open()
        segment = contents.segments.active
        try:
            if not contents.epochs.is_saved:
                contents.epochs.write()
            if segment.should_roll(len(records), last.max_timestamp, last_offset, now_ms, self.config):
                # The segment begins where the last one ends, though a follower's next batch may come later: after a
                # crash, a gap between segments is taken for a lost file.
                is_near = last_offset - self.log_end_offset <= RELATIVE_OFFSET_MAX
                segment = self._roll(self.log_end_offset if is_near else batches[0][1].base_offset)
            start = segment.write(records)
        except SegmentBrokenError as error:
            raise self.health.go_offline(f"append failed: {error}") from error
        except OSError as error:
            raise self.health.refuse("append", error) from error
        for position, header in batches:
            segment.note_batch(start + position, header)
            if header.producer_id >= 0:
                said = read_marker(records, position, header) if marker is None else marker
                self._update_producers(contents, segment, header, said)
        self.log_end_offset = last_offset + 1

    def _update_producers(
        self, contents: LogContents, segment: Segment, header: BatchHeader, marker: ControlRecord | None
    ) -> None:
        aborted = contents.producers.update(header, marker)
        if aborted is not None:
            self._note_aborted(segment, aborted)
        limits = contents.producers.limits
        if limits.is_exceeded:
            limits.shrink_largest(contents.producers)

    # Transactions

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        commit: bool,
        leader_epoch: int,
        epoch_is_bumped: bool = False,
    ) -> AppendResult:
        """End the producer's transaction; raises KafkaError when the producer or the coordinator is not the latest."""
        self._producers.check_marker(producer_id, producer_epoch, coordinator_epoch, epoch_is_bumped=epoch_is_bumped)
        marker = draft_marker(
            ControlRecordType.COMMIT if commit else ControlRecordType.ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=self.clock.now_ms(),
        )
        return self.append_as_leader(marker, leader_epoch=leader_epoch)

    def _note_aborted(self, segment: Segment, aborted: AbortedTransaction) -> None:
        # Without its entry readers would take the records for committed ones; after a restart it is there again.
        with self.health.storage("note of an aborted transaction"):
            if not len(segment.txn_index):
                self._directory_version += 1
            segment.txn_index.append(aborted)
        self.open().last_aborted_offset = aborted.last_offset

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, min_one_batch: bool, in_memory: bool = False
    ) -> LogRead:
        """Batches from the one that holds the offset up to the limit; raises OFFSET_OUT_OF_RANGE outside the log.

        `in_memory`: raise NotInMemoryError rather than wait for the disk.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} holds offsets {self.log_start_offset} to {self.log_end_offset}, not {offset}",
            )
        limit_offset = min(limit_offset, self.log_end_offset)
        if offset >= limit_offset:
            return LogRead()
        contents = self._contents
        if contents is None:
            if in_memory:
                raise LogNotOpenError(self.name, self.open)
            contents = self.open()
        first = contents.segments.index_of(offset)
        with self.health.reading():
            return read_segments(
                contents.segments, first, offset, max_bytes, limit_offset, min_one_batch, in_memory=in_memory
            )

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record whose timestamp is not below this one."""
        with self.health.reading():
            return self._timestamp_offset(find_by_timestamp(self._segments, timestamp, self.log_start_offset))

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """The first record that has the largest timestamp of all."""
        with self.health.reading():
            return self._timestamp_offset(find_max_timestamp(self._segments))

    def _timestamp_offset(self, record: RecordTime | None) -> TimestampOffset | None:
        if record is None or record.offset < self.log_start_offset:
            return None
        return TimestampOffset(record.timestamp, record.offset, self._epochs.epoch_for(record.offset))

    # Producers and their transactions

    def active_producers(self) -> list[ProducerEntry]:
        return self._producers.entries()

    def packed_producers(self) -> list[bytes]:
        """The same in packed form, cheap for many of them, to be unpacked by another thread."""
        return self._producers.packed()

    def remove_expired_producers(self, now_ms: int, expiration_ms: int) -> int:
        if self._contents is None or self._is_truncating:
            return 0
        return self._contents.producers.remove_expired(now_ms, expiration_ms)

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        return self._producers.has_open_transaction(producer_id, producer_epoch)

    def begin_verification(self, producer_id: int, producer_epoch: int, first_sequence: int) -> TransactionGuard:
        """What lets a batch begin a transaction here, once the coordinator says that it may (KIP-890)."""
        return self._producers.guards.begin(producer_id, producer_epoch, first_sequence, self.clock.now_ms())

    def aborted_transactions(self, offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """Those that touch the offsets from one up to another, by their first offsets."""
        if offset > self.open().last_aborted_offset:
            return []
        with self.health.reading():
            try:
                found = list(find_aborted(self._segments, self._segments.index_of(offset), offset, upper_bound))
            except CorruptIndexError as error:
                raise LogStorageError(f"{self.name}: {error}") from error
        return sorted(found, key=lambda entry: entry.first_offset)

    def aborted_in(self, read: LogRead, offset: int, limit_offset: int) -> list[AbortedTransaction]:
        """Those that touch what was read from an offset on."""
        if offset > self.open().last_aborted_offset:
            return []
        return self.aborted_transactions(offset, offset_behind(read, limit_offset))

    # Segments

    def maybe_roll(self, now_ms: int) -> bool:
        """Begin a new segment when the active one has waited for segment.ms, though nothing is appended."""
        if self._is_truncating:
            return False
        if self._rest is not None:
            # Retention may let the last segment go, too; only compaction needs another one behind it.
            is_due = self.config.is_compacted and now_ms - self._last_flush_ms > self.config.max_segment_ms
            if is_due and self._rest.end.active_size_bytes:
                self.roll()
                return True
            return False
        segment = self._segments.active
        if not segment.size_bytes or now_ms - segment.created_ms <= self.config.max_segment_ms - segment.roll_jitter_ms:
            return False
        self.roll()
        return True

    def roll(self) -> None:
        """Begin a new segment now."""
        self.health.check_online()
        with self.health.storage("roll", is_undone=True):
            self._roll(self.log_end_offset)

    def _roll(self, base_offset: int) -> Segment:
        active = self._segments.active
        if not active.size_bytes and active.base_offset == base_offset:
            return active
        created = self._create_segment(base_offset)
        try:
            active.become_inactive()
        except OSError:
            # A smaller batch may still fit the old segment; one that begins within it would later pass for damage.
            with self.health.storage("removal of an unused segment"):
                created.path.unlink()
            raise
        if not active.size_bytes:
            # Offsets jumped too far for an empty segment's index; it would only stand in the way.
            self._remove_segments(len(self._segments) - 1, len(self._segments))
        self._segments.add(created)
        # A copy is made here; the thread that flushes the rolled segment writes it.
        contents = self.open()
        contents.pending_snapshot = self.log_end_offset, contents.producers.packed()
        self._segments_changed()
        return created

    def _segments_changed(self) -> None:
        if self.owner is not None:
            self.owner.on_segments_changed(self)

    def _create_segment(self, base_offset: int) -> Segment:
        config = self.config
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        self._directory_version += 1
        return Segment.create(
            self.directory,
            base_offset,
            config,
            created_ms=self.clock.now_ms(),
            roll_jitter_ms=random.randint(0, jitter_ms) if jitter_ms else 0,
        )

    @property
    def _removal_due_ms(self) -> int:
        return self.clock.now_ms() + self.config.file_delete_delay_ms

    def _remove_segments(self, first: int, end: int) -> None:
        self._segments.remove(first, end, self._removal_due_ms)

    def take_removed_paths(self, now_ms: int) -> list[Path]:
        """The files of removed segments whose file.delete.delay.ms is over; the caller unlinks them, in a thread."""
        return [] if self._contents is None else self._contents.segments.take_removed_paths(now_ms)

    # Cleaning: a thread writes what will replace segments, the log takes it over

    def start_cleaning(self) -> LogCleaning:
        """Let segments be replaced, until the cleaning is ended or something else happens to the segments."""
        self.health.check_online()
        return self._segments.start_cleaning()

    def end_cleaning(self) -> None:
        with self.health.storage("end of compaction"):
            self._segments.end_cleaning()

    def decide_swap(self, cleaning: LogCleaning, old: Sequence[Segment]) -> None:
        """Decide that the cleaned segment beside them replaces old ones; raises CleaningAbortedError, or OSError."""
        self.health.check_online()
        self._segments.decide_swap(cleaning, old)

    def swap(self, cleaning: LogCleaning, old: Sequence[Segment], size_bytes: int) -> None:
        """Replace old segments as decided, once the decision is on disk; raises CleaningAbortedError."""
        self.health.check_online()
        cleaned = Segment(
            self.directory,
            old[0].base_offset,
            self.config,
            created_ms=old[-1].created_ms,
            size_bytes=size_bytes,
        )
        with self.health.storage("swap of a compacted segment"):
            self._segments.swap(cleaning, old, cleaned, self._removal_due_ms)
            self._segments_changed()

    def _write_pending_snapshot(self) -> None:
        """Write the producers as they were at the last roll. Blocks; in any thread.

        The lock keeps a truncation away, which must not find a later snapshot written behind its back.
        """
        contents = self.open()
        with self._lock:
            pending, contents.pending_snapshot = contents.pending_snapshot, None
            if pending is not None:
                self._write_snapshot(contents, *pending)

    def _write_snapshot(self, contents: LogContents, offset: int, packed_producers: list[bytes]) -> None:
        if offset <= contents.last_snapshot_offset:
            return
        try:
            write_snapshot(self.directory, offset, packed_producers)
        except OSError as error:
            if not is_out_of_room(error):
                raise
            # Without it a start replays more of the log.
            snapshot_path(self.directory, offset).unlink(missing_ok=True)
            logger.warning("%s: no snapshot of its producers at %d: %s", self.name, offset, error.strerror)
            return
        if contents.last_snapshot_offset >= 0 and not contents.segments.has_base_offset(contents.last_snapshot_offset):
            snapshot_path(self.directory, contents.last_snapshot_offset).unlink(missing_ok=True)
        contents.last_snapshot_offset = offset

    # Offsets and epochs

    def advance_high_watermark(self, offset: int) -> None:
        """Move the high watermark up, at most to the end of the log; it never goes back."""
        offset = min(offset, self.log_end_offset)
        if offset > self.high_watermark:
            self.high_watermark = offset
            if self._contents is not None:
                self._contents.producers.on_high_watermark(offset)

    def set_log_start_offset(self, offset: int) -> None:
        """Move the start of the log up (DeleteRecords, retention); segments entirely below it are removed."""
        self.health.check_online()
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name}: {offset} is above the high watermark {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return
        self._forget_below(offset)

    def delete_expired(self, now_ms: int) -> int:
        """Remove the segments that have expired; returns how many. If that is all of them, a new one is added first."""
        if self._is_truncating:
            return 0
        with self.health.reading():
            count = count_expired(
                self._segments,
                self.config,
                now_ms,
                log_start_offset=self.log_start_offset,
                high_watermark=self.high_watermark,
                log_end_offset=self.log_end_offset,
            )
        if count:
            # First remove as many as possible without a new segment: on a full disk there may be no room for one.
            held = min(count, len(self._segments) - 1)
            self._forget_below(self._segments[held].base_offset)
            if held < count:
                self.roll()
                self._forget_below(self.log_end_offset)
        return count

    def _forget_below(self, offset: int) -> None:
        self.log_start_offset = max(self.log_start_offset, offset)
        self._segments.drop_first(self._segments.index_of(offset))
        self._segments_changed()
        with self.health.storage("deletion"):
            try:
                self._epochs.truncate_from_start(offset)
            except OSError as error:
                # Its file still lists old epochs, which does no harm; full disks need deletions most.
                if not is_out_of_room(error):
                    raise

    def rename_dropped(self, *, sync: bool = False) -> None:
        """Rename the files of removed segments, after flushing the directory if asked to. Blocks."""
        self.open()
        with self.health.storage("deletion"):
            # What it tells of producers may be in no other file but in those that go.
            self._write_pending_snapshot()
        with self.health.storage("deletion"), self._lock:
            if sync:
                fsync_directory(self.directory)
            self._segments.rename_dropped(self._removal_due_ms)
            self._segments_changed()

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Start a leader epoch. When this returns, it is in the checkpoint file, so it survives the process.

        The file is flushed with the log, before any record counts as flushed. A power cut before that loses the epoch
        only together with its records, or recovery finds it in the remaining batches.
        """
        if leader_epoch > self._epochs.latest_epoch:
            with self.health.storage("leader epoch checkpoint", is_undone=True):
                self._epochs.assign(leader_epoch, start_offset)
                self._directory_version += 1

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        if self._rest is not None and epoch == self._rest.end.latest_epoch != UNDEFINED_EPOCH:
            return epoch, self.log_end_offset
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        if self._rest is not None and offset == self.log_start_offset:
            return self._rest.end.start_epoch
        return self._epochs.epoch_for(offset)

    # Durability

    def flush(self, up_to: int | None = None) -> None:
        """fsync what is not yet on disk. Blocks; may be called from a different thread than the rest."""
        self.health.check_online()
        if self._contents is None:
            return
        with _FLUSHES:
            while self._flushes_are_held:
                _FLUSHES.wait()
            self._flushes_running += 1
        try:
            self._flush(up_to)
        finally:
            with _FLUSHES:
                self._flushes_running -= 1
                _FLUSHES.notify_all()

    def _flush(self, up_to: int | None) -> None:
        mark = self.flush_mark()
        end_offset = mark.end_offset
        is_truncated = self._flushed_truncations < mark.truncations
        flushed_offset = self.recovery_point if up_to is None else self._flushed_offset
        if flushed_offset >= (end_offset if up_to is None else min(up_to, end_offset)) and not is_truncated:
            self._last_flush_ms = self.clock.now_ms()
            return
        try:
            self._write_pending_snapshot()
            for segment in self._segments.with_unflushed_indexes(self._flushed_offset):
                segment.sync_indexes()
            for segment in self._segments.from_offset(self._flushed_offset):
                self._sync(segment)
            if is_truncated:
                # It may be empty by now, and what was truncated must not come back.
                self._sync(self._segments.active)
            if self._flushed_directory_version < mark.directory_version:
                sync_files(self.directory)
        except OSError as error:
            # The kernel may have dropped the dirty pages: a second fsync would succeed and prove nothing.
            raise self.health.go_offline(f"fsync failed: {error}") from error
        self.note_flushed(mark)

    def flush_mark(self) -> FlushMark:
        """The current state of the log, for `note_flushed` after all of it has been flushed."""
        active_base_offset = self._segments.active.base_offset
        return FlushMark(
            self.log_end_offset, active_base_offset, self._directory_version, self._truncations, self._moves
        )

    def note_flushed(self, mark: FlushMark) -> None:
        """Everything up to the mark is on disk. May be called from a different thread than the rest."""
        if self._moves != mark.moves:
            return  # these were other files
        self._flushed_directory_version = max(self._flushed_directory_version, mark.directory_version)
        self._segments.note_flushed(mark.active_base_offset)
        with self._lock:
            if self._truncations == mark.truncations:
                self._flushed_offset = max(self._flushed_offset, min(mark.end_offset, self.log_end_offset))
                self._flushed_truncations = mark.truncations
        self._last_flush_ms = self.clock.now_ms()

    def _sync(self, segment: Segment) -> None:
        try:
            if segment is self._segments.active:
                # Its indexes are rebuilt after a crash, because the recovery point is inside it.
                segment.sync_file()
            else:
                segment.sync()
        except FileNotFoundError:
            # It was removed before this thread got to it.
            if any(held is segment for held in self._segments):
                raise

    def close(self, *, clean: bool = True) -> None:
        """Flush, write what the next start needs, and close the files. Unclean: only close them."""
        contents = self._contents
        if contents is None:
            self.health.take_offline("the log is closed")
            return
        if clean and not self.is_offline:
            self.settle()
            self.flush()
            with self.health.storage("close"):
                # After a clean stop they are not rebuilt, even if the machine goes down later.
                contents.segments.active.sync_indexes()
            # As it will be known to the next start.
            self._closed_end = self.log_end
        contents.segments.close()
        contents.producers.clear()
        self.health.take_offline("the log is closed")

    def settle(self) -> None:
        """Write what the next clean start needs besides the records. Nothing may be appended after it."""
        contents = self._contents
        if contents is None:
            return
        with self.health.storage("close"):
            contents.segments.active.become_inactive()
            contents.pending_snapshot = None
            if self.log_end_offset > self.log_start_offset or len(contents.producers):
                self._write_snapshot(contents, self.log_end_offset, contents.producers.packed())

    def retire(self, directory: Path) -> None:
        """Close the log for good and rename its directory; whoever reads from it keeps the file. Blocks."""
        with self._lock:
            os.rename(self.directory, directory)
            self._directory_name = directory.name
            if self._contents is not None:
                self._contents.epochs.move(directory)
                self._contents.segments.move(directory)
            self.close(clean=False)

    # Moving to another data directory

    def take_lowest_end_offset(self) -> int | None:
        """The lowest end that truncations left since the last call, None if there were none: copies end there, too."""
        lowest, self._lowest_end_offset = self._lowest_end_offset, None
        return lowest

    @property
    def was_truncated(self) -> bool:
        """Whether `take_lowest_end_offset` has something to tell."""
        return self._lowest_end_offset is not None

    def hold_flushes(self) -> None:
        """Keep the flushed offset from moving until `release_flushes`, after the flushes that run. Blocks."""
        with _FLUSHES:
            self._flushes_are_held = True
            while self._flushes_running:
                _FLUSHES.wait()

    def release_flushes(self) -> None:
        with _FLUSHES:
            self._flushes_are_held = False
            _FLUSHES.notify_all()

    def take_epochs_of(self, other: PartitionLog) -> None:
        """Take over the epochs of a log with the same records; some may have none."""
        if self._epochs.entries != other.epochs:
            with self.health.storage("leader epoch checkpoint", is_undone=True):
                self._epochs.replace(other.epochs)
                self._directory_version += 1

    def keep_producers_of(self, offset: int, packed_producers: list[bytes]) -> None:
        """Write a snapshot of what another log with these records knows about producers at this offset. Blocks."""
        with self.health.storage("snapshot"):
            contents = self.open()
            contents.pending_snapshot = None
            snapshot_path(self.directory, offset).unlink(missing_ok=True)
            write_snapshot(self.directory, offset, packed_producers)
            contents.last_snapshot_offset = max(contents.last_snapshot_offset, offset)

    def move_to(self, copy: PartitionLog, retired: Path, owner: LogOwner) -> bool:
        """Go on with the files of a copy that has the same records; those of this log keep the name `retired`.

        False if another thread is working on this log right now. Flushes are held, and nothing of this log counts as
        flushed that isn't in the copy. Raises LogStorageError where a name can't be given; then all is as before.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._move_to(copy, retired, owner)
        finally:
            self._lock.release()
        return True

    def _move_to(self, copy: PartitionLog, retired: Path, owner: LogOwner) -> None:
        old, new = self.open(), copy.open()
        directory = owner.path / self.name
        source = self.directory
        with self.health.storage("move", is_undone=True):
            os.rename(source, retired)
        try:
            os.rename(copy.directory, directory)
        except OSError as error:
            with self.health.storage("move"):
                os.rename(retired, source)
            raise copy.health.refuse("move", error) from error
        old.segments.abort_cleaning()
        old.segments.move(retired)
        new.segments.move(directory)
        new.epochs.move(directory)
        new.producers.clear()
        self._contents = LogContents(
            segments=new.segments,
            epochs=new.epochs,
            producers=old.producers,
            last_snapshot_offset=new.last_snapshot_offset,
            last_aborted_offset=new.segments.last_aborted_offset,
            pending_snapshot=(self.log_end_offset, old.producers.packed()),
        )
        copy.health.take_offline("the copy took the place of its log")
        self.owner, self.parent, self._directory_name = owner, owner.path, None
        self.health.move(owner.on_failure)
        self._flushed_offset = copy._flushed_offset
        # The next flush makes sure of the names, too, before anything more counts as flushed.
        self._directory_version += 1
        self._truncations += 1
        self._moves += 1
        self._segments_changed()
        old.segments.close()

    def verify(self) -> Iterator[Problem]:
        """Check all files against one another."""
        return verify(self.directory)

    # Truncation

    @property
    def is_truncating(self) -> bool:
        """Whether a thread may be truncating the log, so that nothing else may read or change it."""
        return self._is_truncating

    def begin_truncation(self) -> None:
        """Leave the log to a thread that truncates it: retention, rolls by time and compaction skip it from now on."""
        self._is_truncating = True
        if self._contents is not None:
            with self.health.storage("truncation"):
                self._contents.segments.abort_cleaning()

    def end_truncation(self) -> None:
        self._is_truncating = False

    def truncate_to(self, offset: int) -> bool:
        """Remove all batches that contain this offset or come after it; False if there are none. Blocks."""
        self.open()
        with self._lock:
            return self._truncate_to(offset)

    def _truncate_to(self, offset: int) -> bool:
        self.health.check_online()
        if offset >= self.log_end_offset:
            # This replica may have led the partition in an epoch in which it wrote nothing, and another leader did.
            self._forget_empty_epochs(self.open())
            return False
        if offset <= self.log_start_offset:
            self._truncate_fully(offset)
            return True
        with self.health.reading():
            index = self._segments.index_of(offset)
            segment = self._segments[index]
            found = next((item for item in segment.headers_from(offset) if item[1].last_offset >= offset), None)
        if found is not None and found[1].base_offset < self.log_start_offset:
            # The first remaining batch is removed as a whole, and with it everything; the log start stays the same.
            self._truncate_fully(self.log_start_offset)
            return True
        with self.health.storage("truncation"):
            # Offsets are reused: a new segment may get the name of one that was dropped before.
            self._segments.rename_dropped(self._removal_due_ms)
            self._remove_segments(index + 1, len(self._segments))
            if found is not None:
                position, header = found
                # Batches are removed as a whole, so the log may end before the requested offset.
                offset = min(offset, header.base_offset)
                segment.truncate_to(position, offset)
                # Until a flush has reached it, the segment is checked after a crash: it may have its old end again.
                self._flushed_offset = min(self._flushed_offset, segment.base_offset)
            self._forget_epochs_from(offset)
            self._end_at(offset)
        return True

    def _forget_epochs_from(self, offset: int) -> None:
        try:
            self._epochs.truncate_from_end(offset)
        except OSError as error:
            # A full disk has no room for the file, either. It lists epochs without records, which a start ignores; the
            # next append writes it first.
            if not is_out_of_room(error):
                raise

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything; the next record gets this offset. Blocks."""
        self.open()
        with self._lock:
            self._truncate_fully(offset)

    def _truncate_fully(self, offset: int) -> None:
        with self.health.reading(), self.health.storage("truncation"):
            self._segments.rename_dropped(self._removal_due_ms)
            if remove_snapshots(self.directory):
                # One that came back would speak of producers whose batches the log does not hold.
                fsync_directory(self.directory)
            self._remove_segments(1, len(self._segments))
            first = self._segments.active
            if first.base_offset == offset:
                first.truncate_to(0, offset)
            else:
                # One of them exists at all times: without any log file, records would seem to be lost.
                created = self._create_segment(offset)
                self._remove_segments(0, 1)
                self._segments.add(created)
            self._epochs.clear()
            self.log_start_offset = self.high_watermark = offset
            self._end_at(offset)

    def _end_at(self, offset: int) -> None:
        self._segments_changed()
        self._truncations += 1
        self._directory_version += 1
        if self.first_dirty_offset is not None:
            self.first_dirty_offset = min(self.first_dirty_offset, offset)
        self.log_end_offset = offset
        lowest = self._lowest_end_offset
        self._lowest_end_offset = offset if lowest is None else min(lowest, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self._flushed_offset = min(self._flushed_offset, offset)
        if self.owner is not None:
            self.owner.on_truncated(self)
        contents = self.open()
        contents.last_aborted_offset = contents.segments.last_aborted_offset
        contents.pending_snapshot = None
        limits = contents.producers.limits
        contents.producers.clear()
        contents.producers, contents.last_snapshot_offset = restore_producers(
            self.directory, contents.segments, self.log_start_offset, offset, limits
        )
        contents.producers.on_high_watermark(self.high_watermark)
