"""The columns that the source returns: those of Spark's own `kafka` format, or a subset.

What always holds: batches have exactly the Arrow types that Spark expects for the schema of the DataFrame. A schema
given by the user may leave out or reorder columns, and may declare `key` and `value` as strings. Their bytes are then
used as UTF-8 without being checked, as in Spark's cast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.spark.options import OptionError

HEADERS = "headers"
_HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMNS: Mapping[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: _HEADERS_TYPE,
}
_MAY_BE_TEXT = frozenset({"key", "value"})


def full_schema(*, include_headers: bool) -> StructType:
    """The schema of Spark's own `kafka` format."""
    return StructType([StructField(name, kind) for name, kind in COLUMNS.items() if name != HEADERS or include_headers])


def check_schema(schema: StructType) -> None:
    """Raise OptionError unless the source can return this schema."""
    for column in schema.fields:
        wanted = COLUMNS.get(column.name)
        if wanted is None:
            raise OptionError(f"format tidelog has no column {column.name!r}; it has {', '.join(COLUMNS)}")
        if _plain(column.dataType) == _plain(wanted):
            continue
        if column.name in _MAY_BE_TEXT and isinstance(column.dataType, StringType):
            continue
        either = " or string" if column.name in _MAY_BE_TEXT else ""
        raise OptionError(
            f"column {column.name} is {wanted.simpleString()}{either}, not {column.dataType.simpleString()}; "
            "cast or parse it after the read"
        )
    if not schema.fields:
        raise OptionError(f"the schema has no columns; list some of {', '.join(COLUMNS)}")


def _plain(kind: DataType) -> str:
    return kind.simpleString()


@lru_cache(maxsize=64)
def arrow_schema(schema_json: str) -> pa.Schema:
    """The Arrow schema that Spark expects for a schema given as JSON."""
    return to_arrow_schema(StructType.fromJson(json.loads(schema_json)), timezone="UTC")


def project(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The columns and types of the target schema; record data is not copied."""
    arrays = []
    for wanted in target:
        array = batch.column(wanted.name)
        if array.type != wanted.type:
            array = _headers_as(array, wanted.type) if wanted.name == HEADERS else array.view(wanted.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _headers_as(array: pa.ListArray, wanted: pa.ListType) -> pa.ListArray:
    """The same lists, but null for records without headers, as in Spark's own format."""
    elements = array.values
    structs = pa.StructArray.from_arrays(elements.flatten(), fields=list(wanted.value_type))
    # Arrow doesn't accept a mask together with sliced offsets, so we copy the offsets.
    ends = array.offsets
    copied = ends.buffers()[1].slice(4 * ends.offset, 4 * len(ends)).to_pybytes()
    offsets = pa.Array.from_buffers(pa.int32(), len(ends), [None, pa.py_buffer(copied)])
    has_none = pc.invert(pc.list_value_length(array).cast(pa.bool_()))
    return pa.ListArray.from_arrays(offsets, structs, type=wanted, mask=has_none)
