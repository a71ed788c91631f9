"""Our serializers beside those of confluent-kafka, on random values: the same bytes, and each reads the other's."""

from __future__ import annotations

import datetime
import itertools
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as TheirSchema
from confluent_kafka.schema_registry import SchemaReference as TheirReference
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer as TheirAvroDeserializer
from confluent_kafka.schema_registry.avro import AvroSerializer as TheirAvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer as TheirJsonDeserializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer as TheirJsonSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer as TheirProtobufDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer as TheirProtobufSerializer
from confluent_kafka.serialization import (
    DoubleSerializer as TheirDoubleSerializer,
)
from confluent_kafka.serialization import (
    IntegerSerializer as TheirIntegerSerializer,
)
from confluent_kafka.serialization import MessageField, SerializationContext
from confluent_kafka.serialization import (
    StringSerializer as TheirStringSerializer,
)
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.serialization import (
    AvroDeserializer,
    AvroSerializer,
    DoubleSerializer,
    IntegerSerializer,
    JsonSchemaDeserializer,
    JsonSchemaSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
    Schema,
    SchemaReference,
    SchemaRegistry,
    StringSerializer,
    record_subject,
    topic_record_subject,
    topic_subject,
)

# Each example may ask a registry over a socket, and fixtures hold nothing that an example changes.
RANDOM = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
BY_TOPIC = {"subject.name.strategy.type": "TOPIC"}


@pytest.fixture
def their_client(registry_url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry_url}) as client:
        yield client


def at(topic: str, field: MessageField = MessageField.VALUE) -> SerializationContext:
    return SerializationContext(topic, field)


# Avro: random schemas, and random values of each.

_names = itertools.count()
_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20),
    "string": st.text(max_size=20),
}

Typed = tuple[Any, st.SearchStrategy[Any]]


def _named(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:8]}_{next(_names)}"


def _record(fields: list[Typed]) -> Typed:
    names = [f"f{number}" for number in range(len(fields))]
    declared = [{"name": name, "type": kind} for name, (kind, _) in zip(names, fields, strict=True)]
    schema = {"type": "record", "name": _named("record"), "namespace": "random", "fields": declared}
    return schema, st.fixed_dictionaries({name: values for name, (_, values) in zip(names, fields, strict=True)})


def _enum(symbols: list[str]) -> Typed:
    return {"type": "enum", "name": _named("enum"), "symbols": symbols}, st.sampled_from(symbols)


def _fixed(size: int) -> Typed:
    return {"type": "fixed", "name": _named("fixed"), "size": size}, st.binary(min_size=size, max_size=size)


def _array(of: Typed) -> Typed:
    return {"type": "array", "items": of[0]}, st.lists(of[1], max_size=4)


def _map(of: Typed) -> Typed:
    return {"type": "map", "values": of[0]}, st.dictionaries(st.text(max_size=5), of[1], max_size=4)


def _optional(of: Typed) -> Typed:
    return ["null", of[0]], st.none() | of[1]


_LOGICAL: list[Typed] = [
    ({"type": "int", "logicalType": "date"}, st.dates()),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        # In whole milliseconds, as the type holds them.
        st.integers(0, 10**12).map(lambda ms: EPOCH + datetime.timedelta(milliseconds=ms)),
    ),
    ({"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}, st.decimals(-(10**9), 10**9, places=2)),
    ({"type": "string", "logicalType": "uuid"}, st.uuids()),
]
_symbols = st.lists(st.sampled_from("ABCDEFGH"), min_size=1, max_size=4, unique=True)
_flat = st.one_of(
    st.sampled_from(sorted(_PRIMITIVES)).map(lambda kind: (kind, _PRIMITIVES[kind])),
    st.sampled_from(_LOGICAL),
    _symbols.map(_enum),
    st.integers(1, 16).map(_fixed),
)
# A union may not hold a union, nor null twice.
_optionals = _flat.filter(lambda of: of[0] != "null").map(_optional)
_types: st.SearchStrategy[Typed] = st.recursive(
    _flat | _optionals,
    lambda inner: st.one_of(inner.map(_array), inner.map(_map), st.lists(inner, max_size=4).map(_record)),
    max_leaves=8,
)
_records = st.lists(_types, min_size=1, max_size=5).map(_record)


@RANDOM
@given(data=st.data())
def test_avro(registry_url: str, their_client: SchemaRegistryClient, data: st.DataObject) -> None:
    schema, values = data.draw(_records)
    registry, topic = SchemaRegistry(registry_url), schema["name"]
    ours = AvroSerializer[dict[str, Any]](registry, schema)
    theirs = TheirAvroSerializer(their_client, json.dumps(schema), conf=BY_TOPIC)
    our_reader = AvroDeserializer(registry)
    their_reader = TheirAvroDeserializer(their_client, conf=BY_TOPIC)
    for _ in range(5):
        value = data.draw(values)
        written = ours(topic, value)
        assert written == theirs(value, at(topic))
        assert written is not None
        assert our_reader(topic, written) == value
        # Theirs does not take a value of no bytes, which a record without fields or of nulls alone has.
        assert len(written) == 5 or their_reader(written, at(topic)) == value


@pytest.mark.parametrize("kind", sorted(set(_PRIMITIVES) - {"null"}))
def test_avro_of_plain_types(
    registry: SchemaRegistry, their_client: SchemaRegistryClient, fresh_name: Callable[[str], str], kind: str
) -> None:
    topic = fresh_name(kind)
    text = json.dumps({"type": kind})
    ours, theirs = AvroSerializer[Any](registry, text), TheirAvroSerializer(their_client, text, conf=BY_TOPIC)
    samples = {"boolean": True, "bytes": b"raw", "string": "text"}
    value = samples.get(kind, 7)
    written = ours(topic, value)
    assert written == theirs(value, at(topic))
    assert AvroDeserializer(registry)(topic, written) == value


def test_avro_with_references(
    registry: SchemaRegistry, their_client: SchemaRegistryClient, fresh_name: Callable[[str], str]
) -> None:
    """A diamond: both sides of an order refer to one address."""
    topic, unique = fresh_name("orders"), uuid.uuid4().hex[:8]
    address, side = f"a{unique}.Address", f"a{unique}.Side"
    address_text = _named_record(address, {"street": "string"})
    side_text = _named_record(side, {"at": address})
    order_text = _named_record(f"a{unique}.Order", {"from": side, "to": ["null", side], "billing": address})
    registry.register(address, Schema(address_text))
    to_address = SchemaReference(address, address, 1)
    registry.register(side, Schema(side_text, references=(to_address,)))
    order = Schema(order_text, references=(to_address, SchemaReference(side, side, 1)))
    their_order = TheirSchema(order_text, "AVRO", [TheirReference(address, address, 1), TheirReference(side, side, 1)])
    value = {"from": {"at": {"street": "A"}}, "to": None, "billing": {"street": "B"}}
    written = AvroSerializer[dict[str, Any]](registry, order)(topic, value)
    assert written == TheirAvroSerializer(their_client, their_order, conf=BY_TOPIC)(value, at(topic))
    assert AvroDeserializer(registry)(topic, written) == value
    assert TheirAvroDeserializer(their_client, conf=BY_TOPIC)(written, at(topic)) == value


def _named_record(name: str, fields: dict[str, Any]) -> str:
    declared = [{"name": field, "type": kind} for field, kind in fields.items()]
    return json.dumps({"type": "record", "name": name, "fields": declared})


# JSON Schema

_json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
_ANY_OBJECT = '{"$schema": "http://json-schema.org/draft-07/schema#", "title": "anything", "type": "object"}'


@RANDOM
@given(value=st.dictionaries(st.text(), _json_values, max_size=5))
def test_json_schema(registry_url: str, their_client: SchemaRegistryClient, value: dict[str, Any]) -> None:
    registry, topic = SchemaRegistry(registry_url), "json"
    written = JsonSchemaSerializer[dict[str, Any]](registry, _ANY_OBJECT)(topic, value)
    assert written == TheirJsonSerializer(_ANY_OBJECT, their_client, conf=BY_TOPIC)(value, at(topic))
    read = TheirJsonDeserializer(_ANY_OBJECT, schema_registry_client=their_client, conf=BY_TOPIC)(written, at(topic))
    assert JsonSchemaDeserializer(registry)(topic, written) == read == value


# Protobuf

_int32, _int64 = _PRIMITIVES["int"], _PRIMITIVES["long"]
_finite = st.floats(allow_nan=False)
_lines = st.fixed_dictionaries(
    {"product": st.text(), "count": _int32}, optional={"discount": st.fixed_dictionaries({"share": _finite})}
)
_money = st.fixed_dictionaries({"units": _int64, "currency": st.text()})
_orders = st.fixed_dictionaries(
    {
        "id": _int64,
        "state": st.sampled_from(["NEW", "PAID", "SENT"]),
        "lines": st.lists(_lines, max_size=3),
        # With one entry there is one order of bytes.
        "charges": st.dictionaries(st.text(), _money, max_size=1),
        "receipt": st.binary(),
        "codes": st.lists(st.integers(0, 2**64 - 1), max_size=3),
        "express": st.booleans(),
        "weight": st.floats(width=32, allow_nan=False),
    },
    optional={
        "at": st.fixed_dictionaries({"seconds": _int64, "nanos": _int32}),
        "account": st.text(),
    },
)
_MESSAGES: dict[str, st.SearchStrategy[Any]] = {
    "shop.Customer": st.fixed_dictionaries({"name": st.text()}, optional={"age": _int32}),
    "shop.Order": _orders,
    "shop.Order.Line": _lines,
    "shop.Order.Line.Discount": st.fixed_dictionaries({"share": _finite}),
    "common.Money": _money,
}


@pytest.mark.parametrize("name", _MESSAGES)
@RANDOM
@given(data=st.data())
def test_protobuf(
    registry_url: str, their_client: SchemaRegistryClient, proto: Any, name: str, data: st.DataObject
) -> None:
    registry, topic = SchemaRegistry(registry_url), f"protobuf-{name}"
    message_class: type[Message] = proto.message(name)
    value = data.draw(_MESSAGES[name])
    message = message_class(**value)
    written = ProtobufSerializer(registry, message_class)(topic, message)
    assert written == TheirProtobufSerializer(message_class, their_client, conf=BY_TOPIC)(message, at(topic))
    assert written == ProtobufSerializer(registry, message_class)(topic, value)
    theirs = TheirProtobufDeserializer(message_class, BY_TOPIC, their_client)(written, at(topic))
    assert ProtobufDeserializer(None, message_class)(topic, written) == theirs == message
    read = ProtobufDeserializer(registry)(topic, written)
    assert read == value


# Plain types, and what all have in common


@given(st.integers(-(2**31), 2**31 - 1))
def test_integers(value: int) -> None:
    assert IntegerSerializer()("t", value) == TheirIntegerSerializer()(value)


@given(st.floats())
def test_doubles(value: float) -> None:
    assert DoubleSerializer()("t", value) == TheirDoubleSerializer()(value)


@given(st.text())
def test_strings(value: str) -> None:
    assert StringSerializer()("t", value) == TheirStringSerializer()(value)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(topic_subject, "TOPIC"), (record_subject, "RECORD"), (topic_record_subject, "TOPIC_RECORD")]
)
@pytest.mark.parametrize("is_key", [False, True])
def test_subjects(
    registry: SchemaRegistry,
    their_client: SchemaRegistryClient,
    fresh_name: Callable[[str], str],
    ours: Any,
    theirs: str,
    is_key: bool,
) -> None:
    topic = fresh_name("subjects")
    text = _named_record(f"names.{topic.replace('-', '_')}", {"id": "long"})
    written = AvroSerializer[Any](registry, text, subject_name=ours, is_key=is_key)(topic, {"id": 1})
    before = registry.subjects()
    conf = {"subject.name.strategy.type": theirs, "auto.register.schemas": False}
    field = MessageField.KEY if is_key else MessageField.VALUE
    # It finds the schema under the subject that ours was registered under, since it may not register it.
    assert TheirAvroSerializer(their_client, text, conf=conf)({"id": 1}, at(topic, field)) == written
    assert registry.subjects() == before


def test_the_latest_version_is_taken_alike(
    registry: SchemaRegistry, their_client: SchemaRegistryClient, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("latest")
    first = _named_record(topic.replace("-", "_"), {"id": "long"})
    registry.register(f"{topic}-value", Schema(first))
    second = first.replace("}]", '}, {"name": "note", "type": "string", "default": "none"}]')
    registry.register(f"{topic}-value", Schema(second))
    written = AvroSerializer[Any](registry, first, use_latest_version=True)(topic, {"id": 1})
    conf = BY_TOPIC | {"use.latest.version": True, "auto.register.schemas": False}
    assert written == TheirAvroSerializer(their_client, first, conf=conf)({"id": 1}, at(topic))
