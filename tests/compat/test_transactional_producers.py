"""Transactions of every Python client: committed ones are read, aborted ones are not, and offsets go with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import aiokafka
import confluent_kafka
import kafka
import pytest

from tidelog.testing import Broker

GROUP = "those that were read"
TIMEOUT_S = 60


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "3"}
    with Broker(settings=settings) as running:
        running.create_topic("t", partitions=2)
        yield running


def with_confluent(bootstrap: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx"})
    producer.init_transactions(TIMEOUT_S)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    for number, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce("t", f"{number}-{partition}", partition=partition)
        offsets = [confluent_kafka.TopicPartition("t", 0, number + 1)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
        end = producer.commit_transaction if commit else producer.abort_transaction
        end(TIMEOUT_S)
    consumer.close()


def with_kafka_python(bootstrap: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id="tx")
    producer.init_transactions()
    for number, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send("t", f"{number}-{partition}".encode(), partition=partition)
        offsets = {kafka.TopicPartition("t", 0): kafka.OffsetAndMetadata(number + 1, "", -1)}
        producer.send_offsets_to_transaction(offsets, GROUP)
        end = producer.commit_transaction if commit else producer.abort_transaction
        end()
    producer.close()


def with_aiokafka(bootstrap: str) -> None:
    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="tx")
        await producer.start()
        for number, commit in enumerate((True, False, True)):
            await producer.begin_transaction()
            for partition in (0, 1):
                await producer.send_and_wait("t", f"{number}-{partition}".encode(), partition=partition)
            await producer.send_offsets_to_transaction({aiokafka.TopicPartition("t", 0): number + 1}, GROUP)
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        await producer.stop()

    asyncio.run(produce())


def read_committed(bootstrap: str) -> tuple[set[str], int]:
    """All that may be read, and the offset that the group has."""
    settings = {"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer(settings | {"isolation.level": "read_committed"})
    [committed] = consumer.committed([confluent_kafka.TopicPartition("t", 0)], timeout=TIMEOUT_S)
    consumer.assign([confluent_kafka.TopicPartition("t", partition, 0) for partition in (0, 1)])
    values: set[str] = set()
    ends: set[int | None] = set()
    while len(ends) < 2:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
            ends.add(message.partition())
        else:
            value = message.value()
            assert value is not None
            values.add(value.decode())
    consumer.close()
    return values, committed.offset


@pytest.mark.parametrize("produce", [with_confluent, with_kafka_python, with_aiokafka])
def test_python_and_c_clients(broker: Broker, produce: Callable[[str], None]) -> None:
    produce(broker.bootstrap)
    assert read_committed(broker.bootstrap) == ({"0-0", "0-1", "2-0", "2-1"}, 3)


def test_a_client_that_was_replaced_is_told_so(broker: Broker) -> None:
    options = {"bootstrap.servers": broker.bootstrap, "transactional.id": "tx"}
    older, newer = confluent_kafka.Producer(options), confluent_kafka.Producer(options)
    older.init_transactions(TIMEOUT_S)
    older.begin_transaction()
    older.produce("t", "older", partition=0)
    older.flush(TIMEOUT_S)
    newer.init_transactions(TIMEOUT_S)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        older.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    newer.begin_transaction()
    for partition in (0, 1):
        newer.produce("t", "newer", partition=partition)
    newer.commit_transaction(TIMEOUT_S)
    assert read_committed(broker.bootstrap)[0] == {"newer"}
