"""What the features page promises, shown with librdkafka as the client and a look at the broker's files and state."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tidelog.log import PartitionLog
from tidelog.log.inspect import BatchRow, dump
from tidelog.server.server import BrokerServer
from tidelog.testing import Broker, VirtualClock

WAIT_S = 30.0

WaitUntil = Callable[[Callable[[], bool], str], None]


class Client:
    """librdkafka against one broker, with the few calls these tests need."""

    def __init__(self, broker: Broker) -> None:
        self._settings: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap, "log_level": 3}
        self.admin = AdminClient(self._settings)

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=named)])[topic].result(WAIT_S)

    def producer(self, **settings: str | int | float | bool) -> Producer:
        return Producer(self._settings | {name.replace("_", "."): value for name, value in settings.items()})

    def produce(self, topic: str, values: Sequence[bytes], partition: int = 0, **settings: str | int | float) -> None:
        """One after another, so that each is a batch of its own."""
        producer = self.producer(**settings)
        for value in values:
            assert self.outcome(producer, topic, value, partition) is None

    def outcome(self, producer: Producer, topic: str, value: bytes, partition: int = 0) -> int | None:
        """Send one record; the code of the error, or None."""
        outcomes: list[KafkaError | None] = []
        producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(WAIT_S) == 0
        (error,) = outcomes
        return None if error is None else error.code()

    def consumer(self) -> Consumer:
        return Consumer(
            self._settings | {"group.id": "none", "enable.auto.commit": False, "auto.offset.reset": "error"}
        )

    def read(self, topic: str, count: int, offset: int = 0, partition: int = 0) -> list[Message]:
        consumer = self.consumer()
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            read: list[Message] = []
            while len(read) < count:
                messages = consumer.consume(count - len(read), timeout=WAIT_S)
                assert messages, f"only {len(read)} of {count} records arrived"
                for message in messages:
                    assert message.error() is None, message.error()
                read += messages
            return read
        finally:
            consumer.close()

    def values(self, topic: str, count: int, offset: int = 0) -> list[bytes | None]:
        return [message.value() for message in self.read(topic, count, offset)]

    def watermarks(self, topic: str) -> tuple[int, int]:
        consumer = self.consumer()
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S)
            return low, high
        finally:
            consumer.close()


@pytest.fixture
def client(broker: Broker) -> Client:
    return Client(broker)


def partition_directory(broker: Broker, topic: str) -> Path:
    return broker.data_dir / "broker-1" / f"{topic}-0"


def log_of(broker: Broker, topic: str) -> PartitionLog:
    async def find(server: BrokerServer) -> PartitionLog:
        return server.services.replicas.find(topic, 0).log

    return broker.call(find)


def codecs_on_disk(broker: Broker, topic: str) -> list[str]:
    (log,) = partition_directory(broker, topic).glob("*.log")
    return [row.header.compression.label for row in dump(log) if isinstance(row, BatchRow)]


def test_log_append_time_is_the_brokers(start_broker: Callable[..., Broker]) -> None:
    clock = VirtualClock(start_ms=1_800_000_000_000)
    client = Client(start_broker(clock=clock))
    client.create("stamped", message_timestamp_type="LogAppendTime")
    client.produce("stamped", [b"one"])
    clock.advance(hours=1)
    client.produce("stamped", [b"two"])
    stamps = [message.timestamp()[1] for message in client.read("stamped", 2)]
    assert stamps == [1_800_000_000_000, 1_800_003_600_000]


def test_segments_are_named_by_offset_and_found_by_offset_and_time(broker: Broker, client: Client) -> None:
    client.create("cut", segment_bytes="20000", index_interval_bytes="100")
    producer = client.producer()
    values = [b"%04d" % number * 250 for number in range(100)]
    for number, value in enumerate(values):
        producer.produce("cut", value, partition=0, timestamp=1_700_000_000_000 + number * 1000)
        producer.flush(WAIT_S)
    files = sorted(path.name for path in partition_directory(broker, "cut").glob("*.log"))
    assert len(files) > 3
    bases = [int(name.removesuffix(".log")) for name in files]
    assert files == [f"{base:020d}.log" for base in bases]
    for base in bases:
        (first,) = client.read("cut", 1, offset=base)
        assert (first.offset(), first.value()) == (base, values[base])
    for suffix in (".index", ".timeindex"):
        assert (partition_directory(broker, "cut") / f"{bases[0]:020d}{suffix}").stat().st_size > 0
    consumer = client.consumer()
    for number in (0, 37, 99):
        asked = TopicPartition("cut", 0, 1_700_000_000_000 + number * 1000 - 999)
        (found,) = consumer.offsets_for_times([asked], timeout=WAIT_S)
        assert found.offset == number
    consumer.close()


def test_a_torn_tail_is_cut_off_and_lost_indexes_come_back(broker: Broker, client: Client) -> None:
    client.create("torn", index_interval_bytes="100")
    values = [b"%d" % number for number in range(50)]
    client.produce("torn", values)
    broker.crash()
    (log,) = partition_directory(broker, "torn").glob("*.log")
    whole_bytes = log.stat().st_size
    with log.open("ab") as file:
        file.write(log.read_bytes()[:40])  # a batch of which the crash left only the beginning
    for index in partition_directory(broker, "torn").glob("*index"):
        index.unlink()
    broker.start()
    assert log.stat().st_size == whole_bytes
    assert client.values("torn", 50) == values
    client.produce("torn", [b"next"])
    assert client.values("torn", 1, offset=50) == [b"next"]


def test_flush_messages_1_acknowledges_and_shows_only_what_is_on_disk(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    """Also LEO and high watermark: while the disk holds the record back, the log has it and no consumer sees it."""
    client.create("safe", flush_messages="1")
    client.produce("safe", [b"first"])
    log = log_of(broker, "safe")
    assert log.flushed_offset == log.log_end_offset == 1
    may_flush = threading.Event()
    fsync = os.fsync

    def slow_fsync(fd: int) -> None:
        assert may_flush.wait(WAIT_S)
        fsync(fd)

    monkeypatch.setattr("tidelog.log.segment.os.fsync", slow_fsync)
    answered: list[KafkaError | None] = []
    producer = client.producer()
    producer.produce("safe", b"second", partition=0, on_delivery=lambda error, _: answered.append(error))
    producer.poll(0)
    wait_until(lambda: log.log_end_offset == 2, "the record was never appended")
    assert client.watermarks("safe") == (0, 1)
    assert producer.flush(0.2) == 1
    assert answered == []
    may_flush.set()
    assert producer.flush(WAIT_S) == 0
    assert answered == [None]
    assert log.flushed_offset == 2
    assert client.values("safe", 2) == [b"first", b"second"]


def test_flush_ms_flushes_by_the_clock(start_broker: Callable[..., Broker], wait_until: WaitUntil) -> None:
    clock = VirtualClock()
    settings = {"log.flush.interval.ms": 5_000, "log.flush.scheduler.interval.ms": 1_000}
    broker = start_broker(clock=clock, settings=settings)
    client = Client(broker)
    client.create("timed")
    client.produce("timed", [b"x"])
    log = log_of(broker, "timed")
    clock.advance(seconds=1)
    assert (log.log_end_offset, log.flushed_offset) == (1, 0)
    clock.advance(seconds=5)
    wait_until(lambda: log.flushed_offset == 1, "the log was never flushed")


@pytest.fixture
def sendfile_bytes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what goes from file to socket inside the kernel."""
    counted: Counter[str] = Counter()
    sendfile = os.sendfile

    def counting(out_fd: int, in_fd: int, offset: int, count: int) -> int:
        sent = sendfile(out_fd, in_fd, offset, count)
        counted["sent"] += sent
        return sent

    monkeypatch.setattr("tidelog.broker.outgoing.os.sendfile", counting)
    return counted


def test_reads_go_by_sendfile(client: Client, sendfile_bytes: Counter[str]) -> None:
    client.create("big")
    values = [os.urandom(100_000) for _ in range(50)]
    client.produce("big", values)
    assert client.values("big", 50) == values
    assert sendfile_bytes["sent"] > 50 * 100_000


def test_indexes_are_memory_mapped(client: Client) -> None:
    client.create("mapped", segment_bytes="100000", index_interval_bytes="1000")
    values = [os.urandom(30_000) for _ in range(20)]
    client.produce("mapped", values)
    # From the middle: the batch is found by the index of an older segment.
    assert client.values("mapped", 10, offset=10) == values[10:]
    mapped = {
        Path(line.split()[-1]).parent.name
        for line in Path("/proc/self/maps").read_text().splitlines()
        if ".index" in line
    }
    assert "mapped-0" in mapped


def test_the_producers_compression_is_kept_unless_the_topic_has_its_own(broker: Broker, client: Client) -> None:
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    value = b"the same words again and again " * 30
    client.create("kept")
    client.create("squeezed", compression_type="zstd")
    for codec in codecs:
        client.produce("kept", [value], compression_type=codec)
        client.produce("squeezed", [value], compression_type=codec)
    assert codecs_on_disk(broker, "kept") == codecs
    assert codecs_on_disk(broker, "squeezed") == ["zstd"] * len(codecs)
    assert client.values("kept", 5) == client.values("squeezed", 5) == [value] * 5


def test_a_broker_holds_two_thousand_partitions(broker: Broker, client: Client) -> None:
    partitions = 2_000
    client.create("wide", partitions)
    producer = client.producer(linger_ms=5)
    failures: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    for partition in range(partitions):
        producer.produce("wide", b"%d" % partition, partition=partition, on_delivery=on_delivery)
    assert producer.flush(WAIT_S) == 0
    assert failures == []
    broker.stop()
    broker.start()
    consumer = client.consumer()
    consumer.assign([TopicPartition("wide", partition, 0) for partition in range(partitions)])
    read: dict[int | None, bytes | None] = {}
    deadline_s = time.monotonic() + WAIT_S
    while len(read) < partitions:
        assert time.monotonic() < deadline_s, f"{len(read)} of {partitions} partitions were read"
        read |= {message.partition(): message.value() for message in consumer.consume(1000, timeout=1)}
    consumer.close()
    assert read == {partition: b"%d" % partition for partition in range(partitions)}


def test_deleted_records_stay_deleted(broker: Broker, client: Client) -> None:
    client.create("short")
    client.produce("short", [b"%d" % number for number in range(10)])
    deleted = client.admin.delete_records([TopicPartition("short", 0, 7)])
    assert [future.result(WAIT_S).low_watermark for future in deleted.values()] == [7]
    broker.crash()
    broker.start()
    assert client.watermarks("short") == (7, 10)
    assert client.values("short", 3, offset=7) == [b"7", b"8", b"9"]


def test_a_topic_made_anew_is_another_topic(broker: Broker, client: Client, wait_until: WaitUntil) -> None:
    client.create("again")
    client.produce("again", [b"old"] * 3)
    old_id = log_of(broker, "again").topic_id
    client.admin.delete_topics(["again"])["again"].result(WAIT_S)
    client.create("again")
    assert log_of(broker, "again").topic_id != old_id
    fresh = Client(broker)  # the other one may still believe in the old topic
    wait_until(lambda: fresh.watermarks("again") == (0, 0), "the new topic is not empty")
    fresh.produce("again", [b"new"])
    assert fresh.values("again", 1) == [b"new"]


def test_settings_of_a_topic_change_while_it_runs(client: Client) -> None:
    client.create("tuned")
    producer = client.producer(message_max_bytes=3_000_000)
    assert client.outcome(producer, "tuned", b"x" * 2_000_000) == KafkaError.MSG_SIZE_TOO_LARGE
    entry = ConfigEntry("max.message.bytes", "2500000", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, "tuned", incremental_configs=[entry])
    client.admin.incremental_alter_configs([change])[change].result(WAIT_S)
    assert client.outcome(producer, "tuned", b"x" * 2_000_000) is None


def test_leo_and_high_watermark_count_records(client: Client) -> None:
    client.create("counted")
    assert client.watermarks("counted") == (0, 0)
    client.produce("counted", [b"%d" % number for number in range(10)])
    assert client.watermarks("counted") == (0, 10)
    assert [message.offset() for message in client.read("counted", 10)] == list(range(10))


def test_min_insync_replicas_binds_acks_all_only(client: Client) -> None:
    client.create("strict", min_insync_replicas="2")
    assert client.outcome(client.producer(acks="all", retries=0), "strict", b"x") == KafkaError.NOT_ENOUGH_REPLICAS
    assert client.outcome(client.producer(acks=1), "strict", b"x") is None
    assert client.watermarks("strict") == (0, 1)
