"""Which micro-batches the driver reads itself, and which it leaves to tasks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from tidelog.client.errors import ClientError, RequestTimeoutError
from tidelog.spark.errors import DataLossError
from tidelog.spark.reader import SplitPartition
from tidelog.spark.small_batches import BYTES_MAX, OFFSETS_MAX, read_small
from tidelog.spark.split_reader import Split


def split(start: int, end: int) -> SplitPartition:
    return SplitPartition(Split("t", 0, start, end, uuid.UUID(int=1)))


def rows(*partitions: InputPartition) -> Iterator[pa.RecordBatch]:
    for partition in partitions:
        assert isinstance(partition, SplitPartition)
        numbers = list(range(partition.split.start, partition.split.end))
        yield pa.record_batch({"offset": pa.array(numbers, pa.int64())})


def test_few_records_of_several_splits_are_read() -> None:
    batches = read_small([split(0, 2), split(7, 10)], rows)
    assert batches is not None
    assert [batch.to_pydict()["offset"] for batch in batches] == [[0, 1, 7, 8, 9]]


def test_many_offsets_are_left_to_tasks_unread() -> None:
    def unread(*partitions: InputPartition) -> Iterator[pa.RecordBatch]:
        raise AssertionError("it was read")

    assert read_small([split(0, OFFSETS_MAX), split(0, 1)], unread) is None


def test_large_records_are_left_to_tasks() -> None:
    def large(*partitions: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([bytes(BYTES_MAX)], pa.binary())})

    assert read_small([split(0, 1)], large) is None


@pytest.mark.parametrize("error", [RequestTimeoutError("late"), DataLossError("gone")])
def test_what_fails_is_left_to_tasks_which_tell(error: Exception) -> None:
    assert isinstance(error, ClientError | DataLossError)

    def failing(*partitions: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from rows(*partitions)
        raise error

    assert read_small([split(0, 1)], failing) is None


def test_offsets_without_records_are_left_to_tasks() -> None:
    assert read_small([split(0, 5)], lambda partition: iter(())) is None
    assert read_small([], rows) is None
