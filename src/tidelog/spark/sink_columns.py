"""The columns of rows that are written: checked by name and type on the driver, taken apart by topic in tasks.

What always holds: the columns and their types are those of Spark's own `kafka` format; others are passed over. A row
never becomes a Python object.
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
    "key": "as CAST(key AS STRING), or to_json(struct(...)) AS key",
    "value": "as CAST(value AS STRING), or to_json(struct(...)) AS value",
    "topic": "as CAST(topic AS STRING)",
    "partition": "as CAST(partition AS INT)",
    "headers": "as array(struct('name' AS key, CAST('text' AS BINARY) AS value)) AS headers",
}


class ColumnError(ValueError):
    """A DataFrame lacks a column that the sink needs, or has one of a type that it can't write."""


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise what is wrong with the columns of a DataFrame that is to be written."""
    names = [field.name for field in schema.fields]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ColumnError(f"column {twice[0]!r} is there twice; select the one to write")
    if "value" not in names:
        raise ColumnError(f"there is no column 'value' to write; there are: {', '.join(names) or 'none'}")
    if topic is None and "topic" not in names:
        raise OptionError("no topic to write to: set option topic, or give the DataFrame a column 'topic'")
    for field in schema.fields:
        expected = _EXPECTED.get(field.name)
        if expected is None:
            continue
        found = _type_name(field.dataType)
        if found not in expected:
            raise ColumnError(
                f"column {field.name!r} is of type {found}; it must be {' or '.join(expected)}, "
                f"{_FROM_ANOTHER_TYPE[field.name]}"
            )


def _type_name(kind: DataType) -> str:
    """The type without what does not matter to the sink: whether a part may be null, and a string's collation."""
    from pyspark.sql.types import ArrayType, CharType, StringType, StructType, VarcharType

    if isinstance(kind, ArrayType):
        return f"array<{_type_name(kind.elementType)}>"
    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{field.name}:{_type_name(field.dataType)}' for field in kind.fields)}>"
    if isinstance(kind, (StringType, CharType, VarcharType)):
        return "string"
    return str(kind.simpleString())


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in their order. A topic that is given goes before the column."""
    import pyarrow.compute as pc

    if topic is not None:
        yield topic, batch
        return
    column = batch.column(batch.schema.names.index("topic"))
    if column.null_count:
        raise ColumnError(
            f"column 'topic' is null in {column.null_count} of {batch.num_rows} rows; give every row a topic, or set "
            "option topic for all"
        )
    names = pc.unique(column)
    for name in names:
        rows = batch if len(names) == 1 else batch.filter(pc.equal(column, name))
        yield name.as_py(), rows
