"""Applies a user's function to single events, in a Spark worker.

What always holds: the function is called for one event at a time, in the order of their offsets; if it raises an
exception, the event is not lost and the replay continues: the event becomes a rejected row, unchanged, with the error.
This module runs in Spark's workers, so it doesn't import Spark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH = 10_000
ERROR_LETTERS_MAX = 2000

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Event:
    """A record as it was read. Its origin (topic, partition, offset, timestamp) can't be changed."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    def replace(self, **changes: Any) -> Event:
        """The same event with another `key`, `value` or `headers`."""
        unknown = changes.keys() - {"key", "value", "headers"}
        if unknown:
            raise TypeError(f"{min(unknown)} can't be replaced, only the key, the value and the headers")
        return dataclasses.replace(self, **changes)


EventFunction = Callable[[Event], "Event | Iterable[Event] | None"]


MAPPED_COLUMNS = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, topic string, partition int, "
    "offset long, timestamp timestamp, target_partition int, error string"
)
"""The resulting columns, as a Spark schema: the event, its origin, its target partition, and why it was rejected."""


def _schema() -> pa.Schema:
    """The same in Arrow, except that timestamps are milliseconds until the batch is assembled."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    return pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.int64()),
            ("target_partition", pa.int32()),
            ("error", pa.string()),
        ]
    )


class _Rows:
    """Rows to return to Spark."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, result: Event, origin: Event, target_partition: int | None, error: str | None = None) -> None:
        self._rows.append(
            (
                result.key,
                result.value,
                result.headers,
                origin.topic,
                origin.partition,
                origin.offset,
                origin.timestamp_ms,
                target_partition,
                error,
            )
        )

    def batch(self) -> pa.RecordBatch:
        import pyarrow as pa

        columns = {
            field.name: pa.array(column, field.type)
            for field, column in zip(_schema(), zip(*self._rows, strict=True), strict=True)
        }
        columns["timestamp"] = columns["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
        return pa.RecordBatch.from_pydict(columns)


@dataclass(frozen=True, slots=True)
class EventMapper:
    """Calls a function for each event; used with Spark's `mapInArrow`."""

    function: EventFunction

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = _Rows()
            for event in events_of(batch):
                self._apply(event, rows)
                if len(rows) >= ROWS_PER_BATCH:
                    yield rows.batch()
                    rows = _Rows()
            if len(rows):
                yield rows.batch()

    def _apply(self, event: Event, rows: _Rows) -> None:
        try:
            results = list(_results(self.function(event)))
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises, the event is kept
            rows.add(event, event, None, f"{type(error).__name__}: {error}"[:ERROR_LETTERS_MAX])
            return
        for result in results:
            # A changed key may belong to another partition, which the sink determines.
            rows.add(result, event, event.partition if result.key == event.key else None)


def _results(answer: Any) -> Iterable[Event]:
    if answer is None:
        return
    if isinstance(answer, Event):
        answer = (answer,)
    elif isinstance(answer, (bytes, str)) or not isinstance(answer, Iterable):
        raise TypeError(f"the function returned {type(answer).__name__}: expected an event, several of them, or None")
    for each in answer:
        if not isinstance(each, Event):
            raise TypeError(f"the function returned {type(each).__name__} among its events")
        _check(each)
        yield each


def _check(event: Event) -> None:
    """Catch mistakes here, where we know the event; later they would fail a whole batch."""
    for name in ("key", "value"):
        content = getattr(event, name)
        if content is not None and not isinstance(content, bytes):
            raise TypeError(f"the {name} is {type(content).__name__}: expected bytes or None")
    for header in event.headers:
        name, content = header
        if not isinstance(name, str) or not (content is None or isinstance(content, bytes)):
            raise TypeError(f"the header {name!r} must be text, with bytes or None")


def events_of(batch: pa.RecordBatch) -> Iterator[Event]:
    """The rows of a batch with the columns of the source."""
    import pyarrow as pa

    times_ms = batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    for key, value, headers, topic, partition, offset, time_ms in zip(
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        batch.column("headers").to_pylist(),
        batch.column("topic").to_pylist(),
        batch.column("partition").to_pylist(),
        batch.column("offset").to_pylist(),
        times_ms.to_pylist(),
        strict=True,
    ):
        pairs = tuple((header["key"], header["value"]) for header in headers or ())
        yield Event(key, value, pairs, topic, partition, offset, time_ms)
