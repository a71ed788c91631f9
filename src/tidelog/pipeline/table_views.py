"""Compacted topics as Spark tables: the latest value of every key, kept in Spark's cache and refreshed on change.

What always holds: the whole table is read when a batch first needs it, and again only if the topic has grown since, at
most once per interval; in between, every micro-batch uses the cache. A batch that is repeated after a crash may see a
newer table than before, as with any table that is joined with a stream.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from pyspark.sql import functions as sf

from tidelog.client.errors import ClientError
from tidelog.pipeline.declaration import TableInput, interval_seconds
from tidelog.pipeline.formats import Text
from tidelog.pipeline.rows.decoding import PARSED, decoder_of
from tidelog.pipeline.topics import end_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.client.admin.admin import Admin
    from tidelog.pipeline.versions.registry_rows import Offsets


class _View:
    def __init__(self, name: str, declared: TableInput, frame: DataFrame) -> None:
        self.name = name
        self.declared = declared
        self.frame = frame
        self.interval_s = interval_seconds(declared.refresh, f"input {name!r}: refresh")
        self.ends: Offsets = {}
        self.looked_s = 0.0


class TableViews:
    """The tables of one run; use it with `with`."""

    def __init__(self, spark: SparkSession, admin: Admin, bootstrap: str) -> None:
        self._spark = spark
        self._admin = admin
        self._bootstrap = bootstrap
        self._views: list[_View] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for view in self._views:
            view.frame.unpersist()

    def table_of(self, name: str, declared: TableInput) -> DataFrame:
        """The DataFrame of a table; rows whose value can't be parsed are left out."""
        frame = latest_rows(self._spark, name, declared, self._bootstrap)
        view = _View(name, declared, frame)
        view.ends = end_offsets(self._admin, [declared.topic])
        view.looked_s = time.monotonic()
        frame.persist()
        self._views.append(view)
        return frame

    def refresh(self) -> None:
        """Refresh the tables whose topics have grown and whose interval has passed."""
        for view in self._views:
            if time.monotonic() - view.looked_s < view.interval_s:
                continue
            view.looked_s = time.monotonic()
            try:
                ends = end_offsets(self._admin, [view.declared.topic])
            except ClientError:
                continue  # the broker can't be reached: keep the table, and try again later
            if ends != view.ends:
                view.ends = ends
                view.frame.unpersist()
                view.frame.persist()


def latest_rows(spark: SparkSession, name: str, declared: TableInput, bootstrap: str) -> DataFrame:
    """The latest value of every key, as columns."""
    decoder = decoder_of(declared.format, [declared.topic], f"input {name!r}")
    reader = spark.read.format("tidelog").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", declared.topic).options(**declared.options)
    records = reader.option("includeHeaders", "true" if "_headers" in declared.meta_columns else "false").load()
    kept = ["value", *(column.removeprefix("_") for column in declared.meta_columns if column != "_key")]
    # Records with the same key are in the same partition, ordered by offset.
    last = records.groupBy("key").agg(sf.max_by(sf.struct(*kept), sf.struct("timestamp", "offset")).alias("last"))
    value = sf.col("last.value")
    present = last.where(value.isNotNull())
    expression = decoder.parsed(value)
    if expression is not None:
        present = present.withColumn(PARSED, expression)
    error = decoder.error(value, sf.col(PARSED))
    if error is not None:
        present = present.where(error.isNull())
    columns = decoder.columns(value, sf.col(PARSED))
    if decoder.has_key:
        columns.insert(0, sf.col("key"))
    if isinstance(declared.key, Text):
        columns.append(sf.col("key").cast("string").alias("_key"))
    elif "_key" in declared.meta_columns:
        columns.append(sf.col("key").alias("_key"))
    columns += [
        sf.col(f"last.{each.removeprefix('_')}").alias(each) for each in declared.meta_columns if each != "_key"
    ]
    return present.select(*columns)
