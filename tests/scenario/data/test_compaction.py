"""Compacted topics as clients see them, with a clock that the test turns: a day takes seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from tidelog.client.admin import Admin
from tidelog.log import PartitionLog
from tidelog.protocol.config_values import ConfigResource
from tidelog.server.server import BrokerServer
from tidelog.testing import Broker, VirtualClock

WAIT_S = 30.0
HOUR_MS = 3_600_000
TOPIC = "table"
WaitUntil = Callable[[Callable[[], bool], str], None]
Row = tuple[int, bytes | None, bytes | None]
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "2000",
    "message.timestamp.type": "LogAppendTime",
    "file.delete.delay.ms": "0",
}


class Compacted:
    """A broker whose time the test turns, and one topic of it."""

    def __init__(self, broker: Broker, clock: VirtualClock, wait_until: WaitUntil) -> None:
        self.broker = broker
        self.clock = clock
        self.wait_until = wait_until
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 2, "enable.idempotence": True})

    def create(self, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        self.broker.create_topic(TOPIC, configs=COMPACTED | named)

    def produce(self, rows: Sequence[tuple[bytes | None, bytes | None]]) -> list[int]:
        """Their offsets, each in a batch with whatever the client puts beside it."""
        offsets: list[int | None] = []
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            offsets.append(message.offset())
            errors.extend([error] if error is not None else [])

        for key, value in rows:
            self._producer.produce(TOPIC, value, key=key, on_delivery=delivered)
            self._producer.flush(WAIT_S)
        assert errors == []
        assert len(offsets) == len(rows)
        return [offset for offset in offsets if offset is not None]

    def alter(self, setting: str, value: str) -> None:
        with Admin(bootstrap_servers=self.broker.bootstrap) as admin:
            admin.incremental_alter_configs({ConfigResource.topic(TOPIC): {setting: value}}).raise_for_errors()

    def look(self, read: Callable[[PartitionLog], object]) -> object:
        async def on_loop(server: BrokerServer) -> object:
            log = server.services.logs.get(TOPIC, 0)
            assert log is not None
            return read(log)

        return self.broker.call(on_loop)

    def compact(self) -> None:
        """Close the segment that is written to and let the cleaner clean, without any time passing."""

        async def on_loop(server: BrokerServer) -> None:
            log = server.services.logs.get(TOPIC, 0)
            assert log is not None
            log.roll()
            await asyncio.to_thread(log.flush)
            cleaner = server.services.logs.cleaner
            while True:
                dirty = log.first_dirty_offset
                await cleaner.run()
                # The broker's own turn may be at it already.
                if not cleaner.is_cleaning(log) and log.first_dirty_offset == dirty:
                    return
                await asyncio.sleep(0.001)

        self.broker.call(on_loop)

    def rows(self) -> list[Row]:
        """All records, as confluent-kafka gives them."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 2,
            }
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        rows: list[Row] = []
        deadline_s = time.monotonic() + WAIT_S
        try:
            while time.monotonic() < deadline_s:
                message = consumer.poll(1)
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return rows
                offset = message.offset()
                assert offset is not None
                rows.append((offset, message.key(), message.value()))
        finally:
            consumer.close()
        raise AssertionError("the end of the partition was not reached")


@pytest.fixture
def compacted(start_broker: Callable[..., Broker], wait_until: WaitUntil) -> Compacted:
    clock = VirtualClock()
    return Compacted(start_broker(clock), clock, wait_until)


def test_a_broker_compacts_by_itself(compacted: Compacted) -> None:
    """Behaviour 42: the last value of every key stays, at its offset, and nobody has to ask for it."""
    compacted.create()
    offsets = compacted.produce([(b"key-%d" % (number % 7), b"value-%d" % number * 10) for number in range(200)])
    assert offsets == list(range(200))
    active = compacted.look(lambda log: log.segments[-1].base_offset)
    assert isinstance(active, int)
    assert 150 < active < 200
    deadline_s = time.monotonic() + WAIT_S
    while compacted.look(lambda log: log.first_dirty_offset) != active:
        assert time.monotonic() < deadline_s
        compacted.clock.advance(seconds=15)
    rows = compacted.rows()
    assert [row for row in rows if row[0] >= active] == [
        (number, b"key-%d" % (number % 7), b"value-%d" % number * 10) for number in range(active, 200)
    ]
    cleaned = [row for row in rows if row[0] < active]
    assert cleaned == [
        (number, b"key-%d" % (number % 7), b"value-%d" % number * 10) for number in range(active - 7, active)
    ]


def test_tombstones_go_after_a_day(compacted: Compacted) -> None:
    compacted.create(delete_retention_ms=str(24 * HOUR_MS))
    compacted.produce([(b"a", b"1"), (b"b", b"1"), (b"a", None), (b"c", b"1")])
    compacted.compact()
    assert compacted.rows() == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    for hours, offset in ((12, 4), (11, 5), (1, 6)):
        compacted.clock.advance(hours=hours)
        compacted.produce([(b"tick", b"%d" % offset)])
        compacted.compact()
        tombstone: list[Row] = [(2, b"a", None)] if offset < 6 else []
        assert compacted.rows() == [(1, b"b", b"1"), *tombstone, (3, b"c", b"1"), (offset, b"tick", b"%d" % offset)]


def test_a_restart_changes_nothing(compacted: Compacted) -> None:
    compacted.create()
    compacted.produce([(b"key-%d" % (number % 3), b"%d" % number) for number in range(30)])
    compacted.compact()
    before = compacted.rows()
    assert [row[0] for row in before] == [27, 28, 29]
    compacted.broker.crash()
    compacted.broker.start()
    assert compacted.rows() == before
    compacted.broker.stop()
    compacted.broker.start()
    assert compacted.rows() == before
    # The idempotent producer goes on with its next sequence, though most of its batches are gone.
    assert compacted.produce([(b"key-0", b"more")]) == [30]
    assert compacted.look(lambda log: log.first_dirty_offset) == 30


def test_young_records_wait_for_the_lag(compacted: Compacted) -> None:
    compacted.create(min_compaction_lag_ms=str(24 * HOUR_MS))
    compacted.produce([(b"a", b"1"), (b"a", b"2")])
    compacted.compact()
    compacted.clock.advance(hours=23)
    compacted.compact()
    assert [row[0] for row in compacted.rows()] == [0, 1]
    compacted.clock.advance(hours=1)
    compacted.compact()
    assert [row[0] for row in compacted.rows()] == [1]


def test_the_longest_lag_ends_a_quiet_segment_and_compacts_it(compacted: Compacted) -> None:
    compacted.create(max_compaction_lag_ms=str(24 * HOUR_MS), min_cleanable_dirty_ratio="1.0")
    compacted.produce([(b"a", b"1"), (b"a", b"2")])
    compacted.clock.advance(hours=23)
    assert [row[0] for row in compacted.rows()] == [0, 1]
    compacted.clock.advance(hours=1)
    deadline_s = time.monotonic() + WAIT_S
    while compacted.look(lambda log: log.first_dirty_offset) != 2:
        assert time.monotonic() < deadline_s
        compacted.clock.advance(seconds=15)
    assert [row[0] for row in compacted.rows()] == [1]


def test_compaction_and_deletion_together(compacted: Compacted) -> None:
    compacted.create(cleanup_policy="compact,delete", retention_ms=str(24 * HOUR_MS))
    compacted.produce([(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
    compacted.compact()
    assert [row[0] for row in compacted.rows()] == [1, 2]
    compacted.clock.advance(hours=25)
    compacted.produce([(b"c", b"1")])
    compacted.clock.advance(minutes=5)
    compacted.wait_until(lambda: compacted.look(lambda log: log.log_start_offset) == 3, "what is a day old has gone")
    assert compacted.rows() == [(3, b"c", b"1")]


def test_records_without_a_key_go_when_a_topic_becomes_compacted(compacted: Compacted) -> None:
    compacted.create(cleanup_policy="delete")
    compacted.produce([(None, b"1"), (b"a", b"1"), (None, b"2"), (b"a", b"2"), (b"b", b"1")])
    compacted.alter("cleanup.policy", "compact")
    compacted.compact()
    assert compacted.rows() == [(3, b"a", b"2"), (4, b"b", b"1")]


@pytest.fixture
def full_of_gaps(compacted: Compacted, monkeypatch: pytest.MonkeyPatch) -> tuple[Compacted, list[Row]]:
    """A topic with gaps, emptied batches at the ends of segments, and a gap right before its end."""
    monkeypatch.setattr("tidelog.log.cleaner_choice.RUN_SEGMENTS_MAX", 1)
    compacted.create(segment_bytes="150")
    rows = [(b"key-%d" % (number % 5), b"value-%d" % number) for number in range(100)]
    compacted.produce([*rows, (b"gone", None), (b"gone", b"1"), (b"gone", b"2"), (b"last", b"1")])
    compacted.compact()
    left: list[Row] = [(number, *rows[number]) for number in range(95, 100)]
    return compacted, [*left, (102, b"gone", b"2"), (103, b"last", b"1")]


def test_clients_read_over_gaps(full_of_gaps: tuple[Compacted, list[Row]]) -> None:
    compacted, expected = full_of_gaps
    assert compacted.rows() == expected
    empty = compacted.look(
        lambda log: sum(not header.records_count for segment in log.segments for _, header in segment.headers())
    )
    assert isinstance(empty, int)
    # More than librdkafka takes, which doubles what it asks for whenever it gets no message.
    assert empty > 90
    assert read_with_kafka_python(compacted.broker.bootstrap, len(expected)) == expected
    assert asyncio.run(read_with_aiokafka(compacted.broker.bootstrap, len(expected))) == expected


def read_with_kafka_python(bootstrap: str, count: int) -> list[Row]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    try:
        partition = PythonTopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        rows: list[Row] = []
        deadline_s = time.monotonic() + WAIT_S
        while len(rows) < count and time.monotonic() < deadline_s:
            for records in consumer.poll(timeout_ms=500).values():
                rows += [(record.offset, record.key, record.value) for record in records]
        return rows
    finally:
        consumer.close()


async def read_with_aiokafka(bootstrap: str, count: int) -> list[Row]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        partition = AioTopicPartition(TOPIC, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        rows: list[Row] = []
        deadline_s = time.monotonic() + WAIT_S
        while len(rows) < count and time.monotonic() < deadline_s:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                rows += [(record.offset, record.key, record.value) for record in records]
        return rows
    finally:
        await consumer.stop()
