"""The log of one partition: appends, reads, offsets, and the state that follows from its batches.

What always holds: log_start_offset <= high_watermark <= log_end_offset; everything below `flushed_offset` was
fsynced; an append either happened whole (in the file, the indexes, the producer state) or not at all; after a disk
error whose effects are unknown the log is offline and refuses everything with KAFKA_STORAGE_ERROR. All methods are
called from one thread, except `flush` and `rename_dropped`, which may run in others. Opening a log from its files is
in `recovery`, what is asked of it without changing it in `readable_log`, what it need not keep in `retention`.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from tidelog.log.checkpoints import fsync_directory, sync_files, write_partition_metadata
from tidelog.log.cleaning import LogCleaning
from tidelog.log.config import LogConfig
from tidelog.log.health import is_out_of_room
from tidelog.log.inspect import Problem, verify
from tidelog.log.log_state import AppendResult, FlushMark
from tidelog.log.producer_replay import find_duplicate, read_marker, restore_producers
from tidelog.log.producer_snapshot import remove_snapshots, snapshot_path, write_snapshot
from tidelog.log.readable_log import ReadableLog
from tidelog.log.retention import count_expired
from tidelog.log.segment import Segment, SegmentBrokenError
from tidelog.log.txn_guard import NOT_ASKED, TransactionGuard
from tidelog.log.txn_index import AbortedTransaction
from tidelog.log.validation import AppendOrigin, split_into_runs, validate_batch
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import BatchHeader, ControlRecordType, assign_offsets, encode_control_batch


class PartitionLog(ReadableLog):
    """Segments in a row; the last one is appended to."""

    __slots__ = ()

    def update_config(self, config: LogConfig) -> None:
        """Obey other settings from the next call on; index sizes count from the next segment."""
        self.config = config

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Say which topic this is, in a directory that does not tell."""
        with self.storage("partition metadata"):
            write_partition_metadata(self.directory, topic_id)
        self._directory_version += 1
        self.topic_id = topic_id

    # Appending

    def append_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: TransactionGuard | None = NOT_ASKED,
    ) -> AppendResult:
        """Check one batch, give it its offsets in place and write it; raises KafkaError and changes nothing else.

        `guard` lets it begin a transaction, see `begin_verification`.
        """
        self.check_online()
        now_ms = self._clock.now_ms()
        records, header, log_append_time_ms = validate_batch(records, self.config, now_ms, origin)
        if header.producer_id >= 0:
            duplicate = self._find_duplicate_or_check(header, log_append_time_ms, origin, guard)
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
        self, header: BatchHeader, log_append_time_ms: int, origin: AppendOrigin, guard: TransactionGuard | None
    ) -> AppendResult | None:
        is_client = origin is AppendOrigin.CLIENT
        duplicate = find_duplicate(self._producers, self._segments, header) if is_client else None
        if duplicate is None:
            if not header.is_control:
                self._producers.check(header, check_sequence=is_client, guard=guard)
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
            raise self.refuse("append", error) from error
        for position, header in batches:
            segment.note_batch(start + position, header)
            if header.producer_id >= 0:
                aborted = self._producers.update(header, read_marker(records, position, header))
                if aborted is not None:
                    self._note_aborted(segment, aborted)
        self._log_end_offset = last.next_offset

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
        batch = encode_control_batch(
            ControlRecordType.COMMIT if commit else ControlRecordType.ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=self._clock.now_ms(),
        )
        return self.append_as_leader(memoryview(batch), leader_epoch=leader_epoch, origin=AppendOrigin.COORDINATOR)

    def _note_aborted(self, segment: Segment, aborted: AbortedTransaction) -> None:
        # Without its entry readers would take the records for committed ones; after a restart it is there again.
        with self.storage("note of an aborted transaction"):
            if not len(segment.txn_index):
                self._directory_version += 1
            segment.txn_index.append(aborted)
        self._last_aborted_offset = aborted.last_offset

    # Segments

    def maybe_roll(self, now_ms: int) -> bool:
        """Begin a new segment when the active one has waited for segment.ms, though nothing is appended."""
        segment = self._segments.active
        if not segment.size_bytes or now_ms - segment.created_ms <= self.config.max_segment_ms - segment.roll_jitter_ms:
            return False
        self.roll()
        return True

    def roll(self) -> None:
        """Begin a new segment now."""
        self.check_online()
        with self.storage("roll", is_undone=True):
            self._roll(self._log_end_offset)

    def _roll(self, base_offset: int) -> Segment:
        active = self._segments.active
        if not active.size_bytes and active.base_offset == base_offset:
            return active
        created = self._create_segment(base_offset)
        try:
            active.become_inactive()
            self._take_snapshot(self._log_end_offset)
        except OSError:
            # A smaller batch may still fit the old segment; one that begins within it would later pass for damage.
            with self.storage("removal of an unused segment"):
                created.path.unlink()
            raise
        if not active.size_bytes:
            # Offsets jumped too far for an empty segment's index; it would only stand in the way.
            self._remove_segments(len(self._segments) - 1, len(self._segments))
        self._segments.add(created)
        return created

    def _create_segment(self, base_offset: int) -> Segment:
        config = self.config
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        self._directory_version += 1
        return Segment.create(
            self.directory,
            base_offset,
            config,
            created_ms=self._clock.now_ms(),
            roll_jitter_ms=random.randint(0, jitter_ms) if jitter_ms else 0,
        )

    @property
    def _removal_due_ms(self) -> int:
        return self._clock.now_ms() + self.config.file_delete_delay_ms

    def _remove_segments(self, first: int, end: int) -> None:
        self._segments.remove(first, end, self._removal_due_ms)

    def take_removed_paths(self, now_ms: int) -> list[Path]:
        """The files of removed segments whose file.delete.delay.ms is over; the caller unlinks them, in a thread."""
        return self._segments.take_removed_paths(now_ms)

    # Cleaning: a thread writes what shall take the place of segments, the log lets it in

    def start_cleaning(self) -> LogCleaning:
        """Let segments be replaced, until the cleaning is ended or something else happens to the segments."""
        self.check_online()
        return self._segments.start_cleaning()

    def end_cleaning(self) -> None:
        with self.storage("end of cleaning"):
            self._segments.end_cleaning()

    def decide_swap(self, cleaning: LogCleaning, old: Sequence[Segment]) -> None:
        """Decide that the cleaned segment beside them replaces old ones; raises CleaningAbortedError, or OSError."""
        self.check_online()
        self._segments.decide_swap(cleaning, old)

    def swap(self, cleaning: LogCleaning, old: Sequence[Segment], size_bytes: int) -> None:
        """Replace old segments as decided, once the decision is on disk; raises CleaningAbortedError."""
        self.check_online()
        cleaned = Segment(
            self.directory,
            old[0].base_offset,
            self.config,
            created_ms=old[-1].created_ms,
            size_bytes=size_bytes,
        )
        with self.storage("swap of a cleaned segment"):
            self._segments.swap(cleaning, old, cleaned, self._removal_due_ms)

    def _take_snapshot(self, offset: int) -> None:
        if offset == self._last_snapshot_offset:
            return
        write_snapshot(self.directory, offset, self._producers.entries())
        if self._last_snapshot_offset >= 0 and not self._segments.has_base_offset(self._last_snapshot_offset):
            snapshot_path(self.directory, self._last_snapshot_offset).unlink(missing_ok=True)
        self._last_snapshot_offset = offset

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
        self._forget_below(offset)

    def delete_expired(self, now_ms: int) -> int:
        """Forget the segments that retention lets go; how many. All of them: another is begun first."""
        with self.reading():
            count = count_expired(
                self._segments,
                self.config,
                now_ms,
                log_start_offset=self._log_start_offset,
                high_watermark=self._high_watermark,
                log_end_offset=self._log_end_offset,
            )
        if count:
            # As many as can go without a new segment go first: on a full disk there may be no room for one.
            held = min(count, len(self._segments) - 1)
            self._forget_below(self._segments[held].base_offset)
            if held < count:
                self.roll()
                self._forget_below(self._log_end_offset)
        return count

    def _forget_below(self, offset: int) -> None:
        self._log_start_offset = max(self._log_start_offset, offset)
        self._segments.drop_first(self._segments.index_of(offset))
        with self.storage("deletion"):
            try:
                self._epochs.truncate_from_start(offset)
            except OSError as error:
                # Its file goes on naming epochs that are gone, which harms nobody; full disks need deletions most.
                if not is_out_of_room(error):
                    raise

    def rename_dropped(self, *, sync: bool = False) -> None:
        """Rename the files of what was forgotten, after the directory was flushed where asked for. Blocks."""
        with self.storage("deletion"), self._lock:
            if sync:
                fsync_directory(self.directory)
            self._segments.rename_dropped(self._removal_due_ms)

    def assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Begin a leader epoch; it is on disk when this returns."""
        if leader_epoch > self._epochs.latest_epoch:
            with self.storage("leader epoch checkpoint", is_undone=True):
                self._epochs.assign(leader_epoch, start_offset)
                self._directory_version += 1

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self._epochs.end_offset_for(epoch, self._log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        return self._epochs.epoch_for(offset)

    # Durability

    def flush(self, up_to: int | None = None) -> None:
        """fsync what is not yet on disk. Blocks; may be called from another thread than the rest."""
        self.check_online()
        mark = self.flush_mark()
        end_offset = mark.end_offset
        is_truncated = self._flushed_truncations < mark.truncations
        flushed_offset = self.recovery_point if up_to is None else self._flushed_offset
        if flushed_offset >= (end_offset if up_to is None else min(up_to, end_offset)) and not is_truncated:
            self._last_flush_ms = self._clock.now_ms()
            return
        try:
            for segment in self._segments.with_unflushed_indexes(self._flushed_offset):
                segment.sync_indexes()
            for segment in self._segments.from_offset(self._flushed_offset):
                self._sync(segment)
            if is_truncated:
                # It may be empty by now, and what was cut off must not come back.
                self._sync(self._segments.active)
            if self._flushed_directory_version < mark.directory_version:
                sync_files(self.directory)
        except OSError as error:
            # The kernel may have dropped the dirty pages: a second fsync would succeed and prove nothing.
            raise self.go_offline(f"fsync failed: {error}") from error
        self.note_flushed(mark)

    def flush_mark(self) -> FlushMark:
        """How far the log is now; for `note_flushed`, after all of it was flushed."""
        active_base_offset = self._segments.active.base_offset
        return FlushMark(self._log_end_offset, active_base_offset, self._directory_version, self._truncations)

    def note_flushed(self, mark: FlushMark) -> None:
        """All that was there at the mark is on disk. May be called from another thread than the rest."""
        self._flushed_directory_version = max(self._flushed_directory_version, mark.directory_version)
        self._segments.note_flushed(mark.active_base_offset)
        with self._lock:
            if self._truncations == mark.truncations:
                self._flushed_offset = max(self._flushed_offset, min(mark.end_offset, self._log_end_offset))
                self._flushed_truncations = mark.truncations
        self._last_flush_ms = self._clock.now_ms()

    def _sync(self, segment: Segment) -> None:
        try:
            if segment is self._segments.active:
                # Its indexes are written anew after a crash, as the recovery point lies in it.
                segment.sync_file()
            else:
                segment.sync()
        except FileNotFoundError:
            # It was let go while this thread was on its way to it.
            if any(held is segment for held in self._segments):
                raise

    def close(self, *, clean: bool = True) -> None:
        """Flush, write what the next start needs, and let go of the files. Unclean: only let go."""
        if clean and not self.is_offline:
            self.settle()
            self.flush()
            with self.storage("close"):
                # Where the machine goes down after a clean stop, they are not built anew.
                self._segments.active.sync_indexes()
        self._segments.close()
        self.take_offline("the log is closed")

    def settle(self) -> None:
        """Write what the next clean start needs besides the records. Nothing may be appended after it."""
        with self.storage("close"):
            self._segments.active.become_inactive()
            if self._log_end_offset > self._log_start_offset or self._producers.entries():
                self._take_snapshot(self._log_end_offset)

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
        with self.reading():
            index = self._segments.index_of(offset)
            segment = self._segments[index]
            found = next((item for item in segment.headers_from(offset) if item[1].last_offset >= offset), None)
        if found is not None and found[1].base_offset < self._log_start_offset:
            # The first batch that is left goes as a whole, and with it everything; the log still begins where it did.
            self.truncate_fully_and_start_at(self._log_start_offset)
            return True
        with self.storage("truncation"), self._lock:
            # Offsets come again: a segment made later may have the name of one that was dropped before.
            self._segments.rename_dropped(self._removal_due_ms)
            self._remove_segments(index + 1, len(self._segments))
            if found is not None:
                position, header = found
                # A batch goes as a whole, so the log may end before the offset that was asked for.
                offset = min(offset, header.base_offset)
                segment.truncate_to(position, offset)
                # Until a flush has reached it, the segment is checked after a crash: it may have its old end again.
                self._flushed_offset = min(self._flushed_offset, segment.base_offset)
            self._epochs.truncate_from_end(offset)
            self._end_at(offset)
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next record gets this offset."""
        self.check_online()
        with self.reading(), self.storage("truncation"), self._lock:
            self._segments.rename_dropped(self._removal_due_ms)
            if remove_snapshots(self.directory):
                # One that came back would speak of producers whose batches the log does not hold.
                fsync_directory(self.directory)
            self._remove_segments(1, len(self._segments))
            first = self._segments.active
            if first.base_offset == offset:
                first.truncate_to(0, offset)
            else:
                # At any moment one of them is there: without a log file at all, records would seem to be lost.
                created = self._create_segment(offset)
                self._remove_segments(0, 1)
                self._segments.add(created)
            self._epochs.clear()
            self._log_start_offset = self._high_watermark = offset
            self._end_at(offset)

    def _end_at(self, offset: int) -> None:
        self._truncations += 1
        self._directory_version += 1
        if self.first_dirty_offset is not None:
            self.first_dirty_offset = min(self.first_dirty_offset, offset)
        self._log_end_offset = offset
        self._high_watermark = min(self._high_watermark, offset)
        self._flushed_offset = min(self._flushed_offset, offset)
        self._last_aborted_offset = self._segments.last_aborted_offset
        self._producers, self._last_snapshot_offset = restore_producers(
            self.directory, self._segments, self._log_start_offset, offset
        )
        self._producers.on_high_watermark(self._high_watermark)
