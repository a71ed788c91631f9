"""Which segments go by age, size and log start; what survives a crash meanwhile; who is not disturbed."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.common.ids import random_uuid
from tidelog.log import LogConfig, LogStorageError, PartitionLog
from tidelog.log.checkpoints import LOG_START_OFFSET_FILE, read_offsets
from tidelog.log.cold_lookup import ColdSegmentError
from tidelog.log.retention import count_expired, delete_expired
from tidelog.log.segment import DELETED_SUFFIX, LOG_SUFFIX, Segment
from tidelog.records import Record

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store

HOUR_MS = 3_600_000
KEEP = LogConfig(retention_ms=-1, retention_bytes=-1, file_delete_delay_ms=0)
ReadLog = Callable[..., list[Record]]


def config(**changes: object) -> LogConfig:
    return LogConfig.from_values(
        {"retention.ms": -1, "retention.bytes": -1, "file.delete.delay.ms": 0}
        | {name.replace("_", "."): value for name, value in changes.items()}
    )


def run(store: Store, name: str) -> None:
    """One turn of a background task."""
    (task,) = [task for task in store.manager.background_tasks() if task.name == name]

    async def once() -> None:
        await task.run()

    asyncio.run(once())


@pytest.fixture
def filled(store: Store, clock: VirtualClock, make_batch: MakeBatch) -> PartitionLog:
    """Four segments of one batch an hour; each has one record of 1,000 bytes; the last one is active."""
    log = store.create(KEEP)
    for index in range(4):
        log.append_as_leader(make_batch([bytes(1_000)]), leader_epoch=index)
        log.advance_high_watermark(log.log_end_offset)
        if index < 3:
            log.roll()
            clock.advance(hours=1)
    return log


def base_offsets(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


@pytest.mark.parametrize(
    ("retention_ms", "left"),
    [
        (-1, [0, 1, 2, 3]),
        (3 * HOUR_MS, [0, 1, 2, 3]),
        (3 * HOUR_MS - 1, [1, 2, 3]),
        (HOUR_MS, [2, 3]),
        (HOUR_MS - 1, [3]),
        (0, [3]),
    ],
)
def test_by_age(
    filled: PartitionLog, clock: VirtualClock, retention_ms: int, left: list[int], read_log: ReadLog
) -> None:
    """A segment goes when its largest timestamp is older than retention.ms, not when it is just as old."""
    filled.update_config(config(retention_ms=retention_ms))
    assert filled.delete_expired(clock.now_ms()) == 4 - len(left)
    assert base_offsets(filled) == left
    assert filled.log_start_offset == left[0]
    assert [record.offset for record in read_log(filled)] == left
    assert filled.delete_expired(clock.now_ms()) == 0


def test_an_expired_active_segment_is_rolled_and_goes(
    filled: PartitionLog, clock: VirtualClock, make_batch: MakeBatch, read_log: ReadLog
) -> None:
    filled.update_config(config(retention_ms=HOUR_MS))
    clock.advance(ms=HOUR_MS + 1)
    assert filled.delete_expired(clock.now_ms()) == 4
    assert base_offsets(filled) == [4]
    assert (filled.log_start_offset, filled.log_end_offset, filled.size_bytes) == (4, 4, 0)
    clock.advance(days=30)
    assert filled.delete_expired(clock.now_ms()) == 0, "an empty segment is left alone"
    filled.append_as_leader(make_batch([b"next"]), leader_epoch=9)
    assert [record.offset for record in read_log(filled)] == [4]


def test_the_largest_timestamp_counts_not_the_last(store: Store, clock: VirtualClock, make_batch: MakeBatch) -> None:
    log = store.create(config(retention_ms=HOUR_MS))
    times = [clock.now_ms(), clock.now_ms() - 50 * HOUR_MS]
    for time_ms in times:
        log.append_as_leader(make_batch(timestamps=[time_ms]), leader_epoch=0)
    log.advance_high_watermark(2)
    assert log.delete_expired(clock.now_ms()) == 0
    assert log.delete_expired(clock.now_ms() + HOUR_MS + 1) == 1


def test_a_timestamp_from_the_future_keeps_its_segment_and_those_behind_it(
    store: Store, clock: VirtualClock, make_batch: MakeBatch
) -> None:
    log = store.create(config(retention_ms=HOUR_MS, message_timestamp_after_max_ms=2**62))
    for time_ms in (clock.now_ms() + 1_000 * HOUR_MS, clock.now_ms()):
        log.append_as_leader(make_batch(timestamps=[time_ms]), leader_epoch=0)
        log.roll()
    log.advance_high_watermark(2)
    clock.advance(hours=100)
    assert log.delete_expired(clock.now_ms()) == 0
    clock.advance(hours=901, ms=1)
    assert log.delete_expired(clock.now_ms()) == 2


def test_without_timestamps_the_file_s_own_time_counts(
    store: Store, clock: VirtualClock, make_batch: MakeBatch
) -> None:
    log = store.create(config(retention_ms=HOUR_MS))
    log.append_as_leader(make_batch(timestamps=[-1]), leader_epoch=0)
    log.advance_high_watermark(1)
    written_s = clock.now_ms() / 1000
    os.utime(log.segments[0].path, (written_s, written_s))
    assert log.delete_expired(clock.now_ms() + HOUR_MS) == 0
    assert log.delete_expired(clock.now_ms() + HOUR_MS + 1) == 1


def test_by_size(filled: PartitionLog, clock: VirtualClock) -> None:
    """As long as retention.bytes are left without it, the oldest segment goes; never less is left."""
    size_bytes = filled.segments[0].size_bytes
    for kept_bytes, left in (
        (4 * size_bytes, [0, 1, 2, 3]),
        (3 * size_bytes + 1, [0, 1, 2, 3]),
        (3 * size_bytes, [1, 2, 3]),
        (size_bytes + 1, [2, 3]),
        (1, [3]),
        (0, [4]),
    ):
        filled.update_config(config(retention_bytes=kept_bytes))
        filled.delete_expired(clock.now_ms())
        assert base_offsets(filled) == left, kept_bytes


def test_size_and_age_together(filled: PartitionLog, clock: VirtualClock) -> None:
    size_bytes = filled.segments[0].size_bytes
    filled.update_config(config(retention_bytes=3 * size_bytes, retention_ms=HOUR_MS))
    assert filled.delete_expired(clock.now_ms()) == 2
    assert base_offsets(filled) == [2, 3]


@pytest.mark.parametrize("policy", [["compact"], []])
def test_other_policies_delete_nothing_by_age_or_size(
    filled: PartitionLog, clock: VirtualClock, policy: list[str]
) -> None:
    filled.update_config(config(cleanup_policy=policy, retention_ms=1, retention_bytes=1))
    assert filled.delete_expired(clock.now_ms()) == 0
    filled.update_config(config(cleanup_policy=[*policy, "delete"], retention_ms=HOUR_MS))
    assert filled.delete_expired(clock.now_ms()) == 2


def test_nothing_goes_beyond_the_high_watermark(store: Store, clock: VirtualClock, make_batch: MakeBatch) -> None:
    log = store.create(config(retention_ms=0, retention_bytes=0))
    for _ in range(3):
        log.append_as_leader(make_batch([b"a", b"b"]), leader_epoch=0)
        log.roll()
    clock.advance(days=1)
    assert log.delete_expired(clock.now_ms()) == 0
    log.advance_high_watermark(3)
    assert log.delete_expired(clock.now_ms()) == 1
    assert log.log_start_offset == 2
    log.advance_high_watermark(6)
    assert log.delete_expired(clock.now_ms()) == 2


@pytest.mark.parametrize("policy", [["delete"], ["compact"], []])
def test_what_lies_below_the_log_start_goes_under_any_policy(
    filled: PartitionLog, clock: VirtualClock, policy: list[str]
) -> None:
    def count(log_start_offset: int, high_watermark: int = 4) -> int:
        return count_expired(
            filled.segments,
            config(cleanup_policy=policy),
            clock.now_ms(),
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            log_end_offset=4,
        )

    assert [count(start) for start in (0, 1, 2, 3, 4)] == [0, 1, 2, 3, 3]
    assert count(2, high_watermark=1) == 1


def test_files_of_dropped_segments_do_not_come_back_after_a_crash(
    store: Store, filled: PartitionLog, clock: VirtualClock
) -> None:
    """They were not renamed yet, but it was written down where the log starts."""
    filled.set_log_start_offset(2)
    store.manager.checkpoint_log_start_offsets()
    log = store.reopen(clean=False)
    log.advance_high_watermark(4)
    log.delete_expired(clock.now_ms())
    assert (base_offsets(log), log.log_start_offset) == ([2, 3], 2)


def test_records_deleted_up_to_the_end_leave_the_active_segment(filled: PartitionLog, clock: VirtualClock) -> None:
    filled.set_log_start_offset(4)
    assert base_offsets(filled) == [3]
    assert filled.delete_expired(clock.now_ms()) == 0
    assert filled.log_start_offset == 4


# Files


def test_the_start_is_written_down_before_files_are_renamed(
    store: Store, filled: PartitionLog, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[dict[tuple[str, int], int]] = []
    mark_deleted = Segment.mark_deleted

    def noting(segment: Segment) -> list[Path]:
        known.append(read_offsets(store.path / LOG_START_OFFSET_FILE))
        return mark_deleted(segment)

    monkeypatch.setattr(Segment, "mark_deleted", noting)
    filled.update_config(config(retention_ms=HOUR_MS, file_delete_delay_ms=60_000))
    run(store, "delete expired segments")
    assert known == []
    assert len(store.files(LOG_SUFFIX)) == 4
    run(store, "remove deleted files")
    assert known == [{("topic", 0): 2}] * 2
    assert [path.name for path in store.files(LOG_SUFFIX)] == [f"{offset:020d}.log" for offset in (2, 3)]
    assert len(store.files(DELETED_SUFFIX)) == 6
    clock.advance(minutes=1)
    run(store, "remove deleted files")
    assert store.files(DELETED_SUFFIX) == []
    assert len(store.files(LOG_SUFFIX)) == 2


@pytest.mark.parametrize("done", ["nothing", "start", "renamed", "unlinked"])
@pytest.mark.parametrize("retention_ms", [2 * HOUR_MS - 1, 0])
def test_a_crash_at_any_point_neither_brings_back_nor_loses(
    store: Store, filled: PartitionLog, clock: VirtualClock, done: str, retention_ms: int, read_log: ReadLog
) -> None:
    store.config = config(retention_ms=retention_ms)
    filled.update_config(store.config)
    filled.flush()
    store.manager.checkpoint()
    clock.advance(ms=1)
    start = 2 if retention_ms else 4
    assert filled.delete_expired(clock.now_ms()) == start
    if done == "start":
        store.manager.checkpoint_log_start_offsets()
    elif done == "renamed":
        store.manager.rename_dropped_segments()
    elif done == "unlinked":
        run(store, "remove deleted files")
    log = store.reopen(clean=False)
    assert log.log_end_offset == 4
    log.advance_high_watermark(4)
    # Until the start is written down, nothing was let go as far as the disk knows: then it is let go again.
    assert log.log_start_offset == (0 if done == "nothing" else start)
    log.delete_expired(clock.now_ms())
    assert log.log_start_offset == start
    assert [record.offset for record in read_log(log)] == list(range(start, 4))
    run(store, "remove deleted files")
    assert [int(path.stem) for path in store.files(LOG_SUFFIX)] == base_offsets(log)


def test_a_power_cut_that_loses_the_new_segment_loses_no_offset(
    store: Store, filled: PartitionLog, clock: VirtualClock, make_batch: MakeBatch
) -> None:
    """All segments went, and the file of the one that was begun in their place did not reach the disk."""
    filled.update_config(config(retention_ms=0))
    filled.flush()
    store.manager.checkpoint()
    clock.advance(ms=1)
    filled.delete_expired(clock.now_ms())
    store.manager.rename_dropped_segments()
    store.stop(clean=False)
    for path in store.files(LOG_SUFFIX):
        path.unlink()
    store.start()
    assert (store.log.log_start_offset, store.log.log_end_offset) == (4, 4)
    assert store.log.append_as_leader(make_batch(), leader_epoch=9).first_offset == 4


def test_a_clean_stop_leaves_only_what_is_kept(store: Store, filled: PartitionLog, clock: VirtualClock) -> None:
    filled.update_config(config(retention_ms=HOUR_MS))
    assert filled.delete_expired(clock.now_ms()) == 2
    log = store.reopen(clean=True)
    assert (base_offsets(log), log.log_start_offset, log.recovery_point) == ([2, 3], 2, 4)


def test_readers_of_a_deleted_segment_finish(store: Store, filled: PartitionLog, clock: VirtualClock) -> None:
    found = filled.read(0, 1_000_000, limit_offset=4, min_one_batch=True)
    filled.update_config(config(retention_ms=0))
    clock.advance(ms=1)
    assert filled.delete_expired(clock.now_ms()) == 4
    run(store, "remove deleted files")
    assert store.files(DELETED_SUFFIX) == []
    (part,) = found.slices
    assert len(part.read()) == found.size_bytes


def test_truncation_after_deletion_keeps_the_new_segment(
    store: Store, filled: PartitionLog, clock: VirtualClock, make_batch: MakeBatch, read_log: ReadLog
) -> None:
    """A segment that gets the name of one whose files were not renamed yet is not taken for it."""
    filled.update_config(config(retention_ms=HOUR_MS))
    filled.delete_expired(clock.now_ms())
    filled.truncate_fully_and_start_at(0)
    filled.append_as_leader(make_batch([b"new"]), leader_epoch=9)
    store.manager.rename_dropped_segments()
    run(store, "remove deleted files")
    assert [record.value for record in read_log(filled)] == [b"new"]
    assert [path.name for path in store.files(LOG_SUFFIX)] == [f"{0:020d}.log"]


def test_a_deleted_partition_takes_its_dropped_segments_along(
    store: Store, filled: PartitionLog, clock: VirtualClock
) -> None:
    filled.update_config(config(retention_ms=HOUR_MS))
    filled.delete_expired(clock.now_ms())
    store.manager.delete("topic", 0)
    run(store, "remove deleted files")
    assert not [path for path in store.path.iterdir() if path.is_dir()]


def test_a_flush_that_meets_a_deleted_segment_goes_on(
    filled: PartitionLog, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush has chosen its segments when retention takes one of them away and its file is renamed."""
    filled.update_config(config(retention_ms=HOUR_MS))
    sync = Segment.sync
    met = threading.Event()

    def slow(segment: Segment) -> None:
        if segment.base_offset == 0:
            filled.delete_expired(clock.now_ms())
            filled.rename_dropped()
            met.set()
        sync(segment)

    monkeypatch.setattr(Segment, "sync", slow)
    filled.flush()
    assert met.is_set()
    assert not filled.is_offline
    assert filled.flushed_offset == 4


def test_a_flush_that_misses_a_segment_that_is_not_deleted_fails(
    filled: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(segment: Segment) -> None:
        raise FileNotFoundError(errno.ENOENT, "gone", str(segment.path))

    monkeypatch.setattr(Segment, "sync", missing)
    with pytest.raises(LogStorageError):
        filled.flush()


# Trouble


def test_a_full_disk_does_not_keep_what_would_make_room(
    store: Store, filled: PartitionLog, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither checkpoints nor new files can be written; three of four segments go all the same."""

    def full(*args: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    filled.update_config(config(retention_ms=0))
    clock.advance(ms=1)
    with monkeypatch.context() as patch:
        patch.setattr("tidelog.log.directory.write_offsets", full)
        patch.setattr("tidelog.log.epochs.write_unflushed", full)
        patch.setattr("tidelog.log.partition_log.Segment.create", full)
        run(store, "delete expired segments")
        run(store, "remove deleted files")
    assert not filled.is_offline
    assert base_offsets(filled) == [3]
    assert [path.name for path in store.files(LOG_SUFFIX)] == [f"{3:020d}.log"]
    run(store, "delete expired segments")
    assert base_offsets(filled) == [4]


def test_a_damaged_log_does_not_keep_the_others_from_it(
    store: Store, filled: PartitionLog, clock: VirtualClock, make_batch: MakeBatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = store.manager.create("topic", 1, random_uuid(), config(retention_ms=0))
    other.append_as_leader(make_batch(), leader_epoch=0)
    store.config = config(retention_ms=0)
    log = store.reopen(clean=True)
    first = log.segments[0]
    first.time_index.path.unlink()
    first.path.write_bytes(bytes(first.size_bytes))
    clock.advance(ms=1)
    for each in store.manager.logs():
        each.update_config(store.config)
        each.advance_high_watermark(each.log_end_offset)
    run(store, "delete expired segments")
    assert f"retention: partition topic-0 is corrupt: {first.path} at byte 0" in caplog.text
    assert base_offsets(log) == [0, 1, 2, 3]
    left = store.manager.get("topic", 1)
    assert left is not None
    assert left.log_start_offset == 1


def test_files_that_nobody_has_looked_into_are_read_ahead_in_a_thread(
    store: Store, filled: PartitionLog, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start it is not known how old segments are, and the event loop must not wait for the disk."""
    store.config = config(retention_ms=HOUR_MS)
    log = store.reopen(clean=True)
    log.advance_high_watermark(4)
    read: list[tuple[str, bool]] = []
    bring_in = ColdSegmentError.bring_in

    def noting(prepared: ColdSegmentError) -> None:
        is_loop = threading.current_thread() is threading.main_thread()
        read.append((str(prepared), is_loop or any(segment.knows_max_timestamp for segment in log.segments)))
        bring_in(prepared)

    monkeypatch.setattr(ColdSegmentError, "bring_in", noting)
    run(store, "delete expired segments")
    assert [Path(text.split()[2]).name for text, _ in read] == [f"{offset:020d}.log" for offset in range(4)]
    assert not any(is_late for _, is_late in read)
    assert base_offsets(log) == [2, 3]
    run(store, "delete expired segments")
    assert len(read) == 4, "what is known is not read again"


def test_thousands_of_logs_take_turns_with_everything_else(
    filled: PartitionLog, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long all logs together take, the event loop is never kept for more than a few of them."""
    now_s = 0.0
    looked_at = turns = longest = 0

    def look(log: PartitionLog, now_ms: int) -> int:
        nonlocal now_s, looked_at
        now_s += 0.001
        looked_at += 1
        return 0

    async def others() -> None:
        nonlocal turns, longest
        seen = 0
        while seen < 3_000:
            await asyncio.sleep(0)
            turns += 1
            longest = max(longest, looked_at - seen)
            seen = looked_at

    async def both() -> None:
        await asyncio.gather(others(), delete_expired([filled] * 3_000, clock.now_ms()))

    monkeypatch.setattr(PartitionLog, "delete_expired", look)
    monkeypatch.setattr("tidelog.common.steps.time.perf_counter", lambda: now_s)
    asyncio.run(both())
    assert looked_at == 3_000
    assert longest <= 3
    assert turns >= 1_000
