"""Streaming reads, as Spark calls them; `stream_driver` determines which offsets a micro-batch covers.

What always holds: offsets have the same JSON form as in Spark's own `kafka` source, so each can read the other's
checkpoints. The driver keeps one reader for the lifetime of the query; the one sent to tasks holds only settings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tidelog.spark.offsets import Offsets, offsets_from_json, offsets_to_json, read_start
from tidelog.spark.options import Options
from tidelog.spark.reader import TaskReading, make_splits
from tidelog.spark.small_batches import may_be_small, read_small
from tidelog.spark.stream_driver import StreamDriver
from tidelog.spark.topic_view import TopicView

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_ROWS_MAX = 2**62  # a placeholder that only tells Spark that there is a limit
# Without this pause, the thread that plans ahead would hold the GIL while the response to Spark is being written. Spark
# then spends several times as long writing to disk before it asks for the plan.
_ANSWER_FIRST_S = 0.001
_TOPICS_AGE_MAX_S = 1.0  # how old topic metadata may be when the driver reads a small batch itself


class Planned(NamedTuple):
    """The tasks of a micro-batch, plus its rows if the driver has read them itself."""

    splits: list[InputPartition]
    rows: list[pa.RecordBatch] | None


class _Ahead(NamedTuple):
    """A micro-batch that is being planned before Spark asks for it."""

    start: Offsets
    end: Offsets
    planned: Future[Planned]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming read; `prefetched_rows` gives its plans to Spark.

    A small batch is planned and read while Spark records its offsets. Spark's next call waits for that, so the driver
    state is never used concurrently.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        self._options = options
        self._reading = TaskReading.of(schema, options)
        self._start = read_start(options)
        TopicView(options)  # so that mistakes are reported when the query is created
        self._driver: StreamDriver | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._ahead: _Ahead | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None, "_thread": None, "_ahead": None}

    @property
    def _on_driver(self) -> StreamDriver:
        if self._ahead is not None:
            self._ahead.planned.exception()  # waits; an error is raised later, when Spark asks for the plan
        if self._driver is None:
            self._driver = StreamDriver(self._options, TopicView(self._options))
        return self._driver

    def initialOffset(self) -> dict[str, dict[str, int]]:
        return offsets_to_json(self._on_driver.initial(self._start))

    def latestOffset(self, start: dict[str, dict[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:
        has_limit = not isinstance(limit, ReadAllAvailable)
        begin = offsets_from_json(start)
        end = self._on_driver.next_end(begin, has_limit=has_limit)
        # If the user asked for a number of tasks, don't read the batch as one.
        if may_be_small(begin, end) and not self._options.is_given("minPartitions"):
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="tidelog-small-batches")
            self._ahead = _Ahead(begin, end, self._thread.submit(self._plan_ahead, self._on_driver, begin, end))
        return offsets_to_json(end)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Only tells Spark that there is a limit; it can't represent several, and we apply them ourselves."""
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
        return offsets_to_json(self._driver.latest)  # no need to wait: planning doesn't change it

    def prepareForTriggerAvailableNow(self) -> None:
        self._on_driver.fix_end()

    def planned(self, start: Offsets, end: Offsets) -> Planned:
        """The plan of a micro-batch; made ahead, if it was possible."""
        driver = self._on_driver
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (ahead.start, ahead.end) == (start, end):
            return ahead.planned.result()
        return self._plan(driver, start, end)

    def _plan_ahead(self, driver: StreamDriver, start: Offsets, end: Offsets) -> Planned:
        time.sleep(_ANSWER_FIRST_S)
        splits = self._splits(driver, start, end, age_max_s=_TOPICS_AGE_MAX_S)
        rows = read_small(splits, self._reading.read)
        # Without rows it is left to tasks, and planned again for them: a topic may have been recreated since.
        return Planned(splits, rows) if rows is not None else Planned(self._splits(driver, start, end), None)

    def _plan(self, driver: StreamDriver, start: Offsets, end: Offsets) -> Planned:
        splits = self._splits(driver, start, end)
        rows = None if self._options.is_given("minPartitions") else read_small(splits, self._reading.read)
        return Planned(splits, rows)

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
