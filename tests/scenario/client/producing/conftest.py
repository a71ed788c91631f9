"""Topics to write to, and a reader that shares no code with the producer: librdkafka's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import confluent_kafka
import pytest

from tidelog import Admin
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.admin.types import NewTopic

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Stored:
    """A record as another client reads it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


MakeTopic = Callable[..., str]
ReadTopic = Callable[..., list[Stored]]


@pytest.fixture
def make_topic(client_cluster: BrokerProcess, fresh_name: Callable[[str], str]) -> MakeTopic:
    def make(word: str = "topic", partitions: int = 1, **configs: str) -> str:
        name = fresh_name(word)
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        with Admin(bootstrap_servers=client_cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(name, partitions, configs=settings)])[name]
        return name

    return make


@pytest.fixture
def read_topic(client_cluster: BrokerProcess) -> Iterator[ReadTopic]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": client_cluster.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )

    def read(topic: str, partitions: int = 1) -> list[Stored]:
        found = []
        for partition in range(partitions):
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
            deadline_s = time.monotonic() + DEADLINE_S
            while True:
                assert time.monotonic() < deadline_s, "the topic could not be read in time"
                message = consumer.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                    break
                found.append(
                    Stored(
                        message.partition() or 0,
                        message.offset() or 0,
                        message.key(),
                        message.value(),
                        tuple(message.headers() or ()),  # type: ignore[arg-type]  # values are bytes when they are read
                        message.timestamp()[1],
                    )
                )
        return found

    yield read
    consumer.close()
