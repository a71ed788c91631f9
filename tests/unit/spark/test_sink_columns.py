"""The columns that can be written, and what is said of those that can't."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    VarcharType,
)

from tidelog.spark.options import OptionError
from tidelog.spark.sink_columns import ColumnError, by_topic, check_columns

TEXT, BYTES, INT, LONG = StringType(), BinaryType(), IntegerType(), LongType()


def _schema(columns: dict[str, DataType]) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    return schema


def _headers(key: str = "key", value: DataType = BYTES, *, nullable: bool = True) -> ArrayType:
    return ArrayType(StructType().add(key, TEXT, nullable).add("value", value), nullable)


@pytest.mark.parametrize(
    "columns",
    [
        {"value": TEXT},
        {"value": BYTES},
        {"key": TEXT, "value": BYTES, "topic": TEXT, "partition": INT, "headers": _headers()},
        {"key": BYTES, "value": VarcharType(9), "another": DoubleType()},
        {"value": TEXT, "headers": _headers(nullable=False)},
    ],
)
def test_good_columns(columns: dict[str, DataType]) -> None:
    check_columns(_schema(columns), "t")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": TEXT, "v": TEXT}, "no 'value' column to write; the columns are: key, v"),
        ({"value": INT}, "'value' has type int, but must be string or binary"),
        ({"value": StructType().add("a", INT)}, "to_json"),
        ({"key": LONG, "value": TEXT}, "'key' has type bigint"),
        ({"partition": LONG, "value": TEXT}, r"CAST\(partition AS INT\)"),
        ({"topic": INT, "value": TEXT}, "'topic' has type int, but must be string"),
        ({"headers": MapType(TEXT, BYTES), "value": TEXT}, "'headers' has type map"),
        ({"headers": _headers(value=TEXT), "value": TEXT}, "'headers' has type array"),
        ({"headers": _headers(key="name"), "value": TEXT}, "'headers' has type array"),
    ],
)
def test_bad_columns_are_told_with_what_would_be_right(columns: dict[str, DataType], said: str) -> None:
    with pytest.raises(ColumnError, match=said):
        check_columns(_schema(columns), "t")


def test_a_column_twice() -> None:
    schema = _schema({"value": TEXT}).add("value", TEXT)
    with pytest.raises(ColumnError, match="'value' occurs twice"):
        check_columns(schema, "t")


def test_no_topic_anywhere() -> None:
    with pytest.raises(OptionError, match="set the option topic, or add a 'topic' column"):
        check_columns(_schema({"value": TEXT}), None)
    check_columns(_schema({"topic": TEXT, "value": TEXT}), None)


def _batch(topics: list[str | None]) -> pa.RecordBatch:
    values = [str(number) for number in range(len(topics))]
    return pa.record_batch({"topic": pa.array(topics, pa.string()), "value": pa.array(values, pa.string())})


def test_rows_go_to_the_topics_of_their_column_in_order() -> None:
    parts = {topic: rows.column(1).to_pylist() for topic, rows in by_topic(_batch(["b", "a", "b", "b"]), None)}
    assert parts == {"b": ["0", "2", "3"], "a": ["1"]}


def test_the_option_goes_before_the_column() -> None:
    batch = _batch(["a", None])
    assert [(topic, rows.num_rows) for topic, rows in by_topic(batch, "t")] == [("t", 2)]


def test_a_row_without_a_topic_is_refused() -> None:
    with pytest.raises(ColumnError, match="null in 1 of 2 rows"):
        list(by_topic(_batch(["a", None]), None))
