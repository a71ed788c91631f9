"""A crash at every call to the file system, while a log is cleaned and while that is finished after the crash."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.log import LogConfig, PartitionLog
from tidelog.log.checkpoints import CLEANER_OFFSET_FILE, write_offsets
from tidelog.log.cleaner_config import LogCleanerConfig
from tidelog.log.cleaner_manager import LogCleaner
from tidelog.log.inspect import verify
from tidelog.log.recovery import LastKnown, create_log, open_log
from tidelog.log.segments import SegmentList
from tidelog.records import Record

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch

ReadLog = Callable[..., list[Record]]
CHANGING_CALLS = ("open", "pwrite", "write", "fsync", "rename", "replace", "unlink", "truncate", "ftruncate")
SEGMENTS = 4
CONFIG = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)


class Crash(BaseException):
    """The process is gone: nothing that would run afterwards may have an effect."""


@contextmanager
def crashing_at(number: int | None) -> Iterator[list[str]]:
    """Count the calls that change files, and let all of them fail from one on; fsync costs nothing here."""
    calls: list[str] = []
    real = {name: getattr(os, name) for name in CHANGING_CALLS}

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if number is not None and len(calls) >= number:
                raise Crash(f"before call {number}, {name}{args[:1]}")
            calls.append(f"{name} {args[0]}")
            return None if name == "fsync" else real[name](*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGING_CALLS:
            patch.setattr(os, name, counted(name))
        yield calls


class Crashing:
    """A log that was written once, and copies of it to be cleaned and crashed."""

    def __init__(self, path: Path, clock: VirtualClock, make_batch: MakeBatch, read_log: ReadLog) -> None:
        self._path = path
        self._clock = clock
        self._read_log = read_log
        self._copies = 0
        (path / "data").mkdir(parents=True)
        log = create_log("topic", 0, path / "data" / "topic-0", None, CONFIG, clock)
        for segment in range(SEGMENTS):
            for batch in range(3):
                keys = [b"key-%d" % ((segment + batch + place) % 5) for place in range(3)]
                values: list[bytes | None] = [b"value-%d-%d-%d" % (segment, batch, place) for place in range(3)]
                if segment == 1:
                    values[0] = None
                log.append_as_leader(make_batch(values, keys=keys, timestamps=[clock.now_ms()] * 3), leader_epoch=0)
            options: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": segment}
            aborted = make_batch([b"aborted"], keys=[b"key-0"], is_transactional=True, **options)
            log.append_as_leader(aborted, leader_epoch=0)
            log.append_marker(7, 0, 0, commit=False, leader_epoch=0)
            log.roll()
        log.flush()
        self.end_offset = log.log_end_offset
        log.close(clean=False)

    def copy(self, of: Path | None = None) -> Path:
        self._copies += 1
        target = self._path / f"copy-{self._copies}" / "topic-0"
        shutil.copytree(of or self._path / "data" / "topic-0", target)
        return target

    def open(self, directory: Path) -> PartitionLog:
        known = LastKnown(recovery_point=self.end_offset, high_watermark=self.end_offset)
        return open_log("topic", 0, directory, None, CONFIG, self._clock, known)

    def clean(self, log: PartitionLog) -> None:
        cleaner = LogCleaner(LogCleanerConfig(), self._clock, lambda: [log], lambda key: log, lambda: None)
        asyncio.run(cleaner.run())

    def rows(self, log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
        """The records that count."""
        rows = [(record.offset, record.key, record.value) for record in self._read_log(log)]
        return [row for row in rows if row[1] is not None and row[1].startswith(b"key-") and row[2] != b"aborted"]

    def contents(self, log: PartitionLog) -> object:
        """All records, and the aborted transactions, whose markers are all young and stay."""
        entries = [entry for segment in log.segments for entry in segment.txn_index.entries()]
        assert len(entries) == SEGMENTS
        return [(record.offset, record.key, record.value) for record in self._read_log(log)], entries

    def check(self, directory: Path, states: list[object]) -> int:
        """Open what a crash left, and say which of the states it is in."""
        log = self.open(directory)
        state = states.index(self.contents(log))
        assert log.log_end_offset == self.end_offset
        # As the cleaner has it written before its first swap: from then on a log may have gaps.
        write_offsets(directory.parent / CLEANER_OFFSET_FILE, {("topic", 0): 0})
        assert list(verify(directory)) == []
        assert not [name for name in os.listdir(directory) if name.endswith((".cleaned", ".swap", ".deleted"))]
        log.close(clean=False)
        return state


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two segments become one: the clean has two runs, and each may be cut off."""
    monkeypatch.setattr("tidelog.log.cleaner_choice.RUN_SEGMENTS_MAX", 2)


@pytest.fixture
def crashing(clock: VirtualClock, make_batch: MakeBatch, read_log: ReadLog) -> Iterator[Crashing]:
    # Thousands of files are made and removed, which takes several times as long on a disk.
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=in_memory) as path:
        yield Crashing(Path(path), clock, make_batch, read_log)


@pytest.fixture
def states(crashing: Crashing, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the log holds before the clean, and after each of its swaps."""
    log = crashing.open(crashing.copy())
    states: list[object] = [crashing.contents(log)]
    swap = SegmentList.swap

    def recorded(self: SegmentList, *args: Any) -> None:
        swap(self, *args)
        states.append(crashing.contents(log))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentList, "swap", recorded)
        crashing.clean(log)
    log.close(clean=False)
    assert len(states) == SEGMENTS // 2 + 1
    assert len({str(state) for state in states}) == len(states)
    return states


def test_a_crash_at_every_call_leaves_the_log_before_or_after_a_swap(crashing: Crashing, states: list[object]) -> None:
    with crashing_at(None) as calls:
        log = crashing.open(crashing.copy())
        opening = len(calls)
        crashing.clean(log)
        log.close(clean=False)
    seen = []
    swaps: dict[tuple[str, ...], Path] = {}
    for number in range(opening, len(calls)):
        directory = crashing.copy()
        with crashing_at(number):
            log = crashing.open(directory)
            with pytest.raises(Crash):
                crashing.clean(log)
        names = tuple(sorted(os.listdir(directory)))
        if names not in swaps and list(directory.glob("*.swap")):
            swaps[names] = crashing.copy(directory)
        seen.append(crashing.check(directory, states))
        shutil.rmtree(directory.parent)
    assert seen == sorted(seen), "a later crash never leaves less"
    assert set(seen) == set(range(len(states)))
    assert len(swaps) > 2 * 10
    for left in swaps.values():
        crash_while_finishing(crashing, states, left)


def crash_while_finishing(crashing: Crashing, states: list[object], left: Path) -> None:
    """What a crash in the middle of a swap left is finished, and that, too, is cut off at every call."""
    with crashing_at(None) as calls:
        directory = crashing.copy(left)
        crashing.open(directory).close(clean=False)
    expected = crashing.check(directory, states)
    for number in range(len(calls)):
        directory = crashing.copy(left)
        with crashing_at(number), pytest.raises(Crash):
            crashing.open(directory)
        assert crashing.check(directory, states) == expected
        shutil.rmtree(directory.parent)


def test_a_clean_after_the_crash_comes_to_the_same_end(crashing: Crashing) -> None:
    uncleaned = crashing.open(crashing.copy())
    expected = {key: (offset, value) for offset, key, value in crashing.rows(uncleaned)}
    uncleaned.close(clean=False)
    with crashing_at(None) as calls:
        log = crashing.open(crashing.copy())
        crashing.clean(log)
        log.close(clean=False)
    for number in range(0, len(calls), 7):
        directory = crashing.copy()
        with crashing_at(number), pytest.raises(Crash):
            crashing.clean(crashing.open(directory))
        log = crashing.open(directory)
        crashing.clean(log)
        last = {key: (offset, value) for offset, key, value in crashing.rows(log)}
        assert last == expected
        assert len(last) == len(crashing.rows(log))
        log.close(clean=False)


@pytest.mark.parametrize("suffix", ["", ".index"])
def test_what_another_broker_left_of_an_undecided_swap_is_dropped(
    crashing: Crashing, states: list[object], suffix: str
) -> None:
    """It renames the log first and the indexes later; files still to be renamed say that nothing was decided."""
    directory = crashing.copy()
    stem = directory / "00000000000000000000.log"
    shutil.copy(directory / "00000000000000000011.log", stem.with_name(stem.name + ".swap"))
    left = stem.with_suffix(suffix or ".timeindex")
    left.with_name(left.name + ".cleaned").touch()
    assert crashing.check(directory, states) == 0


def test_a_damaged_swap_keeps_the_partition_offline(crashing: Crashing) -> None:
    directory = crashing.copy()
    log = directory / "00000000000000000000.log"
    log.with_name(log.name + ".swap").write_bytes(log.read_bytes()[:-5])
    with pytest.raises(Exception, match=r"log\.swap at byte") as refused:
        crashing.open(directory)
    assert "topic-0 is corrupt" in str(refused.value)
    assert log.exists()
