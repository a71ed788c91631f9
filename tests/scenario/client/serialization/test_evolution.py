"""Schemas that change, values of users' classes, and what serializers refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from google.protobuf import timestamp_pb2

from local_registry import LocalRegistry
from tidelog.client.errors import ConfigError
from tidelog.serialization import (
    AvroDeserializer,
    AvroSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    Schema,
    SchemaNotFoundError,
    SchemaReference,
    SchemaRegistry,
    SchemaType,
    SerializationError,
    record_subject,
)

FreshName = Callable[[str], str]


@dataclass
class User:
    name: str
    age: int = 0


def user_schema(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "User", "namespace": "people", "fields": list(fields)})


NAME = {"name": "name", "type": "string"}
AGE = {"name": "age", "type": "int"}
USER = user_schema(NAME, AGE)
USER_OBJECT = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "User",
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}


# Avro


def test_a_reader_gets_its_own_form_of_what_an_older_writer_wrote(
    registry: SchemaRegistry, fresh_name: FreshName
) -> None:
    topic = fresh_name("users")
    data = AvroSerializer[User](registry, USER)(topic, User("Ann", 7))
    reader = user_schema(NAME, {"name": "age", "type": "long"}, {"name": "city", "type": "string", "default": "?"})
    assert AvroDeserializer(registry, reader)(topic, data) == {"name": "Ann", "age": 7, "city": "?"}
    assert AvroDeserializer(registry, user_schema(NAME))(topic, data) == {"name": "Ann"}
    renamed = user_schema({"name": "called", "aliases": ["name"], "type": "string"})
    assert AvroDeserializer(registry, renamed)(topic, data) == {"called": "Ann"}


def test_a_reader_that_can_not_take_it_says_so(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    topic = fresh_name("users")
    data = AvroSerializer[User](registry, USER)(topic, User("Ann", 7))
    for reader in (user_schema({"name": "city", "type": "string"}), user_schema({"name": "name", "type": "int"})):
        with pytest.raises(SerializationError, match=f"topic {topic}, value: can't deserialize"):
            AvroDeserializer(registry, reader)(topic, data)


def test_values_of_several_versions_lie_in_one_topic(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    topic = fresh_name("users")
    older, newer = AvroSerializer[User](registry, user_schema(NAME)), AvroSerializer[User](registry, USER)
    written = [older(topic, User("Ann")), newer(topic, User("Bob", 8))]
    assert registry.versions(f"{topic}-value") == [1, 2]
    assert [AvroDeserializer(registry)(topic, data) for data in written] == [{"name": "Ann"}, {"name": "Bob", "age": 8}]
    assert [AvroDeserializer(registry, into=User)(topic, data) for data in written] == [User("Ann"), User("Bob", 8)]


def test_a_union_of_referenced_records_is_several_types_in_a_topic(
    registry: SchemaRegistry, fresh_name: FreshName
) -> None:
    topic = fresh_name("events")
    names = [f"{topic.replace('-', '_')}.{kind}" for kind in ("Login", "Logout")]
    for name in names:
        registry.register(name, Schema(json.dumps({"type": "record", "name": name, "fields": [NAME]})))
    schema = Schema(json.dumps(names), references=tuple(SchemaReference(name, name, 1) for name in names))
    serializer = AvroSerializer[tuple[str, dict[str, str]]](registry, schema, to_dict=lambda event: event)
    deserializer = AvroDeserializer(registry, return_record_name=True)
    for name in names:
        assert deserializer(topic, serializer(topic, (name, {"name": "Ann"}))) == (name, {"name": "Ann"})


def test_keys_have_a_subject_of_their_own(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    topic = fresh_name("users")
    key = AvroSerializer[str](registry, '"string"', is_key=True)(topic, "Ann")
    assert registry.versions(f"{topic}-key") == [1]
    assert AvroDeserializer(registry, is_key=True)(topic, key) == "Ann"
    with pytest.raises(SerializationError, match=f"topic {topic}, key: "):
        AvroDeserializer(registry, is_key=True)(topic, b"Ann")


def test_nothing_is_registered_unless_it_may(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    topic = fresh_name("users")
    serializer = AvroSerializer[User](registry, USER, auto_register=False)
    with pytest.raises(SchemaNotFoundError, match=f"topic {topic}, value: "):
        serializer(topic, User("Ann"))
    assert f"{topic}-value" not in registry.subjects()
    registry.register(f"{topic}-value", Schema(USER))
    assert serializer(topic, User("Ann")) is not None


def test_a_schema_may_be_given_by_its_id(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    schema_id = registry.register(fresh_name("users"), Schema(USER))
    data = AvroSerializer[User](registry, schema_id=schema_id)("elsewhere", User("Ann", 7))
    assert AvroDeserializer(registry, into=User)("elsewhere", data) == User("Ann", 7)


def test_the_field_that_does_not_fit_is_named(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    topic = fresh_name("users")
    serializer = AvroSerializer[Any](registry, USER)
    with pytest.raises(SerializationError, match=r"the value does not fit the schema: people\.User\.age is <x>"):
        serializer(topic, {"name": "Ann", "age": "x"})
    with pytest.raises(SerializationError, match=f"topic {topic}, value: .*age"):
        serializer(topic, {"name": "Ann"})
    assert serializer(topic, {"name": "Ann", "age": 1, "more": 2}) is not None
    with pytest.raises(SerializationError, match="more"):
        AvroSerializer[Any](registry, USER, strict=True)(topic, {"name": "Ann", "age": 1, "more": 2})


def test_bytes_cut_off_anywhere_are_refused(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    topic = fresh_name("users")
    data = AvroSerializer[User](registry, USER)(topic, User("Ann", 1000))
    assert data is not None
    for length in range(len(data)):
        with pytest.raises(SerializationError, match=f"topic {topic}, value: can't deserialize {length} bytes"):
            AvroDeserializer(registry)(topic, data[:length])


# JSON Schema


def test_json_is_checked_on_both_sides(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    topic = fresh_name("users")
    serializer = JsonSchemaSerializer[Any](registry, USER_OBJECT)
    data = serializer(topic, User("Ann", 7))
    assert JsonSchemaDeserializer(registry, into=User)(topic, data) == User("Ann", 7)
    with pytest.raises(SerializationError, match=r"\$\.age: -1 is less than the minimum of 0"):
        serializer(topic, User("Ann", -1))
    with pytest.raises(SerializationError, match="'name' is a required property"):
        serializer(topic, {"age": 1})
    broken = JsonSchemaSerializer[Any](registry, USER_OBJECT, validate=False)(topic, {"age": -1})
    with pytest.raises(SerializationError, match=f"topic {topic}, value: can't deserialize"):
        JsonSchemaDeserializer(registry)(topic, broken)
    assert JsonSchemaDeserializer(registry, validate=False)(topic, broken) == {"age": -1}
    assert JsonSchemaDeserializer(registry, {"required": ["age"]})(topic, broken) == {"age": -1}


def test_json_schemas_refer_to_each_other(registry: SchemaRegistry, fresh_name: FreshName) -> None:
    topic, user = fresh_name("orders"), fresh_name("user.json")
    registry.register(user, Schema(json.dumps(USER_OBJECT), SchemaType.JSON))
    order = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"by": {"$ref": "user.json"}},
    }
    schema = Schema(json.dumps(order), SchemaType.JSON, (SchemaReference("user.json", user, 1),))
    serializer = JsonSchemaSerializer[Any](registry, schema)
    data = serializer(topic, {"by": {"name": "Ann"}})
    assert JsonSchemaDeserializer(registry)(topic, data) == {"by": {"name": "Ann"}}
    with pytest.raises(SerializationError, match=r"\$\.by\.age: 'x' is not of type 'integer'"):
        serializer(topic, {"by": {"name": "Ann", "age": "x"}})


def test_references_are_never_brought_from_the_web(local_registry: LocalRegistry) -> None:
    registry = SchemaRegistry(local_registry.url)
    serializer = JsonSchemaSerializer[Any](registry, {"$ref": f"{local_registry.url}/elsewhere.json"})
    with pytest.raises(SerializationError, match=r"refers to http.*elsewhere.json, which is not among its references"):
        serializer("orders", {"a": 1})
    assert not [request for request in local_registry.requests if "elsewhere" in request.path]


def test_draft_7_is_what_is_not_said(local_registry: LocalRegistry) -> None:
    # Draft 2020-12 has `prefixItems`, which draft 7 does not know and therefore ignores.
    schema = {"prefixItems": [{"type": "string"}]}
    registry = SchemaRegistry(local_registry.url)
    assert JsonSchemaSerializer[Any](registry, schema)("a", [1]) == b"\x00\x00\x00\x00\x01[1]"
    newer = schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    with pytest.raises(SerializationError, match="is not of type 'string'"):
        JsonSchemaSerializer[Any](registry, newer)("b", [1])


# Protobuf


def test_a_message_is_read_without_its_class(registry: SchemaRegistry, fresh_name: FreshName, proto: Any) -> None:
    topic = fresh_name("orders")
    order = proto.message("shop.Order")
    value = {"id": 7, "state": "PAID", "lines": [{"product": "tea", "count": -2}], "customer": {"name": "Ann"}}
    data = ProtobufSerializer(registry, order)(topic, order(**value))
    read = ProtobufDeserializer(registry)(topic, data)
    assert read is not None
    assert value.items() <= read.items()
    assert read["charges"] == {}
    assert "account" not in read
    assert registry.latest("common/money.proto").version >= 1


def test_a_reader_with_a_class_takes_what_it_knows_of(
    registry: SchemaRegistry, fresh_name: FreshName, proto: Any
) -> None:
    """Protobuf goes by the numbers of fields: a timestamp's two are the first two of an order's eleven."""
    topic = fresh_name("times")
    data = ProtobufSerializer(registry, timestamp_pb2.Timestamp)(topic, {"seconds": 5, "nanos": 6})
    assert ProtobufDeserializer(None, timestamp_pb2.Timestamp)(topic, data) == timestamp_pb2.Timestamp(
        seconds=5, nanos=6
    )
    order: Any = ProtobufDeserializer(None, proto.message("shop.Order"))(topic, data)
    assert order.id == 5
    assert order.state == 6


def test_a_nested_message_of_the_latest_version_is_found_by_its_name(
    registry: SchemaRegistry, fresh_name: FreshName, proto: Any
) -> None:
    """In the newer file another message stands before it."""
    topic = fresh_name("customers")
    text = 'syntax = "proto3"; package shop; message First {} message Customer { string name = 1; }'
    registry.register(f"{topic}-value", Schema(text, SchemaType.PROTOBUF))
    customer = proto.message("shop.Customer")
    data = ProtobufSerializer(registry, customer, use_latest_version=True)(topic, {"name": "Ann"})
    assert data is not None
    assert data[5:7] == b"\x02\x02"
    assert ProtobufDeserializer(registry)(topic, data) == {"name": "Ann"}
    with pytest.raises(SerializationError, match=r"the schema has no message shop\.Order"):
        ProtobufSerializer(registry, proto.message("shop.Order"), use_latest_version=True)(topic, {"id": 1})


def test_schemas_that_others_registered_as_text_are_compiled(
    registry: SchemaRegistry, fresh_name: FreshName, proto: Any
) -> None:
    """As Java's clients do; with an import of our own, and of Google's."""
    topic, money = fresh_name("orders"), fresh_name("money")
    registry.register(money, Schema(proto.money_text, SchemaType.PROTOBUF))
    order = Schema(proto.order_text, SchemaType.PROTOBUF, (SchemaReference("common/money.proto", money, 1),))
    schema_id = registry.register(f"{topic}-value", order)
    message = proto.message("shop.Order")(id=7, charges={"post": {"units": 3}}, at={"seconds": 9})
    data = b"\x00" + schema_id.to_bytes(4, "big") + b"\x02\x02" + message.SerializeToString()
    read = ProtobufDeserializer(registry)(topic, data)
    assert read is not None
    assert (read["id"], read["charges"]["post"]["units"], read["at"]["seconds"]) == (7, 3, 9)


def test_protobuf_refuses_what_it_can_not_take(registry: SchemaRegistry, fresh_name: FreshName, proto: Any) -> None:
    topic = fresh_name("customers")
    serializer = ProtobufSerializer(registry, proto.message("shop.Customer"))
    with pytest.raises(SerializationError, match=r'the value does not fit shop\.Customer: .*no "nope" field'):
        serializer(topic, {"nope": 1})
    with pytest.raises(SerializationError, match=r"does not fit shop\.Customer"):
        serializer(topic, {"name": 1})
    with pytest.raises(SerializationError, match=r"takes a shop\.Customer or a dict, not a Timestamp"):
        serializer(topic, timestamp_pb2.Timestamp())
    data = serializer(topic, {"name": "Ann"})
    assert data is not None
    with pytest.raises(SerializationError, match="has no message number 9"):
        ProtobufDeserializer(registry)(topic, data[:5] + b"\x02\x12" + data[6:])
    with pytest.raises(SerializationError, match=r"they are no shop\.Customer"):
        ProtobufDeserializer(registry)(topic, data[:-1])


def test_text_that_does_not_compile_is_told(local_registry: LocalRegistry, proto: Any) -> None:
    registry = SchemaRegistry(local_registry.url)
    registry.register("orders-value", Schema("no proto", SchemaType.PROTOBUF))
    registry.register("imports", Schema('import "none.proto";', SchemaType.PROTOBUF))
    for number, said in ((1, "can't be compiled"), (2, r"none\.proto")):
        with pytest.raises(SerializationError, match=said):
            ProtobufDeserializer(registry)("orders", bytes([0, 0, 0, 0, number, 0]))


# All


def test_schemas_of_another_kind_are_refused(registry: SchemaRegistry, fresh_name: FreshName, proto: Any) -> None:
    topic = fresh_name("mixed")
    avro = AvroSerializer[User](registry, USER)(topic, User("Ann"))
    json_object = JsonSchemaSerializer[Any](registry, USER_OBJECT)(fresh_name("other"), {"name": "Ann"})
    with pytest.raises(SerializationError, match="is of type JSON, not AVRO"):
        AvroDeserializer(registry)(topic, json_object)
    assert avro is not None
    with pytest.raises(SerializationError, match="is of type AVRO, not JSON"):
        JsonSchemaDeserializer(registry)(topic, avro[:5] + b"{}")
    with pytest.raises(SerializationError, match="is of type AVRO, not PROTOBUF"):
        ProtobufDeserializer(registry)(topic, avro[:5] + b"\x00")


def test_tombstones_pass_through_and_ask_nobody(local_registry: LocalRegistry, proto: Any) -> None:
    registry = SchemaRegistry(local_registry.url)
    customer = proto.message("shop.Customer")
    serializers: list[Any] = [
        AvroSerializer[Any](registry, USER),
        JsonSchemaSerializer[Any](registry, USER_OBJECT),
        ProtobufSerializer(registry, customer),
        AvroDeserializer(registry),
        JsonSchemaDeserializer(registry),
        ProtobufDeserializer(registry),
    ]
    assert [serializer("users", None, []) for serializer in serializers] == [None] * 6
    assert local_registry.requests == []


def test_a_serializer_can_be_made_ready_before_its_first_record(local_registry: LocalRegistry) -> None:
    serializer = AvroSerializer[User](SchemaRegistry(local_registry.url), USER)
    serializer.prepare("users")
    asked = len(local_registry.requests)
    assert asked == 1
    serializer("users", User("Ann"))
    assert len(local_registry.requests) == asked
    with pytest.raises(SerializationError, match=r"topic users, value: .*needs a schema that has a name"):
        AvroSerializer[Any](SchemaRegistry(local_registry.url), '["null"]', subject_name=record_subject).prepare(
            "users"
        )


def test_settings_that_contradict_each_other_are_refused(local_registry: LocalRegistry) -> None:
    registry = SchemaRegistry(local_registry.url)
    with pytest.raises(ConfigError, match="both use_latest_version and auto_register"):
        AvroSerializer[Any](registry, USER, use_latest_version=True, auto_register=True)
    with pytest.raises(ConfigError, match="schema_id"):
        AvroSerializer[Any](registry, USER, schema_id=1, use_latest_version=True)
    for made in (AvroSerializer, JsonSchemaSerializer):
        with pytest.raises(ConfigError, match="needs a schema"):
            made(registry)
        with pytest.raises(ConfigError, match="must be JSON"):
            made(registry, "no json")
    with pytest.raises(ConfigError, match="of type AVRO, not JSON"):
        AvroSerializer[Any](registry, Schema("{}", SchemaType.JSON))
    with pytest.raises(ConfigError, match="of type JSON, not AVRO"):
        JsonSchemaSerializer[Any](registry, Schema("{}"))
    with pytest.raises(ConfigError, match="a registry or a message_class"):
        ProtobufDeserializer(None)  # type: ignore[call-overload]  # it is about this mistake


def test_schemas_that_can_not_be_used_are_told(local_registry: LocalRegistry) -> None:
    registry = SchemaRegistry(local_registry.url)
    with pytest.raises(SerializationError, match="the Avro schema can't be used: UnknownType"):
        AvroSerializer[Any](registry, user_schema({"name": "x", "type": "people.Unknown"}))("users", {"x": 1})
    with pytest.raises(SerializationError, match=r"the JSON schema can't be used: at \$\.type"):
        JsonSchemaSerializer[Any](registry, {"type": 7})("users", {"x": 1})
