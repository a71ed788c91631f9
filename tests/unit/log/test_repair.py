"""Repairing damaged partitions: what is left is served with its offsets, what is lost is named, nothing is gone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.log import LogConfig, LogStorageError
from tidelog.log.errors import DataDirectoryLockedError
from tidelog.log.inspect import verify
from tidelog.log.repair import examine, execute, locked
from tidelog.log.repair_plan import UNKNOWN, PartitionPlan
from tidelog.records import Record, iter_headers

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store

ReadLog = Callable[..., list[Record]]
Damage = Callable[["Store"], object]
BATCHES = 40
RECORDS = 3
END = BATCHES * RECORDS


@pytest.fixture
def filled(store: Store, make_batch: MakeBatch) -> Store:
    """Forty batches of three records in several segments, with a producer and two epochs."""
    log = store.create(LogConfig(segment_bytes=1800, index_interval_bytes=200))
    for index in range(BATCHES):
        batch = make_batch(
            [b"%d" % (index * RECORDS + place) + bytes(30) for place in range(RECORDS)],
            producer_id=3, producer_epoch=0, base_sequence=index * RECORDS,
            timestamps=[store.clock.now_ms() + index] * RECORDS,
        )  # fmt: skip
        log.append_as_leader(batch, leader_epoch=index // 20)
        if index == BATCHES // 2:
            log.flush()  # with the snapshot of the last roll
    log.advance_high_watermark(END)
    assert len(log.segments) > 3
    return store


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def positions(path: Path) -> list[int]:
    return [position for position, _ in iter_headers(path.read_bytes())]


def flip_in_batch(field: int, batch: int = 2, segment: int = 1) -> Damage:
    def damage(store: Store) -> None:
        path = store.files(".log")[segment]
        flip(path, positions(path)[batch] + field)

    return damage


def cut(segment: int, batches: int, extra: int = 0) -> Damage:
    def damage(store: Store) -> None:
        path = store.files(".log")[segment]
        os.truncate(path, positions(path)[-batches] + extra)

    return damage


def exchange(store: Store) -> None:
    first, second = (path.read_bytes() for path in store.files(".log")[:2])
    store.files(".log")[0].write_bytes(second)
    store.files(".log")[1].write_bytes(first)


def zeros_in_the_middle(store: Store) -> None:
    path = store.files(".log")[1]
    start, end = positions(path)[1], positions(path)[4]
    data = path.read_bytes()
    path.write_bytes(data[:start] + bytes(end - start) + data[end:])


def append_garbage(store: Store) -> None:
    with store.files(".log")[-1].open("ab") as file:
        file.write(os.urandom(500))


def damage_two_places(store: Store) -> None:
    flip_in_batch(100, batch=1)(store)
    flip_in_batch(100, batch=3)(store)
    flip_in_batch(70, batch=0, segment=2)(store)


def delete_all(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("kept")


LOST: dict[str, Damage] = {
    "a record flipped": flip_in_batch(100),
    "a record of the first batch flipped": flip_in_batch(100, batch=0, segment=0),
    "a record of a segment's last batch flipped": flip_in_batch(100, batch=-1),
    "a record of the last batch of all flipped": flip_in_batch(100, batch=-1, segment=-1),
    "a length flipped": flip_in_batch(10),
    "a magic flipped": flip_in_batch(16),
    "a CRC flipped": flip_in_batch(18),
    "attributes flipped": flip_in_batch(22),
    "damage in several places": damage_two_places,
    "zeros in the middle": zeros_in_the_middle,
    "a segment in the middle cut between batches": cut(1, 2),
    "a segment in the middle cut within a batch": cut(1, 2, extra=70),
    "the last segment cut between batches": cut(-1, 1),
    "the last segment cut within a batch": cut(-1, 1, extra=70),
    "a segment in the middle emptied": lambda store: os.truncate(store.files(".log")[1], 0),
    "a segment in the middle deleted": lambda store: store.files(".log")[1].unlink(),
    "the first segment deleted": lambda store: store.files(".log")[0].unlink(),
    "the last segment deleted": lambda store: store.files(".log")[-1].unlink(),
    "two segments exchanged": exchange,
    "a directory in the place of a log": lambda store: make_directory(store.files(".log")[1]),
    "all segments deleted": lambda store: delete_all(store.files(".log")),
}

WHOLE: dict[str, Damage] = {
    "a base offset flipped up": flip_in_batch(3),
    "a base offset flipped down": flip_in_batch(7, batch=6, segment=0),
    "the base offset of a segment's last batch flipped": flip_in_batch(3, batch=-1),
    "garbage behind the log": append_garbage,
    "an index of garbage": lambda store: store.files(".index")[0].write_bytes(os.urandom(24)),
    "a time index of garbage": lambda store: store.files(".timeindex")[0].write_bytes(os.urandom(24)),
    "an index deleted": lambda store: store.files(".index")[0].unlink(),
    "a directory in the place of an index": lambda store: make_directory(store.files(".index")[0]),
    "a snapshot of garbage": lambda store: store.files(".snapshot")[0].write_bytes(b"no snapshot"),
    "leader epochs of garbage": lambda store: (store.directory / "leader-epoch-checkpoint").write_text("x"),
    "leader epochs that are false": lambda store: (store.directory / "leader-epoch-checkpoint").write_text(
        "0\n2\n0 0\n1 3\n"
    ),
    "partition metadata of garbage": lambda store: (store.directory / "partition.metadata").write_text("version: 77\n"),
}


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def lost_offsets(plan: PartitionPlan) -> set[int]:
    lost: set[int] = set()
    for action in plan.actions:
        if action.first_lost_offset != UNKNOWN:
            last = action.last_lost_offset if action.last_lost_offset != UNKNOWN else END - 1
            lost |= set(range(action.first_lost_offset, last + 1))
    return lost


def check_served(store: Store, read_log: ReadLog, make_batch: MakeBatch, lost: set[int]) -> None:
    store.start()
    log = store.log
    records = {record.offset: record.value for record in read_log(log)}
    expected = set(range(END)) - lost
    assert records.keys() == expected
    assert all(value is not None and value.startswith(b"%d\0" % offset) for offset, value in records.items())
    for offset in sorted(expected):
        assert read_log(log, offset)[0].offset == offset
    end = log.log_end_offset
    assert log.append_as_leader(make_batch([b"new"]), leader_epoch=5).first_offset == end
    assert read_log(log)[-1].value == b"new"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", LOST.values(), ids=LOST)
def test_what_is_left_is_served_and_what_is_lost_is_named(
    filled: Store, read_log: ReadLog, make_batch: MakeBatch, damage: Damage, clean: bool
) -> None:
    filled.log.flush()
    filled.manager.checkpoint()
    filled.stop(clean=clean)
    damage(filled)
    before = contents(filled.path)
    logs = {path.read_bytes() for path in filled.directory.rglob("*.log") if path.is_file()}
    plan = examine(filled.directory)
    assert contents(filled.path) == before, "looking changes nothing"
    lost = lost_offsets(plan)
    assert lost
    kept_in = execute(plan)
    assert list(verify(filled.directory)) == []
    assert not examine(filled.directory).is_needed
    whole = b"".join(contents(filled.path).values())
    if kept_in is not None:
        assert kept_in.name.endswith("-cut")
        for log in logs:
            assert log in whole or any(log.endswith(path.read_bytes()) for path in kept_in.glob("*.from-*"))
    check_served(filled, read_log, make_batch, lost)
    # What had been flushed is never given out again.
    assert filled.log.log_end_offset == END + 1 or not clean


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", WHOLE.values(), ids=WHOLE)
def test_what_can_be_told_from_the_rest_costs_no_record(
    filled: Store, read_log: ReadLog, make_batch: MakeBatch, damage: Damage, clean: bool
) -> None:
    filled.stop(clean=clean)
    damage(filled)
    plan = examine(filled.directory)
    assert plan.is_needed
    execute(plan)
    assert list(verify(filled.directory)) == []
    check_served(filled, read_log, make_batch, lost_offsets(plan) if "garbage behind" in str(damage) else set())


def test_sound_files_need_no_repair(filled: Store) -> None:
    filled.stop(clean=True)
    assert not examine(filled.directory).is_needed


def test_an_offline_partition_comes_back(filled: Store, read_log: ReadLog) -> None:
    filled.stop(clean=False)
    flip_in_batch(100)(filled)
    with pytest.raises(LogStorageError):
        filled.start().get("topic", 0)
    filled.stop(clean=True)
    plan = examine(filled.directory)
    execute(plan)
    filled.start()
    assert len(read_log(filled.log)) == END - RECORDS
    (action,) = [action for action in plan.actions if action.last_lost_offset != UNKNOWN]
    assert action.last_lost_offset - action.first_lost_offset + 1 == action.lost_records_count == RECORDS


def test_compacted_logs_have_gaps(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(LogConfig(segment_bytes=2500))
    for _ in range(30):
        log.append_as_leader(make_batch([bytes(40)] * RECORDS), leader_epoch=0)
    store.stop(clean=False)
    path = store.files(".log")[1]
    data, at = path.read_bytes(), positions(path)
    path.write_bytes(data[: at[2]] + data[at[4] :])
    assert any("missing" in problem.message for problem in verify(store.directory))
    assert examine(store.directory).is_needed
    (store.path / "cleaner-offset-checkpoint").write_text("0\n1\ntopic 0 20\n")
    store.files(".index")[1].unlink(missing_ok=True)
    store.files(".timeindex")[1].unlink(missing_ok=True)
    assert [action for action in examine(store.directory).actions if action.first_lost_offset != UNKNOWN] == []


def test_a_directory_in_use_is_refused(filled: Store) -> None:
    with pytest.raises(DataDirectoryLockedError, match="in use"), locked(filled.path, changes=False):
        pytest.fail("the broker holds it")
    filled.stop(clean=True)
    with locked(filled.path, changes=True), pytest.raises(DataDirectoryLockedError):
        filled.start()


def test_a_copy_of_a_partition_can_be_repaired_anywhere(filled: Store, tmp_path: Path) -> None:
    filled.stop(clean=False)
    flip_in_batch(100)(filled)
    copy = tmp_path / "copy" / "topic-0"
    shutil.copytree(filled.directory, copy)
    with locked(copy.parent, changes=False):
        execute(examine(copy))
    assert list(verify(copy)) == []
    assert [path.name for path in copy.parent.iterdir() if path.name.endswith("-cut")]
