"""The parts of workers that need no cluster: their orders, their pace, their progress, what they choose to do."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import cast

import pytest

from tidelog.client.consumer.consumer import Consumer
from tidelog.client.errors import RetriableError, UsageError
from tidelog.client.types import OffsetAndMetadata, TopicPartition
from tidelog.records.kernel_consume import ConsumerRecord
from tidelog.torture.history import FAIL, OK, UNKNOWN
from tidelog.torture.workers import worker
from tidelog.torture.workers.bursts import Part
from tidelog.torture.workers.progress_page import Phase, ProgressPage, WorkerProgress, read_page
from tidelog.torture.workers.reading import has_reached, keys_of, poll_events
from tidelog.torture.workers.sender import Sender, SenderOrders
from tidelog.torture.workers.transactor import Transactor, TransactorOrders
from tidelog.torture.workers.worker import ENDED_OK, RESTART, VALUES_PER_WORKER, Lead, Orders, Pace, Worker


def orders(tmp_path: Path, name: str = "w-0") -> Orders:
    return Orders(name, 3, "", str(tmp_path / f"{name}.jsonl"), str(tmp_path / name), seed=1)


def test_a_lead_obeys() -> None:
    lead = Lead()
    assert (lead.is_over, lead.is_quiet, lead.ends) == (False, False, None)
    lead.obey("quiet")
    assert lead.is_quiet
    lead.obey('drain {"t-0": 7}')
    assert lead.ends == {"t-0": 7}
    with pytest.raises(ValueError, match="does not know the order 'dance'"):
        lead.obey("dance")


def test_pauses_end_at_once_when_there_is_nothing_more_to_send() -> None:
    lead = Lead()
    lead.obey("quiet")
    lead.pause(1e6)


def test_a_pace_spreads_records_over_time() -> None:
    now_s = 100.0
    pace = Pace(1_000.0, lambda: now_s)
    assert pace.spend(100) == pytest.approx(0.1)
    now_s += 0.05
    assert pace.spend(100) == pytest.approx(0.15)
    # After an outage, only so much is made up for.
    now_s += 60.0
    waits_s = [pace.spend(100) for _ in range(10)]
    assert waits_s[:5] == [0.0] * 5
    assert waits_s[-1] == pytest.approx(0.5)


def test_without_a_rate_there_is_no_pause() -> None:
    assert Pace(0.0).spend(1_000_000) == 0.0


def test_progress_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "pages" / "w-0"
    assert read_page(path) == WorkerProgress()
    page = ProgressPage(path)
    page.acknowledged, page.attempted, page.failed, page.read = 2**40, 5, 3, 7
    page.phase = Phase.QUIET
    page.moved()
    found = read_page(path)
    assert (found.acknowledged, found.attempted, found.failed, found.read) == (2**40, 5, 3, 7)
    assert found.phase is Phase.QUIET
    assert found.moved_ns > 0
    page.close()


class Doing(Worker):
    """Ends as its name says."""

    def run(self) -> None:
        error = {"client": RetriableError("gone"), "mistake": UsageError("no such call"), "bug": KeyError("x")}
        if self._name in error:
            raise error[self._name]


def run(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(Lead, "listen", lambda self: None)
    return worker.run_worker(Doing, [json.dumps(asdict(orders(tmp_path, name)))])


def test_a_client_that_failed_for_good_is_to_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "fine", monkeypatch) == ENDED_OK
    assert run(tmp_path, "client", monkeypatch) == RESTART
    assert "to be started again: RetriableError: gone" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "error"), [("mistake", UsageError), ("bug", KeyError)])
def test_mistakes_are_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        run(tmp_path, name, monkeypatch)


def test_values_are_unique(tmp_path: Path) -> None:
    first = Doing(orders(tmp_path))
    assert [first.new_value() for _ in range(2)] == [3 * VALUES_PER_WORKER + 1, 3 * VALUES_PER_WORKER + 2]
    first.close()


def test_bursts_have_about_the_size_that_the_rate_asks_for(tmp_path: Path) -> None:
    own = SenderOrders(**asdict(orders(tmp_path)), topic="t", partitions=4, rate=2_000.0)
    sender = Sender(own)
    made = [sender._burst() for _ in range(300)]
    sender.close()
    sizes = [sum(map(len, burst.values())) for burst in made]
    assert min(sizes) >= 1
    assert 150 < sum(sizes) / len(sizes) < 250
    assert {partition for burst in made for partition in burst} == {0, 1, 2, 3}
    assert all(values for burst in made for values in burst.values())
    values = [value for burst in made for values in burst.values() for value in values]
    assert len(set(values)) == len(values)


def records(*rows: tuple[int, int, int]) -> Iterable[ConsumerRecord]:
    for partition, offset, value in rows:
        yield ConsumerRecord("t", partition, offset, value=b"%d" % value)


def test_a_poll_is_an_event_for_each_partition() -> None:
    found = poll_events(records((0, 5, 50), (1, 7, 70), (0, 6, 60)))
    assert found == [["poll", "t-0", [5, 6], [50, 60]], ["poll", "t-1", [7], [70]]]


def test_ends_are_reached_when_every_partition_is_read_so_far() -> None:
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    assert keys_of([second, first]) == ["t-0", "t-1"]
    at = {first: OffsetAndMetadata(5), second: OffsetAndMetadata(0)}
    assert has_reached(at, {"t-0": 5}, [first, second])
    assert not has_reached(at, {"t-0": 6}, [first, second])
    assert not has_reached({first: at[first]}, {}, [first, second])  # its position isn't known yet


class AtOffsets:
    """A consumer that is at these offsets."""

    def __init__(self, **offsets: int) -> None:
        self._offsets = offsets

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {TopicPartition(key, 0): OffsetAndMetadata(offset) for key, offset in self._offsets.items()}


def test_a_transactor_commits_behind_trailing_markers_at_the_end(tmp_path: Path) -> None:
    own = TransactorOrders(**asdict(orders(tmp_path)), topic="t", partitions=2)
    transactor = Transactor(own)
    consumer = cast("Consumer", AtOffsets(t=8, u=5))
    first, second = TopicPartition("t", 0), TopicPartition("u", 0)
    # Usually, where it has read records.
    assert transactor._offsets(consumer, list(records((0, 5, 50)))) == {first: OffsetAndMetadata(8)}
    assert transactor._offsets(consumer, []) == {}
    transactor.lead.obey('drain {"t-0": 8, "u-0": 5}')
    assert transactor._offsets(consumer, []) == {first: OffsetAndMetadata(8), second: OffsetAndMetadata(5)}
    transactor._committed = {first: OffsetAndMetadata(8)}
    assert transactor._offsets(consumer, []) == {second: OffsetAndMetadata(5)}
    transactor.close()


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (OK, [["send", "u-0", [1, 2], [10, 11]]]),
        (UNKNOWN, [["send", "u-0", [1, 2], [None, None]]]),
        (FAIL, []),
    ],
)
def test_a_copy_that_may_be_made_again_is_noted_without_offsets(
    tmp_path: Path, outcome: str, expected: list[list[object]]
) -> None:
    parts = [Part("u-0", OK, "", [1, 2], [10, 11])]
    for name, copy_to, wanted in (("w-0", "u", expected), ("w-1", "", [["send", "u-0", [1, 2], [10, 11]]])):
        transactor = Transactor(TransactorOrders(**asdict(orders(tmp_path, name)), topic="t", copy_to=copy_to))
        assert transactor._sent_events(parts, outcome) == wanted
        transactor.close()
