"""Rows of Arrow tables on their way to partitions: choosing columns, partitions and batches, and their future.

What always holds: rows of a partition keep their order. A row goes where `send` would send its record. Nothing is
appended before all columns and all sizes have been checked. The first call of `plan_rows` imports pyarrow.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tidelog.client.arrow_extra import require_pyarrow
from tidelog.client.errors import ClientError, ConfigError, RecordTooLargeError, RequestTimeoutError, SerializationError
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.settings import ProducerSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.records.arrow_rows import ArrowRows

# The columns that are used if they exist and no others are named: those of a consumer's `poll_arrow`.
_DEFAULT_COLUMNS = {"key": "key", "value": "value", "headers": "headers"}


class ArrowColumns(NamedTuple):
    """The names of columns, or their defaults."""

    key: str | None
    value: str | None
    headers: str | None
    timestamp: str | None
    partition: str | int | None


class RowsRun(NamedTuple):
    """Rows that become one batch; without a partition they go where keyless records go."""

    partition: int | None
    rows: ArrowRows
    first: int
    end: int


class StoredRows(NamedTuple):
    """Where the rows of one batch were stored: `rows` records from `offset`, which is -1 with acks=0."""

    topic: str
    partition: int
    offset: int
    rows: int


def plan_rows(
    settings: ProducerSettings, topic: str, partitions: int, data: Any, columns: ArrowColumns
) -> list[RowsRun]:
    """The batches for a table's rows, in order."""
    require_pyarrow("send_arrow")
    import pyarrow as pa

    if isinstance(data, pa.Table):
        batches = data.to_batches()
    elif isinstance(data, pa.RecordBatch):
        batches = [data]
    else:
        raise SerializationError(f"send_arrow takes a pyarrow RecordBatch or Table, not {type(data).__name__}")
    _check_there_is_content(topic, data.schema.names, columns)
    if settings.partitioner is not None and columns.partition is None:
        raise ConfigError("send_arrow can't ask a partitioner of your own for every row; give it a partition column")
    try:
        return [
            run
            for batch in batches
            if batch.num_rows
            for run in _plan_batch(settings, topic, partitions, batch, columns)
        ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SerializationError(f"rows to {topic} can't be written: {' '.join(str(error).split())}") from error


def _check_there_is_content(topic: str, names: list[str], columns: ArrowColumns) -> None:
    """Rows without a key or value column would be stored as empty records, which nobody wants."""
    if columns.key is None and columns.value is None and not {"key", "value"} & set(names):
        known = ", ".join(names) or "none"
        raise SerializationError(
            f"rows to {topic} would have neither key nor value: there is no column 'key' or 'value' (there are: "
            f"{known}), and none was named; say which, as send_arrow(topic, data, value='NAME') or key='NAME'"
        )


def _plan_batch(
    settings: ProducerSettings, topic: str, partitions: int, batch: pa.RecordBatch, columns: ArrowColumns
) -> Iterator[RowsRun]:
    from tidelog.records.arrow_rows import NO_PARTITION, ArrowRows

    now_ms = time.time_ns() // 1_000_000
    size_max = max(settings.batch_growth_max_bytes, min(settings.batch_size, settings.max_request_size))
    for number, rows_of_it in _partitioned(settings, topic, partitions, batch, columns):
        rows = ArrowRows(
            rows_of_it.num_rows,
            _column(rows_of_it, "key", columns.key),
            _column(rows_of_it, "value", columns.value),
            _column(rows_of_it, "headers", columns.headers),
            _column(rows_of_it, "timestamp", columns.timestamp),
            now_ms,
        )
        for first, end in rows.runs(size_max):
            if rows.size_max(first, end) > settings.max_request_size:
                raise RecordTooLargeError(
                    f"a row of up to {rows.size_max(first, end)} bytes to {topic} is larger than max.request.size, "
                    f"{settings.max_request_size}"
                )
            yield RowsRun(None if number == NO_PARTITION else number, rows, first, end)


def _partitioned(
    settings: ProducerSettings, topic: str, partitions: int, batch: pa.RecordBatch, columns: ArrowColumns
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of the batch by partition; NO_PARTITION for those that go where keyless records go."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tidelog.records.arrow_rows import NO_PARTITION, by_partition, choose_partitions

    if isinstance(columns.partition, int):
        _check_partition(topic, partitions, columns.partition, columns.partition)
        yield columns.partition, batch
        return
    key = None if settings.ignore_keys else _column(batch, "key", columns.key)
    given = _column(batch, "partition", columns.partition)
    if given is None and (key is None or partitions == 1):
        yield NO_PARTITION, batch
        return
    numbers = choose_partitions(key, batch.num_rows, partitions)
    if given is not None:
        given = given.cast(pa.int32())
        bounds = pc.min_max(given).as_py()
        if bounds["min"] is not None:
            _check_partition(topic, partitions, bounds["min"], bounds["max"])
        numbers = pc.coalesce(given, numbers)
    yield from by_partition(batch, numbers)


def _check_partition(topic: str, partitions: int, lowest: int, highest: int) -> None:
    from tidelog.client.errors import NoSuchPartitionError

    for partition in (lowest, highest):
        if not 0 <= partition < partitions:
            raise NoSuchPartitionError(f"topic {topic!r} has no partition {partition}; it has 0 to {partitions - 1}")


def _column(batch: pa.RecordBatch, role: str, name: str | int | None) -> pa.Array | None:
    if name is None:
        name = _DEFAULT_COLUMNS.get(role)
        if name not in batch.schema.names:
            return None
    elif name not in batch.schema.names:
        known = ", ".join(batch.schema.names) or "none"
        raise SerializationError(f"there is no column {name!r} for the {role}; there are: {known}")
    return batch.column(batch.schema.names.index(name))


class RowsFuture:
    """The outcome of all rows of one `send_arrow`."""

    __slots__ = ("_batches",)

    def __init__(self, batches: Sequence[ProducerBatch]) -> None:
        self._batches = tuple(batches)

    def done(self) -> bool:
        """Whether every row was stored or has failed."""
        return all(batch.is_done for batch in self._batches)

    def result(self, timeout: float | None = None) -> list[StoredRows]:
        """Wait for all rows and return where they were stored; raises the error of the first row that failed.

        RequestTimeoutError after `timeout` seconds without an outcome: rows may still be delivered.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._stored()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Wait like `result` and return the error, or None."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        for batch in self._batches:
            batch.want()
        for batch in self._batches:
            if not batch.wait(None if deadline_s is None else max(deadline_s - time.monotonic(), 0)):
                left = sum(one.count for one in self._batches if not one.is_done)
                raise RequestTimeoutError(f"{left} rows were not acknowledged within {timeout:g} s; they may still be")
        return self._error()

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call it with this future once it is done: on the producer's thread, or immediately if it already is."""
        left = len(self._batches)
        counting = threading.Lock()  # batches end on the producer's thread while this one counts those that have

        def one_ended() -> None:
            nonlocal left
            with counting:
                left -= 1
                is_last = left == 0
            if is_last:
                callback(self)

        already = sum(not batch.watch(one_ended) for batch in self._batches)
        if not self._batches:
            callback(self)
        for _ in range(already):
            one_ended()

    def __await__(self) -> Generator[object, None, list[StoredRows]]:
        if not self.done():
            loop = asyncio.get_running_loop()
            waiting = loop.create_future()
            self.add_done_callback(lambda _: loop.call_soon_threadsafe(_set_done, waiting))
            for batch in self._batches:
                batch.want()
            yield from waiting
        error = self._error()
        if error is not None:
            raise error
        return self._stored()

    def _error(self) -> ClientError | None:
        return next((batch.error for batch in self._batches if batch.error is not None), None)

    def _stored(self) -> list[StoredRows]:
        return [
            StoredRows(*part.topic_partition, part.base_offset, part.count)
            for batch in self._batches
            for part in batch.all_parts()
        ]

    def __repr__(self) -> str:
        rows = sum(batch.count for batch in self._batches)
        state = "pending" if not self.done() else "delivered" if self._error() is None else "failed"
        return f"<RowsFuture {rows} rows {state}>"


def _set_done(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():  # the waiting task may have been cancelled
        waiting.set_result(None)
