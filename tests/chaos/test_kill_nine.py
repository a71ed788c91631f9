"""The broker is killed with -9 under load, twenty times in a row: nothing acknowledged may be lost or doubled."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.bench.brokers import TidelogBroker

KILLS = 20
PARTITIONS = 4
WAIT_S = 60.0


class Load:
    """One idempotent producer that outlives every broker, numbering its records a partition at a time."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 10_000,
            }
        )
        self.sent = [0] * PARTITIONS
        self.acknowledged: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.failures: list[str] = []

    def send(self, count: int) -> None:
        for _ in range(count):
            partition = min(range(PARTITIONS), key=self.sent.__getitem__)
            value = b"%d" % self.sent[partition]
            self._producer.produce(self._topic, value, partition=partition, on_delivery=self._on_delivery)
            self.sent[partition] += 1
        self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        partition, offset, number = numbers_of(message)
        self.acknowledged[partition].append((offset, number))

    def acknowledged_count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def finish(self) -> None:
        assert self._producer.flush(WAIT_S) == 0, "records were left without an answer"
        assert not self.failures, self.failures[:3]


def numbers_of(message: Message) -> tuple[int, int, int]:
    """Partition, offset and the number that the record carries."""
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert value is not None
    return partition, offset, int(value)


def read_all(bootstrap: str, topic: str, partition: int) -> list[tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "error"})
    try:
        asked = TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(asked, timeout=WAIT_S)
        consumer.assign([asked])
        read: list[tuple[int, int]] = []
        while not read or read[-1][0] < end - 1:
            messages = consumer.consume(5_000, timeout=WAIT_S)
            assert messages, f"partition {partition} stopped at {len(read)} of {end}"
            for message in messages:
                assert message.error() is None, message.error()
                _, offset, number = numbers_of(message)
                read.append((offset, number))
        return read
    finally:
        consumer.close()


def test_twenty_kills_in_a_row(tmp_path: Path) -> None:
    source = random.Random(20)
    broker = TidelogBroker(tmp_path / "broker")
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("load", PARTITIONS, 1)])["load"].result(WAIT_S)
        load = Load(broker.bootstrap, "load")
        for _ in range(KILLS):
            goal = load.acknowledged_count() + source.randrange(100, 4_000)
            deadline = time.monotonic() + WAIT_S
            while load.acknowledged_count() < goal:
                load.send(200)
                assert time.monotonic() < deadline, "the load stands still"
            # More is on its way while the process dies.
            load.send(source.randrange(1_000))
            broker.kill()
            broker.start()
        load.finish()
        for partition in range(PARTITIONS):
            read = read_all(broker.bootstrap, "load", partition)
            assert [number for _, number in read] == list(range(load.sent[partition])), f"partition {partition}"
            assert dict(load.acknowledged[partition]).items() <= dict(read).items()
    finally:
        broker.kill()
