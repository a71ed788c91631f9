"""What consumers of all families read at each isolation level of committed, aborted and open transactions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import aiokafka
import confluent_kafka
import kafka
import pytest

from tidelog.testing import Broker

TOPIC = "mixed"
WAIT_S = 30.0
EVERYTHING = [b"plain", b"committed 1", b"committed 2", b"aborted", b"between", b"open", b"behind"]
COMMITTED = [b"plain", b"committed 1", b"committed 2", b"between"]
END_OFFSET = 9  # seven records and two markers
LAST_STABLE_OFFSET = 7


class Transactions:
    """A producer whose transactions have the values given."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": "writer", "log_level": 0}
        )
        self._producer.init_transactions(WAIT_S)

    def begin(self, *values: bytes) -> None:
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(TOPIC, value)
        assert self._producer.flush(WAIT_S) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker with all kinds of records; the last transaction stays open."""
    with Broker() as broker:
        broker.create_topic(TOPIC, 1)
        plain = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})

        def write(value: bytes) -> None:
            plain.produce(TOPIC, value)
            assert plain.flush(WAIT_S) == 0

        writer = Transactions(broker.bootstrap)
        write(b"plain")
        writer.begin(b"committed 1", b"committed 2")
        writer.commit()
        writer.begin(b"aborted")
        writer.abort()
        write(b"between")
        writer.begin(b"open")
        write(b"behind")
        yield broker.bootstrap
        writer.abort()


def read_with_confluent(bootstrap: str, isolation_level: str, end_offset: int) -> list[bytes | None]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "confluent",
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    values = []
    deadline_s = time.monotonic() + WAIT_S
    try:
        while True:
            assert time.monotonic() < deadline_s
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                values.append(message.value())
            elif message is not None:
                assert message.offset() == end_offset
                return values
    finally:
        consumer.close()


def read_with_aiokafka(bootstrap: str, isolation_level: str, end_offset: int) -> list[bytes | None]:
    async def read() -> list[bytes | None]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation_level)
        partition = aiokafka.TopicPartition(TOPIC, 0)
        values: list[bytes | None] = []
        async with asyncio.timeout(WAIT_S), consumer:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            while await consumer.position(partition) < end_offset:
                for messages in (await consumer.getmany(timeout_ms=100)).values():
                    values += [message.value for message in messages]
        return values

    return asyncio.run(read())


def read_with_kafka_python(bootstrap: str, isolation_level: str, end_offset: int) -> list[bytes | None]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation_level)
    partition = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    values: list[bytes | None] = []
    deadline_s = time.monotonic() + WAIT_S
    try:
        while consumer.position(partition) < end_offset:
            assert time.monotonic() < deadline_s
            for messages in consumer.poll(timeout_ms=100).values():
                values += [message.value for message in messages]
    finally:
        consumer.close()
    return values


@pytest.mark.parametrize("read", [read_with_confluent, read_with_aiokafka, read_with_kafka_python])
def test_what_is_read_at_each_isolation_level(
    bootstrap: str, read: Callable[[str, str, int], list[bytes | None]]
) -> None:
    """Behaviours 38, 57: read_committed ends before the open transaction, also for what belongs to none."""
    assert read(bootstrap, "read_uncommitted", END_OFFSET) == EVERYTHING
    assert read(bootstrap, "read_committed", LAST_STABLE_OFFSET) == COMMITTED
