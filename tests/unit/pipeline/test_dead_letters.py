"""Which offsets are read again for dead letters, and how far that is noted; without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from power_cut import PowerCut
from tidelog.pipeline import Json, Pipeline, TopicInput, TopicOutput
from tidelog.pipeline.dead_letters import DeadLetters

PIPELINE = Pipeline(
    name="shop",
    version=1,
    inputs={
        "orders": TopicInput("orders", format=Json("id long")),
        "clicks": TopicInput(pattern="clicks-.*", format=Json("id long")),
    },
    transform=lambda orders, clicks: orders,
    outputs=[TopicOutput("out")],
)


class Log:
    """A query's log in memory."""

    def __init__(self) -> None:
        self.offsets: dict[int, dict[str, dict[int, int]]] = {}
        self.done: list[int] = []

    def finished(self) -> list[int]:
        return self.done

    def planned(self) -> list[int]:
        return sorted(self.offsets)

    def ends(self, batch_id: int) -> dict[str, dict[int, int]]:
        return self.offsets[batch_id]

    def add(self, ends: dict[str, dict[int, int]]) -> None:
        self.done.append(len(self.offsets))
        self.offsets[len(self.offsets)] = ends


class Letters(DeadLetters):
    """Tells what it would read again."""

    def __init__(self, log: Log, file: Path, query_id: str = "q") -> None:
        self.asked: list[tuple[int, str, Any, Any]] = []
        nothing: Any = None
        known: Any = log
        super().__init__(
            nothing,
            PIPELINE,
            nothing,
            known,
            query_id=query_id,
            topic="letters",
            starts={"orders": {"orders": {0: 3, 1: 4}}, "clicks": {"clicks-a": {0: 0}}},
            progress_file=file,
            delivery_options={},
        )

    def _deliver_batch(self, batch_id: int, suspects: Iterable[str]) -> int:
        for name in suspects:
            covered = self._range(name, batch_id)
            if not covered.is_empty:
                self.asked.append((batch_id, name, covered.start, covered.end))
        return 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "dead-letters.json"


def test_only_batches_that_counted_some_are_read_again(file: Path) -> None:
    log = Log()
    letters = Letters(log, file)
    log.add({"orders": {0: 10, 1: 4}, "clicks-a": {0: 6}})
    letters.note_counts(0, {"orders": 2, "clicks": 0})
    assert letters.deliver() == 1
    assert letters.asked == [(0, "orders", {"orders": {0: 3}}, {"orders": {0: 10}})]
    log.add({"orders": {0: 12, 1: 5, 2: 7}, "clicks-a": {0: 6}})
    letters.note_counts(1, {"orders": 0, "clicks": 0})
    assert letters.deliver() == 0
    log.add({"orders": {0: 15, 1: 5, 2: 8}, "clicks-a": {0: 6}, "clicks-b": {0: 2}})
    letters.note_counts(2, {"orders": 1, "clicks": 1})
    letters.deliver()
    assert letters.asked[1:] == [
        (2, "orders", {"orders": {0: 12, 2: 7}}, {"orders": {0: 15, 2: 8}}),
        (2, "clicks", {"clicks-b": {0: 0}}, {"clicks-b": {0: 2}}),
    ]
    assert json.loads(file.read_text()) == {"query_id": "q", "batch_id": 2}


def test_a_process_that_died_has_counted_nothing(file: Path) -> None:
    log = Log()
    log.add({"orders": {0: 10}})
    log.add({"orders": {0: 20}})
    first = Letters(log, file)
    first.note_counts(0, {"orders": 0, "clicks": 0})
    first.deliver()
    assert [asked[0] for asked in first.asked] == [1]
    log.add({"orders": {0: 30}})
    log.offsets[3] = {"orders": {0: 40}}  # planned, not finished
    second = Letters(log, file)
    second.deliver()
    assert [(asked[0], asked[2]) for asked in second.asked] == [(2, {"orders": {0: 20}})]
    assert second.deliver() == 0


class FailingLetters(Letters):
    """A write that the broker refuses."""

    def _deliver_batch(self, batch_id: int, suspects: Iterable[str]) -> int:
        super()._deliver_batch(batch_id, suspects)
        raise RuntimeError("not stored")


def test_a_batch_is_noted_only_after_its_letters_are_written(file: Path) -> None:
    """Whether the write fails or the process dies in it: the batch is gone through again."""
    log = Log()
    for end in (10, 20, 30):
        log.add({"orders": {0: end}})
    first = FailingLetters(log, file)
    first.note_counts(0, {"orders": 0, "clicks": 0})
    with pytest.raises(RuntimeError):
        first.deliver()
    # Batch 0 refused nothing and is done; batch 1 is not, neither on disk nor for this process.
    assert json.loads(file.read_text()) == {"query_id": "q", "batch_id": 0}
    with pytest.raises(RuntimeError):
        first.deliver()
    assert [asked[0] for asked in first.asked] == [1, 1]
    second = Letters(log, file)
    second.deliver()
    assert [asked[0] for asked in second.asked] == [1, 2]


def test_progress_survives_a_power_cut(tmp_path: Path) -> None:
    before, log = tmp_path / "before", Log()
    before.mkdir()
    with PowerCut(before) as cut:
        log.add({"orders": {0: 10}})
        Letters(log, before / "letters.json").deliver()
        log.add({"orders": {0: 20}})
        Letters(log, before / "letters.json").deliver()
    after = Letters(log, cut.leave(tmp_path / "after") / "letters.json")
    assert after.deliver() == 0
    assert after.asked == []


def test_a_new_checkpoint_begins_anew(file: Path) -> None:
    log = Log()
    log.add({"orders": {0: 10}})
    Letters(log, file).deliver()
    again = Letters(log, file, query_id="another")
    again.deliver()
    assert [asked[0] for asked in again.asked] == [0]
