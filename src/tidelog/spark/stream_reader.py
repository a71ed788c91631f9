"""Streaming reads as Spark asks for them; which offsets a micro-batch covers is decided in `stream_driver`.

What always holds: offsets are JSON as Spark's own `kafka` source writes them, so checkpoints of the two can be
exchanged. The driver keeps one reader for the life of the query; tasks get one that holds settings only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tidelog.spark.offsets import Offsets, offsets_from_json, offsets_to_json, read_start
from tidelog.spark.options import Options, Use, read_options
from tidelog.spark.reader import TaskReading, make_splits
from tidelog.spark.small_batches import may_be_small, read_small
from tidelog.spark.stream_driver import StreamDriver
from tidelog.spark.topic_view import TopicView

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_ROWS_MAX = 2**62  # a limit that says only that there is one
# The thread that plans ahead would otherwise hold the interpreter while the answer to Spark is being written; Spark
# then writes to its disk for several times as long before it asks for the plan.
_ANSWER_FIRST_S = 0.001
_TOPICS_AGE_MAX_S = 1.0  # of what is known of topics when the driver reads a small batch itself


def make_stream_reader(schema: StructType, given: Mapping[str, str]) -> DataSourceStreamReader:
    return StreamReader(schema, read_options(given, Use.STREAM_READ))


class _Planned(NamedTuple):
    """The tasks of a micro-batch, and its rows if the driver has read them itself."""

    splits: list[InputPartition]
    rows: list[pa.RecordBatch] | None


class _Ahead(NamedTuple):
    """A micro-batch that is being planned before Spark has asked for it."""

    start: Offsets
    end: Offsets
    planned: Future[_Planned]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming read.

    A small batch is planned and read while Spark writes its offsets down. Whatever Spark asks for next waits for that,
    so that nothing happens at once on the driver.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        self._options = options
        self._reading = TaskReading.of(schema, options)
        self._start = read_start(options)
        TopicView(options)  # so that mistakes are told when the query is made
        self._driver: StreamDriver | None = None
        self._rows: list[pa.RecordBatch] = []
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: _Ahead | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None, "_thread": None, "_ahead": None}

    @property
    def _on_driver(self) -> StreamDriver:
        if self._ahead is not None:
            self._ahead.planned.exception()  # waits, and leaves what went wrong to whoever asks for the plan
        if self._driver is None:
            self._driver = StreamDriver(self._options, TopicView(self._options))
        return self._driver

    def initialOffset(self) -> dict[str, dict[str, int]]:
        return offsets_to_json(self._on_driver.initial(self._start))

    def latestOffset(self, start: dict[str, dict[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:
        has_limit = not isinstance(limit, ReadAllAvailable)
        begin = offsets_from_json(start)
        end = self._on_driver.next_end(begin, has_limit=has_limit)
        # Who asks for a number of tasks gets them.
        if may_be_small(begin, end) and not self._options.is_given("minPartitions"):
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="tidelog-small-batches")
            self._ahead = _Ahead(begin, end, self._thread.submit(self._plan_ahead, self._on_driver, begin, end))
        return offsets_to_json(end)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Which limits there are Spark need not know, as it can't hold several; only that there is one."""
        options = self._options
        rows_max, rows_min = options.get("maxOffsetsPerTrigger"), options.get("minOffsetsPerTrigger")
        if rows_max is not None or options.get("maxOffsetsPerTriggerFile") is not None:
            return ReadMaxRows(rows_max or _ROWS_MAX)
        if options.get("maxBytesPerTrigger") is not None:
            return ReadMaxBytes(options.get("maxBytesPerTrigger"))
        return ReadAllAvailable() if rows_min is None else ReadMinRows(rows_min)

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        if self._driver is None or not self._driver.latest:
            return None
        return offsets_to_json(self._driver.latest)  # nothing to wait for: planning does not change it

    def prepareForTriggerAvailableNow(self) -> None:
        self._on_driver.fix_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        splits, rows = self._planned(offsets_from_json(start), offsets_from_json(end))
        if rows is None:
            return splits
        self._rows = rows
        self.__class__ = _ReaderWithRows
        return splits[:1]  # Spark takes rows that are there already for one task's

    def _planned(self, start: Offsets, end: Offsets) -> _Planned:
        driver = self._on_driver
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (ahead.start, ahead.end) == (start, end):
            return ahead.planned.result()
        return self._plan(driver, start, end)

    def _plan_ahead(self, driver: StreamDriver, start: Offsets, end: Offsets) -> _Planned:
        time.sleep(_ANSWER_FIRST_S)
        splits = self._splits(driver, start, end, age_max_s=_TOPICS_AGE_MAX_S)
        rows = read_small(splits, self._reading.read)
        # Without rows it is left to tasks, and planned afresh for them: a topic may have been made anew since.
        return _Planned(splits, rows) if rows is not None else _Planned(self._splits(driver, start, end), None)

    def _plan(self, driver: StreamDriver, start: Offsets, end: Offsets) -> _Planned:
        splits = self._splits(driver, start, end)
        rows = None if self._options.is_given("minPartitions") else read_small(splits, self._reading.read)
        return _Planned(splits, rows)

    def _splits(
        self, driver: StreamDriver, start: Offsets, end: Offsets, *, age_max_s: float = 0.0
    ) -> list[InputPartition]:
        return make_splits(driver.ranges(start, end, age_max_s=age_max_s), self._options, driver.view)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition)

    def commit(self, end: dict[str, dict[str, int]]) -> None:
        self._on_driver.publish(offsets_from_json(end))

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        if self._driver is not None:
            self._driver.close()
            self._driver = None


class _ReaderWithRows(StreamReader, _SimpleStreamReaderWrapper):
    """What a reader is between `partitions` and `getCache`, when it has read a small batch itself.

    Spark asks only such a reader for rows, and it does so right after it has asked for partitions.
    """

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        self.__class__ = StreamReader  # type: ignore[assignment]  # a plain one again
        rows, self._rows = self._rows, []
        return iter(rows)
