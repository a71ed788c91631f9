"""The broker is killed with -9 while it deletes old segments: nothing comes back, and nothing that is kept is lost."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, Message, Producer

from tidelog.client.admin import Admin, OffsetSpec
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.types import TopicPartition
from tidelog.log.checkpoints import LOG_START_OFFSET_FILE, read_offsets
from tidelog.protocol.config_values import ConfigResource

if TYPE_CHECKING:
    from tests.chaos.conftest import StartServed

TOPIC = "bounded"
PARTITION = TopicPartition(TOPIC, 0)
WAIT_S = 60.0
SETTINGS = {"log.retention.check.interval.ms": 20, "log.initial.task.delay.ms": 0}
CONFIGS = {"segment.bytes": "20000", "retention.bytes": "60000", "file.delete.delay.ms": "0"}


def bounds(bootstrap: str) -> tuple[int, int]:
    with Admin(bootstrap_servers=bootstrap) as admin:
        first = admin.list_offsets({PARTITION: OffsetSpec.EARLIEST})[PARTITION]
        return first.offset, admin.list_offsets({PARTITION: OffsetSpec.LATEST})[PARTITION].offset


def written_start(log_dir: Path) -> int:
    """Where the log starts, as far as it is written down."""
    return read_offsets(log_dir / LOG_START_OFFSET_FILE).get((TOPIC, 0), 0)


def test_deletion_survives_being_killed(serve: StartServed) -> None:
    broker = serve(SETTINGS)
    broker.create_topic(TOPIC, 1, CONFIGS)
    acknowledged: dict[int, bytes] = {}

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert value is not None
        acknowledged[offset] = value

    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.size": 5_000,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    rng = random.Random(41)
    seen_start = seen_written = 0
    for _ in range(4):
        end_s = time.monotonic() + rng.uniform(0.3, 0.9)
        while time.monotonic() < end_s:
            for _ in range(20):
                producer.produce(TOPIC, b"%d " % rng.getrandbits(60) * 20, on_delivery=on_delivery)
            producer.poll(0.01)
        # What clients were told is held against what they are told after the kill.
        known_start, _ = bounds(broker.bootstrap)
        written = written_start(broker.log_dir)
        broker.kill()
        broker.start()
        assert producer.flush(WAIT_S) == 0
        start, end = bounds(broker.bootstrap)
        assert start >= written >= seen_written
        assert end > max(acknowledged)
        assert start <= end
        seen_start, seen_written = max(seen_start, known_start), written
    assert seen_start > 0, "nothing was deleted"

    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        # Nothing shall go while it is read.
        admin.incremental_alter_configs({ConfigResource.topic(TOPIC): {"retention.bytes": -1}}).raise_for_errors()
    read: dict[int, bytes] = {}
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([PARTITION])
        end = consumer.end_offsets([PARTITION])[PARTITION]
        while consumer.position(PARTITION) < end:
            read |= {record.offset: record.value for record in consumer.poll()}
    first = min(read)
    assert {offset: value for offset, value in acknowledged.items() if offset >= first}.items() <= read.items()
    assert sorted(read) == list(range(first, max(read) + 1)), "a gap"
