"""The rows of one chunk of a replay on Spark: reads, filters and transforms them, and prepares them for writing.

What always holds: the headers of every row that is written show where it came from; an event keeps its key and headers
unless a function changes them; rows of a partition stay in order, because each partition is read by one task and no row
moves between tasks. Rejected rows go to the dead letters, in the same transaction as the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.event_replay.range import Ranges
from tidelog.pipeline.event_replay.records import MAPPED_COLUMNS, EventFunction, EventMapper

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HEADER_PREFIX = "tidelog.replay."
ERROR_MESSAGE = "tidelog.error.message"  # as in the dead letters of pipelines
# One task per partition, however large: rows of a partition that several tasks write would lose their order.
_RECORDS_PER_TASK = 2**53

_ORIGIN_COLUMNS = ("topic", "partition", "offset", "timestamp")
_NEEDED_COLUMNS = ("value", *_ORIGIN_COLUMNS)


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What to do with the rows of every chunk."""

    name: str
    topic: str
    into: str
    keep_partitions: bool
    dead_letters: str
    filter: str | None = None
    transform: Callable[[Any], Any] | None = None
    map: EventFunction | None = None
    client: Mapping[str, str] = field(default_factory=dict)  # options for the source and the sink, with their prefix

    def read(self, spark: SparkSession, chunk: Ranges) -> DataFrame:
        """The records of a chunk, with the columns of the source."""
        offsets = {each: {str(partition): getattr(pair, each) for partition, pair in chunk.items()} for each in _ENDS}
        return (
            spark.read.format("tidelog")
            .options(**self.client)
            .option("assign", json.dumps({self.topic: list(chunk)}))
            .option("startingOffsets", json.dumps({self.topic: offsets["start"]}))
            .option("endingOffsets", json.dumps({self.topic: offsets["end"]}))
            .option("includeHeaders", "true")
            .option("maxRecordsPerPartition", str(_RECORDS_PER_TASK))
            .load()
        )

    def changed(self, rows: DataFrame) -> DataFrame:
        """The rows after filter, transform and map, with a column `error` that is set for rejected rows."""
        from pyspark.sql import functions as f

        if self.filter is not None:
            rows = rows.where(self.filter)
        if self.transform is not None:
            rows = self._transformed(rows)
        if self.map is not None:
            columns = ("key", "value", "headers", *_ORIGIN_COLUMNS)
            return rows.select(*columns).mapInArrow(EventMapper(self.map), MAPPED_COLUMNS)
        if "target_partition" not in rows.columns:
            rows = rows.withColumn("target_partition", f.col("partition"))
        return rows if "error" in rows.columns else rows.withColumn("error", f.lit(None).cast("string"))

    def _transformed(self, rows: DataFrame) -> DataFrame:
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as f

        assert self.transform is not None
        result = self.transform(rows)
        if not isinstance(result, DataFrame):
            raise PipelineError(f"the transform returned {type(result).__name__}, not a DataFrame")
        missing = [name for name in _NEEDED_COLUMNS if name not in result.columns]
        if missing:
            raise PipelineError(
                f"the transform has dropped the column {missing[0]}: keep {', '.join(_NEEDED_COLUMNS)}, which record "
                "where each event came from; df.withColumn keeps all columns"
            )
        if "key" not in result.columns:
            result = result.withColumn("key", f.lit(None).cast("binary"))
        if "headers" not in result.columns:
            result = result.withColumn("headers", f.lit(None).cast("array<struct<key: string, value: binary>>"))
        return result

    def to_write(self, rows: DataFrame) -> DataFrame:
        """The columns of the sink."""
        from pyspark.sql import functions as f

        is_good = f.col("error").isNull()
        origin = [_header(HEADER_PREFIX + "name", f.lit(self.name)), *_origin_headers()]
        error = f.array(_header(ERROR_MESSAGE, f.col("error")))
        nothing = f.array().cast("array<struct<key: string, value: binary>>")
        partition = f.col("target_partition").cast("int") if self.keep_partitions else f.lit(None).cast("int")
        return rows.select(
            f.col("key"),
            f.col("value"),
            f.when(is_good, f.lit(self.into)).otherwise(f.lit(self.dead_letters)).alias("topic"),
            f.when(is_good, partition).alias("partition"),
            f.concat(f.coalesce(f.col("headers"), nothing), f.array(*origin), f.when(is_good, nothing).otherwise(error))
            .cast("array<struct<key: string, value: binary>>")
            .alias("headers"),
        )


_ENDS = ("start", "end")


def _origin_headers() -> list[Column]:
    from pyspark.sql import functions as f

    return [
        _header(HEADER_PREFIX + "topic", f.col("topic")),
        _header(HEADER_PREFIX + "partition", f.col("partition").cast("string")),
        _header(HEADER_PREFIX + "offset", f.col("offset").cast("string")),
        _header(HEADER_PREFIX + "timestamp", f.unix_millis("timestamp").cast("string")),
    ]


def _header(name: str, value: Column) -> Column:
    from pyspark.sql import functions as f

    return f.struct(f.lit(name).alias("key"), value.cast("binary").alias("value"))
