"""When logs are flushed, by which threads, and what each flush costs."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.common.ids import random_uuid
from tidelog.log import LogConfig, LogManager, PartitionLog

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store

real_fsync = os.fsync


class Disk:
    """Counts the flushes of files by their names' endings; may hold all of them back, or fail them."""

    def __init__(self) -> None:
        self.flushed: Counter[str] = Counter()
        self.threads: set[int] = set()
        self.fails = False
        self.barrier: threading.Barrier | None = None

    def fsync(self, fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        self.flushed[path.suffix or path.name] += 1
        self.threads.add(threading.get_ident())
        if self.barrier is not None and path.suffix == ".log":
            self.barrier.wait(20)
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real_fsync(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk


def run(manager: LogManager, name: str) -> None:
    (task,) = [task for task in manager.background_tasks() if task.name == name]

    async def once() -> None:
        await task.run()

    asyncio.run(once())


def test_a_flush_of_records_alone_is_one_fsync(store: Store, make_batch: MakeBatch, disk: Disk) -> None:
    """Indexes of the segment that is appended to are written anew after a crash; names are flushed once."""
    log = store.create(LogConfig(index_interval_bytes=10))
    for _ in range(20):
        log.append_as_leader(make_batch([bytes(100)]), leader_epoch=0)
    log.flush()
    assert disk.flushed == {".log": 1, "leader-epoch-checkpoint": 1, ".metadata": 1, "topic-0": 1, "data": 1}
    disk.flushed.clear()
    log.append_as_leader(make_batch(), leader_epoch=0)
    log.flush()
    assert disk.flushed == {".log": 1}
    disk.flushed.clear()
    log.flush()
    assert not disk.flushed


def test_a_new_file_is_flushed_with_its_name(store: Store, make_batch: MakeBatch, disk: Disk) -> None:
    log = store.create()
    log.append_as_leader(make_batch(), leader_epoch=0)
    log.flush()
    disk.flushed.clear()
    log.roll()
    log.append_as_leader(make_batch(), leader_epoch=0)
    log.flush()
    assert disk.flushed[".log"] == 1
    assert disk.flushed["topic-0"] == 1


def test_two_flushes_at_once_both_flush_the_names(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second must not vouch for what the first has only begun to flush."""
    log = store.create()
    log.append_as_leader(make_batch(), leader_epoch=0)
    flushed: list[int] = []

    def sync_names(directory: Path) -> None:
        if not flushed:
            flushed.append(0)
            second = threading.Thread(target=log.flush)
            second.start()
            second.join()
        flushed.append(log.flushed_offset)

    monkeypatch.setattr("tidelog.log.partition_log.sync_files", sync_names)
    log.flush()
    # The inner one flushes the names too, before anything counts as flushed.
    assert flushed == [0, 0, 1]


def test_a_flush_that_was_overtaken_by_a_truncation_vouches_for_nothing(
    store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = store.create()
    for _ in range(3):
        log.append_as_leader(make_batch(), leader_epoch=0)

    is_overtaken = False

    def fsync(fd: int) -> None:
        nonlocal is_overtaken
        real_fsync(fd)
        if not is_overtaken:
            is_overtaken = True  # the truncation flushes its checkpoints, too
            log.truncate_to(1)
            for _ in range(2):
                log.append_as_leader(make_batch(), leader_epoch=1)

    monkeypatch.setattr(os, "fsync", fsync)
    log.flush()
    assert log.flushed_offset < 3
    log.flush()
    assert log.flushed_offset == 3


@pytest.mark.parametrize(("interval_ms", "expected_ms"), [(2**63 - 1, 1_000), (50, 50), (60_000, 60_000)])
def test_how_often_flush_ms_is_looked_at(
    tmp_path: Path, clock: VirtualClock, interval_ms: int, expected_ms: int
) -> None:
    manager = LogManager([tmp_path], {"log.flush.scheduler.interval.ms": interval_ms}, clock)
    intervals = {task.name: task.interval_ms for task in manager.background_tasks()}
    assert intervals["flush logs"] == expected_ms


def test_flush_ms_counts_from_the_last_flush_and_can_be_altered(
    store: Store, make_batch: MakeBatch, disk: Disk
) -> None:
    log = store.create(LogConfig(flush_ms=500))
    log.append_as_leader(make_batch(), leader_epoch=0)
    store.clock.advance(ms=499)
    run(store.manager, "flush logs")
    assert log.flushed_offset == 0
    log.update_config(LogConfig(flush_ms=300))
    run(store.manager, "flush logs")
    assert log.flushed_offset == 1
    log.append_as_leader(make_batch(), leader_epoch=0)
    store.clock.advance(ms=299)
    run(store.manager, "flush logs")
    assert log.flushed_offset == 1
    disk.flushed.clear()
    store.clock.advance(ms=1)
    run(store.manager, "flush logs")
    run(store.manager, "flush logs")
    assert disk.flushed == {".log": 1}


def test_looking_at_many_logs_leaves_time_for_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowLog:
        """A log that takes a millisecond to look at, as thousands of them do together."""

        config = LogConfig(flush_ms=500)

        @property
        def last_flush_ms(self) -> int:
            time.sleep(0.001)
            return store.clock.now_ms()

    monkeypatch.setattr(store.manager, "open_logs", lambda: [SlowLog() for _ in range(20)])
    tasks = {task.name: task.run for task in store.manager.background_tasks()}

    async def turns_of_others() -> int:
        looking = asyncio.ensure_future(tasks["flush logs"]())
        turns = 0
        while not looking.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(turns_of_others()) >= 5


@pytest.fixture
def many(store: Store, make_batch: MakeBatch) -> list[PartitionLog]:
    logs = [store.manager.create("many", index, random_uuid(), LogConfig(flush_ms=0)) for index in range(24)]
    for log in logs:
        log.append_as_leader(make_batch(), leader_epoch=0)
    return logs


def test_logs_are_flushed_side_by_side_by_a_bounded_number_of_threads(
    store: Store, many: list[PartitionLog], disk: Disk
) -> None:
    """Each flush waits until eight run at the same time, so fewer threads would never get through."""
    disk.barrier = threading.Barrier(8)
    run(store.manager, "flush logs")
    assert all(log.flushed_offset == 1 for log in many)
    assert len(disk.threads) == 8


def test_a_flush_by_time_that_fails_takes_the_directory_offline_with_one_line(
    store: Store, many: list[PartitionLog], disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.fails = True
    run(store.manager, "flush logs")
    assert all(log.is_offline for log in many)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"log directory {store.path} goes offline" in line
    assert "Input/output error" in line
