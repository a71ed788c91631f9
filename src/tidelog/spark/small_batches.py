"""Lets the driver read small micro-batches itself, so that Spark doesn't have to start a Python task for them.

In a small batch, the Python task costs Spark more than everything else. The driver passes the rows it has read to Spark
together with the plan of the batch, the way pyspark does for its simple stream readers. That interface is not public,
which is one reason why pyspark is pinned to one minor version.

What always holds: the rows are the same as tasks would read. Batches that turn out to be large, or can't be read now,
are left to tasks, which retry and report what is wrong.
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

# Rows read by the driver form a single task, whatever the query does with them; larger batches should be split up.
OFFSETS_MAX = 200
BYTES_MAX = 1 << 20


def may_be_small(start: Offsets, end: Offsets) -> bool:
    """Whether there are new records, but few enough for the driver to read."""
    return start.keys() == end.keys() and 0 < count_waiting(start, end) <= OFFSETS_MAX


def read_small(
    splits: Sequence[InputPartition], read: Callable[..., Iterator[pa.RecordBatch]]
) -> list[pa.RecordBatch] | None:
    """The rows of these splits if there are only a few; None leaves them to tasks."""
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
    # Each Arrow batch also has a cost in the JVM.
    return [pa.concat_batches(batches)] if batches else None


def _offsets(splits: Iterable[InputPartition]) -> int:
    return sum(each.split.end - each.split.start for each in splits if isinstance(each, SplitPartition))
