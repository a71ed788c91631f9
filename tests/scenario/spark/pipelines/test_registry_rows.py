"""Avro and Protobuf with a schema registry, as executors read and write them; no Spark is needed for that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.type_pb2 import EnumValue

from local_registry import LocalRegistry
from tidelog.client.errors import ClientError
from tidelog.pipeline import Avro, DeclarationError, Protobuf
from tidelog.pipeline.rows.avro_rows import avro_reader, avro_writer
from tidelog.pipeline.rows.protobuf_rows import protobuf_reader, protobuf_writer

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
ERROR = "__tidelog_error"


@pytest.fixture
def registry() -> Iterator[LocalRegistry]:
    with LocalRegistry() as running:
        yield running


def test_avro_of_several_writers(registry: LocalRegistry) -> None:
    write_old = avro_writer(Avro(schema=OLD, registry=registry.url), "orders", "output")
    write_new = avro_writer(Avro(schema=NEW, registry=registry.url), "orders", "output")
    old = write_old(pa.array([{"id": 1}]))
    new = write_new(pa.array([{"id": 2, "note": "x"}]))
    values = pa.chunked_array([old, new, pa.array([b"\x00\x00\x00\x03\xe7\x02", b"{}"], pa.binary())]).combine_chunks()

    # Without a schema of its own the reader takes the latest.
    for source in (Avro(registry=registry.url), Avro(schema=json.dumps(NEW), registry={"url": registry.url})):
        schema, parse = avro_reader(source, ["orders"], "input")
        assert schema.names == ["id", "note"]
        rows = parse(values).to_pylist()
        assert [(row["id"], row["note"], row[ERROR] is None) for row in rows] == [
            (1, None, True),
            (2, "x", True),
            (None, None, False),
            (None, None, False),
        ]
        assert "999" in rows[2][ERROR]


def test_protobuf(registry: LocalRegistry) -> None:
    source = Protobuf(EnumValue, registry=registry.url)
    write = protobuf_writer(source, "values", "output")
    kind = pa.struct([("name", pa.string()), ("number", pa.int32())])
    values = write(pa.array([{"name": "a", "number": 1}], kind))
    assert values[0].as_py()[0] == 0
    _, parse = protobuf_reader(source, ["values"], "input")
    [row, bad] = parse(pa.array([values[0].as_py(), b"\x01"], pa.binary())).to_pylist()
    assert (row["name"], row["number"], row[ERROR]) == ("a", 1, None)
    assert bad[ERROR]


def test_a_registry_that_is_away_is_no_fault_of_the_values() -> None:
    away: Any = {"url": "http://127.0.0.1:9", "timeout_s": 0.2}
    with pytest.raises(DeclarationError, match="can't get the schema of orders-value"):
        avro_reader(Avro(registry=away), ["orders"], "input")
    _, parse = avro_reader(Avro(schema=OLD, registry=away), ["orders"], "input")
    with pytest.raises(ClientError):
        parse(pa.array([b"\x00\x00\x00\x00\x01\x02"], pa.binary()))
