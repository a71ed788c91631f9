"""What a worker's history says of an operation must be true: a wrong "ok" or "fail" would be a false verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tidelog.client.errors import (
    BrokerError,
    BufferFullError,
    ClientError,
    DeliveryTimeoutError,
    FatalError,
    RequestTimeoutError,
    RetriableError,
)
from tidelog.client.producer.producer import Producer
from tidelog.client.producer.transaction_state import TransactionAbortedError
from tidelog.client.types import RecordMetadata
from tidelog.protocol import ErrorCode
from tidelog.torture.history import FAIL, OK, UNKNOWN, read_history
from tidelog.torture.workers import bursts, ending
from tidelog.torture.workers.ending import Ending
from tidelog.torture.workers.worker import Orders, Worker

TIMED_OUT = RetriableError("not confirmed in time")
ABORTABLE = TransactionAbortedError("only an abort is left")
FENCED = BrokerError(ErrorCode.PRODUCER_FENCED)
REFUSED = BrokerError(ErrorCode.INVALID_RECORD)


class FakeProducer:
    """A producer whose commits and aborts end as given, in this order; the last ending is repeated."""

    def __init__(self, commits: list[ClientError | None], aborts: list[ClientError | None]) -> None:
        self._commits, self._aborts = self._endless(commits), self._endless(aborts)
        self.calls: list[str] = []

    def commit_transaction(self, timeout: float) -> None:
        self._end("commit", self._commits)

    def abort_transaction(self, timeout: float) -> None:
        self._end("abort", self._aborts)

    def _end(self, call: str, endings: Iterator[ClientError | None]) -> None:
        self.calls.append(call)
        error = next(endings)
        if error is not None:
            raise error

    @staticmethod
    def _endless(endings: list[ClientError | None]) -> Iterator[ClientError | None]:
        yield from endings
        while True:
            yield endings[-1]


@pytest.mark.parametrize(
    ("commits", "aborts", "expected", "calls"),
    [
        ([None], [None], Ending(OK), ["commit"]),
        # A commit whose time was up is asked for again.
        ([TIMED_OUT, TIMED_OUT, None], [None], Ending(OK), ["commit", "commit", "commit"]),
        # Aborted, and the coordinator has said so.
        ([ABORTABLE], [None], Ending(FAIL, ABORTABLE), ["commit", "abort"]),
        ([ABORTABLE], [TIMED_OUT, None], Ending(FAIL, ABORTABLE), ["commit", "abort", "abort"]),
        # An abort is refused for good where the transaction was committed: who knows.
        ([ABORTABLE], [FatalError("refused")], Ending(UNKNOWN, ABORTABLE, is_usable=False), ["commit", "abort"]),
        # Fenced: by then an attempt before may have been carried out.
        ([FENCED], [None], Ending(UNKNOWN, FENCED, is_usable=False), ["commit"]),
        ([TIMED_OUT, FENCED], [None], Ending(UNKNOWN, FENCED, is_usable=False), ["commit", "commit"]),
    ],
)
def test_a_commit(
    commits: list[ClientError | None], aborts: list[ClientError | None], expected: Ending, calls: list[str]
) -> None:
    producer = FakeProducer(commits, aborts)
    assert ending.commit(cast("Producer", producer)) == expected
    assert producer.calls == calls


def test_a_commit_that_is_never_confirmed_is_unknown() -> None:
    producer = FakeProducer([TIMED_OUT], [None])
    assert ending.commit(cast("Producer", producer), patience_s=0.0) == Ending(UNKNOWN, TIMED_OUT, is_usable=False)


def test_an_abort_never_counts_whatever_becomes_of_it() -> None:
    cases: list[tuple[list[ClientError | None], Ending]] = [
        ([None], Ending(FAIL)),
        ([TIMED_OUT, None], Ending(FAIL)),
        ([FENCED], Ending(FAIL, FENCED, is_usable=False)),
    ]
    for aborts, expected in cases:
        assert ending.abort(cast("Producer", FakeProducer([None], aborts))) == expected
    producer = cast("Producer", FakeProducer([None], [TIMED_OUT]))
    assert ending.abort(producer, patience_s=0.0) == Ending(FAIL, TIMED_OUT, is_usable=False)


class FakeFuture:
    """The end of one record; a text stands for no end at all."""

    def __init__(self, end: int | ClientError | str) -> None:
        self._end = end

    def done(self) -> bool:
        return not isinstance(self._end, str)

    def exception(self, timeout: float) -> ClientError | None:
        if isinstance(self._end, str):
            return RequestTimeoutError(self._end)
        return self._end if isinstance(self._end, ClientError) else None

    def result(self) -> RecordMetadata:
        assert isinstance(self._end, int)
        return RecordMetadata("t", 0, self._end, 0, 0, 0)


class FakeSender:
    """A producer whose records end as given, in this order; what `refuse` says of a value is raised by `send`."""

    def __init__(self, *ends: int | ClientError | str, refuse: Callable[[int], ClientError | None]) -> None:
        self._ends = iter(ends)
        self._refuse = refuse

    def send(self, topic: str, value: bytes, *, partition: int) -> FakeFuture:
        error = self._refuse(int(value))
        if error is not None:
            raise error
        return FakeFuture(next(self._ends))


def parts_of(burst: dict[int, list[int]], *ends: int | ClientError | str, refused: int = 0) -> list[bursts.Part]:
    full = BufferFullError("no room")
    sender = FakeSender(*ends, refuse=lambda value: full if value == refused else None)
    return bursts.wait("t", bursts.send(cast("Producer", sender), "t", burst), 0.0)


def test_each_record_of_a_burst_has_its_own_outcome() -> None:
    lost = DeliveryTimeoutError("its time was up")
    found = parts_of({0: [1, 2, 3], 1: [4, 5]}, 10, lost, 12, 7, 8)
    assert [(part.key, part.outcome, part.values, part.offsets) for part in found] == [
        ("t-0", OK, [1, 3], [10, 12]),
        ("t-0", UNKNOWN, [2], [None]),
        ("t-1", OK, [4, 5], [7, 8]),
    ]


def test_a_record_that_was_refused_by_the_broker_may_be_stored_by_an_attempt_before() -> None:
    (part,) = parts_of({0: [1]}, REFUSED)
    assert (part.outcome, part.values) == (UNKNOWN, [1])


def test_a_stored_record_without_an_offset_is_stored() -> None:
    (part,) = parts_of({0: [1]}, -1)  # its repetition was recognized by a broker that forgot where it is
    assert (part.outcome, part.offsets) == (OK, [None])


def test_records_that_the_producer_never_took_have_failed() -> None:
    found = parts_of({0: [1, 2, 3], 1: [4]}, 10, 20, refused=2)
    assert [(part.key, part.outcome, part.values) for part in found] == [
        ("t-0", OK, [1]),
        ("t-0", FAIL, [2, 3]),  # what comes after the refused one was never tried
        ("t-1", OK, [4]),
    ]


def test_a_client_that_never_says_what_became_of_a_record_is_at_fault() -> None:
    with pytest.raises(bursts.StuckClientError, match="neither stored nor failed"):
        parts_of({0: [1]}, "not yet")


class Quiet(Worker):
    def run(self) -> None:
        return


def test_a_burst_is_one_operation_for_each_outcome(tmp_path: Path) -> None:
    history = tmp_path / "w-0.jsonl"
    worker = Quiet(Orders("w-0", 1, "", str(history), str(tmp_path / "page"), seed=0))
    parts = parts_of({0: [1, 2], 1: [3]}, 10, DeliveryTimeoutError("late"), 30)
    bursts.note_parts(worker, 5, parts)
    worker.close()
    rows: list[tuple[str, int, list[Any]]] = [(row.outcome, row.start_ns, row.events) for row in read_history(history)]
    assert rows == [
        (OK, 5, [["send", "t-0", [1], [10]], ["send", "t-1", [3], [30]]]),
        (UNKNOWN, 5, [["send", "t-0", [2], [None]]]),
    ]
    assert (worker.page.acknowledged, worker.page.attempted, worker.page.failed) == (2, 3, 1)
