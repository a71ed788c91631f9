"""Starting from files that a crash, a disk or a person changed: repaired, or refused by name; never served wrong."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.common.ids import random_uuid
from tidelog.log import LogConfig, LogCorruptionError, LogStorageError
from tidelog.log.inspect import verify
from tidelog.records import Record

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store

ReadLog = Callable[..., list[Record]]
BATCHES = 60
RECORDS = 3
END = BATCHES * RECORDS


@pytest.fixture
def filled(store: Store, make_batch: MakeBatch) -> Store:
    """Sixty batches of three records in several segments, with a producer and two epochs."""
    log = store.create(LogConfig(segment_bytes=2500, index_interval_bytes=200))
    for index in range(BATCHES):
        batch = make_batch(
            [bytes(30)] * RECORDS, producer_id=3, producer_epoch=0, base_sequence=index * RECORDS,
            timestamps=[store.clock.now_ms() + index] * RECORDS,
        )  # fmt: skip
        log.append_as_leader(batch, leader_epoch=index // 40)
    log.advance_high_watermark(END)
    assert len(log.segments) > 3
    return store


def assert_served(store: Store, read_log: ReadLog, end: int = END) -> None:
    log = store.log
    assert log.log_end_offset == end
    assert [record.offset for record in read_log(log)] == list(range(end))
    for offset in range(0, end, 7):
        assert read_log(log, offset)[0].offset == offset
    found = log.offset_for_timestamp(store.clock.now_ms() + 50)
    assert end < END or (found is not None and found.offset == 150)
    assert [(entry.epoch, entry.start_offset) for entry in log.epochs] == [(0, 0), (1, 120)]
    assert log.active_producers()[0].last_sequence == end - 1
    latest = log.offset_of_max_timestamp()
    assert latest is not None
    assert latest.offset == end - RECORDS


def assert_whole(store: Store, read_log: ReadLog, end: int = END) -> None:
    """Everything up to an offset is served, and the files agree with one another."""
    assert_served(store, read_log, end)
    store.log.roll()
    store.log.flush()
    assert list(verify(store.directory)) == []


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def test_a_clean_start_reads_no_log_data(filled: Store, monkeypatch: pytest.MonkeyPatch, read_log: ReadLog) -> None:
    filled.stop(clean=True)
    touched: list[str] = []
    real_open = os.open

    def watching_open(path: str | Path, flags: int, mode: int = 0o777) -> int:
        touched.append(str(path))
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", watching_open)
    monkeypatch.setattr(os, "pread", None)
    filled.start()
    assert filled.log.log_end_offset == END
    assert filled.log.active_producers()[0].last_sequence == END - 1
    assert touched
    assert not [path for path in touched if path.endswith(".log")]
    monkeypatch.undo()
    assert_whole(filled, read_log)


def test_loading_keeps_no_files_open(filled: Store) -> None:
    filled.stop(clean=True)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    filled.start()
    after = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    assert after <= before + 1, "only the lock"


def test_after_a_crash_everything_written_is_there(filled: Store, read_log: ReadLog) -> None:
    filled.reopen(clean=False)
    assert_whole(filled, read_log)


@pytest.mark.parametrize("cut_bytes", [1, 40, 61, 100, 130])
@pytest.mark.parametrize("clean", [True, False])
def test_a_torn_tail_is_cut_off(filled: Store, read_log: ReadLog, cut_bytes: int, clean: bool) -> None:
    filled.stop(clean=clean)
    path = filled.files(".log")[-1]
    os.truncate(path, path.stat().st_size - cut_bytes)
    filled.start()
    assert_whole(filled, read_log, END - RECORDS * (1 if cut_bytes < 170 else 2))
    assert filled.log.high_watermark <= filled.log.log_end_offset


@pytest.mark.parametrize(
    "garbage",
    [b"\0" * 5000, b"\xff" * 300, random.Random(115).randbytes(3000)],
    ids=["zeros", "ones", "random"],
)
def test_garbage_at_the_end_is_cut_off(filled: Store, read_log: ReadLog, garbage: bytes) -> None:
    filled.stop(clean=False)
    with filled.files(".log")[-1].open("ab") as file:
        file.write(garbage)
    filled.start()
    assert_whole(filled, read_log)


@pytest.mark.parametrize("segment", [0, 1, -1])
@pytest.mark.parametrize("field", [3, 9, 16, 18, 40, 100])
def test_damage_in_the_middle_is_refused_by_name(
    filled: Store, read_log: ReadLog, segment: int, field: int, caplog: pytest.LogCaptureFixture
) -> None:
    filled.stop(clean=False)
    path = filled.files(".log")[segment]
    contents = path.read_bytes()
    batch_bytes = int.from_bytes(contents[8:12], "big") + 12
    flip(path, batch_bytes + field)
    manager = filled.start()
    with pytest.raises(LogCorruptionError) as refused:
        manager.get("topic", 0)
    error = refused.value
    assert (error.topic, error.partition, error.path, error.position) == ("topic", 0, path, batch_bytes)
    assert f"topic-0 is corrupt: {path} at byte {batch_bytes}" in caplog.text
    with pytest.raises(LogStorageError):
        manager.get_or_create("topic", 0, random_uuid(), LogConfig())
    # Nothing was changed, so the file can be restored.
    filled.stop(clean=True)
    path.write_bytes(contents)
    filled.start()
    assert_whole(filled, read_log)


def test_other_partitions_serve_when_one_is_corrupt(filled: Store, make_batch: MakeBatch, read_log: ReadLog) -> None:
    other = filled.manager.create("other", 3, random_uuid(), LogConfig())
    other.append_as_leader(make_batch(), leader_epoch=0)
    filled.stop(clean=False)
    flip(filled.files(".log")[0], 100)
    manager = filled.start()
    assert list(manager.offline_partitions) == [("topic", 0)]
    served = manager.get("other", 3)
    assert served is not None
    assert len(read_log(served)) == 1


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("segment", [0, 1, -1])
def test_lost_indexes_are_rebuilt(filled: Store, read_log: ReadLog, clean: bool, suffix: str, segment: int) -> None:
    filled.stop(clean=clean)
    filled.files(suffix)[segment].unlink()
    filled.start()
    assert_whole(filled, read_log)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("change", ["empty", "cut", "zeros", "random"])
def test_false_indexes_are_rebuilt(filled: Store, read_log: ReadLog, suffix: str, change: str) -> None:
    filled.stop(clean=True)
    path = filled.files(suffix)[1]
    data = path.read_bytes()
    changed = {"empty": b"", "cut": data[:-3], "zeros": bytes(len(data)), "random": os.urandom(len(data))}[change]
    path.write_bytes(changed)
    filled.start()
    assert_whole(filled, read_log)


@pytest.mark.parametrize(("suffix", "entry_bytes"), [(".index", 8), (".timeindex", 12)])
@pytest.mark.parametrize("slot", [0, 3, -1])
@pytest.mark.parametrize("segment", [0, 1, -1])
def test_a_false_entry_never_misleads(
    filled: Store, read_log: ReadLog, suffix: str, entry_bytes: int, slot: int, segment: int
) -> None:
    filled.stop(clean=True)
    path = filled.files(suffix)[segment]
    data = path.read_bytes()
    start = slot * entry_bytes % len(data)
    for position in range(start, start + entry_bytes):
        damaged = bytearray(data)
        damaged[position] ^= 0x04
        path.write_bytes(damaged)
        filled.start()
        assert_served(filled, read_log)
        filled.stop(clean=True)
    filled.start()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("segment", [0, 1, -1])
def test_a_lost_log_file_is_refused(filled: Store, clean: bool, segment: int) -> None:
    filled.stop(clean=clean)
    path = filled.files(".log")[segment]
    path.unlink()
    manager = filled.start()
    with pytest.raises(LogCorruptionError, match="missing") as refused:
        manager.get("topic", 0)
    assert refused.value.path == path


@pytest.mark.parametrize(
    ("clean", "reason"),
    [(True, "5 log files were there at the last clean stop"), (False, "offsets up to 179 were flushed")],
)
def test_all_log_files_lost(filled: Store, clean: bool, reason: str) -> None:
    filled.log.flush()
    filled.manager.checkpoint()
    filled.stop(clean=clean)
    for path in filled.directory.iterdir():
        if path.suffix in (".log", ".index", ".timeindex"):
            path.unlink()
    manager = filled.start()
    with pytest.raises(LogCorruptionError, match=reason):
        manager.get("topic", 0)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("change", ["lost", "torn", "flipped"])
def test_lost_snapshots_are_replayed(filled: Store, read_log: ReadLog, clean: bool, change: str) -> None:
    filled.stop(clean=clean)
    for path in filled.files(".snapshot"):
        if change == "lost":
            path.unlink()
        elif change == "torn":
            os.truncate(path, 20)
        else:
            flip(path, 30)
    filled.start()
    assert_whole(filled, read_log)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("contents", [None, b"", b"0\n5\n0 0\n", b"\xff\xff"])
def test_lost_epochs_are_rebuilt(filled: Store, read_log: ReadLog, clean: bool, contents: bytes | None) -> None:
    filled.stop(clean=clean)
    path = filled.directory / "leader-epoch-checkpoint"
    if contents is None:
        path.unlink()
    else:
        path.write_bytes(contents)
    filled.start()
    assert_whole(filled, read_log)
    assert path.read_text() == "0\n2\n0 0\n1 120\n"


def test_a_middle_segment_cut_short_is_noticed_after_a_clean_stop(filled: Store) -> None:
    filled.stop(clean=True)
    path = filled.files(".log")[1]
    batch_bytes = int.from_bytes(path.read_bytes()[8:12], "big") + 12
    os.truncate(path, path.stat().st_size - batch_bytes)
    manager = filled.start()
    with pytest.raises(LogCorruptionError, match="the next one starts with"):
        manager.get("topic", 0)


def test_flushed_offsets_that_are_gone_are_told(filled: Store, caplog: pytest.LogCaptureFixture) -> None:
    filled.stop(clean=True)
    path = filled.files(".log")[-1]
    os.truncate(path, path.stat().st_size - 1)
    with caplog.at_level(logging.ERROR):
        filled.start()
    assert f"offsets {END - RECORDS} to {END - 1} had been flushed but are missing" in caplog.text


def test_leftovers_of_a_crash_are_removed(filled: Store, read_log: ReadLog) -> None:
    filled.stop(clean=False)
    for name in ("00000000000000000000.log.deleted", "leader-epoch-checkpoint.tmp", "00000000000000000009.log.cleaned"):
        (filled.directory / name).write_bytes(b"rest")
    filled.start()
    assert_whole(filled, read_log)
    assert not [path for path in filled.directory.iterdir() if path.suffix in (".tmp", ".deleted", ".cleaned")]


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-end-checkpoint",
    ],
)
@pytest.mark.parametrize("contents", [None, b"", b"garbage\n"])
def test_lost_directory_checkpoints_mean_more_checking(
    filled: Store, read_log: ReadLog, name: str, contents: bytes | None
) -> None:
    filled.stop(clean=True)
    path = filled.path / name
    if contents is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(contents)
    filled.start()
    assert_whole(filled, read_log)


def test_what_lies_below_deleted_records_never_comes_back(filled: Store, make_batch: MakeBatch) -> None:
    filled.log.set_log_start_offset(END)
    filled.manager.checkpoint()
    filled.stop(clean=False)
    os.truncate(filled.files(".log")[-1], 0)
    filled.start()
    assert (filled.log.log_start_offset, filled.log.log_end_offset) == (END, END)
    assert filled.log.append_as_leader(make_batch(), leader_epoch=5).first_offset == END


def test_a_batch_inside_a_torn_batch_is_not_taken_for_one(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    log.append_as_leader(make_batch([b"good"]), leader_epoch=0)
    inner = bytearray(make_batch([b"inner"]))
    inner[:8] = (5).to_bytes(8, "big")
    log.append_as_leader(make_batch([bytes(inner) + bytes(100)]), leader_epoch=0)
    store.stop(clean=False)
    path = store.files(".log")[0]
    os.truncate(path, path.stat().st_size - 10)
    store.start()
    assert store.log.log_end_offset == 1
