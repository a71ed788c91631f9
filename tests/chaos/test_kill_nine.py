"""The broker is killed with -9 under load, again and again: nothing acknowledged may be lost or doubled."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

if TYPE_CHECKING:
    from tests.chaos.conftest import StartServed

PARTITIONS = 4
WAIT_S = 60.0
# A fifth of what the client's queue holds.
OUTSTANDING_MAX = 20_000


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
                "batch.size": 16_000,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 10_000,
                "log_level": 0,  # it says a line about every broken connection, of which there are many here
            }
        )
        self.sent = [0] * PARTITIONS
        self.acknowledged: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.failures: list[str] = []

    def send(self, count: int) -> None:
        """Hand over as many records, unless too many are on their way already: then wait a little for answers."""
        if len(self._producer) > OUTSTANDING_MAX:
            self._producer.poll(0.05)
            return
        for _ in range(count):
            partition = min(range(PARTITIONS), key=self.sent.__getitem__)
            value = b"%d" % self.sent[partition]
            # The key is there for the topics that are compacted; every record has its own, so that all stay.
            self._producer.produce(self._topic, value, key=value, partition=partition, on_delivery=self._on_delivery)
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
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "auto.offset.reset": "error",
            # Nothing is committed: whoever commits at the end waits for a coordinator.
            "enable.auto.commit": False,
        }
    )
    try:
        asked = TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(asked, timeout=WAIT_S)
        consumer.assign([asked])
        read: list[tuple[int, int]] = []
        deadline = time.monotonic() + WAIT_S
        while not read or read[-1][0] < end - 1:
            assert time.monotonic() < deadline, f"partition {partition} stopped at {len(read)} of {end}"
            # It waits for as many as it is asked for, so the time is short: the last ones are fewer.
            for message in consumer.consume(5_000, timeout=0.2):
                assert message.error() is None, message.error()
                _, offset, number = numbers_of(message)
                read.append((offset, number))
        return read
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("kills", "configs"),
    [
        pytest.param(20, {}, id="twenty kills"),
        # Small segments are rolled, flushed and recovered while the process dies.
        pytest.param(6, {"segment.bytes": "50000", "index.interval.bytes": "100"}, id="small segments"),
        pytest.param(4, {"flush.messages": "1"}, id="flush before every answer"),
        pytest.param(4, {"compression.type": "zstd", "cleanup.policy": "compact,delete"}, id="opened batches"),
        pytest.param(300, {"segment.bytes": "100000"}, id="three hundred kills", marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(1200)
def test_nothing_acknowledged_is_lost_or_doubled(serve: StartServed, kills: int, configs: dict[str, str]) -> None:
    source = random.Random(kills)
    broker = serve()
    broker.create_topic("load", PARTITIONS, configs)
    load = Load(broker.bootstrap, "load")
    for _ in range(kills):
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
    assert "Traceback" not in broker.output()
