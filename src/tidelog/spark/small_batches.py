"""Micro-batches of few records are read by the driver, so that Spark starts no Python task for them.

A Python task costs Spark more than all else in such a batch. Rows that the driver has read are given to Spark together
with the plan of the batch, in the way that pyspark has for its simple stream readers. That way is not public: it is one
reason why pyspark is held to one minor version.

What always holds: the rows are those that tasks would read. What is not small, or can't be read now, is left to tasks,
which try again and say what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tidelog.client.errors import ClientError
from tidelog.spark.errors import SourceError
from tidelog.spark.offsets import Offsets
from tidelog.spark.planning import count_waiting
from tidelog.spark.reader import SplitPartition

# What the driver has read is one task, whatever is done with the rows then: more than so many are better shared out.
OFFSETS_MAX = 200
BYTES_MAX = 1 << 20


def may_be_small(start: Offsets, end: Offsets) -> bool:
    """Whether there are records between, and so few that the driver reads them."""
    return start.keys() == end.keys() and 0 < count_waiting(start, end) <= OFFSETS_MAX


def read_small(
    splits: Sequence[InputPartition], read: Callable[..., Iterator[pa.RecordBatch]]
) -> list[pa.RecordBatch] | None:
    """The rows of these splits, if they are few; None leaves them to tasks."""
    if _offsets(splits) > OFFSETS_MAX:
        return None
    batches: list[pa.RecordBatch] = []
    size = 0
    try:
        for batch in read(*splits):
            size += batch.nbytes
            if size > BYTES_MAX:
                return None
            batches.append(batch)
    except (ClientError, SourceError):
        return None
    # Each Arrow batch has its price in the JVM, too.
    return [pa.concat_batches(batches)] if batches else None


def _offsets(splits: Iterable[InputPartition]) -> int:
    return sum(each.split.end - each.split.start for each in splits if isinstance(each, SplitPartition))
