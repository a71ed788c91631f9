"""The cleaner beside everything else that happens to a log: truncation, deletion, full and broken disks, a stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.common.ids import random_uuid
from tidelog.log import LogConfig, LogStorageError, PartitionLog
from tidelog.log.checkpoints import CLEANER_OFFSET_FILE, read_offsets
from tidelog.log.cleaner_manager import LogCleaner
from tidelog.log.inspect import verify
from tidelog.records import Record, decode_records

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store

ReadLog = Callable[..., list[Record]]
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
SEGMENTS = 4
# Far more than a clean of such a log takes; the tests below see to it that each of its steps was interrupted.
STEPS_MAX = 40

MakeDirty = Callable[..., PartitionLog]


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two segments become one, so that a clean has two runs and may end between them."""
    monkeypatch.setattr("tidelog.log.cleaner_choice.RUN_SEGMENTS_MAX", 2)


@pytest.fixture
def make_dirty(store: Store, make_batch: MakeBatch) -> MakeDirty:
    """A log with a few segments, in which every key is written in each of them."""

    def make(topic: str = "topic", config: LogConfig = COMPACTED, **batch: Any) -> PartitionLog:
        if topic == "topic":
            store.config = config
        log = store.manager.get(topic, 0) or store.manager.create(topic, 0, random_uuid(), config)
        for segment in range(SEGMENTS):
            values = [b"%d-%d" % (segment, number) for number in range(5)]
            keys = [b"key-%d" % number for number in range(5)]
            log.append_as_leader(make_batch(values, keys=keys, **batch), leader_epoch=0)
            log.roll()
        log.flush()
        log.advance_high_watermark(log.log_end_offset)
        return log

    return make


def clean(store: Store) -> None:
    asyncio.run(store.manager.cleaner.run())


def contents(records: Iterable[Record]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records]


def leftovers(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if name.endswith((".cleaned", ".swap"))]


def interrupt(
    monkeypatch: pytest.MonkeyPatch, cleaner: LogCleaner, number: int, action: Callable[[], object]
) -> list[str]:
    """Do something on the event loop before a step of the cleaner's thread; gives the names of the steps."""
    steps: list[str] = []
    in_thread = LogCleaner._in_thread

    async def counted(self: LogCleaner, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        name = getattr(function, "__name__", "clean")
        # Begun like a thread's step, so that the action falls between the last change of the log and the next.
        steps.append(name)
        if len(steps) == number + 1:
            action()
        return await in_thread(self, function, *args, **kwargs)

    monkeypatch.setattr(LogCleaner, "_in_thread", counted)
    return steps


EVERY_STEP = pytest.mark.parametrize("number", range(15))


def stored(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """What is in the files: where a compacted log is cut off, offsets before its end may have no batch any more."""
    batches = (item.read_batch(position, header) for item in log.segments for position, header in item.headers())
    return contents(record for batch in batches for record in decode_records(batch))


@EVERY_STEP
def test_truncation_ends_a_clean(
    store: Store, make_dirty: MakeDirty, read_log: ReadLog, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    log = make_dirty()
    everything = contents(read_log(log))
    steps = interrupt(monkeypatch, store.manager.cleaner, number, lambda: log.truncate_to(12))
    clean(store)
    assert len(steps) > number
    left = stored(log)
    # A batch goes as a whole, so the log ends where its third began, unless that was merged with the next.
    assert log.log_end_offset in (10, 12)
    assert set(left) <= set(everything[:10])
    assert (log.first_dirty_offset or 0) <= log.log_end_offset
    assert leftovers(store.directory) == []
    assert list(verify(store.directory)) == []
    assert stored(store.reopen(clean=False)) == left


@EVERY_STEP
def test_deleted_records_end_a_clean_and_the_next_is_right(
    store: Store, make_dirty: MakeDirty, read_log: ReadLog, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    log = make_dirty()
    last = contents(read_log(log))[-5:]
    interrupt(monkeypatch, store.manager.cleaner, number, lambda: log.set_log_start_offset(11))
    clean(store)
    assert contents(read_log(log)) == last
    assert log.log_start_offset == 11
    store.manager.rename_dropped_segments()
    assert leftovers(store.directory) == []
    assert store.manager.checkpoint()
    assert contents(read_log(store.reopen(clean=False))) == last


@EVERY_STEP
def test_deletion_of_the_topic_waits_for_the_thread(
    store: Store, make_dirty: MakeDirty, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A new topic of that name must not find files that a thread wrote for the old one, nor its checkpoint."""
    make_dirty()
    deletions: list[asyncio.Task[None]] = []

    def delete() -> None:
        deletions.append(asyncio.get_running_loop().create_task(asyncio.to_thread(store.manager.delete, "topic", 0)))

    async def clean_and_delete() -> None:
        await store.manager.cleaner.run()
        await asyncio.gather(*deletions)

    interrupt(monkeypatch, store.manager.cleaner, number, delete)
    asyncio.run(clean_and_delete())
    assert deletions
    assert not store.directory.exists()
    log = store.manager.create("topic", 0, random_uuid(), COMPACTED)
    assert log.first_dirty_offset is None
    assert leftovers(store.directory) == []
    assert store.reopen(clean=False).first_dirty_offset is None


@EVERY_STEP
def test_a_stop_ends_a_clean_early(
    store: Store, make_dirty: MakeDirty, read_log: ReadLog, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    log = make_dirty()
    before = contents(read_log(log))
    steps = interrupt(monkeypatch, store.manager.cleaner, number, store.manager.cleaner.stop)
    clean(store)
    # What was begun, the removal of what was written, the end of the map, the checkpoints.
    assert len(steps) <= number + 7
    assert leftovers(store.directory) == []
    left = contents(read_log(store.reopen(clean=True)))
    assert set(left) <= set(before)
    assert left[-5:] == before[-5:]


def test_the_steps_are_as_many_as_the_tests_interrupt(
    store: Store, make_dirty: MakeDirty, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dirty()
    steps = interrupt(monkeypatch, store.manager.cleaner, STEPS_MAX, lambda: None)
    clean(store)
    flushes = ["clean", "fsync_directory", "fsync_directory", "fsync_directory"]
    before = ["import_module", "checkpoint_cleaner_offsets", "_describe", "make_offset_map", "build_offset_map"]
    assert steps == [*before, *flushes, *flushes, "clear", "checkpoint_cleaner_offsets"]


def test_a_damaged_log_is_named_once_and_others_go_on(
    store: Store, make_dirty: MakeDirty, read_log: ReadLog, caplog: pytest.LogCaptureFixture
) -> None:
    log = make_dirty()
    other = make_dirty("other")
    path = log.segments[2].path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    files = {item: item.read_bytes() for item in sorted(store.directory.glob("*.log"))}
    with caplog.at_level(logging.INFO):
        clean(store)
        clean(store)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith(f"topic-0 can no longer be compacted: {path} at byte 0: the CRC is")
    assert store.manager.cleaner.uncleanable == [("topic", 0)]
    assert {item: item.read_bytes() for item in sorted(store.directory.glob("*.log"))} == files
    assert leftovers(store.directory) == []
    assert len(contents(read_log(other))) == 5
    assert not log.is_offline
    store.manager.delete("topic", 0)
    assert store.manager.cleaner.uncleanable == []


def fail_on(monkeypatch: pytest.MonkeyPatch, name: str, code: int, path_part: str) -> list[str]:
    """Let a call to the file system fail for some files."""
    real = getattr(os, name)
    failed: list[str] = []

    def call(target: object, *args: Any, **kwargs: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
        if path_part in path:
            failed.append(path)
            raise OSError(code, os.strerror(code), path)
        return real(target, *args, **kwargs)

    monkeypatch.setattr(os, name, call)
    return failed


@pytest.mark.parametrize(
    ("name", "part"),
    [("pwrite", ".log.cleaned"), ("open", ".log.cleaned"), ("fsync", ".cleaned"), ("rename", ".log.cleaned")],
)
def test_a_full_disk_leaves_the_log_and_is_tried_again(
    store: Store,
    make_dirty: MakeDirty,
    read_log: ReadLog,
    clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
    name: str,
    part: str,
) -> None:
    log = make_dirty()
    before = contents(read_log(log))
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.INFO):
        assert_failed = fail_on(patch, name, errno.ENOSPC, part)
        clean(store)
        clean(store)
        assert len(assert_failed) == 1, "not tried again at once"
        clock.advance(minutes=1)
        clean(store)
        assert len(assert_failed) == 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("topic-0 is not compacted for now and stays as it is: [Errno 28]")
    assert contents(read_log(log)) == before
    assert leftovers(store.directory) == []
    assert not log.is_offline
    clock.advance(minutes=1)
    clean(store)
    assert contents(read_log(log)) == before[-5:]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("pwrite", ".log.cleaned"),
        ("fsync", ".cleaned"),
        ("rename", ".log.swap"),
        ("rename", "05.log"),
        ("pread", ".log"),
    ],
)
def test_a_broken_disk_takes_the_directory_offline(
    store: Store, make_dirty: MakeDirty, read_log: ReadLog, clock: VirtualClock, name: str, part: str
) -> None:
    log = make_dirty()
    other = make_dirty("other", replace(COMPACTED, cleanup_policy=frozenset({"delete"})))
    before = contents(read_log(log))
    store.manager.checkpoint()
    for segment in log.segments:
        segment.close()
    with pytest.MonkeyPatch.context() as patch:
        assert_failed = fail_on(patch, name, errno.EIO, part)
        clean(store)
    assert assert_failed
    for refused in (log, other):
        with pytest.raises(LogStorageError):
            refused.health.check_online()
    log = store.reopen(clean=False)
    assert contents(read_log(log))[-5:] == before[-5:]
    assert leftovers(store.directory) == []
    log.advance_high_watermark(log.log_end_offset)
    clean(store)
    assert contents(read_log(log)) == before[-5:]


def test_how_far_a_log_is_clean_is_known_after_a_restart(store: Store, make_dirty: MakeDirty) -> None:
    make_dirty()
    make_dirty("plain", replace(COMPACTED, cleanup_policy=frozenset({"delete"})))
    clean(store)
    assert read_offsets(store.path / CLEANER_OFFSET_FILE) == {("topic", 0): 20}
    assert store.reopen(clean=False).first_dirty_offset == 20
    store.manager.delete("topic", 0)
    assert store.manager.checkpoint()
    assert read_offsets(store.path / CLEANER_OFFSET_FILE) == {}


def test_a_broker_without_compaction_writes_no_checkpoint(store: Store) -> None:
    store.create()
    assert store.manager.checkpoint()
    assert not (store.path / CLEANER_OFFSET_FILE).exists()


def test_threads_share_the_logs_and_go_when_nothing_is_left(
    store: Store, make_dirty: MakeDirty, caplog: pytest.LogCaptureFixture
) -> None:
    cleaner = store.manager.cleaner
    cleaner.config = replace(cleaner.config, threads=2)
    for number in range(6):
        make_dirty(f"topic{number}")

    async def run_both() -> None:
        await asyncio.gather(cleaner.run(), cleaner.run())

    with caplog.at_level(logging.INFO):
        asyncio.run(run_both())
    lines = [record.getMessage() for record in caplog.records if "compacted" in record.getMessage()]
    assert sorted(line.split()[1] for line in lines) == [f"topic{number}-0" for number in range(6)]
    assert "5 of 20 records stay" in lines[0]
    totals = cleaner.totals
    assert totals.cleans_count == 6
    assert 0 < totals.bytes_written < totals.bytes_read
    assert 0 < totals.last_map_utilization <= 1
    assert cleaner._threads is None


def test_cleaning_can_be_switched_off(tmp_path: Path, clock: VirtualClock) -> None:
    from tidelog.log import LogManager

    def tasks(**values: object) -> list[str]:
        named = {name.replace("_", "."): value for name, value in values.items()}
        names = [task.name for task in LogManager([tmp_path], named, clock).background_tasks()]
        return [name for name in names if name.startswith("compact")]

    assert tasks() == ["compact logs 0"]
    assert tasks(log_cleaner_threads=2) == ["compact logs 0", "compact logs 1"]
    assert tasks(log_cleaner_enable=False) == []
