"""Dumping and verifying files from outside of a broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.log import LogConfig
from tidelog.log.inspect import BatchRow, EpochRow, OffsetIndexRow, Problem, ProducerRow, TimeIndexRow, dump, verify

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store


@pytest.fixture
def closed(store: Store, make_batch: MakeBatch) -> Store:
    log = store.create(LogConfig(index_interval_bytes=0))
    for index in range(4):
        batch = make_batch([b"a", b"b"], producer_id=6, producer_epoch=1, base_sequence=index * 2)
        log.append_as_leader(batch, leader_epoch=2)
        store.clock.advance(ms=1)
    store.stop(clean=True)
    return store


def test_every_file_can_be_dumped(closed: Store) -> None:
    batches = list(dump(closed.files(".log")[0]))
    assert [row.header.base_offset for row in batches if isinstance(row, BatchRow) and row.is_valid] == [0, 2, 4, 6]
    positions = [row.position for row in batches if isinstance(row, BatchRow)]
    assert list(dump(closed.files(".index")[0])) == [
        OffsetIndexRow(offset, position) for offset, position in zip((3, 5, 7), positions[1:], strict=True)
    ]
    start_ms = closed.clock.now_ms() - 4
    assert list(dump(closed.files(".timeindex")[0])) == [
        TimeIndexRow(start_ms + index, offset) for index, offset in ((1, 3), (2, 5), (3, 7))
    ]
    assert list(dump(closed.files(".snapshot")[0])) == [ProducerRow(6, 1, 7, 7, start_ms + 3, -1, -1)]
    assert list(dump(closed.directory / "leader-epoch-checkpoint")) == [EpochRow(2, 0)]
    with pytest.raises(ValueError, match=r"partition\.metadata"):
        dump(closed.directory / "partition.metadata")


def test_sound_files_have_no_problems(closed: Store) -> None:
    assert list(verify(closed.directory)) == []


def problems(closed: Store, path: Path, position: int) -> list[Problem]:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x01
    path.write_bytes(data)
    return list(verify(closed.directory))


@pytest.mark.parametrize("position", [7, 11, 16, 20, 70])
def test_damage_in_a_log_is_named(closed: Store, position: int) -> None:
    path = closed.files(".log")[0]
    size = path.stat().st_size // 4
    found = problems(closed, path, size + position)
    assert found
    assert found[0].path == path
    assert found[0].position in (size, 2 * size)


@pytest.mark.parametrize(("suffix", "position"), [(".index", 3), (".index", 15), (".timeindex", 0), (".snapshot", 12)])
def test_damage_in_other_files_is_named(closed: Store, suffix: str, position: int) -> None:
    path = closed.files(suffix)[0]
    assert {problem.path for problem in problems(closed, path, position)} == {path}


def test_a_broken_epoch_file_is_named(closed: Store) -> None:
    path = closed.directory / "leader-epoch-checkpoint"
    path.write_text("garbage")
    assert [problem.path for problem in verify(closed.directory)] == [path]
