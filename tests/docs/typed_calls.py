"""What type checkers make of the calls that programs have most of: mypy checks this file in `make lint`, pyright in
`test_public_types`. Nothing here is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_type

from tidelog import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ConsumerGroupMetadata,
    ConsumerMetrics,
    ConsumerRecord,
    DeliveryFuture,
    NewTopic,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Producer,
    ProducerMetrics,
    RecordMetadata,
    Table,
    TopicPartition,
)
from tidelog.client.admin import ConfigEntry, ConfigResource, CreatedTopic, GroupDescription, ResourceType, Results
from tidelog.client.producer.arrow_rows import StoredRows
from tidelog.client.types import PartitionMetadata, TopicMetadata
from tidelog.errors import BrokerError, ClientError, RetriableError
from tidelog.serialization import IntegerDeserializer, JsonSerializer, StringSerializer


def producing(producer: Producer) -> None:
    assert_type(producer.send("clicks", b"value", key=b"key", headers=[("a", b"b")], partition=0), DeliveryFuture)
    assert_type(producer.send("clicks").result(timeout=5), RecordMetadata)
    assert_type(producer.send("clicks").result().offset, int)
    assert_type(producer.send("clicks").exception(), ClientError | None)
    assert_type(producer.partitions_for("clicks"), tuple[PartitionMetadata, ...])
    assert_type(producer.metrics(), ProducerMetrics)
    with producer as same:
        assert_type(same, Producer)
    with producer.transaction() as nothing:
        assert_type(nothing, None)

    def on_delivery(metadata: RecordMetadata | None, error: ClientError | None) -> None: ...

    producer.send_nowait("clicks", b"value", on_delivery=on_delivery)


async def producing_in_a_loop(producer: AsyncProducer) -> None:
    async with producer as same:
        assert_type(same, AsyncProducer)
    assert_type(await producer.send("clicks", b"value"), DeliveryFuture)
    assert_type(await (await producer.send("clicks", b"value")), RecordMetadata)
    assert_type(await producer.send_and_wait("clicks", b"value"), RecordMetadata)


def rows(producer: Producer, table: object) -> None:
    future = producer.send_arrow("clicks", table)
    assert_type(future.result(), list[StoredRows])


def consuming(consumer: Consumer, partition: TopicPartition) -> None:
    assert_type(consumer.poll(1.0), list[ConsumerRecord])
    for record in consumer:
        assert_type(record, ConsumerRecord)
        assert_type(record.topic, str)
        assert_type(record.offset, int)
        assert_type(record.headers, tuple[tuple[str, bytes | None], ...])
    assert_type(consumer.assignment(), frozenset[TopicPartition])
    assert_type(consumer.position(partition), int)
    assert_type(consumer.committed([partition]), dict[TopicPartition, OffsetAndMetadata | None])
    assert_type(consumer.offsets_for_times({partition: 0}), dict[TopicPartition, OffsetAndTimestamp | None])
    assert_type(consumer.end_offsets([partition]), dict[TopicPartition, int])
    assert_type(consumer.current_lag(partition), int | None)
    assert_type(consumer.group_metadata(), ConsumerGroupMetadata)
    assert_type(consumer.list_topics(), dict[str, TopicMetadata])
    assert_type(consumer.metrics(), ConsumerMetrics)
    assert_type(consumer.commit_sync({partition: 7}), None)


async def consuming_in_a_loop(consumer: AsyncConsumer, partition: TopicPartition) -> None:
    assert_type(await consumer.poll(1.0), list[ConsumerRecord])
    async for record in consumer:
        assert_type(record, ConsumerRecord)
    assert_type(await consumer.position(partition), int)


def administering(admin: Admin) -> None:
    topic = NewTopic("clicks", partitions=3)
    assert_type(admin.create_topics([topic]), Results[str, CreatedTopic])
    assert_type(admin.create_topics([topic])["clicks"].partitions, int)
    assert_type(admin.create_topics([topic]).errors, Mapping[str, ClientError])
    assert_type(admin.list_topics(), list[TopicMetadata])
    assert_type(admin.describe_topics("clicks")["clicks"], TopicMetadata)
    assert_type(admin.describe_consumer_groups("billing")["billing"], GroupDescription)
    resource = ConfigResource(ResourceType.TOPIC, "clicks")
    assert_type(admin.describe_configs(resource)[resource], Mapping[str, ConfigEntry])


async def administering_in_a_loop(admin: AsyncAdmin) -> None:
    assert_type(await admin.list_topics(), list[TopicMetadata])


def settings() -> None:
    Producer(bootstrap_servers="127.0.0.1:9092", linger_ms=5, value_serializer=JsonSerializer())
    Producer({"bootstrap.servers": "127.0.0.1:9092"}, key_serializer=StringSerializer())
    Consumer(group_id="billing", key_deserializer=IntegerDeserializer(), isolation_level="read_committed")


def failing(error: ClientError) -> None:
    if isinstance(error, BrokerError):
        assert_type(error.subject, str | None)
    if isinstance(error, RetriableError):
        assert_type(str(error), str)


def keeping(table: Table[str, float]) -> None:
    assert_type(table["tea"], float)
    assert_type(table.snapshot(), dict[str, float])
