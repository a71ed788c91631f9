"""The rows of a small batch, given to Spark together with its plan.

This is the only file that uses a private class of PySpark, and the only one that changes the class of an object. Spark
takes rows with a plan only from a `_SimpleStreamReaderWrapper`, but it asks such a reader neither for its latest offset
nor whether it supports `Trigger.AvailableNow`. So a reader is one only from `partitions`, if it has rows, to
`getCache`, which Spark calls right after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

from tidelog.spark.offsets import offsets_from_json
from tidelog.spark.options import Options, Use, read_options
from tidelog.spark.stream_reader import StreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def make_stream_reader(schema: StructType, given: Mapping[str, str]) -> DataSourceStreamReader:
    return PrefetchingReader(schema, read_options(given, Use.STREAM_READ))


class PrefetchingReader(StreamReader):
    """A streaming read that gives Spark the rows it has read itself."""

    def __init__(self, schema: StructType, options: Options) -> None:
        super().__init__(schema, options)
        self._rows: list[pa.RecordBatch] = []

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        splits, rows = self.planned(offsets_from_json(start), offsets_from_json(end))
        if rows is None:
            return splits
        self._rows = rows
        self.__class__ = _ReaderWithRows
        return splits[:1]  # Spark runs rows that have already been read as one task


class _ReaderWithRows(PrefetchingReader, _SimpleStreamReaderWrapper):
    """A reader whose rows Spark is about to take."""

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        self.__class__ = PrefetchingReader  # type: ignore[assignment]  # a plain one again
        rows, self._rows = self._rows, []
        return iter(rows)
