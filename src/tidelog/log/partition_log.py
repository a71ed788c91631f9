"""The log of one partition: appends, reads, offsets, and the state that follows from its batches.

What always holds: log_start_offset <= high_watermark <= log_end_offset; everything below `flushed_offset` was
fsynced; an append either happened whole (in the file, the indexes, the producer state) or not at all; after a disk
error whose effects are unknown the log is offline and refuses everything with KAFKA_STORAGE_ERROR. All methods are
called from one thread, except `flush`, which may run in another. Opening a log from its files is in `recovery`,
finding things in it in `reading`.
"""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from tidelog.common.clock import Clock
from tidelog.log.checkpoints import LogEnd, sync_files, write_partition_metadata
from tidelog.log.config import LogConfig
from tidelog.log.epochs import EpochEntry
from tidelog.log.errors import LogStorageError
from tidelog.log.health import LogHealth
from tidelog.log.inspect import Problem, verify
from tidelog.log.log_state import AppendResult, LogState
from tidelog.log.producer_replay import coordinator_epoch, find_duplicate, restore_producers
from tidelog.log.producer_snapshot import remove_snapshots, snapshot_path, write_snapshot
from tidelog.log.producer_state import ProducerEntry
from tidelog.log.reading import (
    LogRead,
    RecordTime,
    TimestampOffset,
    find_by_timestamp,
    find_max_timestamp,
    read_segments,
)
from tidelog.log.segment import Segment, SegmentBrokenError
from tidelog.log.validation import AppendOrigin, split_into_runs, validate_batch
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import BatchHeader, assign_offsets


class PartitionLog(LogHealth):
    """Segments in a row; the last one is appended to."""

    __slots__ = (
        "_clock",
        "_directory_changed",
        "_epochs",
        "_flushed_offset",
        "_high_watermark",
        "_last_flush_ms",
        "_last_snapshot_offset",
        "_lock",
        "_log_end_offset",
        "_log_start_offset",
        "_producers",
        "_segments",
        "config",
        "directory",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        directory: Path,
        config: LogConfig,
        clock: Clock,
        state: LogState,
        topic_id: uuid.UUID | None = None,
    ) -> None:
        super().__init__(topic, partition)
        self.directory = directory
        self.config = config
        self.topic_id = topic_id
        self._clock = clock
        self._segments = state.segments
        self._epochs = state.epochs
        self._producers = state.producers
        self._log_start_offset = state.log_start_offset
        self._log_end_offset = state.log_end_offset
        self._high_watermark = min(max(state.high_watermark, state.log_start_offset), state.log_end_offset)
        self._flushed_offset = min(state.recovery_point, state.log_end_offset)
        self._last_snapshot_offset = state.last_snapshot_offset
        self._last_flush_ms = clock.now_ms()
        self._lock = threading.Lock()  # guards what flush and truncation both change
        self._directory_changed = True  # what was written to open it may not be flushed yet

    def __repr__(self) -> str:
        return f"PartitionLog({self.name}, {self._log_start_offset}..{self._log_end_offset})"

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Everything below is committed or aborted for good."""
        unstable_offset = self._producers.first_unstable_offset()
        if unstable_offset is None or unstable_offset >= self._high_watermark:
            return self._high_watermark
        return max(unstable_offset, self._log_start_offset)

    @property
    def flushed_offset(self) -> int:
        return self._flushed_offset

    @property
    def recovery_point(self) -> int:
        """From here on the log is checked again after a crash."""
        return self._flushed_offset

    @property
    def flush_is_due(self) -> bool:
        """Whether flush.messages asks for a flush before anything more is acknowledged."""
        return self._log_end_offset - self._flushed_offset >= self.config.flush_messages

    @property
    def last_flush_ms(self) -> int:
        return self._last_flush_ms

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def has_unflushed_segments(self) -> bool:
        """Whether segments were rolled that are not yet on disk; nobody waits for it, but recovery gets shorter."""
        return self._flushed_offset < self._segments.active.base_offset

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    @property
    def latest_epoch(self) -> int:
        return self._epochs.latest_epoch

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        return self._epochs.entries

    @property
    def log_end(self) -> LogEnd:
        """What the clean-shutdown checkpoint keeps of this log."""
        return LogEnd(self._log_end_offset, len(self._segments), self._segments.active.size_bytes, self.size_bytes)

    def update_config(self, config: LogConfig) -> None:
        """Obey other settings from the next call on; index sizes count from the next segment."""
        self.config = config

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Say which topic this is, in a directory that does not tell."""
        with self.storage("partition metadata"):
            write_partition_metadata(self.directory, topic_id)
        self._directory_changed = True
        self.topic_id = topic_id

    def active_producers(self) -> list[ProducerEntry]:
        return self._producers.entries()

    def remove_expired_producers(self, now_ms: int, expiration_ms: int) -> int:
        return self._producers.remove_expired(now_ms, expiration_ms)

    # Appending

    def append_as_leader(
        self, records: memoryview, *, leader_epoch: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendResult:
        """Check one batch, give it its offsets in place and write it; raises KafkaError and changes nothing else."""
        self.check_online()
        now_ms = self._clock.now_ms()
        records, header, log_append_time_ms = validate_batch(records, self.config, now_ms, origin)
        if header.producer_id >= 0:
            duplicate = self._find_duplicate_or_check(header, log_append_time_ms, origin)
            if duplicate is not None:
                return duplicate
        first_offset = self._log_end_offset
        if leader_epoch > self._epochs.latest_epoch:
            self.assign_epoch(leader_epoch, first_offset)
        assign_offsets(records, first_offset, leader_epoch)
        header = header._replace(base_offset=first_offset, partition_leader_epoch=leader_epoch)
        self._write(records, [(0, header)], now_ms)
        return AppendResult(first_offset, header.last_offset, log_append_time_ms, self._log_start_offset)

    def _find_duplicate_or_check(
        self, header: BatchHeader, log_append_time_ms: int, origin: AppendOrigin
    ) -> AppendResult | None:
        is_client = origin is AppendOrigin.CLIENT
        duplicate = find_duplicate(self._producers, self._segments, header) if is_client else None
        if duplicate is None:
            self._producers.check(header, check_sequence=is_client)
            return None
        return AppendResult(
            duplicate.first_offset,
            duplicate.last_offset,
            duplicate.timestamp if log_append_time_ms >= 0 else -1,
            self._log_start_offset,
            is_duplicate=True,
        )

    def append_as_follower(self, records: memoryview) -> None:
        """Write batches that a leader gave their offsets; a partial one at the end is left out."""
        self.check_online()
        runs = split_into_runs(records, self._log_end_offset, self.config.segment_bytes)
        now_ms = self._clock.now_ms()
        for start, batches in runs:
            for _, header in batches:
                self.assign_epoch(header.partition_leader_epoch, header.base_offset)
            end = start + batches[-1][0] + batches[-1][1].size_bytes
            self._write(records[start:end], batches, now_ms)

    def _write(self, records: memoryview, batches: list[tuple[int, BatchHeader]], now_ms: int) -> None:
        """Write batches with one system call, then let everything that follows from them follow."""
        last = batches[-1][1]
        segment = self._segments.active
        try:
            if segment.should_roll(len(records), last.max_timestamp, last.last_offset, now_ms, self.config):
                segment = self._roll(batches[0][1].base_offset)
            start = segment.write(records)
        except SegmentBrokenError as error:
            raise self.go_offline(f"append failed: {error}") from error
        except OSError as error:
            raise LogStorageError(f"{self.name}: append failed and was undone: {error}") from error
        for position, header in batches:
            segment.note_batch(start + position, header)
            if header.producer_id >= 0:
                self._producers.update(header, coordinator_epoch(records, position, header))
        self._log_end_offset = last.next_offset

    # Segments

    def maybe_roll(self, now_ms: int) -> bool:
        """Begin a new segment when the active one has waited for segment.ms, though nothing is appended."""
        segment = self._segments.active
        if not segment.size_bytes or now_ms - segment.created_ms <= self.config.segment_ms - segment.roll_jitter_ms:
            return False
        self.roll()
        return True

    def roll(self) -> None:
        """Begin a new segment now."""
        self.check_online()
        with self.storage("roll"):
            self._roll(self._log_end_offset)

    def _roll(self, base_offset: int) -> Segment:
        active = self._segments.active
        if not active.size_bytes and active.base_offset == base_offset:
            return active
        created = self._create_segment(base_offset)
        active.become_inactive()
        self._take_snapshot(self._log_end_offset)
        if not active.size_bytes:
            # Offsets jumped too far for an empty segment's index; it would only stand in the way.
            self._remove_segments(len(self._segments) - 1, len(self._segments))
        self._segments.add(created)
        return created

    def _create_segment(self, base_offset: int) -> Segment:
        config = self.config
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        self._directory_changed = True
        return Segment.create(
            self.directory,
            base_offset,
            config,
            created_ms=self._clock.now_ms(),
            roll_jitter_ms=random.randint(0, jitter_ms) if jitter_ms else 0,
        )

    def _remove_segments(self, first: int, end: int) -> None:
        self._segments.remove(first, end, self._clock.now_ms() + self.config.file_delete_delay_ms)

    def take_removed_paths(self, now_ms: int) -> list[Path]:
        """The files of removed segments whose file.delete.delay.ms is over; the caller unlinks them, in a thread."""
        return self._segments.take_removed_paths(now_ms)

    def _take_snapshot(self, offset: int) -> None:
        if offset == self._last_snapshot_offset:
            return
        write_snapshot(self.directory, offset, self._producers.entries())
        if not self._segments.has_base_offset(self._last_snapshot_offset):
            snapshot_path(self.directory, self._last_snapshot_offset).unlink(missing_ok=True)
        self._last_snapshot_offset = offset

    # Reading

    def read(self, offset: int, max_bytes: int, *, limit_offset: int, min_one_batch: bool) -> LogRead:
        """Batches from the one that holds the offset up to the limit; raises OFFSET_OUT_OF_RANGE outside the log."""
        if not self._log_start_offset <= offset <= self._log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} holds offsets {self._log_start_offset} to {self._log_end_offset}, not {offset}",
            )
        limit_offset = min(limit_offset, self._log_end_offset)
        if offset >= limit_offset:
            return LogRead()
        first = self._segments.index_of(offset)
        with self.reading():
            return read_segments(self._segments, first, offset, max_bytes, limit_offset, min_one_batch)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record whose timestamp is not below this one."""
        for segment in self._segments:
            with self.reading():
                if segment.max_timestamp >= timestamp:
                    record = find_by_timestamp(segment, timestamp, self._log_start_offset)
                    if record is not None:
                        return self._timestamp_offset(record)
        return None

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """The first record that has the largest timestamp of all."""
        with self.reading():
            candidates = [segment for segment in self._segments if segment.size_bytes]
            if not candidates:
                return None
            record = find_max_timestamp(max(candidates, key=lambda segment: segment.max_timestamp))
        if record is None or record.offset < self._log_start_offset:
            return None
        return self._timestamp_offset(record)

    def _timestamp_offset(self, record: RecordTime) -> TimestampOffset:
        return TimestampOffset(record.timestamp, record.offset, self._epochs.epoch_for(record.offset))

    # Offsets and epochs

    def advance_high_watermark(self, offset: int) -> None:
        """Move the high watermark up, at most to the end of the log; it never goes back."""
        offset = min(offset, self._log_end_offset)
        if offset > self._high_watermark:
            self._high_watermark = offset
            self._producers.on_high_watermark(offset)

    def set_log_start_offset(self, offset: int) -> None:
        """Forget what lies below (DeleteRecords, retention); whole segments below it are removed."""
        self.check_online()
        if offset > self._high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name}: {offset} is above the high watermark {self._high_watermark}",
            )
        if offset <= self._log_start_offset:
            return
        with self.storage("deletion"):
            self._log_start_offset = offset
            self._remove_segments(0, self._segments.index_of(offset))
            self._epochs.truncate_from_start(offset)

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Begin a leader epoch; it is on disk when this returns."""
        if leader_epoch > self._epochs.latest_epoch:
            with self.storage("leader epoch checkpoint"):
                self._epochs.assign(leader_epoch, start_offset)
                self._directory_changed = True

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self._epochs.end_offset_for(epoch, self._log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        return self._epochs.epoch_for(offset)

    # Durability

    def flush(self, up_to: int | None = None) -> None:
        """fsync what is not yet on disk. Blocks; may be called from another thread than the rest."""
        self.check_online()
        end_offset = self._log_end_offset
        if self._flushed_offset >= (end_offset if up_to is None else min(up_to, end_offset)):
            self._last_flush_ms = self._clock.now_ms()
            return
        try:
            for segment in self._segments.from_offset(self._flushed_offset):
                segment.sync()
            if self._directory_changed:
                self._directory_changed = False
                sync_files(self.directory)
        except OSError as error:
            # The kernel may have dropped the dirty pages: a second fsync would succeed and prove nothing.
            raise self.go_offline(f"fsync failed: {error}") from error
        with self._lock:
            self._flushed_offset = max(self._flushed_offset, min(end_offset, self._log_end_offset))
        self._last_flush_ms = self._clock.now_ms()

    def close(self, *, clean: bool = True) -> None:
        """Flush, write what the next start needs, and let go of the files. Unclean: only let go."""
        if clean and not self.is_offline:
            self.flush()
            with self.storage("close"):
                self._segments.active.become_inactive()
                self._take_snapshot(self._log_end_offset)
        self._segments.close()
        self.take_offline("the log is closed")

    def move(self, directory: Path) -> None:
        """Rename the directory; what is open stays open."""
        os.rename(self.directory, directory)
        self.directory = directory
        self._epochs.move(directory)
        self._segments.move(directory)

    def verify(self) -> Iterator[Problem]:
        """Check all files against one another."""
        return verify(self.directory)

    # Truncation

    def truncate_to(self, offset: int) -> bool:
        """Drop all batches that hold this offset or come after it; False when there are none."""
        if offset >= self._log_end_offset:
            return False
        if offset <= self._log_start_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        with self.reading(), self.storage("truncation"), self._lock:
            index = self._segments.index_of(offset)
            self._remove_segments(index + 1, len(self._segments))
            segment = self._segments.active
            found = next((item for item in segment.headers_from(offset) if item[1].last_offset >= offset), None)
            if found is not None:
                position, header = found
                # A batch goes as a whole, so the log may end before the offset that was asked for.
                offset = min(offset, header.base_offset)
                segment.truncate_to(position, offset)
            self._epochs.truncate_from_end(offset)
            self._end_at(offset)
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next record gets this offset."""
        self.check_online()
        with self.reading(), self.storage("truncation"), self._lock:
            self._remove_segments(0, len(self._segments))
            self._segments.add(self._create_segment(offset))
            self._epochs.clear()
            self._log_start_offset = self._high_watermark = offset
            remove_snapshots(self.directory)
            self._end_at(offset)

    def _end_at(self, offset: int) -> None:
        self._log_end_offset = offset
        self._high_watermark = min(self._high_watermark, offset)
        self._flushed_offset = min(self._flushed_offset, offset)
        self._producers, self._last_snapshot_offset = restore_producers(
            self.directory, self._segments, self._log_start_offset, offset
        )
        self._producers.on_high_watermark(self._high_watermark)
