"""Several data directories: one that fails takes only its own partitions along."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from simulated_disk import SimulatedDisk
from tidelog.common.clock import VirtualClock
from tidelog.common.ids import random_uuid
from tidelog.log import (
    DataDirectoryError,
    InconsistentClusterIdError,
    LogConfig,
    LogManager,
    LogStorageError,
)
from tidelog.log.directory import LogDirectory
from tidelog.log.directory_set import DirectorySet
from tidelog.records import Record

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch

ReadLog = Callable[..., list[Record]]
TOPIC_ID = random_uuid()


@pytest.fixture
def managers(tmp_path: Path, clock: VirtualClock) -> Iterator[Callable[[], LogManager]]:
    """Managers over the directories a and b; each is closed when the next one is made."""
    made: list[LogManager] = []

    def make() -> LogManager:
        for manager in made:
            manager.close(clean=False)
        manager = LogManager([tmp_path / "a", tmp_path / "b"], {}, clock)
        made.append(manager)
        manager.open("cluster", 1)
        manager.load(topic_ids={"topic": TOPIC_ID})
        return manager

    yield make
    for manager in made:
        manager.close(clean=False)


def block(path: Path) -> None:
    """Put something in the way that not even root can use as a directory."""
    path.write_bytes(b"")


def test_a_directory_that_can_not_be_used_is_left_out(
    managers: Callable[[], LogManager], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    block(tmp_path / "a")
    manager = managers()
    assert [directory.path.name for directory in manager.directories.online] == ["b"]
    assert manager.create("topic", 0, TOPIC_ID, LogConfig()).directory.parent == tmp_path / "b"
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    for told in (str(tmp_path / "a"), "goes offline", "File exists", "restart the broker"):
        assert told in line


def test_no_directory_that_works_is_no_start(managers: Callable[[], LogManager], tmp_path: Path) -> None:
    block(tmp_path / "a")
    block(tmp_path / "b")
    with pytest.raises(DataDirectoryError, match=r"/a.*/b"):
        managers()


def test_a_directory_of_another_broker_is_a_mistake_and_no_disk(
    managers: Callable[[], LogManager], tmp_path: Path, clock: VirtualClock
) -> None:
    managers().close(clean=True)
    (tmp_path / "c").mkdir()
    with pytest.raises(InconsistentClusterIdError):
        LogManager([tmp_path / "c", tmp_path / "a"], {}, clock).open("cluster", 2)


def test_a_failed_disk_takes_its_own_partitions_along(
    managers: Callable[[], LogManager],
    make_batch: MakeBatch,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = managers()
    logs = [manager.create("topic", partition, TOPIC_ID, LogConfig()) for partition in range(4)]
    told: list[Path] = []
    manager.directories.subscribe(told.append)
    failing = logs[0]
    failing.append_as_leader(make_batch(), leader_epoch=0)

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(LogStorageError, match="fsync failed"):
        failing.flush()
    monkeypatch.undo()
    assert told == [failing.directory.parent]
    for log in logs:
        if log.directory.parent == failing.directory.parent:
            with pytest.raises(LogStorageError, match="Input/output error"):
                log.append_as_leader(make_batch(), leader_epoch=0)
        else:
            log.append_as_leader(make_batch(), leader_epoch=0)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(lines) == 1
    assert "topic-0: fsync failed" in lines[0]


def test_only_the_first_of_many_errors_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directories = DirectorySet([tmp_path])
    told: list[Path] = []
    directories.subscribe(told.append)
    threads = [threading.Thread(target=directories.fail, args=(tmp_path, f"error {index}")) for index in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [tmp_path]
    assert len(caplog.records) == 1


def test_a_withheld_partition_is_neither_there_nor_made(managers: Callable[[], LogManager]) -> None:
    manager = managers()
    manager.withhold("topic", 0, "its disk is away")
    assert not manager.has("topic", 0)
    for attempt in (manager.get_or_create, manager.create):
        with pytest.raises(LogStorageError, match="its disk is away"):
            attempt("topic", 0, TOPIC_ID, LogConfig())
    manager.delete("topic", 0)
    assert manager.create("topic", 0, TOPIC_ID, LogConfig()).log_end_offset == 0


@pytest.mark.parametrize("other_id", [random_uuid(), TOPIC_ID])
def test_a_partition_in_two_directories(
    managers: Callable[[], LogManager], tmp_path: Path, make_batch: MakeBatch, other_id: object
) -> None:
    """The one of the cluster's topic is served; where both are, neither is, as nobody can tell."""
    manager = managers()
    log = manager.create("topic", 0, TOPIC_ID, LogConfig())
    log.append_as_leader(make_batch(), leader_epoch=0)
    other = manager.create("topic", 1, other_id, LogConfig())  # type: ignore[arg-type] # a UUID, as parametrized
    assert log.directory.parent != other.directory.parent
    os.rename(other.directory, other.directory.with_name("topic-0"))
    manager = managers()
    if other_id == TOPIC_ID:
        with pytest.raises(LogStorageError, match="more than one data directory"):
            manager.get("topic", 0)
    else:
        served = manager.get("topic", 0)
        assert served is not None
        assert served.log_end_offset == 1
        assert len(list(tmp_path.glob("*/*-stray"))) == 1


def test_a_new_data_directory_survives_a_power_cut(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "shelf").mkdir()
    disk = SimulatedDisk(tmp_path / "disk", tmp_path / "shelf")
    with disk.installed():
        directory = LogDirectory(tmp_path / "disk" / "data" / "broker-1", lambda path, reason: None)
        directory.lock()
        directory.unlock()
        for seed in range(10):
            disk.power_cut(tmp_path / f"after-{seed}", random.Random(seed))
    assert all((tmp_path / f"after-{seed}" / "data" / "broker-1").is_dir() for seed in range(10))
