"""The broker is killed with -9 while it compacts: of every key the last value stays, and nothing comes back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tidelog.log.inspect import verify

if TYPE_CHECKING:
    from tests.chaos.conftest import ServedBroker, StartServed

TOPIC = "table"
KEYS = 300
WAIT_S = 60.0
SETTINGS = {
    "log.cleaner.backoff.ms": 50,
    # A segment is compacted once it is flushed.
    "log.flush.scheduler.interval.ms": 50,
    # Slow enough that most of the time something is being rewritten.
    "log.cleaner.io.max.bytes.per.second": 4_000_000,
}
CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "60000",
    "delete.retention.ms": "200",
    "file.delete.delay.ms": "100",
}
WaitUntil = Callable[[Callable[[], bool], str], None]


class Table:
    """Keys that are written again and again, by one idempotent producer that outlives every broker."""

    def __init__(self, bootstrap: str, source: random.Random) -> None:
        self._source = source
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.size": 8_000,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "socket.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        self.written: dict[int, tuple[bytes | None, bytes | None]] = {}
        self.last: dict[bytes, bytes | None] = {}
        self._number = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            key = b"key-%d" % self._source.randrange(KEYS)
            self._number += 1
            value = None if self._number % 10 == 0 else b"value-%d-" % self._number + b"x" * 40
            self._producer.produce(TOPIC, value, key=key, on_delivery=self._on_delivery)
            self.last[key] = value
        self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset is not None
        self.written[offset] = message.key(), message.value()

    def send_for(self, duration_s: float) -> None:
        self._producer.poll(duration_s)

    def flush(self) -> None:
        assert self._producer.flush(WAIT_S) == 0, "records were left without an answer"


def read_all(bootstrap: str) -> dict[int, tuple[bytes | None, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    rows: dict[int, tuple[bytes | None, bytes | None]] = {}
    deadline_s = time.monotonic() + WAIT_S
    try:
        while time.monotonic() < deadline_s:
            for message in consumer.consume(5_000, timeout=0.2):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return rows
                offset = message.offset()
                assert offset is not None
                assert not rows or offset > max(rows, default=-1)
                rows[offset] = message.key(), message.value()
    finally:
        consumer.close()
    raise AssertionError(f"the end was not reached after {len(rows)} records")


def is_rewriting(broker: ServedBroker) -> bool:
    directory = broker.log_dir / f"{TOPIC}-0"
    return any(directory.glob("*.cleaned")) or any(directory.glob("*.swap"))


@pytest.mark.parametrize("kills", [pytest.param(10, id="ten kills"), pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.timeout(1200)
def test_kills_while_compacting_lose_no_key(serve: StartServed, wait_until: WaitUntil, kills: int) -> None:
    source = random.Random(kills)
    broker = serve(SETTINGS)
    broker.create_topic(TOPIC, 1, CONFIGS)
    table = Table(broker.bootstrap, source)
    interrupted = 0
    for _ in range(kills):
        table.write(3_000)
        table.flush()
        wait_until(lambda: is_rewriting(broker), "the cleaner is at work")
        # Somewhere in the middle of it, with more on its way.
        table.write(source.randrange(200))
        table.send_for(source.random() * 0.05)
        interrupted += is_rewriting(broker)
        broker.kill()
        broker.start()
    table.flush()
    assert interrupted > kills // 3, "most kills came too late"

    def last_values() -> dict[bytes | None, bytes | None]:
        return {key: value for _, (key, value) in sorted(rows.items())}

    rows = read_all(broker.bootstrap)
    assert rows.items() <= table.written.items(), "a record that was never written, or not at that offset"
    expected = {key: value for key, value in table.last.items() if value is not None}
    assert {key: value for key, value in last_values().items() if value is not None} == expected
    assert len(rows) < len(table.written)
    # The broker goes on compacting, and what is left in the end is no more than it must be.
    table.write(3_000)
    table.flush()

    def is_compacted() -> bool:
        """How many records the active segment takes is another matter: it may be nearly full."""
        active = max(int(path.stem) for path in (broker.log_dir / f"{TOPIC}-0").glob("*.log"))
        return sum(offset < active for offset in read_all(broker.bootstrap)) <= KEYS

    wait_until(is_compacted, "all but the active segment is compacted")
    broker.stop()
    assert list(verify(broker.log_dir / f"{TOPIC}-0")) == []
    assert "Traceback" not in broker.output()
