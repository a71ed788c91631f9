"""Rows on executors, without Spark: the guarded map, Avro, Protobuf, and reasons for JSON that is none."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.api_pb2 import Api
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.type_pb2 import EnumValue, Field, Option
from google.protobuf.wrappers_pb2 import StringValue

from tidelog.pipeline import Avro, DeclarationError, Protobuf
from tidelog.pipeline.rows.avro_rows import avro_reader, avro_writer
from tidelog.pipeline.rows.json_reasons import JsonReasons
from tidelog.pipeline.rows.protobuf_rows import protobuf_reader, protobuf_writer
from tidelog.pipeline.rows.row_maps import GuardedMap

MADE = pa.schema([("id", pa.int64()), ("twice", pa.string())])
ERROR = "error"


def mapped(function: Any, rows: list[Any], errors: list[Any] | None = None, *, is_of_batches: bool = False) -> Any:
    given = pa.record_batch(
        {
            "id": pa.array(rows, pa.int64()),
            "offset": pa.array(range(len(rows)), pa.int64()),
            ERROR: pa.array(errors or [None] * len(rows), pa.string()),
        }
    )
    [made] = GuardedMap(function, is_of_batches, ("id",), MADE, ("offset",), ERROR)(iter([given]))
    return sorted(made.to_pylist(), key=lambda row: row["offset"])


def test_a_function_of_rows() -> None:
    def function(row: dict[str, Any]) -> Any:
        return {"id": row["id"], "twice": str(2 * row["id"])}

    made = mapped(function, [1, 2], [None, "before"])
    assert made == [
        {"id": 1, "twice": "2", "offset": 0, ERROR: None},
        {"id": None, "twice": None, "offset": 1, ERROR: "before"},
    ]


def test_what_a_function_of_rows_refuses() -> None:
    answers: list[Any] = [None, [], [{"id": 1}, {"id": 2}], {"id": "x"}, 5, {"id": 2**70}]

    def function(row: dict[str, Any]) -> Any:
        if row["id"] == 6:
            raise KeyError("no such thing")
        return answers[row["id"]]

    made = mapped(function, list(range(7)))
    assert [row["offset"] for row in made] == [2, 2, 3, 4, 5, 6]
    assert [row["id"] for row in made] == [1, 2, None, None, None, None]
    kinds = [row[ERROR].split(":")[0] if row[ERROR] else None for row in made]
    assert kinds == [None, None, "TypeError", "TypeError", "TypeError", "KeyError"]
    assert "test_rows.py:" in made[-1][ERROR]


def test_a_function_of_frames_is_halved_until_the_bad_rows_are_found() -> None:
    calls = []

    def function(frame: Any) -> Any:
        calls.append(len(frame))
        if frame["id"].isin([3, 90]).any():
            raise ValueError("not these")
        return frame.assign(twice=(frame["id"] * 2).astype(str))

    made = mapped(function, list(range(100)), is_of_batches=True)
    assert [row["id"] for row in made if row[ERROR]] == [None, None]
    assert [row["offset"] for row in made if row[ERROR]] == [3, 90]
    assert [row["twice"] for row in made if not row[ERROR]] == [str(2 * n) for n in range(100) if n not in (3, 90)]
    assert len(calls) < 40


SCHEMA = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "number", "type": ["int", "long"]},
        {"name": "note", "type": ["null", "string"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "clock", "type": ["null", {"type": "int", "logicalType": "time-millis"}]},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]},
            },
        },
        {"name": "tags", "type": {"type": "map", "values": "double"}},
        {"name": "first", "type": ["null", "Line"]},
        {"name": "digest", "type": {"type": "fixed", "name": "Digest", "size": 2}},
    ],
}


def test_avro_types() -> None:
    import uuid

    schema, parse = avro_reader(Avro(schema=SCHEMA), ["t"], "input")
    assert schema.simpleString() == (
        "struct<id:bigint,kind:string,number:bigint,note:string,day:date,at:timestamp,clock:string,uuid:string,"
        "price:decimal(9,2),lines:array<struct<n:int>>,tags:map<string,double>,first:struct<n:int>,digest:binary>"
    )
    row = {
        "id": 1,
        "kind": "B",
        "number": 2**40,
        "note": None,
        "day": datetime.date(2026, 1, 2),
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "clock": datetime.time(1, 2, 3),
        "uuid": uuid.UUID(int=7),
        "price": Decimal("1.50"),
        "lines": [{"n": 1}, {"n": 2}],
        "tags": {"a": 1.0},
        "first": {"n": 9},
        "digest": b"ab",
    }
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(SCHEMA), row)
    parsed = parse(pa.array([buffer.getvalue(), b"", b"\x02", buffer.getvalue() + b"!", None], pa.binary())).to_pylist()
    good = parsed[0]
    assert good["__tidelog_error"] is None
    assert (good["clock"], good["uuid"], good["tags"]) == ("01:02:03", str(row["uuid"]), [("a", 1.0)])
    assert {
        name: good[name] for name in ("id", "kind", "number", "day", "at", "price", "lines", "first", "digest")
    } == {name: row[name] for name in ("id", "kind", "number", "day", "at", "price", "lines", "first", "digest")}
    assert [each["__tidelog_error"] is None for each in parsed] == [True, False, False, False, True]
    assert "1 extra bytes after" in parsed[3]["__tidelog_error"]


def test_avro_written_is_what_is_read() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "m", "type": {"type": "map", "values": "int"}}],
    }
    write = avro_writer(Avro(schema=schema), "t", "output")
    kind = pa.struct([("id", pa.int64()), ("m", pa.map_(pa.string(), pa.int32()))])
    values = write(pa.array([{"id": 5, "m": [("a", 1)]}, None], kind))
    assert fastavro.schemaless_reader(io.BytesIO(values[0].as_py()), fastavro.parse_schema(schema), None) == {
        "id": 5,
        "m": {"a": 1},
    }
    assert values[1].as_py() is None


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]},
            "no type for the union",
        ),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}, "contains itself"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "unheard"}]}, "can't be used"),
        ("string", "must be a record"),
    ],
)
def test_avro_that_spark_has_no_columns_for(schema: Any, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        avro_reader(Avro(schema=json.dumps(schema)), ["t"], "input")


def test_protobuf_types() -> None:
    schema, parse = protobuf_reader(Protobuf(Field), ["t"], "input")
    assert schema["kind"].dataType.simpleString() == "string"
    assert schema["number"].dataType.simpleString() == "int"
    message = Field(name="f", number=3, kind=Field.TYPE_BOOL, packed=True)
    [row, bad] = parse(pa.array([message.SerializeToString(), b"\x0a\xff"], pa.binary())).to_pylist()
    assert (row["name"], row["number"], row["kind"], row["packed"]) == ("f", 3, "TYPE_BOOL", True)
    assert bad["__tidelog_error"].startswith("DecodeError")


def test_protobuf_times_and_wrappers() -> None:
    stamp_schema, parse = protobuf_reader(Protobuf(Timestamp), ["t"], "input")
    assert stamp_schema.simpleString() == "struct<seconds:bigint,nanos:int>"
    [row] = parse(pa.array([Timestamp(seconds=1).SerializeToString()], pa.binary())).to_pylist()
    assert row["seconds"] == 1
    wrapped, parse = protobuf_reader(Protobuf(StringValue), ["t"], "input")
    [row] = parse(pa.array([StringValue(value="x").SerializeToString()], pa.binary())).to_pylist()
    assert row["value"] == "x"
    assert wrapped.names == ["value"]


def test_protobuf_written_is_what_is_read() -> None:
    write = protobuf_writer(Protobuf(EnumValue), "t", "output")
    kind = pa.struct([("name", pa.string()), ("number", pa.int32())])
    values = write(pa.array([{"name": "a", "number": None}, None], kind))
    assert EnumValue.FromString(values[0].as_py()) == EnumValue(name="a")
    with pytest.raises(ValueError, match="no field 'colour'"):
        write(pa.array([{"colour": "red"}], pa.struct([("colour", pa.string())])))


@pytest.mark.parametrize(("message", "words"), [(Struct, "contains itself"), (int, "not a generated message class")])
def test_protobuf_that_spark_has_no_columns_for(message: Any, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        protobuf_reader(Protobuf(message), ["t"], "input")


def test_protobuf_by_a_descriptor() -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    files = []
    for module in ("google/protobuf/any.proto", "google/protobuf/source_context.proto", "google/protobuf/type.proto"):
        proto = FileDescriptorProto()
        Api.DESCRIPTOR.file.pool.FindFileByName(module).CopyToProto(proto)
        files.append(proto)
    descriptor = FileDescriptorSet(file=files).SerializeToString()
    schema, _ = protobuf_reader(Protobuf("google.protobuf.Option", descriptor=descriptor), ["t"], "input")
    assert schema.names == [field.name for field in Option.DESCRIPTOR.fields]
    with pytest.raises(DeclarationError, match=r"no message 'a\.B'"):
        protobuf_reader(Protobuf("a.B", descriptor=descriptor), ["t"], "input")


FIELDS = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": False, "metadata": {}},
        {"name": "price", "type": "decimal(10,2)", "nullable": True, "metadata": {}},
        {"name": "ok", "type": "boolean", "nullable": True, "metadata": {}},
        {
            "name": "tags",
            "type": {"type": "array", "elementType": "string", "containsNull": True},
            "nullable": True,
            "metadata": {},
        },
        {"name": "at", "type": "timestamp", "nullable": True, "metadata": {}},
    ],
}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "JSONDecodeError: Expecting property name"),
        (b"", "the value is empty"),
        (b"\xff", "byte 0 of the value is not UTF-8"),
        (b"[1]", "expected an object, found [1]"),
        (b'{"id": "x"}', 'id: expected long, found "x"'),
        (b'{"id": 1.5}', "id: expected long, found 1.5"),
        (b'{"price": true}', "price: expected decimal(10,2), found true"),
        (b'{"ok": 1}', "ok: expected boolean, found 1"),
        (b'{"tags": {}}', "tags: expected array, found {}"),
        (b'{"at": "soon"}', 'at: "soon" can\'t be read as timestamp'),
        (b'{"at": "%s"}' % (b"x" * 100), "..."),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_reasons(value: bytes, reason: str) -> None:
    found = JsonReasons(json.dumps(FIELDS)).reason(value)
    assert found is not None
    assert reason in found


def test_no_reason_where_there_is_none() -> None:
    reasons = JsonReasons(json.dumps(FIELDS))
    assert reasons.reason(b'{"id": 1, "at": "2026-01-01T00:00:00Z", "price": 1.5, "tags": null}') is None
    explained = reasons.explain(pa.array([b"{}", b"["], pa.binary()), pa.array(["JsonError: plain", "Other: error"]))
    assert explained.to_pylist() == [None, "Other: error"]
