"""Many logs flushed by one call: what counts as flushed then, and when each is flushed by itself instead."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.common.ids import random_uuid
from tidelog.log import LogConfig, LogManager, PartitionLog
from tidelog.log import flush_together as together
from tidelog.records import Record

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch

ReadLog = Callable[..., list[Record]]
MANY = together.MANY_LOGS


class _Calls:
    """Stands between the logs and the disk, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fsyncs: list[str] = []
        self.file_system_syncs = 0
        self.on_file_system_sync: Callable[[], None] = lambda: None
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._count_fsync)
        monkeypatch.setattr(together, "sync_file_system", self._count_file_system_sync)
        # Whatever the tests run on.
        monkeypatch.setattr(together, "file_system_type", lambda fd: 0xEF53)
        monkeypatch.setattr(together, "dirty_bytes", lambda: 0)

    def _count_fsync(self, fd: int) -> None:
        self.fsyncs.append(os.readlink(f"/proc/self/fd/{fd}"))
        self._fsync(fd)

    def _count_file_system_sync(self, fd: int) -> None:
        self.file_system_syncs += 1
        self.on_file_system_sync()

    @property
    def fsynced_logs(self) -> int:
        return sum(path.endswith(".log") for path in self.fsyncs)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> _Calls:
    return _Calls(monkeypatch)


def open_manager(path: Path, clock: VirtualClock) -> LogManager:
    manager = LogManager([path], {}, clock)
    manager.open("cluster", 1)
    manager.load()
    return manager


def fill(manager: LogManager, make_batch: MakeBatch, count: int, config: LogConfig | None = None) -> list[PartitionLog]:
    topic_id = random_uuid()
    logs = [manager.create("topic", index, topic_id, config or LogConfig()) for index in range(count)]
    for log in logs:
        log.append_as_leader(make_batch([b"a"]), leader_epoch=0)
    return logs


def test_a_stop_with_many_logs_flushes_them_by_one_call(
    tmp_path: Path, clock: VirtualClock, make_batch: MakeBatch, calls: _Calls, read_log: ReadLog
) -> None:
    manager = open_manager(tmp_path / "data", clock)
    fill(manager, make_batch, MANY)

    def all_files_are_written() -> None:
        for index in range(MANY):
            suffixes = {path.suffix for path in (tmp_path / "data" / f"topic-{index}").iterdir()}
            assert suffixes == {".index", ".log", ".snapshot", ".timeindex", "", ".metadata"}

    calls.on_file_system_sync = all_files_are_written
    manager.close()
    assert (calls.file_system_syncs, calls.fsynced_logs) == (1, 0)
    manager = open_manager(tmp_path / "data", clock)
    assert manager.was_clean_shutdown
    for log in manager.logs():
        assert (log.recovery_point, log.log_end_offset) == (1, 1)
        assert [record.value for record in read_log(log)] == [b"a"]
    # Nothing changed since: nothing is left to be flushed.
    manager.close()
    assert (calls.file_system_syncs, calls.fsynced_logs) == (1, 0)


def test_few_logs_are_flushed_one_by_one(
    tmp_path: Path, clock: VirtualClock, make_batch: MakeBatch, calls: _Calls
) -> None:
    manager = open_manager(tmp_path / "data", clock)
    fill(manager, make_batch, MANY - 1)
    manager.close()
    assert (calls.file_system_syncs, calls.fsynced_logs) == (0, MANY - 1)


def test_if_the_file_system_reports_an_error_each_log_is_asked(
    tmp_path: Path, clock: VirtualClock, make_batch: MakeBatch, calls: _Calls
) -> None:
    """It may have been another file of that disk: then the stop is clean."""

    def broken() -> None:
        raise OSError(errno.EIO, "broken")

    calls.on_file_system_sync = broken
    manager = open_manager(tmp_path / "data", clock)
    fill(manager, make_batch, MANY)
    manager.close()
    assert calls.fsynced_logs == MANY
    assert open_manager(tmp_path / "data", clock).was_clean_shutdown


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_kernel_version", lambda: (5, 7)),
        ("_kernel_version", lambda: (0,)),
        ("file_system_type", lambda fd: 0x794C7630),
        ("dirty_bytes", lambda: 2 << 30),
    ],
    ids=["a kernel that tells no errors", "another kernel", "an overlay", "others have written much"],
)
def test_where_it_proves_nothing_or_costs_much_it_is_not_used(
    tmp_path: Path,
    clock: VirtualClock,
    make_batch: MakeBatch,
    calls: _Calls,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: Callable[..., object],
) -> None:
    monkeypatch.setattr(together, name, value)
    manager = open_manager(tmp_path / "data", clock)
    fill(manager, make_batch, MANY)
    manager.close()
    assert (calls.file_system_syncs, calls.fsynced_logs) == (0, MANY)


def test_what_is_appended_meanwhile_is_not_counted(
    tmp_path: Path, clock: VirtualClock, make_batch: MakeBatch, calls: _Calls
) -> None:
    manager = open_manager(tmp_path / "data", clock)
    logs = fill(manager, make_batch, MANY)

    def append() -> None:
        for log in logs:
            log.append_as_leader(make_batch(), leader_epoch=0)

    calls.on_file_system_sync = append
    (directory,) = manager.directories
    assert together.flush_together(directory, logs)
    assert {(log.flushed_offset, log.log_end_offset) for log in logs} == {(1, 2)}
    manager.close(clean=False)


def test_a_log_cut_meanwhile_does_not_count_as_flushed(
    tmp_path: Path, clock: VirtualClock, make_batch: MakeBatch, calls: _Calls
) -> None:
    manager = open_manager(tmp_path / "data", clock)
    logs = fill(manager, make_batch, MANY)

    def cut() -> None:
        logs[0].truncate_to(0)
        logs[0].append_as_leader(make_batch([b"other"]), leader_epoch=0)

    calls.on_file_system_sync = cut
    (directory,) = manager.directories
    assert together.flush_together(directory, logs)
    assert [log.flushed_offset for log in logs] == [0] + [1] * (MANY - 1)
    manager.close(clean=False)


def test_logs_whose_flush_time_has_come_are_flushed_together(
    tmp_path: Path, clock: VirtualClock, make_batch: MakeBatch, calls: _Calls
) -> None:
    manager = open_manager(tmp_path / "data", clock)
    logs = fill(manager, make_batch, MANY, LogConfig(flush_ms=1_000))
    tasks = {task.name: task.run for task in manager.background_tasks()}

    async def run() -> None:
        await tasks["flush logs"]()

    asyncio.run(run())
    assert calls.file_system_syncs == 0
    clock.advance(ms=1_000)
    asyncio.run(run())
    assert (calls.file_system_syncs, calls.fsynced_logs) == (1, 0)
    assert {log.flushed_offset for log in logs} == {1}
    manager.close(clean=False)


def test_the_real_call_and_what_it_looks_at(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(
        "MemTotal:       24 kB\nDirty:               12 kB\nWriteback:            4 kB\nWritebackTmp: 9 kB\n"
    )
    assert together.dirty_bytes(meminfo) == 16 * 1024
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert together.file_system_type(fd) > 0
        together.sync_file_system(fd)
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        together.sync_file_system(fd)
    assert together.file_system_type(fd) == 0


def test_an_empty_log_without_producers_leaves_no_snapshot(tmp_path: Path, clock: VirtualClock) -> None:
    manager = open_manager(tmp_path / "data", clock)
    manager.create("topic", 0, random_uuid(), LogConfig())
    manager.close()
    assert not list((tmp_path / "data" / "topic-0").glob("*.snapshot"))
    assert open_manager(tmp_path / "data", clock).was_clean_shutdown
