"""After the machine went down, what was not flushed may have holes: the log ends at the first, and the rest is kept."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.log import LogConfig, LogCorruptionError, LogManager
from tidelog.log.inspect import verify
from tidelog.records import Record, iter_headers

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store

ReadLog = Callable[..., list[Record]]
FLUSHED = 20
BATCHES = 60


class Machine:
    """A boot id that changes when it is told to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._boots = 0
        self.go_down()

    def go_down(self) -> None:
        self._boots += 1
        self._path.write_text(f"boot-{self._boots}\n")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Before the store is made, so that it starts under the first boot."""
    monkeypatch.setattr("tidelog.log.boot_id.BOOT_ID_PATH", tmp_path / "boot_id")
    return Machine(tmp_path / "boot_id")


@pytest.fixture
def filled(machine: Machine, store: Store, make_batch: MakeBatch) -> Store:
    """Sixty batches of one record in several segments; the first twenty are flushed, and it was written down."""
    log = store.create(LogConfig(segment_bytes=1500, index_interval_bytes=200))
    for index in range(BATCHES):
        log.append_as_leader(make_batch([b"%03d" % index + bytes(40)]), leader_epoch=0)
        if index == FLUSHED - 1:
            log.flush()
            store.manager.checkpoint()
    log.advance_high_watermark(BATCHES)
    assert len(log.segments) > 4
    store.stop(clean=False)
    return store


def place_of(store: Store, offset: int) -> tuple[Path, int]:
    """File and position of a batch."""
    path = [path for path in store.files(".log") if int(path.stem) <= offset][-1]
    found = {header.base_offset: position for position, header in iter_headers(path.read_bytes())}
    return path, found[offset]


def make_hole(store: Store, offset: int) -> tuple[Path, int]:
    path, position = place_of(store, offset)
    data = path.read_bytes()
    path.write_bytes(data[: position + 20] + bytes(30) + data[position + 50 :])
    return path, position


def kept(store: Store) -> list[Path]:
    return sorted(path for directory in store.path.glob("topic-0.*-cut") for path in directory.iterdir())


def assert_ends_at(store: Store, read_log: ReadLog, end: int) -> None:
    assert [record.offset for record in read_log(store.log)] == list(range(end))
    store.log.roll()
    store.log.flush()
    assert list(verify(store.directory)) == []


def test_a_hole_in_what_was_not_flushed_ends_the_log(
    filled: Store, machine: Machine, read_log: ReadLog, caplog: pytest.LogCaptureFixture
) -> None:
    path, position = make_hole(filled, 30)
    tail = path.read_bytes()[position:]
    later = {other.name: other.read_bytes() for other in filled.files(".log") if other.name > path.name}
    assert later
    machine.go_down()
    filled.start()
    assert_ends_at(filled, read_log, 30)
    files = {file.name: file.read_bytes() for file in kept(filled)}
    assert files == {f"{path.name}.from-{position}": tail, **later}
    (directory,) = filled.path.glob("*-cut")
    size_bytes = sum(map(len, files.values()))
    (line,) = [record.message for record in caplog.records if "the machine went down" in record.message]
    for part in ("topic-0", f"{path} at byte {position}", "offset 30", f"{size_bytes} bytes", str(directory)):
        assert part in line


def test_the_same_boot_means_real_damage(filled: Store, machine: Machine, read_log: ReadLog) -> None:
    """The page cache survived the process, so a hole is nobody's unfinished write."""
    path, position = make_hole(filled, 30)
    manager = filled.start()
    with pytest.raises(LogCorruptionError) as refused:
        manager.get("topic", 0)
    assert (refused.value.path, refused.value.position) == (path, position)
    assert "tidelog log repair" in str(refused.value)
    assert not kept(filled)


def test_a_hole_in_what_was_flushed_is_no_power_cut(filled: Store, machine: Machine) -> None:
    make_hole(filled, FLUSHED - 2)
    machine.go_down()
    manager = filled.start()
    with pytest.raises(LogCorruptionError):
        manager.get("topic", 0)
    assert not kept(filled)


def test_an_unknown_boot_counts_as_the_same(filled: Store, machine: Machine) -> None:
    (filled.path / ".boot_id").unlink()
    make_hole(filled, 30)
    machine.go_down()
    manager = filled.start()
    with pytest.raises(LogCorruptionError):
        manager.get("topic", 0)


def test_a_tail_of_zeros_is_cut_without_a_copy(filled: Store, machine: Machine, read_log: ReadLog) -> None:
    path, position = place_of(filled, BATCHES - 1)
    data = path.read_bytes()
    path.write_bytes(data[:position] + bytes(5000))
    machine.go_down()
    filled.start()
    assert_ends_at(filled, read_log, BATCHES - 1)
    assert not kept(filled)


def test_zeros_before_other_segments_are_not_copied_either(filled: Store, machine: Machine, read_log: ReadLog) -> None:
    path, position = place_of(filled, 30)
    data = path.read_bytes()
    path.write_bytes(data[:position] + bytes(len(data) - position))
    later = [other.name for other in filled.files(".log") if other.name > path.name]
    machine.go_down()
    filled.start()
    assert_ends_at(filled, read_log, 30)
    assert [file.name for file in kept(filled)] == later


def test_a_lost_end_before_another_segment(filled: Store, machine: Machine, read_log: ReadLog) -> None:
    path, position = place_of(filled, 30)
    os.truncate(path, position)
    machine.go_down()
    filled.start()
    assert_ends_at(filled, read_log, 30)


def refuse_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*args: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)


def test_without_room_for_the_copy_the_partition_stays_as_it_is(
    filled: Store, machine: Machine, read_log: ReadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_hole(filled, 30)
    before = [path.read_bytes() for path in filled.files(".log")]
    machine.go_down()
    with monkeypatch.context() as patch:
        refuse_writes(patch)
        manager = filled.start()
    with pytest.raises(LogCorruptionError, match="No space left"):
        manager.get("topic", 0)
    assert [path.read_bytes() for path in filled.files(".log")] == before
    assert not list(filled.path.glob("*-cut"))
    # The boot id could not be written on the full disk, so with room it goes on as after the power cut.
    filled.stop(clean=False)
    filled.start()
    assert_ends_at(filled, read_log, 30)


def test_whole_segments_are_kept_without_room(
    filled: Store, machine: Machine, read_log: ReadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled.files(".log")[-2]
    make_hole(filled, int(path.stem))
    machine.go_down()
    with monkeypatch.context() as patch:
        refuse_writes(patch)
        filled.start()
    assert_ends_at(filled, read_log, int(path.stem))
    assert path.name in [file.name for file in kept(filled)]


def test_a_start_that_did_not_finish_leaves_the_old_boot(
    filled: Store, machine: Machine, read_log: ReadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next one would take the holes for real damage."""
    make_hole(filled, 30)
    machine.go_down()
    manager = LogManager([filled.path], {}, filled.clock)
    manager.open("cluster", 1)
    with monkeypatch.context() as patch:
        patch.setattr("tidelog.log.loading.bytes_to_check", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            manager.load({})
    manager.close(clean=False)
    filled.start()
    assert_ends_at(filled, read_log, 30)
    assert kept(filled)
