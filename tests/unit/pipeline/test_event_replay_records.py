"""A user's function over events: what it may give, and what becomes of an event that it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tidelog.pipeline.event_replay.records import ERROR_LETTERS_MAX, ROWS_PER_BATCH, Event, EventMapper, events_of

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
AT = datetime(2026, 3, 1, 9, 0, 0, 123_000, tzinfo=UTC)


def source_batch(count: int) -> pa.RecordBatch:
    numbers = range(count)
    return pa.record_batch(
        {
            "key": pa.array([b"k%d" % (number % 3) if number % 5 else None for number in numbers], pa.binary()),
            "value": pa.array([b"v%d" % number for number in numbers], pa.binary()),
            "headers": pa.array(
                [[{"key": "h", "value": b"%d" % number}] if number % 2 else None for number in numbers],
                pa.list_(HEADER),
            ),
            "topic": pa.array(["orders"] * count),
            "partition": pa.array([2] * count, pa.int32()),
            "offset": pa.array(list(numbers), pa.int64()),
            "timestamp": pa.array([AT + timedelta(seconds=number) for number in numbers], pa.timestamp("us", "UTC")),
        }
    )


def mapped(function: Callable[[Event], Any], *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    return [row for batch in EventMapper(function)(iter(batches)) for row in batch.to_pylist()]


def test_events_are_what_was_read() -> None:
    first, second = events_of(source_batch(2))
    at_ms = round(AT.timestamp() * 1000)
    assert first == Event(None, b"v0", (), "orders", 2, 0, at_ms)
    assert second == Event(b"k1", b"v1", (("h", b"1"),), "orders", 2, 1, at_ms + 1000)


def test_one_none_or_several_events() -> None:
    def function(event: Event) -> Event | Iterable[Event] | None:
        if event.offset == 0:
            return event.replace(value=None)
        if event.offset == 1:
            return None
        return (event.replace(key=b"new", headers=(("n", None),)), event)

    rows = mapped(function, source_batch(3))
    assert [(row["key"], row["value"], row["target_partition"], row["error"]) for row in rows] == [
        (None, None, 2, None),
        (b"new", b"v2", None, None),
        (b"k2", b"v2", 2, None),
    ]
    assert rows[1]["headers"] == [{"key": "n", "value": None}]
    for row, offset in zip(rows, (0, 2, 2), strict=True):
        origin = (row["topic"], row["partition"], row["offset"], row["timestamp"])
        assert origin == ("orders", 2, offset, AT + timedelta(seconds=offset)), "the origin is kept"


_NO_EVENT: list[Any] = ["text", ("h", "text")]  # of the wrong types on purpose


@pytest.mark.parametrize(
    "answer",
    [
        b"bytes",
        "text",
        7,
        [b"x"],
        Event(_NO_EVENT[0], None, (), "t", 0, 0, 0),
        Event(b"k", b"v", (_NO_EVENT[1],), "t", 0, 0, 0),
    ],
)
def test_an_answer_that_is_no_event_refuses_the_event(answer: Any) -> None:
    (row,) = mapped(lambda event: answer, source_batch(1))
    assert row["error"].startswith("TypeError: ")
    assert (row["value"], row["target_partition"]) == (b"v0", None)


def test_an_error_refuses_one_event_and_keeps_it_as_it_was() -> None:
    def function(event: Event) -> Iterable[Event]:
        yield event
        if event.offset == 1:
            raise RuntimeError("x" * 5000)

    rows = mapped(function, source_batch(3))
    assert [row["value"] for row in rows] == [b"v0", b"v1", b"v2"]
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert rows[1]["error"].startswith("RuntimeError: xxx")
    assert len(rows[1]["error"]) == ERROR_LETTERS_MAX
    assert rows[1]["headers"] == [{"key": "h", "value": b"1"}]


def test_many_rows_come_in_several_batches() -> None:
    batches = list(EventMapper(lambda event: [event] * 3)(iter([source_batch(ROWS_PER_BATCH)])))
    assert sum(batch.num_rows for batch in batches) == 3 * ROWS_PER_BATCH
    assert max(batch.num_rows for batch in batches) <= ROWS_PER_BATCH + 3
    assert list(EventMapper(lambda event: None)(iter([source_batch(5)]))) == []


def test_the_origin_can_not_be_replaced() -> None:
    (event,) = events_of(source_batch(1))
    with pytest.raises(TypeError, match="offset"):
        event.replace(offset=5)
