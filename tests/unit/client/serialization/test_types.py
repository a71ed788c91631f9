"""What type checkers see: `make lint` fails here when a class tells less than it knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from google.protobuf.timestamp_pb2 import Timestamp

from tidelog.serialization import (
    AvroDeserializer,
    AvroSerializer,
    Deserializer,
    JsonDeserializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    SchemaRegistry,
    Serializer,
    StringDeserializer,
    StringSerializer,
)


@dataclass
class Price:
    cents: int


def plain(price: Price) -> dict[str, int]:
    return {"cents": price.cents}


def test_types_are_told() -> None:
    registry = SchemaRegistry("http://127.0.0.1:1")
    assert_type(AvroSerializer(registry, "{}"), AvroSerializer[Any])
    assert_type(AvroSerializer(registry, "{}", to_dict=plain), AvroSerializer[Price])
    assert_type(JsonSchemaSerializer(registry, "{}", to_dict=plain), JsonSchemaSerializer[Price])
    assert_type(AvroDeserializer(registry), AvroDeserializer[Any])
    assert_type(AvroDeserializer(registry, into=Price)("prices", None), Price | None)
    assert_type(JsonSchemaDeserializer(registry, into=Price)("prices", None), Price | None)
    assert_type(JsonDeserializer(Price)("prices", None), Price | None)
    assert_type(ProtobufSerializer(registry, Timestamp), ProtobufSerializer[Timestamp])
    assert_type(ProtobufDeserializer(None, Timestamp)("prices", None), Timestamp | None)
    assert_type(ProtobufDeserializer(registry)("prices", None), dict[str, Any] | None)
    serializer: Serializer[str] = StringSerializer()
    deserializer: Deserializer[str] = StringDeserializer()
    assert deserializer("prices", serializer("prices", "tea", []), []) == "tea"
