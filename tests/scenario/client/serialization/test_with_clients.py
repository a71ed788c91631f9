"""Serializers in producers and consumers: over a broker, and between our clients and confluent-kafka's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import DeserializingConsumer, SerializingProducer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer as TheirAvroDeserializer
from confluent_kafka.schema_registry.avro import AvroSerializer as TheirAvroSerializer
from confluent_kafka.serialization import StringDeserializer as TheirStringDeserializer
from confluent_kafka.serialization import StringSerializer as TheirStringSerializer

from local_registry import LocalRegistry
from tidelog import AsyncProducer, Consumer, ConsumerRecord, Producer
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.errors import RecordDeserializationError
from tidelog.serialization import (
    AvroDeserializer,
    AvroSerializer,
    JsonDeserializer,
    JsonSerializer,
    SchemaNotFoundError,
    SchemaRegistry,
    SerializationError,
    StringDeserializer,
    StringSerializer,
)

FreshName = Callable[[str], str]
DEADLINE_S = 30
BY_TOPIC = {"subject.name.strategy.type": "TOPIC"}
SCHEMA = """{"type": "record", "name": "Price", "fields": [
    {"name": "product", "type": "string"}, {"name": "cents", "type": "long"}]}"""


@dataclass
class Price:
    product: str
    cents: int


def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(records) < count:
        assert time.monotonic() < deadline_s, f"{len(records)} of {count} records came"
        records += consumer.poll(1)
    return records


@pytest.fixture
def consume(client_cluster: BrokerProcess, fresh_name: FreshName) -> Callable[..., list[tuple[Any, Any]]]:
    """Reads that many records of a topic with deserializers: their keys and values in order."""

    def consumed(topic: str, count: int, **deserializers: Any) -> list[tuple[Any, Any]]:
        with Consumer(
            bootstrap_servers=client_cluster.bootstrap,
            group_id=fresh_name("group"),
            auto_offset_reset="earliest",
            **deserializers,
        ) as consumer:
            consumer.subscribe([topic])
            return sorted(((record.key, record.value) for record in read(consumer, count)), key=repr)

    return consumed


def test_values_go_through_a_broker(
    client_cluster: BrokerProcess,
    local_registry: LocalRegistry,
    fresh_name: FreshName,
    consume: Callable[..., list[tuple[Any, Any]]],
) -> None:
    topic, registry = fresh_name("prices"), SchemaRegistry(local_registry.url)
    with Producer(
        bootstrap_servers=client_cluster.bootstrap,
        key_serializer=StringSerializer(),
        value_serializer=AvroSerializer[Price](registry, SCHEMA),
    ) as producer:
        for cents in range(200):
            producer.send_nowait(topic, Price("tea", cents), key=f"{cents:03}")
        producer.send(topic, None, key="tombstone").result(DEADLINE_S)
    asked = len(local_registry.requests)
    assert asked == 1
    records = consume(
        topic, 201, key_deserializer=StringDeserializer(), value_deserializer=AvroDeserializer(registry, into=Price)
    )
    assert records == [*((f"{cents:03}", Price("tea", cents)) for cents in range(200)), ("tombstone", None)]
    assert len(local_registry.requests) == 2


def test_an_asyncio_program_prepares_its_serializer(
    client_cluster: BrokerProcess,
    local_registry: LocalRegistry,
    fresh_name: FreshName,
    consume: Callable[..., list[tuple[Any, Any]]],
) -> None:
    topic, registry = fresh_name("prices"), SchemaRegistry(local_registry.url)
    serializer = AvroSerializer[Price](registry, SCHEMA)

    async def produce() -> None:
        await asyncio.to_thread(serializer.prepare, topic)
        async with AsyncProducer(bootstrap_servers=client_cluster.bootstrap, value_serializer=serializer) as producer:
            await producer.send(topic, Price("tea", 1))

    asyncio.run(produce())
    assert consume(topic, 1, value_deserializer=AvroDeserializer(registry)) == [(None, {"product": "tea", "cents": 1})]


def test_what_can_not_be_serialized_is_not_sent(
    client_cluster: BrokerProcess, local_registry: LocalRegistry, fresh_name: FreshName
) -> None:
    topic, registry = fresh_name("prices"), SchemaRegistry(local_registry.url)
    with Producer(
        bootstrap_servers=client_cluster.bootstrap, value_serializer=AvroSerializer[Any](registry, SCHEMA)
    ) as producer:
        for send in (producer.send, producer.send_nowait):
            with pytest.raises(SerializationError, match=rf"topic {topic}, value: .*Price\.cents"):
                send(topic, {"product": "tea", "cents": "many"})
        assert producer.send(topic, Price("tea", 1)).result(DEADLINE_S).offset == 0


def test_a_record_that_can_not_be_read_is_skipped_by_hand(
    client_cluster: BrokerProcess, local_registry: LocalRegistry, fresh_name: FreshName
) -> None:
    topic, registry = fresh_name("prices"), SchemaRegistry(local_registry.url)
    with Producer(bootstrap_servers=client_cluster.bootstrap) as producer:
        for value in (b'{"a": 1}', b"\x00\x00\x00\x03\xe7unknown", b'{"a": 2}'):
            producer.send(topic, value, partition=0).result(DEADLINE_S)

    by_kind = AvroDeserializer(registry)

    def deserializer(topic: str, data: bytes | None, headers: Any) -> Any:
        return by_kind(topic, data) if data and data[0] == 0 else JsonDeserializer()(topic, data)

    with Consumer(
        bootstrap_servers=client_cluster.bootstrap,
        group_id=fresh_name("group"),
        auto_offset_reset="earliest",
        value_deserializer=deserializer,
    ) as consumer:
        consumer.subscribe([topic])
        assert [record.value for record in read(consumer, 1)] == [{"a": 1}]
        with pytest.raises(RecordDeserializationError, match=r"at offset 1 .*Schema 999 not found") as refused:
            read(consumer, 1)
        assert isinstance(refused.value.__cause__, SchemaNotFoundError)
        (partition,) = [tp for tp in consumer.assignment() if tp.partition == refused.value.partition]
        consumer.seek(partition, refused.value.offset + 1)
        assert [record.value for record in read(consumer, 1)] == [{"a": 2}]


def test_confluents_clients_and_ours_read_each_other(
    client_cluster: BrokerProcess,
    local_registry: LocalRegistry,
    fresh_name: FreshName,
    consume: Callable[..., list[tuple[Any, Any]]],
) -> None:
    ours, theirs = fresh_name("ours"), fresh_name("theirs")
    registry = SchemaRegistry(local_registry.url)
    with SchemaRegistryClient({"url": local_registry.url}) as their_client:
        serializing = SerializingProducer(
            {
                "bootstrap.servers": client_cluster.bootstrap,
                "log_level": 0,
                "key.serializer": TheirStringSerializer(),
                "value.serializer": TheirAvroSerializer(their_client, SCHEMA, conf=BY_TOPIC),
            }
        )
        for cents in range(10):
            serializing.produce(theirs, key=str(cents), value={"product": "tea", "cents": cents})
        assert serializing.flush(DEADLINE_S) == 0
        expected = [(str(cents), {"product": "tea", "cents": cents}) for cents in range(10)]
        deserializers = {"key_deserializer": StringDeserializer(), "value_deserializer": AvroDeserializer(registry)}
        assert consume(theirs, 10, **deserializers) == expected

        with Producer(
            bootstrap_servers=client_cluster.bootstrap,
            key_serializer=StringSerializer(),
            value_serializer=AvroSerializer[Price](registry, SCHEMA),
        ) as producer:
            for cents in range(10):
                producer.send(ours, Price("tea", cents), key=str(cents)).result(DEADLINE_S)
        deserializing = DeserializingConsumer(
            {
                "bootstrap.servers": client_cluster.bootstrap,
                "log_level": 0,
                "group.id": fresh_name("group"),
                "auto.offset.reset": "earliest",
                "key.deserializer": TheirStringDeserializer(),
                "value.deserializer": TheirAvroDeserializer(their_client, conf=BY_TOPIC),
            }
        )
        deserializing.subscribe([ours])
        messages: list[Any] = [deserializing.poll(DEADLINE_S) for _ in range(10)]
        deserializing.close()
        assert sorted((message.key(), message.value()) for message in messages if message is not None) == expected


def test_json_of_a_record_without_headers(
    client_cluster: BrokerProcess, fresh_name: FreshName, consume: Callable[..., list[tuple[Any, Any]]]
) -> None:
    topic = fresh_name("json")
    with Producer(bootstrap_servers=client_cluster.bootstrap, value_serializer=JsonSerializer()) as producer:
        producer.send(topic, [1, None, {"a": 2}], headers=[("h", b"1")]).result(DEADLINE_S)
        producer.send(topic, "text").result(DEADLINE_S)
    assert consume(topic, 2, value_deserializer=JsonDeserializer()) == [(None, "text"), (None, [1, None, {"a": 2}])]
