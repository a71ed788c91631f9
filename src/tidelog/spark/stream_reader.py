"""Streaming reads: which offsets the next micro-batch covers, and how far the query is.

What always holds: offsets are those of Spark's own `kafka` source, so checkpoints of the two can be exchanged; a batch
that is planned again after a restart covers the same offsets; with a group, what is published is the end of a batch
that Spark has committed. The driver keeps one reader for the life of the query; tasks get one that holds settings only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tidelog.client.types import TopicPartition
from tidelog.spark import client_settings
from tidelog.spark.errors import DataLossError, SourceError
from tidelog.spark.group_progress import GroupProgress
from tidelog.spark.offsets import Offsets, offsets_from_json, offsets_to_json, read_start
from tidelog.spark.options import Options, Use, read_options
from tidelog.spark.planning import OffsetRange, count_waiting, limit_bytes, limit_rows
from tidelog.spark.reader import TaskReading, make_splits
from tidelog.spark.topic_view import TopicView

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_ROWS_MAX = 2**62  # a limit that says only that there is one
_SIZES_AGE_MAX_S = 10.0


def make_stream_reader(schema: StructType, given: Mapping[str, str]) -> DataSourceStreamReader:
    return StreamReader(schema, read_options(given, Use.STREAM_READ))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming read."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._options = options
        self._reading = TaskReading.of(schema, options)
        self._start = read_start(options)
        TopicView(options)  # so that mistakes are told when the query is made
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    @property
    def _on_driver(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self._options)
        return self._driver

    def initialOffset(self) -> dict[str, dict[str, int]]:
        return offsets_to_json(self._on_driver.initial(self._start))

    def latestOffset(self, start: dict[str, dict[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:
        has_limit = not isinstance(limit, ReadAllAvailable)
        return offsets_to_json(self._on_driver.next_end(offsets_from_json(start), has_limit=has_limit))

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
        latest = self._on_driver.latest
        return None if not latest else offsets_to_json(latest)

    def prepareForTriggerAvailableNow(self) -> None:
        self._on_driver.fix_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ranges = self._on_driver.ranges(offsets_from_json(start), offsets_from_json(end))
        return make_splits(ranges, self._options, self._on_driver.view)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition)

    def commit(self, end: dict[str, dict[str, int]]) -> None:
        self._on_driver.publish(offsets_from_json(end))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None


class _Driver:
    """What lives in the driver's one process for the query."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.view = TopicView(options)
        self.latest: Offsets = {}
        self._initial: Offsets | None = None
        self._fixed_end: Offsets | None = None
        self._last_batch_s = float("-inf")
        self._offset_bytes: dict[TopicPartition, float] = {}
        self._sizes_asked_at_s = float("-inf")
        group_id = client_settings.group_id(options)
        self._progress = None if group_id is None else GroupProgress(group_id)

    def close(self) -> None:
        self.view.close()

    def publish(self, committed: Offsets) -> None:
        """Tell the group, unless it is where the query begins and nothing was read yet."""
        if self._progress is not None and committed != self._initial:
            there = self.view.partitions()
            self._progress.publish(
                self.view.admin, {key: offset for key, offset in committed.items() if not there or key in there}
            )

    # Where batches begin and end

    def initial(self, start: Any) -> Offsets:
        self.view.refresh(age_max_s=self._age_max_s())
        self.view.require_all()
        self._initial = self.view.resolve(start, latest=self._fixed_end)
        return self._initial

    def fix_end(self) -> None:
        """From now on nothing younger than what is there is read."""
        self.view.refresh()
        self._fixed_end = self.view.latest(self.view.partitions())

    def next_end(self, start: Offsets, *, has_limit: bool) -> Offsets:
        # Spark asks for the next end when the batch before is committed: so this start is what is done.
        self.publish(start)
        end = self._fixed_end if self._fixed_end is not None else self._ask_latest(start)
        self.latest = dict(end)
        if not has_limit:
            self._last_batch_s = time.monotonic()
            return dict(end)
        return self._limited(start, end)

    def _age_max_s(self) -> float:
        return float(max(self._options.get("partition.metadata.cache.ttl.ms"), 0)) / 1000

    def _ask_latest(self, start: Offsets) -> Offsets:
        """Asked again when it lies before what was read: a leader that has just taken over may not know better yet."""
        self.view.refresh(age_max_s=self._age_max_s())
        retries: int = self._options.get("fetchOffset.numRetries")
        for left in range(retries, -1, -1):
            latest = self.view.latest(self.view.partitions())
            wrong = [key for key, offset in latest.items() if offset < start.get(key, 0)]
            if not wrong or not left:
                break
            time.sleep(self._options.get("fetchOffset.retryIntervalMs") / 1000)
            self.view.refresh()
        return latest

    def _limited(self, start: Offsets, end: Offsets) -> Offsets:
        options = self._options
        begin = self._with_new(start, end)
        rows_min = options.get("minOffsetsPerTrigger")
        if rows_min is not None and self._fixed_end is None:
            waited_s = time.monotonic() - self._last_batch_s
            if count_waiting(begin, end) < rows_min and waited_s < options.get("maxTriggerDelay") / 1000:
                return start
        limited = end
        for rows_max in (options.get("maxOffsetsPerTrigger"), self._limit_of_file()):
            if rows_max is not None:
                limited = _unmoved(start, end) if rows_max == 0 else limit_rows(rows_max, begin, limited)
        bytes_max = options.get("maxBytesPerTrigger")
        if bytes_max is not None:
            limited = limit_bytes(bytes_max, begin, limited, self._sizes(limited))
        if limited != start:
            self._last_batch_s = time.monotonic()
        return limited

    def _with_new(self, start: Offsets, end: Offsets) -> Offsets:
        """The start, and where partitions begin that were added since."""
        added = [key for key in end if key not in start]
        return {**start, **self.view.earliest(added)} if added else start

    def _limit_of_file(self) -> int | None:
        name = self._options.get("maxOffsetsPerTriggerFile")
        if name is None:
            return None
        try:
            text = Path(name).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None
        if not text:
            return None
        if not text.isdecimal():
            raise SourceError(f"the file {name} of maxOffsetsPerTriggerFile holds {text[:40]!r}, not a whole number")
        return int(text)

    def _sizes(self, end: Offsets) -> dict[TopicPartition, float]:
        now_s = time.monotonic()
        if now_s - self._sizes_asked_at_s > _SIZES_AGE_MAX_S or not self._offset_bytes.keys() >= end.keys():
            self._offset_bytes = self.view.offset_bytes(end)
            self._sizes_asked_at_s = now_s
        return self._offset_bytes

    # What a batch covers

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """The offsets between, after a look at what was added, deleted or made anew."""
        self.view.refresh(age_max_s=self._age_max_s())
        deleted = sorted(start.keys() - end.keys())
        if deleted:
            self._lose(f"partitions {', '.join(str(each) for each in deleted)} do not exist any more")
        added = self._added(end.keys() - start.keys())
        ranges: list[OffsetRange] = []
        for key in sorted(end):
            begin = start[key] if key in start else added.get(key)
            if begin is None:
                continue
            if begin > end[key]:
                self._lose(f"partition {key} ended at offset {end[key]}, and {begin} was reached before")
                begin = self.view.earliest([key])[key] if key in self.view.partitions() else end[key]
            ranges.append(OffsetRange(key, begin, end[key]))
        return [each for each in ranges if each.size > 0 and self._is_there(each)]

    def _added(self, keys: set[TopicPartition]) -> Offsets:
        there = self.view.partitions()
        first = self.view.earliest(key for key in keys if key in there)
        for key in sorted(keys):
            if key not in first:
                self._lose(f"partition {key}, which was new, does not exist any more")
            elif first[key] > 0:
                self._lose(f"partition {key} is new to the query and begins at offset {first[key]} instead of 0")
        return first

    def _is_there(self, each: OffsetRange) -> bool:
        if each.topic_partition in self.view.partitions():
            return True
        self._lose(f"partition {each.topic_partition} does not exist any more")
        return False

    def _lose(self, reason: str) -> None:
        if self._options.get("failOnDataLoss"):
            raise DataLossError(reason)
        log.warning("%s; going on because failOnDataLoss is false", reason)


def _unmoved(start: Offsets, end: Offsets) -> Offsets:
    return {key: start[key] for key in end if key in start}
