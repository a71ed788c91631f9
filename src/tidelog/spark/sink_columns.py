"""The columns of rows to write: checked by name and type on the driver, split by topic in tasks.

What always holds: the columns and their types are those of Spark's own `kafka` format; others are ignored. Rows never
become Python objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidelog.spark.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

_BYTES = ("string", "binary")
_HEADERS = "array<struct<key:string,value:binary>>"
_EXPECTED: dict[str, tuple[str, ...]] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "headers": (_HEADERS,),
}
_FROM_ANOTHER_TYPE = {
    "key": "CAST(key AS STRING), or to_json(struct(...)) AS key",
    "value": "CAST(value AS STRING), or to_json(struct(...)) AS value",
    "topic": "CAST(topic AS STRING)",
    "partition": "CAST(partition AS INT)",
    "headers": "array(struct('name' AS key, CAST('text' AS BINARY) AS value)) AS headers",
}


class ColumnError(ValueError):
    """A DataFrame lacks a required column, or has one whose type the sink can't write."""


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise ColumnError or OptionError if the columns of a DataFrame can't be written."""
    names = [field.name for field in schema.fields]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ColumnError(f"column {twice[0]!r} occurs twice; select the one to write")
    if "value" not in names:
        raise ColumnError(f"there is no 'value' column to write; the columns are: {', '.join(names) or 'none'}")
    if topic is None and "topic" not in names:
        raise OptionError("no topic to write to: set the option topic, or add a 'topic' column to the DataFrame")
    for field in schema.fields:
        expected = _EXPECTED.get(field.name)
        if expected is None:
            continue
        found = _type_name(field.dataType)
        if found not in expected:
            raise ColumnError(
                f"column {field.name!r} has type {found}, but must be {' or '.join(expected)}; use "
                f"{_FROM_ANOTHER_TYPE[field.name]}"
            )


def _type_name(kind: DataType) -> str:
    """The name of the type without what the sink ignores: nullability, and the collation of strings."""
    from pyspark.sql.types import ArrayType, CharType, StringType, StructType, VarcharType

    if isinstance(kind, ArrayType):
        return f"array<{_type_name(kind.elementType)}>"
    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{field.name}:{_type_name(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, (StringType, CharType, VarcharType)):
        return "string"
    return str(kind.simpleString())


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in order. `topic`, if given, takes precedence over the column."""
    import pyarrow.compute as pc

    if topic is not None:
        yield topic, batch
        return
    column = batch.column(batch.schema.names.index("topic"))
    if column.null_count:
        raise ColumnError(
            f"column 'topic' is null in {column.null_count} of {batch.num_rows} rows; give every row a topic, or set "
            "the option topic for all rows"
        )
    names = pc.unique(column)
    for name in names:
        rows = batch if len(names) == 1 else batch.filter(pc.equal(column, name))
        yield name.as_py(), rows
