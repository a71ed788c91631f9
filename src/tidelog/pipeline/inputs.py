"""Turns declared inputs into DataFrames: streams of the rows that could be parsed, and batches of rejected records.

What always holds: one function, `_judged`, decides which rows are rejected, both for the stream and when the same
offsets are read again; a stream never contains rejected rows, and counts them in its metric `dead_letters_<input>`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from tidelog.pipeline.declaration import META_COLUMNS, TopicInput
from tidelog.pipeline.errors import DeclarationError
from tidelog.pipeline.rows.decoding import ERROR, PARSED, TOMBSTONE, Decoder, decoder_of, struct_type
from tidelog.pipeline.rows.row_maps import apply_map

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from tidelog.pipeline.versions.registry_rows import Offsets

# The source's columns besides the value, and their types; `_key` of an input is `key` of the source.
_SOURCE_TYPES = {
    "key": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
}
_RECORD = "__tidelog_"
_VALUE = "__tidelog_value"
RECORD_COLUMNS = (*_SOURCE_TYPES, "value")
DEAD_LETTERS_METRIC = "dead_letters_"


@dataclass(frozen=True)
class SourceSettings:
    """Settings for the sources of all inputs."""

    bootstrap: str
    group: str | None = None
    limit_file: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def stream_of(
    spark: SparkSession, name: str, declared: TopicInput, source: SourceSettings, starting: Offsets | str
) -> DataFrame:
    """The rows of an input that could be parsed and processed."""
    decoder = decoder_of(declared.format, declared.topics, f"input {name!r}")
    beside = [column.removeprefix("_") for column in declared.meta_columns]
    if decoder.has_key and "key" not in beside:
        beside.append("key")
    reader = spark.readStream.format("tidelog").schema(_schema(beside, decoder.value_type))
    reader = reader.options(**_options(declared, source)).option("startingOffsets", _offsets_text(starting))
    if source.group:
        reader = reader.option("group.id", source.group)
    if source.limit_file:
        reader = reader.option("maxOffsetsPerTriggerFile", source.limit_file)
    records = reader.load()
    for each in beside:
        records = records.withColumnRenamed(each, f"_{each}")
    carried = [f"_{each}" for each in beside]
    judged = _judged(records.withColumnRenamed("value", _VALUE), name, declared, decoder, carried)
    counted = judged.observe(DEAD_LETTERS_METRIC + name, sf.count_if(sf.col(ERROR).isNotNull()).alias("rows"))
    made = _made_schema(declared, decoder, f"input {name!r}")
    good = counted.where(sf.col(ERROR).isNull()).select(*made.names, *declared.meta_columns)
    return _with_watermark(good, name, declared)


def refused_of(
    spark: SparkSession, name: str, declared: TopicInput, source: SourceSettings, start: Offsets, end: Offsets
) -> DataFrame:
    """The records in these offsets that `stream_of` left out: the columns of the record, and the error as ERROR."""
    decoder = decoder_of(declared.format, declared.topics, f"input {name!r}")
    assigned = {topic: sorted(partitions) for topic, partitions in end.items()}
    reader = spark.read.format("tidelog").schema(_schema(_SOURCE_TYPES, "binary"))
    options = {**_options(declared, source), "assign": json.dumps(assigned), "failOnDataLoss": "false"}
    options.pop("subscribe", None)
    options.pop("subscribePattern", None)
    reader = reader.options(**options).option("includeHeaders", "true")
    reader = reader.option("startingOffsets", _offsets_text(start)).option("endingOffsets", _offsets_text(end))
    records = reader.load()
    for column in RECORD_COLUMNS:
        records = records.withColumnRenamed(column, _RECORD + column)
    carried = [_RECORD + column for column in RECORD_COLUMNS]
    judged = _judged(records, name, declared, decoder, carried)
    refused = judged.where(sf.col(ERROR).isNotNull())
    explained = decoder.explain(sf.col(_VALUE), sf.col(ERROR))
    return refused.select(*(sf.col(_RECORD + each).alias(each) for each in RECORD_COLUMNS), explained.alias(ERROR))


def _judged(records: DataFrame, name: str, declared: TopicInput, decoder: Decoder, carried: list[str]) -> DataFrame:
    """The columns of the format, or of `map`, plus the carried ones, plus ERROR, which is set for rejected rows."""
    value = sf.col(_VALUE)
    if declared.tombstones == "skip":
        records = records.where(value.isNotNull())
    expression = decoder.parsed(value)
    if expression is not None:
        records = records.withColumn(PARSED, expression)
    parsed = sf.col(PARSED)
    given = [*decoder.columns(value, parsed)]
    if decoder.has_key:
        given.insert(0, sf.col("_key" if "_key" in records.columns else _RECORD + "key").alias("key"))
    rows = records.select(*given, *carried, _error(declared, decoder, value, parsed).alias(ERROR))
    if declared.map is None:
        return rows
    made = _made_schema(declared, decoder, f"input {name!r}")
    # The function doesn't see the original bytes of the row; they are only carried along.
    return apply_map(rows, declared.map, decoder.schema, made, carried, ERROR)


def _error(declared: TopicInput, decoder: Decoder, value: Column, parsed: Column) -> Column:
    found = decoder.error(value, parsed)
    if found is None:
        return sf.lit(None).cast("string")  # for raw bytes, null is a value like any other
    if declared.tombstones == "dead-letter":
        return sf.when(value.isNull(), sf.lit(TOMBSTONE)).otherwise(found)
    if declared.tombstones == "keep":
        return sf.when(value.isNotNull(), found)
    return found


def _made_schema(declared: TopicInput, decoder: Decoder, where: str) -> StructType:
    if declared.map is not None and declared.map_schema is not None:
        made = struct_type(declared.map_schema, f"{where}: map_schema")
    else:
        made = decoder.schema
    for column in made.names:
        if column in META_COLUMNS and column in declared.meta_columns:
            raise DeclarationError(f"{where}: the column {column!r} occurs twice; leave it out of meta")
    return made


def _with_watermark(rows: DataFrame, name: str, declared: TopicInput) -> DataFrame:
    if declared.watermark is None:
        return rows
    column, delay = declared.watermark
    if column not in rows.columns:
        raise DeclarationError(
            f"input {name!r}: watermark uses the column {column!r}, but the columns are {', '.join(rows.columns)}"
        )
    if not rows.schema[column].dataType.simpleString().startswith("timestamp"):
        kind = rows.schema[column].dataType.simpleString()
        raise DeclarationError(f"input {name!r}: watermark needs a timestamp column, but {column} is {kind}")
    return rows.withWatermark(column, delay)


def _options(declared: TopicInput, source: SourceSettings) -> dict[str, str]:
    options = {"kafka.bootstrap.servers": source.bootstrap, **source.options, **declared.options}
    if declared.pattern:
        options["subscribePattern"] = declared.pattern
    else:
        options["subscribe"] = ",".join(declared.topics)
    if "_headers" in declared.meta_columns:
        options["includeHeaders"] = "true"
    return options


def _schema(beside: Mapping[str, str] | list[str], value_type: str) -> str:
    columns = [f"`{column}` {_SOURCE_TYPES[column]}" for column in beside]
    return ", ".join([*columns, f"`value` {value_type}"])


def _offsets_text(offsets: Offsets | str) -> str:
    return offsets if isinstance(offsets, str) else json.dumps(offsets)
