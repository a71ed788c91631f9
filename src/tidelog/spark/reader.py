"""Batch reads: which offsets a DataFrame covers is decided when it is planned, and the tasks read exactly those.

What always holds: planning asks the cluster once and leaves no connection behind; the reader that tasks get holds
settings only.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tidelog.spark import client_settings
from tidelog.spark.columns import arrow_schema, check_schema, project
from tidelog.spark.errors import DataLossError, SourceError
from tidelog.spark.filters import Narrowing, PushedFilters
from tidelog.spark.offsets import Offsets, read_end, read_start
from tidelog.spark.options import Options, Use, read_options
from tidelog.spark.planning import OffsetRange, split_ranges
from tidelog.spark.split_reader import Split, SplitReader
from tidelog.spark.topic_view import TopicView
from tidelog.spark.worker_clients import CLIENTS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_SPLITS_AT_ONCE = 8  # each may hold an answer of a fetch


class SplitPartition(InputPartition):
    """A split as Spark hands it to a task."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


@dataclass(frozen=True)
class TaskReading:
    """How tasks read: all that they need to know besides their split."""

    settings: Mapping[str, str]
    schema_json: str
    fail_on_data_loss: bool
    timeout_s: float

    @classmethod
    def of(cls, schema: StructType, options: Options) -> TaskReading:
        check_schema(schema)
        return cls(
            client_settings.for_tasks(options),
            json.dumps(schema.jsonValue()),
            options.get("failOnDataLoss"),
            options.get("kafkaConsumer.pollTimeoutMs") / 1000,
        )

    def read(self, *partitions: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split after another; the first records of those that follow are on their way meanwhile."""
        splits = [each.split for each in partitions if isinstance(each, SplitPartition)]
        if not splits:
            return  # Spark makes a partition of its own where there are none
        target = arrow_schema(self.schema_json)
        with CLIENTS.client(self.settings) as client:
            readers = [
                SplitReader(client, split, fail_on_data_loss=self.fail_on_data_loss, timeout_s=self.timeout_s)
                for split in splits
            ]
            waiting = iter(readers)
            try:
                for reader in itertools.islice(waiting, _SPLITS_AT_ONCE):
                    reader.begin()
                for reader in readers:
                    for batch in reader.batches():
                        yield project(batch, target)
                    for follower in itertools.islice(waiting, 1):
                        follower.begin()
            finally:
                for reader in readers:
                    reader.give_up()


def make_splits(ranges: list[OffsetRange], options: Options, view: TopicView) -> list[InputPartition]:
    """The ranges as tasks read them."""
    ids = view.topic_ids()
    splits = split_ranges(
        ranges, records_max=options.get("maxRecordsPerPartition"), splits_min=options.get("minPartitions")
    )
    return [
        SplitPartition(Split(*each.topic_partition, each.start, each.end, ids[each.topic_partition.topic]))
        for each in splits
    ]


def make_reader(schema: StructType, given: Mapping[str, str]) -> DataSourceReader:
    return BatchReader(schema, read_options(given, Use.BATCH_READ))


class BatchReader(DataSourceReader):
    """One batch read."""

    pushFilters = PushedFilters()  # noqa: N815  # Spark calls it so

    def __init__(self, schema: StructType, options: Options) -> None:
        self._options = options
        self._reading = TaskReading.of(schema, options)
        self._start = read_start(options)
        self._end = read_end(options)
        self._narrowing = Narrowing()
        TopicView(options)  # so that mistakes are told when the DataFrame is made

    def take_filters(self, filters: list[Filter]) -> None:
        """Filters that Spark applies after the read, so that less need be read."""
        self._narrowing = Narrowing(tuple(filters))

    def partitions(self) -> list[InputPartition]:
        view = TopicView(self._options)
        try:
            view.refresh()
            view.require_all()
            ranges = self._narrowed(self._ranges(view), view)
            return make_splits(ranges, self._options, view)
        finally:
            view.close()

    def _ranges(self, view: TopicView) -> list[OffsetRange]:
        latest = view.latest(view.partitions())
        start = view.resolve(self._start, latest=latest)
        end = view.resolve(self._end, latest=latest)
        for key in view.partitions():
            if not (key in latest and key in start and key in end):
                raise SourceError(f"partition {key} was deleted while the read was planned; read again")
        end = self._clamped(end, latest)
        for key in start:
            if start[key] > end[key]:
                raise SourceError(
                    f"partition {key} is to be read from offset {start[key]} ({self._start.option}) to {end[key]} "
                    f"({self._end.option}; it ends at {latest[key]} now): the start lies behind the end"
                )
        return [OffsetRange(key, start[key], end[key]) for key in sorted(start)]

    def _narrowed(self, ranges: list[OffsetRange], view: TopicView) -> list[OffsetRange]:
        narrowing = self._narrowing
        ranges = [narrowing.narrow(each) for each in ranges if narrowing.keeps(each.topic_partition)]
        timestamp = narrowing.timestamp_min_ms
        if timestamp is None or timestamp < 0:
            return ranges
        first = view.at_times({each.topic_partition: timestamp for each in ranges if each.size})
        narrowed = []
        for each in ranges:
            found = first.get(each.topic_partition, -1)
            if found >= 0:  # else no record of the partition is so young
                narrowed.append(each._replace(start=max(each.start, found)))
        return narrowed

    def _clamped(self, end: Offsets, latest: Offsets) -> Offsets:
        """Nothing beyond what can be read now: a task would only wait for it."""
        for key, offset in end.items():
            if offset > latest[key]:
                reason = (
                    f"partition {key} ends at offset {latest[key]} now, and {self._end.option} wants it read up to "
                    f"{offset}"
                )
                if self._options.get("failOnDataLoss"):
                    raise DataLossError(reason)
                log.warning("%s; reading what is there because failOnDataLoss is false", reason)
        return {key: min(offset, latest[key]) for key, offset in end.items()}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition)
