"""Every format as an input and as an output, and what becomes of values that are not of it."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
from google.protobuf.type_pb2 import EnumValue

from pipeline_place import Place
from tidelog import ConsumerRecord
from tidelog.pipeline import Avro, BatchMap, Json, Pipeline, Protobuf, Raw, Text, TopicInput, TopicOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Headers = Callable[[ConsumerRecord], dict[str, str]]
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    ],
}


def _same(rows: DataFrame) -> DataFrame:
    return rows


def _pipeline(name: str, source: TopicInput, output: TopicOutput, transform: Any = _same) -> Pipeline:
    return Pipeline(name=name, version=1, inputs={"rows": source}, transform=transform, outputs=[output])


def test_json_and_what_is_none(place: Place, fresh_name: Callable[[str], str], headers_of: Headers) -> None:
    name = fresh_name("json")
    place.create(name)
    good = [{"id": number, "price": number / 2, "at": "2026-01-01T00:00:00Z"} for number in range(50)]
    bad: list[Any] = [b'{"id": 1', b"", b"null", b"[1]", b"7", b'{"id":"x"}', b'{"price":1}', b'{"id":1,"at":"soon"}']
    bad += [b'{"id": 5, "price": "\xff"}', None]
    keys = [f"k{number}" for number in range(len(bad))]
    place.send(name, good)
    place.send(name, bad, keys)
    source = TopicInput(name, format=Json("id long NOT NULL, price double, at timestamp"))
    run = place.run(_pipeline(name, source, TopicOutput(f"{name}-out")))

    assert sorted(row["id"] for row in place.rows(f"{name}-out")) == list(range(50))
    letters = {record.key.decode(): record for record in place.read(f"{name}.dead-letters")}
    assert sorted(letters) == sorted(keys)
    assert [letters[key].value for key in keys] == bad
    errors = {key: headers_of(letters[key]) for key in keys}
    assert errors["k0"]["tidelog.error.class"] == "JSONDecodeError"
    assert errors["k5"]["tidelog.error.message"] == 'id: expected long, found "x"'
    assert errors["k6"]["tidelog.error.class"] == "MissingFieldError"
    assert errors["k7"]["tidelog.error.message"] == 'at: "soon" can\'t be read as timestamp'
    assert errors["k8"]["tidelog.error.class"] == "UnicodeDecodeError"
    assert errors["k9"]["tidelog.error.class"] == "NullValueError"
    origins = {
        (row["tidelog.origin.topic"], row["tidelog.origin.partition"], row["tidelog.origin.offset"])
        for row in errors.values()
    }
    assert origins == {(name, str(record.partition), str(record.offset)) for record in place.read(name) if record.key}
    assert run.progress.dead_letters == len(bad)
    assert run.progress.rows == len(good) + len(bad)


def test_a_map_of_rows_refuses_some(place: Place, fresh_name: Callable[[str], str], headers_of: Headers) -> None:
    def checked(row: dict[str, Any]) -> Any:
        if row["id"] == 3:
            raise ValueError("three is not wanted")
        if row["id"] == 4:
            return None
        if row["id"] == 5:
            return [{"id": 5, "twice": "a"}, {"id": 5, "twice": "b"}]
        if row["id"] == 6:
            return {"id": "six", "twice": "x"}
        return {"id": row["id"], "twice": str(row["id"] * 2)}

    name = fresh_name("map")
    place.create(name)
    place.send(name, [{"id": number} for number in range(10)] + [b"?"])
    source = TopicInput(name, format=Json("id long"), map=checked, map_schema="id long, twice string", meta=["_offset"])
    place.run(_pipeline(name, source, TopicOutput(f"{name}-out", key="id")))

    found = sorted((row["id"], row["twice"]) for row in place.rows(f"{name}-out"))
    assert found == [(0, "0"), (1, "2"), (2, "4"), (5, "a"), (5, "b"), (7, "14"), (8, "16"), (9, "18")]
    assert all("_offset" in row for row in place.rows(f"{name}-out"))
    errors = sorted(headers_of(record)["tidelog.error.class"] for record in place.read(f"{name}.dead-letters"))
    assert errors == ["JSONDecodeError", "TypeError", "ValueError"]


def test_a_map_of_frames_finds_the_rows_that_it_refuses(place: Place, fresh_name: Callable[[str], str]) -> None:
    def doubled(frame: Any) -> Any:
        if (frame["id"] == 33).any():
            raise RuntimeError("not 33")
        return frame.assign(id=frame["id"] * 2)

    name = fresh_name("frames")
    place.create(name, 1)
    place.send(name, [{"id": number} for number in range(100)])
    source = TopicInput(name, format=Json("id long"), map=BatchMap(doubled))
    place.run(_pipeline(name, source, TopicOutput(f"{name}-out")))
    assert sorted(row["id"] for row in place.rows(f"{name}-out")) == [
        2 * number for number in range(100) if number != 33
    ]
    assert [json.loads(record.value) for record in place.read(f"{name}.dead-letters")] == [{"id": 33}]


def test_avro_both_ways(place: Place, fresh_name: Callable[[str], str], headers_of: Headers) -> None:
    name = fresh_name("avro")
    place.create(name)
    at = datetime.datetime(2026, 1, 1, 12, 30, tzinfo=datetime.UTC)
    rows: list[dict[str, Any]] = [
        {"id": number, "note": None if number % 2 else "n", "at": at, "tags": {"a": number}, "price": Decimal("12.50")}
        for number in range(20)
    ]
    values = []
    for row in rows:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(ORDER), row)
        values.append(buffer.getvalue())
    place.send(name, [*values, b"\xff\xff\xff", values[0] + b"x"])
    source = TopicInput(name, format=Avro(schema=ORDER))
    place.run(_pipeline(name, source, TopicOutput(f"{name}-out", key=["id"], format=Avro(schema=json.dumps(ORDER)))))

    found: list[Any] = [
        fastavro.schemaless_reader(io.BytesIO(record.value), fastavro.parse_schema(ORDER), None)
        for record in place.read(f"{name}-out")
    ]
    assert sorted(found, key=lambda row: row["id"]) == rows
    letters = place.read(f"{name}.dead-letters")
    assert sorted(letter.value for letter in letters) == sorted([b"\xff\xff\xff", values[0] + b"x"])


def test_protobuf_both_ways(place: Place, fresh_name: Callable[[str], str]) -> None:
    """With messages that come with the library: no compiler is needed."""
    name = fresh_name("protobuf")
    place.create(name)
    messages = [EnumValue(name=f"v{number}", number=number) for number in range(20)]
    place.send(name, [*(message.SerializeToString() for message in messages), b"\xff"])
    source = TopicInput(name, format=Protobuf(EnumValue))
    output = TopicOutput(f"{name}-out", key="name", format=Protobuf(EnumValue))
    place.run(_pipeline(name, source, output))
    found = [EnumValue.FromString(record.value) for record in place.read(f"{name}-out")]
    assert sorted(found, key=lambda message: message.number) == messages
    assert [letter.value for letter in place.read(f"{name}.dead-letters")] == [b"\xff"]


def test_text_and_raw(place: Place, fresh_name: Callable[[str], str]) -> None:
    name = fresh_name("text")
    place.create(name)
    place.send(name, [b"one", b"two", b"\xff\xfe", None], [b"a", b"b", b"c", b"d"])
    text = TopicInput(name, format=Text(), tombstones="skip", meta=True)
    place.run(_pipeline(name, text, TopicOutput(f"{name}-out", key="_key", format=Text())))
    assert sorted((record.key, record.value) for record in place.read(f"{name}-out")) == [
        (b"a", b"one"),
        (b"b", b"two"),
    ]
    assert [letter.value for letter in place.read(f"{name}.dead-letters")] == [b"\xff\xfe"]

    raw = TopicInput(name, format=Raw())
    place.run(_pipeline(f"{name}-raw", raw, TopicOutput(f"{name}-raw-out", key="key", format=Raw())))
    found = {record.key: record.value for record in place.read(f"{name}-raw-out")}
    assert found == {b"a": b"one", b"b": b"two", b"c": b"\xff\xfe", b"d": None}


def test_arithmetic_that_fails_is_null_and_stops_nothing(place: Place, fresh_name: Callable[[str], str]) -> None:
    """With ANSI rules, Spark's default, one such row would stop the query at every start."""

    def shares(rows: DataFrame) -> DataFrame:
        return rows.selectExpr(
            "id", "10 / (id - 5) AS share", "CAST(text AS int) AS number", "CAST(id AS tinyint) AS tiny"
        )

    name = fresh_name("arithmetic")
    place.create(name)
    place.send(name, [{"id": 5, "text": "x"}, {"id": 300, "text": "7"}])
    source = TopicInput(name, format=Json("id long, text string"))
    place.run(_pipeline(name, source, TopicOutput(f"{name}-out"), shares))
    found = {row["id"]: row for row in place.rows(f"{name}-out")}
    assert (found[5]["share"], found[5]["number"]) == (None, None)
    assert found[300]["number"] == 7
