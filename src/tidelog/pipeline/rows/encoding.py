"""Converts rows to records: key, value and headers, as Spark expressions.

What always holds: equal keys give equal bytes in every version of a pipeline; a null field is written as null in JSON,
so that readers can tell it from a missing one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, BooleanType, NumericType, StringType, StructType

from tidelog.pipeline.errors import DeclarationError
from tidelog.pipeline.formats import Avro, Json, Protobuf, Raw, Text
from tidelog.pipeline.rows.decoding import over_arrays

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidelog.pipeline.outputs import TopicOutput

_HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def records_of(rows: DataFrame, output: TopicOutput) -> DataFrame:
    """The columns for the sink: the value, plus key and headers if declared."""
    where = f"output {output.name!r}"
    check_columns(rows, output, where)
    columns = []
    if output.key:
        columns.append(_key(rows.schema, output).alias("key"))
    value = _value(rows, output, where)
    if output.deleted is not None:
        value = sf.when(sf.coalesce(sf.col(f"`{output.deleted}`"), sf.lit(False)), sf.lit(None)).otherwise(value)
    columns.append(value.cast("binary").alias("value"))
    if output.headers is not None:
        columns.append(sf.col(f"`{output.headers}`").cast(_HEADERS_TYPE).alias("headers"))
    return rows.select(*columns)


def check_columns(rows: DataFrame, output: object, where: str) -> None:
    """Raise DeclarationError if the transform doesn't return the columns that an output needs."""
    named = [("key", column) for column in getattr(output, "key", ())]
    named += [(kind, name) for kind in ("deleted", "headers") if (name := getattr(output, kind, None)) is not None]
    for kind, column in named:
        if column not in rows.columns:
            raise DeclarationError(
                f"{where}: {kind} uses the column {column!r}, but transform returns {', '.join(rows.columns)}"
            )
    deleted = getattr(output, "deleted", None)
    if deleted is not None and not isinstance(rows.schema[deleted].dataType, BooleanType):
        kind_text = rows.schema[deleted].dataType.simpleString()
        raise DeclarationError(f"{where}: deleted={deleted!r} must be a boolean column, not {kind_text}")


def _key(schema: StructType, output: TopicOutput) -> Column:
    """A single plain column as text, and several as JSON in the order of the declaration."""
    if len(output.key) == 1:
        kind = schema[output.key[0]].dataType
        column = sf.col(f"`{output.key[0]}`")
        if isinstance(kind, BinaryType):
            return column
        if isinstance(kind, StringType | NumericType):
            return column.cast("string").cast("binary")
    fields = sf.struct(*(sf.col(f"`{column}`") for column in output.key))
    return sf.to_json(fields, {"ignoreNullFields": "false"}).cast("binary")


def _value(rows: DataFrame, output: TopicOutput, where: str) -> Column:
    left_out = {output.deleted, output.headers}
    shown = [column for column in rows.columns if column not in left_out]
    fields = sf.struct(*(sf.col(f"`{column}`") for column in shown))
    if isinstance(output.format, Json):
        return sf.to_json(fields, {"ignoreNullFields": "false", **output.format.options})
    if isinstance(output.format, Text | Raw):
        if "value" not in rows.columns:
            kind = type(output.format).__name__
            raise DeclarationError(
                f"{where}: {kind}() writes the column 'value', but transform returns {', '.join(rows.columns)}"
            )
        return sf.col("value")
    if isinstance(output.format, Avro):
        from tidelog.pipeline.rows.avro_rows import avro_writer

        return over_arrays(avro_writer(output.format, output.topic, where), BinaryType())(fields)
    if isinstance(output.format, Protobuf):
        from tidelog.pipeline.rows.protobuf_rows import protobuf_writer

        return over_arrays(protobuf_writer(output.format, output.topic, where), BinaryType())(fields)
    raise DeclarationError(f"{where}: {type(output.format).__name__} is not a format for writing")
