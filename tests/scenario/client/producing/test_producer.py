"""The synchronous producer against a broker: all ways to send, what is stored, and what is refused."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from proxied_cluster import ProxiedCluster
from tidelog import Producer
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.errors import (
    BrokerError,
    BufferFullError,
    ClientError,
    ClosedError,
    ConnectError,
    DeliveryTimeoutError,
    ForkedError,
    NoSuchPartitionError,
    RecordTooLargeError,
    RequestTimeoutError,
    SerializationError,
)
from tidelog.client.producer.accumulator import NoRoom
from tidelog.client.producer.interceptors import ProducerRecord
from tidelog.client.types import RecordMetadata
from tidelog.records.kernel_build import partition_for_key

DEADLINE_S = 60.0
NOBODY = "127.0.0.1:1"  # nothing listens there

MakeProducer = Callable[..., Producer]
MakeTopic = Callable[..., str]
ReadTopic = Callable[..., list[Any]]


@pytest.fixture
def make_producer(client_cluster: BrokerProcess, request: pytest.FixtureRequest) -> MakeProducer:
    def make(**options: Any) -> Producer:
        producer = Producer({"bootstrap.servers": client_cluster.bootstrap}, **options)
        request.addfinalizer(lambda: producer.close(0))
        return producer

    return make


# Ways to send


@pytest.mark.on_three_brokers
def test_sending_and_waiting_tells_where_the_record_is(
    make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic
) -> None:
    topic = make_topic()
    producer = make_producer()
    for number in range(3):
        metadata = producer.send(topic, b"value", key=b"key", timestamp=1_700_000_000_000 + number).result(DEADLINE_S)
        assert metadata == RecordMetadata(topic, 0, number, 1_700_000_000_000 + number, 3, 5)
    stored = read_topic(topic)
    assert [(row.offset, row.key, row.value, row.timestamp) for row in stored] == [
        (number, b"key", b"value", 1_700_000_000_000 + number) for number in range(3)
    ]


@pytest.mark.on_three_brokers
def test_fire_and_forget_stores_everything_in_order(
    make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic
) -> None:
    topic = make_topic()
    producer = make_producer()
    values = [b"%d" % number for number in range(20_000)]
    for value in values:
        producer.send_nowait(topic, value)
    producer.flush(DEADLINE_S)
    assert [row.value for row in read_topic(topic)] == values
    metrics = producer.metrics()
    assert (metrics.records_delivered, metrics.records_failed) == (20_000, 0)
    assert metrics.batches_waiting == metrics.requests_in_flight == 0
    assert metrics.buffer_available_bytes == metrics.buffer_total_bytes
    assert metrics.records_per_batch_avg > 10


def test_callbacks_are_called_on_the_producers_thread_in_order(
    make_producer: MakeProducer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    producer = make_producer()
    told: list[tuple[int, int, str]] = []

    def tell(number: int) -> Callable[[RecordMetadata | None, ClientError | None], None]:
        def on_delivery(metadata: RecordMetadata | None, error: ClientError | None) -> None:
            assert error is None
            assert metadata is not None
            told.append((number, metadata.offset, threading.current_thread().name))

        return on_delivery

    for number in range(1000):
        (producer.send if number % 2 else producer.send_nowait)(topic, b"v", on_delivery=tell(number))
    producer.flush(DEADLINE_S)
    assert [(number, offset) for number, offset, _ in told] == [(number, number) for number in range(1000)]
    assert {name for _, _, name in told} == {"tidelog-producer"}


def test_a_callback_may_send(make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic) -> None:
    topic = make_topic()
    producer = make_producer()
    again = threading.Event()

    def send_more(metadata: RecordMetadata | None, error: ClientError | None) -> None:
        producer.send_nowait(topic, b"second")
        again.set()

    producer.send_nowait(topic, b"first", on_delivery=send_more)
    assert again.wait(DEADLINE_S)
    producer.flush(DEADLINE_S)
    assert [row.value for row in read_topic(topic)] == [b"first", b"second"]


def test_nulls_empty_bytes_and_headers_come_through(
    make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic
) -> None:
    topic = make_topic()
    producer = make_producer()
    producer.send_nowait(topic)
    producer.send_nowait(topic, b"", key=b"")
    producer.send_nowait(topic, bytearray(b"array"), key=memoryview(b"view"))
    producer.send_nowait(topic, b"v", headers=[("a", b"1"), ("a", None), ("ü", b"")])
    producer.send_nowait(topic, b"v", headers={"b": b"2"})
    producer.flush(DEADLINE_S)
    stored = read_topic(topic)
    assert [(row.key, row.value) for row in stored[:3]] == [(None, None), (b"", b""), (b"view", b"array")]
    assert [row.headers for row in stored[3:]] == [(("a", b"1"), ("a", None), ("ü", b"")), (("b", b"2"),)]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_all_compressions(
    make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic, compression: str
) -> None:
    topic = make_topic()
    producer = make_producer(compression_type=compression)
    values = [b"value %d " % number * 20 for number in range(2000)]
    for value in values:
        producer.send_nowait(topic, value, headers=[("h", value[:5])])
    producer.flush(DEADLINE_S)
    assert [row.value for row in read_topic(topic)] == values
    assert (producer.metrics().compression_ratio < 0.5) is (compression != "none")


@pytest.mark.on_three_brokers
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_all_acks(make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic, acks: int | str) -> None:
    topic = make_topic()
    producer = make_producer(acks=acks)
    futures = [producer.send(topic, b"%d" % number) for number in range(500)]
    producer.flush(DEADLINE_S)
    offsets = [future.result(0).offset for future in futures]
    assert offsets == ([-1] * 500 if acks == 0 else list(range(500)))
    deadline_s = time.monotonic() + DEADLINE_S
    while len(stored := read_topic(topic)) < 500:
        assert acks == 0
        assert time.monotonic() < deadline_s
    assert [row.value for row in stored] == [b"%d" % number for number in range(500)]


# Partitions


def test_keys_go_where_kafkas_clients_send_them(
    make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic
) -> None:
    topic = make_topic(partitions=5)
    producer = make_producer()
    keys = [random.randbytes(random.randrange(20)) for _ in range(500)]
    for key in keys:
        producer.send_nowait(topic, b"v", key=key)
    producer.flush(DEADLINE_S)
    for row in read_topic(topic, 5):
        assert row.key is not None
        assert row.partition == partition_for_key(row.key, 5)


def test_keyless_records_are_spread_in_whole_batches(
    make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic
) -> None:
    topic = make_topic(partitions=4)
    producer = make_producer(batch_size=2000)
    for number in range(20_000):
        producer.send_nowait(topic, b"%05d" % number)
    producer.flush(DEADLINE_S)
    counts = Counter(row.partition for row in read_topic(topic, 4))
    assert set(counts) == {0, 1, 2, 3}
    assert sum(counts.values()) == 20_000
    assert min(counts.values()) > 2000


def test_own_partitioners(make_producer: MakeProducer, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    turns = make_producer(partitioner_class="round_robin")
    futures = [turns.send(topic, b"v", key=b"same") for _ in range(9)]
    assert Counter(future.result(DEADLINE_S).partition for future in futures) == {0: 3, 1: 3, 2: 3}
    own = make_producer(partitioner_class=lambda topic, key, value, partitions: int(value) % partitions)
    futures = [own.send(topic, b"%d" % number) for number in range(6)]
    assert [future.result(DEADLINE_S).partition for future in futures] == [0, 1, 2, 0, 1, 2]
    assert own.send(topic, b"0", partition=2).result(DEADLINE_S).partition == 2


def test_a_partition_that_is_not_there_is_refused(make_producer: MakeProducer, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    producer = make_producer(max_block_ms=300)
    assert producer.send(topic, b"v", partition=1).result(DEADLINE_S).partition == 1
    with pytest.raises(
        NoSuchPartitionError, match=r"no partition 2; it has 0 to 1 \(2 partitions\); waited .*topics alter"
    ):
        producer.send(topic, b"v", partition=2)
    with pytest.raises(NoSuchPartitionError, match="has no partition -1"):
        producer.send(topic, b"v", partition=-1)


@pytest.mark.on_three_brokers
def test_partitions_for(make_producer: MakeProducer, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=3)
    rows = make_producer().partitions_for(topic)
    assert [row.partition for row in rows] == [0, 1, 2]
    assert all(row.leader_id in row.replicas for row in rows)


# What is refused


def test_what_is_not_bytes_needs_a_serializer(make_producer: MakeProducer, make_topic: MakeTopic) -> None:
    topic = make_topic()
    producer = make_producer()
    with pytest.raises(SerializationError, match=r"the value of a record to .* must be bytes, not str; pass value"):
        producer.send(topic, "text")
    with pytest.raises(SerializationError, match="the key of a record"):
        producer.send_nowait(topic, b"v", key=7)
    with pytest.raises(SerializationError, match="headers must be pairs"):
        producer.send_nowait(topic, b"v", headers=[("h", "text")])  # type: ignore[list-item]
    with pytest.raises(SerializationError, match="milliseconds since 1970"):
        producer.send(topic, b"v", timestamp=-5)
    with pytest.raises(SerializationError, match="topic must be its name"):
        producer.send(None, b"v")  # type: ignore[arg-type]


def test_serializers(make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic) -> None:
    topic = make_topic()

    def shout(topic: str, value: Any, headers: Any) -> bytes | None:
        return None if value is None else str(value).upper().encode()

    def fail(topic: str, value: Any, headers: Any) -> bytes | None:
        raise RuntimeError("not today")

    producer = make_producer(value_serializer=shout, key_serializer=shout)
    producer.send(topic, "loud", key=7).result(DEADLINE_S)
    producer.send(topic, None).result(DEADLINE_S)
    assert [(row.key, row.value) for row in read_topic(topic)] == [(b"7", b"LOUD"), (None, None)]
    failing = make_producer(value_serializer=fail)
    with pytest.raises(SerializationError, match=r"the value serializer failed for a record to .*: not today"):
        failing.send(topic, b"v")


class Stamping:
    def __init__(self, mark: str, told: list[Any]) -> None:
        self.mark = mark
        self.told = told

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(value=record.value + self.mark.encode())

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: ClientError | None) -> None:
        assert metadata is not None
        self.told.append((self.mark, metadata.offset))


def test_interceptors(make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic) -> None:
    topic = make_topic()
    told: list[Any] = []
    producer = make_producer(interceptor_classes=[Stamping("a", told), Stamping("b", told)])
    producer.send(topic, b"v", on_delivery=lambda metadata, error: told.append("own"))
    producer.flush(DEADLINE_S)
    assert [row.value for row in read_topic(topic)] == [b"vab"]
    assert told == [("a", 0), ("b", 0), "own"]


class Failing:
    """An interceptor with a defect."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise RuntimeError("a defect in on_send")

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: ClientError | None) -> None:
        raise RuntimeError("a defect in on_acknowledgement")


def test_what_an_interceptor_raises_is_logged_and_not_passed_on(
    make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic()
    told: list[Any] = []
    producer = make_producer(interceptor_classes=[Stamping("a", told), Failing(), Stamping("b", told)])
    assert producer.send(topic, b"v").result(DEADLINE_S).offset == 0
    producer.flush(DEADLINE_S)
    assert [row.value for row in read_topic(topic)] == [b"vab"]
    assert told == [("a", 0), ("b", 0)]
    assert "a defect in on_send" in caplog.text
    assert "a defect in on_acknowledgement" in caplog.text


def test_records_that_are_too_large(make_producer: MakeProducer, make_topic: MakeTopic) -> None:
    topic = make_topic(max_message_bytes="20000")
    producer = make_producer()
    with pytest.raises(RecordTooLargeError, match=r"max\.request\.size, 1048576"):
        producer.send(topic, b"x" * 1_048_576)
    error = producer.send(topic, b"x" * 30_000).exception(DEADLINE_S)
    assert isinstance(error, RecordTooLargeError)
    assert isinstance(error, BrokerError)
    assert "MESSAGE_TOO_LARGE" in str(error)
    assert producer.send(topic, b"x" * 10_000).result(DEADLINE_S).offset == 0


def test_names_that_no_topic_can_have_are_told(make_producer: MakeProducer, caplog: pytest.LogCaptureFixture) -> None:
    producer = make_producer()
    with pytest.raises(BrokerError, match=r"topic no good: .*INVALID_TOPIC"):
        producer.send("no good", b"value").result(DEADLINE_S)
    # A producer that is closed has logged all its failures; a result may be known before.
    producer.close()
    caplog.clear()
    producer = make_producer()
    producer.send_nowait("no good", b"value")
    producer.close()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("1 record to topic no good failed: topic no good: ")


def test_batches_that_are_too_large_are_split(
    make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic
) -> None:
    topic = make_topic(max_message_bytes="5000")
    producer = make_producer(linger_ms=50)
    futures = [producer.send(topic, b"%04d" % number * 50) for number in range(500)]
    producer.flush(DEADLINE_S)
    assert [row.value for row in read_topic(topic)] == [b"%04d" % number * 50 for number in range(500)]
    assert [future.result(0).offset for future in futures] == list(range(500))
    assert producer.metrics().batches_split > 0


def test_a_topic_that_nobody_makes(client_cluster: BrokerProcess, make_producer: MakeProducer) -> None:
    producer = make_producer(max_block_ms=200)
    with pytest.raises(ClientError) as caught:
        producer.send("not a valid name!", b"v").result(DEADLINE_S)
    assert "\n" not in str(caught.value)


def test_topics_are_made_by_first_use_where_brokers_allow_it(
    make_producer: MakeProducer, fresh_name: Callable[[str], str], read_topic: ReadTopic
) -> None:
    topic = fresh_name("auto")
    make_producer().send(topic, b"v").result(DEADLINE_S)
    assert [row.value for row in read_topic(topic)] == [b"v"]


# Time and memory


def test_records_sent_before_a_broker_is_there_are_stored_in_order(
    own_cluster: BrokerProcess, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("early")
    own_cluster.stop()
    with Producer(bootstrap_servers=own_cluster.bootstrap, reconnect_backoff_ms=5, retry_backoff_ms=5) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(100)]
        assert not any(future.done() for future in futures)
        own_cluster.start()
        while not futures[0].done():
            futures.append(producer.send(topic, b"%d" % len(futures)))
            with suppress(RequestTimeoutError):
                futures[0].result(0.001)
        futures += [producer.send(topic, b"%d" % number) for number in range(len(futures), len(futures) + 1000)]
        assert [future.result(DEADLINE_S).offset for future in futures] == list(range(len(futures)))


def test_an_unreachable_broker_ends_a_send_in_time() -> None:
    with Producer(bootstrap_servers=NOBODY, max_block_ms=300) as producer:
        before_s = time.monotonic()
        with pytest.raises(ConnectError, match="connection refused"):
            producer.send("topic", b"v").result(DEADLINE_S)
        producer.send_nowait("topic", b"v")
        producer.flush(DEADLINE_S)
        assert time.monotonic() - before_s < 5


def test_an_outage_is_logged_once_however_often_brokers_are_tried(
    proxied_cluster: ProxiedCluster, fresh_name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = fresh_name("quiet")
    settings = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 1, "reconnect.backoff.ms": 1, "metadata.max.age.ms": 1}
    settings["reconnect.backoff.max.ms"] = 1
    with Producer({"bootstrap.servers": proxied_cluster.bootstrap, **settings}) as producer:
        producer.send(topic, b"stored").result(DEADLINE_S)
        proxied_cluster.cut_off()
        future = producer.send(topic, b"waits")
        proxied_cluster.proxy.wait_for(lambda: proxied_cluster.proxy.connections_refused > 50)
        assert not future.done()
        producer.close(0)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    # One of the cluster, one of the sender, one of the refresh of metadata, and one of the record that was lost.
    assert 2 <= len(warnings) <= 4, warnings
    assert warnings[-1].startswith(f"1 record to topic {topic} failed: the Producer was closed")


def test_records_that_no_broker_takes_fail_in_time(
    proxied_cluster: ProxiedCluster, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("lost")
    with Producer(
        bootstrap_servers=proxied_cluster.bootstrap,
        delivery_timeout_ms=1500,
        request_timeout_ms=1000,
        retry_backoff_ms=20,
    ) as producer:
        producer.send(topic, b"stored").result(DEADLINE_S)
        proxied_cluster.cut_off()
        told: list[ClientError | None] = []
        future = producer.send(topic, b"lost", on_delivery=lambda metadata, error: told.append(error))
        error = future.exception(DEADLINE_S)
        assert isinstance(error, DeliveryTimeoutError)
        assert "delivery.timeout.ms, 1500" in str(error)
        assert told == [error]


def test_a_full_buffer_holds_a_send_back_and_says_so(
    proxied_cluster: ProxiedCluster, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("full")
    with Producer(bootstrap_servers=proxied_cluster.bootstrap) as producer:
        producer.send(topic, b"first").result(DEADLINE_S)  # which makes the topic
    with Producer(bootstrap_servers=proxied_cluster.bootstrap, buffer_memory=100_000, max_block_ms=300) as producer:
        producer.send(topic, b"stored").result(DEADLINE_S)
        proxied_cluster.cut_off()
        for _ in range(5):  # as many as fit for sure
            producer.send_nowait(topic, b"x" * 10_000)
        with pytest.raises(BufferFullError, match=r"within max\.block\.ms, 300: buffer\.memory, 100000"):
            producer.send_nowait(topic, b"x" * 90_000)
        assert producer.metrics().buffer_exhausted == 1
        producer.close(0)


def test_memory_stays_bounded_while_a_fast_sender_waits(make_producer: MakeProducer, make_topic: MakeTopic) -> None:
    topic = make_topic()
    producer = make_producer(buffer_memory=200_000)
    accumulator = producer._core.accumulator
    highest = 0
    for number in range(50_000):
        producer.send_nowait(topic, b"x" * 100)
        if not number % 100:
            with accumulator.lock:
                buffers = [batch.buffer for batch in accumulator.incomplete if batch.buffer is not None]
                highest = max(highest, sum(len(buffer) for buffer in buffers))
    producer.flush(DEADLINE_S)
    assert 100_000 < highest <= 200_000, "what is really held, and most of what may be"
    assert producer.metrics().buffer_exhausted > 0, "the sender was never held back"
    assert producer.metrics().records_delivered == 50_000
    assert producer.metrics().buffer_available_bytes == 200_000


def test_many_threads_share_a_producer(
    make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic
) -> None:
    topic = make_topic(partitions=3)
    producer = make_producer(batch_size=4000, buffer_memory=300_000)

    def work(name: int) -> None:
        for number in range(5000):
            producer.send_nowait(topic, b"%d %d" % (name, number), partition=name % 3)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads)
    producer.flush(DEADLINE_S)
    assert (producer.metrics().records_delivered, producer.metrics().records_failed) == (30_000, 0)
    stored: dict[int, list[int]] = {}
    for row in read_topic(topic, 3):
        assert row.value is not None
        name, number = row.value.split()
        stored.setdefault(int(name), []).append(int(number))
    assert stored == {name: list(range(5000)) for name in range(6)}


def test_waiting_for_a_future_does_not_linger(make_producer: MakeProducer, make_topic: MakeTopic) -> None:
    topic = make_topic()
    producer = make_producer(linger_ms=20_000)
    before_s = time.monotonic()
    producer.send(topic, b"v").result(DEADLINE_S)
    assert time.monotonic() - before_s < 10
    future = producer.send(topic, b"v")
    producer.flush(DEADLINE_S)
    assert future.done()
    assert time.monotonic() - before_s < 10


def test_a_result_that_is_not_there_in_time(proxied_cluster: ProxiedCluster, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("slow")
    producer = Producer(bootstrap_servers=proxied_cluster.bootstrap)
    producer.send(topic, b"stored").result(DEADLINE_S)
    proxied_cluster.cut_off()
    future = producer.send(topic, b"v")
    with pytest.raises(RequestTimeoutError, match=r"not acknowledged within 0\.1 s"):
        future.result(0.1)
    with pytest.raises(RequestTimeoutError, match=r"1 records were not acknowledged within 0\.1 s"):
        producer.flush(0.1)
    producer.close(0.1)
    assert isinstance(future.exception(0), ClosedError)


def test_a_broker_that_comes_back_gets_everything_once(
    own_cluster: BrokerProcess, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("back")
    with Producer(bootstrap_servers=own_cluster.bootstrap, retry_backoff_ms=20, reconnect_backoff_ms=20) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(100)]
        producer.flush(DEADLINE_S)
        for _ in range(2):
            own_cluster.kill()
            futures += [producer.send(topic, b"%d" % number) for number in range(len(futures), len(futures) + 500)]
            own_cluster.start()
            futures += [producer.send(topic, b"%d" % number) for number in range(len(futures), len(futures) + 500)]
            producer.flush(DEADLINE_S)
        assert [future.result(0).offset for future in futures] == list(range(len(futures)))


# Its end


def test_close_delivers_what_waits(make_producer: MakeProducer, make_topic: MakeTopic, read_topic: ReadTopic) -> None:
    topic = make_topic()
    producer = make_producer(linger_ms=20_000)
    producer.send_nowait(topic, b"v")
    producer.close(DEADLINE_S)
    producer.close()
    assert [row.value for row in read_topic(topic)] == [b"v"]


def test_a_closed_producer_says_so(make_producer: MakeProducer, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with make_producer() as producer:
        producer.send(topic, b"v").result(DEADLINE_S)
    calls: list[Callable[[], object]] = [
        lambda: producer.send(topic, b"v"),
        lambda: producer.send_nowait(topic, b"v"),
        lambda: producer.flush(),
        lambda: producer.partitions_for(topic),
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    assert "closed" in repr(producer)


def test_no_thread_or_socket_is_left(make_producer: MakeProducer, make_topic: MakeTopic) -> None:
    topic = make_topic()
    make_producer().close()
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        producer = make_producer()
        producer.send(topic, b"v").result(DEADLINE_S)
        producer.close()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) <= files


def test_a_producer_left_open_is_warned_about(client_cluster: BrokerProcess) -> None:
    producer = Producer(bootstrap_servers=client_cluster.bootstrap)
    thread = producer._thread
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del producer
        gc.collect()
    assert [warning.category for warning in caught if "Producer" in str(warning.message)] == [ResourceWarning]
    thread.close()


def test_a_forked_child_can_not_use_it(make_producer: MakeProducer, make_topic: MakeTopic) -> None:
    topic = make_topic()
    producer = make_producer()
    producer.send(topic, b"v").result(DEADLINE_S)
    producer.send_nowait(topic, b"open")  # so that a batch is open when the process forks
    child = os.fork()
    if child == 0:
        code = 1
        try:
            producer.send_nowait(topic, b"from the child")
        except ForkedError:
            code = 0
        except BaseException:  # noqa: BLE001  # the child may not run on in pytest
            code = 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert producer.send(topic, b"from the parent").result(DEADLINE_S).offset == 2


# Room for which several wait


def test_room_that_is_left_by_one_who_waited_is_for_the_next() -> None:
    with Producer(bootstrap_servers=NOBODY, buffer_memory=4000, batch_size=1000) as producer:
        accumulator = producer._core.accumulator
        lent = [accumulator.pool.lend(1000) for _ in range(4)]
        attempts: list[int] = []

        def append() -> None:
            attempts.append(len(attempts))
            if len(attempts) > 1:
                raise InterruptedError("it goes away, and takes nothing")
            raise NoRoom(1000)

        def wait() -> None:
            with suppress(InterruptedError):
                producer._with_room(append)

        first = threading.Thread(target=wait)
        first.start()
        while not accumulator.pool.has_waiters:
            time.sleep(0.001)
        woken = threading.Event()
        assert accumulator.wait_for_room(1000, woken.set) is not None
        buffer = lent.pop()
        assert buffer is not None
        with accumulator.lock:
            accumulator.pool.give_back(buffer, keep=True)
        producer._core.wake()
        assert woken.wait(DEADLINE_S)
        first.join(DEADLINE_S)
        assert len(attempts) == 2


def test_a_close_ends_the_wait_for_room() -> None:
    producer = Producer(bootstrap_servers=NOBODY, buffer_memory=1000, batch_size=1000)
    accumulator = producer._core.accumulator
    accumulator.set_partitions("t", 2)
    producer.send_nowait("t", b"fills the memory", partition=0)
    errors: list[ClientError] = []

    def send() -> None:
        try:
            producer.send_nowait("t", b"finds no room", partition=1)
        except ClientError as error:
            errors.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    while not accumulator.pool.has_waiters:
        time.sleep(0.001)
    producer.close(0)
    thread.join(DEADLINE_S)
    assert [type(error) for error in errors] == [ClosedError]
