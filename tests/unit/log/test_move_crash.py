"""A log moves to another data directory, with a crash or a power cut at every call to the file system on the way."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from power_cut import PowerCut
from tidelog.common.clock import VirtualClock
from tidelog.common.ids import random_uuid
from tidelog.log import LogConfig, LogManager, PartitionLog
from tidelog.log.inspect import verify
from tidelog.log.moves import MOVE_FILE
from tidelog.records import Record

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch

ReadLog = Callable[..., list[Record]]
CALLS = ("open", "pwrite", "write", "fsync", "rename", "replace", "unlink", "truncate", "ftruncate", "mkdir")
CONFIG = LogConfig(segment_bytes=600, flush_messages=1)
TOPIC_ID = random_uuid()
LOG_START = 4


class Crash(BaseException):
    """The process is gone: nothing that would run afterwards may have an effect."""


@contextmanager
def crashing_at(number: int | None) -> Iterator[list[str]]:
    """Count the calls that change files, and let all of them fail from one on."""
    calls: list[str] = []
    real = {name: getattr(os, name) for name in CALLS}

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if number is not None and len(calls) >= number:
                raise Crash(f"before call {number}, {name}{args[:1]}")
            calls.append(f"{name} {args[0]}")
            return real[name](*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counted(name))
        yield calls


class Moving:
    """Two data directories, and a log that goes from the first to the second."""

    def __init__(self, root: Path, clock: VirtualClock, make_batch: MakeBatch, read_log: ReadLog) -> None:
        self.root = root
        self._clock = clock
        self._make_batch = make_batch
        self._read_log = read_log
        self.acknowledged: list[bytes] = []
        self._sequence = 0

    def open(self, root: Path | None = None) -> LogManager:
        root = root or self.root
        manager = LogManager([root / "a", root / "b"], {}, self._clock)
        manager.open("cluster", 1)
        manager.load({"topic": CONFIG}, {"topic": TOPIC_ID})
        return manager

    def fill(self) -> None:
        manager = self.open()
        log = manager.create("topic", 0, TOPIC_ID, CONFIG)
        assert log.parent.name == "a"
        for _ in range(12):
            self.append(log)
        log.advance_high_watermark(log.log_end_offset)
        log.set_log_start_offset(LOG_START)
        manager.checkpoint()
        manager.close(clean=False)

    def append(self, log: PartitionLog) -> None:
        """One record of the idempotent producer, on disk when this returns."""
        value = b"value-%d" % self._sequence
        options: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": self._sequence}
        log.append_as_leader(self._make_batch([value], **options), leader_epoch=max(log.latest_epoch, 0))
        log.flush()
        self._sequence += 1
        self.acknowledged.append(value)

    def move(self, manager: LogManager) -> None:
        """As the broker does, with appends before, in the middle and behind."""
        log = manager.get("topic", 0)
        assert log is not None
        target = next(each.path for each in manager.directories if each.path != log.parent)
        move = manager.begin_move(log, target)
        copy = move.copy
        copy.truncate_fully_and_start_at(log.log_start_offset)
        self._copy(log, copy)
        self.append(log)
        # It leads in a later epoch without having written anything.
        log.assign_epoch(log.latest_epoch + 1, log.log_end_offset)
        epochs = log.epochs
        log.hold_flushes()
        try:
            self._copy(log, copy)
            assert manager.prepare_move(move, log.log_end_offset, log.packed_producers())
            assert manager.commit_move(move)
        finally:
            log.release_flushes()
        assert (log.parent, log.epochs) == (target, epochs)
        self.append(log)
        manager.finish_move(move)
        self.append(log)

    def _copy(self, log: PartitionLog, copy: PartitionLog) -> None:
        while copy.log_end_offset < log.log_end_offset:
            end = log.log_end_offset
            read = log.read(copy.log_end_offset, 1000, limit_offset=end, min_one_batch=True)
            for part in read.slices:
                copy.append_as_follower(memoryview(part.read()), leader_epoch=100)
        copy.advance_high_watermark(log.high_watermark)

    def check(self, root: Path | None = None) -> str:
        """The one good replica, and in which directory it is. It can be written and moved on."""
        manager = self.open(root)
        try:
            log = manager.get("topic", 0)
            assert log is not None
            where = log.parent.name
            assert log.log_start_offset == LOG_START
            values = [record.value for record in self._read_log(log)]
            # What was not flushed may be there, too.
            assert values[: len(self.acknowledged) - LOG_START] == self.acknowledged[LOG_START:]
            assert list(verify(log.directory)) == []
            assert [entry.producer_id for entry in log.active_producers()] == [7]
            self._remove_doomed(manager)
            names = [path.name for path in (root or self.root).glob("[ab]/topic*") if not path.name.endswith("-stray")]
            assert names == ["topic-0"]
            assert not (log.directory / MOVE_FILE).exists()
            kept, sequence = list(self.acknowledged), self._sequence
            self._sequence = log.log_end_offset
            self.move(manager)
            assert log.parent.name != where
            self.acknowledged, self._sequence = kept, sequence
        finally:
            manager.close(clean=False)
        return where

    def _remove_doomed(self, manager: LogManager) -> None:
        for path in manager.take_doomed_paths(self._clock.now_ms() + 1_000_000):
            shutil.rmtree(path)


@pytest.fixture
def make_moving(clock: VirtualClock, make_batch: MakeBatch, read_log: ReadLog) -> Iterator[Callable[[], Moving]]:
    # Thousands of files are made and removed, which takes several times as long on a disk.
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=in_memory) as path:
        count = 0

        def make() -> Moving:
            nonlocal count
            count += 1
            root = Path(path) / str(count)
            for name in "ab":
                (root / name).mkdir(parents=True)
            return Moving(root, clock, make_batch, read_log)

        yield make


def test_a_log_moves_with_everything_that_follows_from_no_record(make_moving: Callable[[], Moving]) -> None:
    moving = make_moving()
    moving.fill()
    manager = moving.open()
    log = manager.get("topic", 0)
    assert log is not None
    old = log.directory
    moving.move(manager)
    assert log.directory == moving.root / "b" / "topic-0"
    assert not old.exists()
    manager.close(clean=True)
    assert moving.check() == "b"


def test_a_crash_at_every_call_leaves_one_good_replica(make_moving: Callable[[], Moving]) -> None:
    counting = make_moving()
    counting.fill()
    manager = counting.open()
    with crashing_at(None) as calls:
        counting.move(manager)
    manager.close(clean=False)
    places = []
    for number in range(len(calls)):
        moving = make_moving()
        moving.fill()
        manager = moving.open()
        with crashing_at(number), pytest.raises(Crash):
            moving.move(manager)
        manager.close(clean=False)
        places.append(moving.check())
        shutil.rmtree(moving.root)
    assert places == sorted(places)
    assert set(places) == {"a", "b"}


@pytest.mark.parametrize("lucky", [None, "a", "b"])
def test_a_power_cut_at_every_call_leaves_one_good_replica(
    make_moving: Callable[[], Moving],
    lucky: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk may also have written what nobody forced: all of the one directory or of the other."""
    boot = tmp_path / "boot_id"
    boot.write_text("boot-1\n")
    monkeypatch.setattr("tidelog.log.boot_id.BOOT_ID_PATH", boot)
    number, places = 0, []
    while True:
        moving = make_moving()
        boot.write_text("boot-1\n")
        has_ended = False
        with PowerCut(moving.root) as cut:
            descriptor = os.open(moving.root, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
            moving.fill()
            manager = moving.open()
            with crashing_at(number):
                try:
                    moving.move(manager)
                    has_ended = True
                except Crash:
                    pass
            manager.close(clean=False)
            left = cut.leave(moving.root.with_name("left"), lucky)
        boot.write_text("boot-2\n")
        places.append(moving.check(left))
        shutil.rmtree(left)
        shutil.rmtree(moving.root)
        if has_ended:
            break
        number += 1
    assert set(places) == {"a", "b"}
    if lucky is None:
        assert places == sorted(places)
