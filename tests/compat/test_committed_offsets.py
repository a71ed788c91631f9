"""Consumers that assign partitions to themselves and commit: every client finds its offsets again after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiokafka
import confluent_kafka
import kafka
import pytest

from tidelog.testing import Broker

Commit = Callable[[str], None]
Read = Callable[[str], dict[int, int | None]]


def confluent_commit(bootstrap: str) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition("t", partition) for partition in (0, 1)])
    consumer.commit(offsets=[confluent_kafka.TopicPartition("t", 0, 3)], asynchronous=False)
    consumer.close()


def confluent_read(bootstrap: str) -> dict[int, int | None]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    try:
        asked = [confluent_kafka.TopicPartition("t", partition) for partition in (0, 1)]
        found = consumer.committed(asked, timeout=60)
        return {row.partition: row.offset if row.offset >= 0 else None for row in found}
    finally:
        consumer.close()


def kafka_python_commit(bootstrap: str) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id="g", enable_auto_commit=False)
    first = kafka.TopicPartition("t", 0)
    consumer.assign([first, kafka.TopicPartition("t", 1)])
    consumer.commit({first: kafka.OffsetAndMetadata(3, "mine", -1)})
    consumer.close()


def kafka_python_read(bootstrap: str) -> dict[int, int | None]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id="g", enable_auto_commit=False)
    try:
        return {partition: consumer.committed(kafka.TopicPartition("t", partition)) for partition in (0, 1)}
    finally:
        consumer.close()


def aiokafka_commit(bootstrap: str) -> None:
    async def commit() -> None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id="g", enable_auto_commit=False)
        await consumer.start()
        try:
            first = aiokafka.TopicPartition("t", 0)
            consumer.assign([first, aiokafka.TopicPartition("t", 1)])
            await consumer.commit({first: 3})
        finally:
            await consumer.stop()

    asyncio.run(commit())


def aiokafka_read(bootstrap: str) -> dict[int, int | None]:
    async def read() -> dict[int, int | None]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id="g", enable_auto_commit=False)
        await consumer.start()
        try:
            partitions = [aiokafka.TopicPartition("t", partition) for partition in (0, 1)]
            consumer.assign(partitions)
            return {partition.partition: await consumer.committed(partition) for partition in partitions}
        finally:
            await consumer.stop()

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("commit", "read"),
    [
        pytest.param(confluent_commit, confluent_read, id="confluent-kafka"),
        pytest.param(kafka_python_commit, kafka_python_read, id="kafka-python"),
        pytest.param(aiokafka_commit, aiokafka_read, id="aiokafka"),
    ],
)
def test_offsets_are_found_again(broker: Broker, commit: Commit, read: Read) -> None:
    broker.create_topic("t", partitions=2)
    commit(broker.bootstrap)
    for end in (broker.crash, broker.stop):
        end()
        broker.start()
        assert read(broker.bootstrap) == {0: 3, 1: None}
