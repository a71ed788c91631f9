"""The history of leader epochs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.log.epochs import EpochEntry, LeaderEpochs


@pytest.fixture
def epochs(tmp_path: Path) -> LeaderEpochs:
    epochs = LeaderEpochs(tmp_path)
    for epoch, start_offset in ((0, 0), (2, 10), (5, 30)):
        epochs.assign(epoch, start_offset)
    return epochs


def entries(epochs: LeaderEpochs) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in epochs.entries]


def test_the_file_has_kafkas_text(epochs: LeaderEpochs, tmp_path: Path) -> None:
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n3\n0 0\n2 10\n5 30\n"
    loaded = LeaderEpochs.load(tmp_path)
    assert loaded is not None
    assert loaded.entries == (EpochEntry(0, 0), EpochEntry(2, 10), EpochEntry(5, 30))


def test_old_and_known_epochs_change_nothing(epochs: LeaderEpochs) -> None:
    epochs.assign(5, 50)
    epochs.assign(3, 50)
    assert entries(epochs) == [(0, 0), (2, 10), (5, 30)]


def test_an_epoch_that_wrote_nothing_is_overtaken(epochs: LeaderEpochs) -> None:
    epochs.assign(6, 30)
    assert entries(epochs) == [(0, 0), (2, 10), (6, 30)]


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(-1, (-1, -1)), (0, (0, 10)), (1, (0, 10)), (2, (2, 30)), (4, (2, 30)), (5, (5, 44)), (6, (-1, -1))],
)
def test_end_offsets(epochs: LeaderEpochs, asked: int, answer: tuple[int, int]) -> None:
    assert epochs.end_offset_for(asked, log_end_offset=44) == answer


def test_an_epoch_before_the_first_known_one_ended_where_that_began(tmp_path: Path) -> None:
    epochs = LeaderEpochs(tmp_path, [EpochEntry(3, 20)])
    assert epochs.end_offset_for(1, log_end_offset=44) == (1, 20)


def test_epoch_of_an_offset(epochs: LeaderEpochs) -> None:
    assert [epochs.epoch_for(offset) for offset in (0, 9, 10, 29, 30, 99)] == [0, 0, 2, 2, 5, 5]


def test_truncation(epochs: LeaderEpochs, tmp_path: Path) -> None:
    epochs.truncate_from_end(30)
    assert entries(epochs) == [(0, 0), (2, 10)]
    epochs.truncate_from_start(15)
    assert entries(epochs) == [(2, 15)]
    loaded = LeaderEpochs.load(tmp_path)
    assert loaded is not None
    assert entries(loaded) == [(2, 15)]
