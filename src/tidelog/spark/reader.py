"""Batch reads. Planning determines which offsets a DataFrame covers, and the tasks read exactly those.

What always holds: planning queries the cluster once and leaves no connection open; the reader that is sent to tasks
holds only settings.
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

logger = logging.getLogger(__name__)

_SPLITS_AT_ONCE = 8  # each may hold a fetch response in memory


class SplitPartition(InputPartition):
    """A split, in the form in which Spark passes it to a task."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


@dataclass(frozen=True)
class TaskReading:
    """How tasks read: everything they need besides their split."""

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
        """The rows of the splits, one after another, while the first records of the next splits are being fetched."""
        splits = [each.split for each in partitions if isinstance(each, SplitPartition)]
        if not splits:
            return  # Spark adds a partition of its own if there are none
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
    """The splits that tasks read to cover the ranges."""
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

    pushFilters = PushedFilters()  # noqa: N815  # Spark's name

    def __init__(self, schema: StructType, options: Options) -> None:
        self._options = options
        self._reading = TaskReading.of(schema, options)
        self._start = read_start(options)
        self._end = read_end(options)
        self._narrowing = Narrowing()
        TopicView(options)  # so that mistakes are reported when the DataFrame is created

    def take_filters(self, filters: list[Filter]) -> None:
        """Use filters that Spark applies after the read to read less."""
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
                raise SourceError(f"partition {key} was deleted while the read was being planned; try again")
        end = self._clamped(end, latest)
        for key in start:
            if start[key] > end[key]:
                raise SourceError(
                    f"can't read partition {key} from offset {start[key]} ({self._start.option}) to {end[key]} "
                    f"({self._end.option}; it currently ends at {latest[key]}): the start is after the end"
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
            if found >= 0:  # otherwise no record of the partition is that recent
                narrowed.append(each._replace(start=max(each.start, found)))
        return narrowed

    def _clamped(self, end: Offsets, latest: Offsets) -> Offsets:
        """Limit the end to what can be read now; a task would otherwise wait for records that may never come."""
        for key, offset in end.items():
            if offset > latest[key]:
                reason = (
                    f"partition {key} currently ends at offset {latest[key]}, but {self._end.option} asks for offsets "
                    f"up to {offset}"
                )
                if self._options.get("failOnDataLoss"):
                    raise DataLossError(reason)
                logger.warning("%s; reading what is available because failOnDataLoss is false", reason)
        return {key: min(offset, latest[key]) for key, offset in end.items()}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition)
