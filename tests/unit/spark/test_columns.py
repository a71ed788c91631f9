"""The columns of the source: Spark's own, fewer of them, key and value as text."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.records.arrow import to_arrow
from tidelog.records.codec import NewRecord, encode_batch
from tidelog.spark.columns import COLUMNS, arrow_schema, check_schema, full_schema, project
from tidelog.spark.options import OptionError


def structure(**kinds: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])  # type: ignore[arg-type]  # types


@pytest.fixture
def batch() -> pa.RecordBatch:
    records = [
        NewRecord(key=b"k", value=b"v", timestamp_ms=1000, headers=(("h", b"1"), ("i", None))),
        NewRecord(key=None, value=None, timestamp_ms=2000),
        NewRecord(key=b"", value=b"\xff\xfe", timestamp_ms=3000),
    ]
    return to_arrow(bytes(encode_batch(records, base_offset=7)), "t", 3)


def test_the_schema_is_that_of_sparks_kafka_format() -> None:
    assert full_schema(include_headers=True).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert [field.name for field in full_schema(include_headers=False)] == [*COLUMNS][:-1]
    assert all(field.nullable for field in full_schema(include_headers=True))


@pytest.mark.parametrize(
    "schema",
    [
        structure(value=BinaryType()),
        structure(value=StringType(), key=StringType()),
        structure(offset=LongType(), timestamp=TimestampType(), partition=IntegerType()),
        full_schema(include_headers=True),
    ],
)
def test_batches_have_exactly_the_types_that_spark_expects(schema: StructType, batch: pa.RecordBatch) -> None:
    check_schema(schema)
    target = arrow_schema(json.dumps(schema.jsonValue()))
    projected = project(batch, target)
    assert projected.schema.equals(target)
    projected.validate()
    assert projected.num_rows == 3
    for name in projected.schema.names:
        if name not in ("key", "value", "headers"):
            assert projected.column(name).to_pylist() == batch.column(name).to_pylist()


def test_text_is_the_bytes_as_they_are(batch: pa.RecordBatch) -> None:
    target = arrow_schema(json.dumps(structure(value=StringType(), key=StringType()).jsonValue()))
    projected = project(batch, target)
    assert projected.column("value").view(pa.binary()).to_pylist() == [b"v", None, b"\xff\xfe"]
    assert projected.column("key").to_pylist() == ["k", None, ""]


def test_headers_of_a_part_of_a_batch(batch: pa.RecordBatch) -> None:
    """A record without headers has null, as in Spark's own format."""
    target = arrow_schema(json.dumps(structure(headers=COLUMNS["headers"]).jsonValue()))
    for start in range(3):
        part = batch.slice(start, 2)
        projected = project(part, target)
        projected.validate(full=True)
        assert projected.column("headers").to_pylist() == [
            headers or None for headers in part.column("headers").to_pylist()
        ]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (structure(values=BinaryType()), "no column 'values'"),
        (structure(offset=IntegerType()), "column offset is bigint, not int"),
        (structure(value=LongType()), "binary or string, not bigint"),
        (StructType([]), "has no column"),
    ],
)
def test_other_columns_are_refused(schema: StructType, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        check_schema(schema)


_DECODE = """
import json, sys
from tidelog.records.arrow import to_arrow
from tidelog.records.codec import NewRecord, encode_batch
from tidelog.spark import reader, split_reader
from tidelog.spark.columns import arrow_schema, full_schema, project

records = [NewRecord(None, b"v", (("h", b"1"),), 1), NewRecord(None, b"w", (), 2)]
batch = to_arrow(bytes(encode_batch(records)), "t", 3)
print(project(batch, arrow_schema(json.dumps(full_schema(include_headers=True).jsonValue()))).num_rows)
print("pandas" in sys.modules)
"""


def test_a_process_that_decodes_records_does_not_import_pandas() -> None:
    result = subprocess.run([sys.executable, "-c", _DECODE], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["2", "False"]
