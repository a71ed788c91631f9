"""Connections break, brokers stand still or restart: nothing acknowledged is lost or doubled, and all calls end."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.client.errors import BufferFullError, ClientError, RequestTimeoutError, RetriableError

if TYPE_CHECKING:
    from proxied_cluster import ProxiedCluster
    from tidelog.bench.brokers import BrokerProcess
    from tidelog.client.producer.futures import DeliveryFuture
    from tidelog.records.kernel_consume import ConsumerRecord

DEADLINE_S = 60.0
# Retries that follow at once keep the tests short; what is retried and how is the same.
QUICK = {"retry.backoff.ms": 10, "retry.backoff.max.ms": 50, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50}

FreshName = Callable[[str], str]


def make_topic(bootstrap: str, name: str, partitions: int = 1) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, 1)]).raise_for_errors()


def read_all(bootstrap: str, topic: str, partitions: int = 1) -> dict[int, list[bytes]]:
    """All records of the topic as it is now, by partition."""
    found: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        wanted = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(wanted)
        ends = consumer.end_offsets(wanted)
        deadline_s = time.monotonic() + DEADLINE_S
        while any(consumer.position(partition) < ends[partition] for partition in wanted):
            assert time.monotonic() < deadline_s, "the topic could not be read in time"
            for record in consumer.poll(0.5):
                found[record.partition].append(record.value)
    return found


def test_answers_cut_at_every_byte_double_and_lose_nothing(
    proxied_cluster: ProxiedCluster, fresh_name: FreshName
) -> None:
    topic = fresh_name("cut")
    make_topic(proxied_cluster.bootstrap, topic)
    proxy = proxied_cluster.proxy
    sent = []
    with Producer({"bootstrap.servers": proxied_cluster.bootstrap, "linger.ms": 0, **QUICK}) as producer:
        producer.send(topic, b"first").result(DEADLINE_S)
        before = proxy.answer_bytes
        producer.send(topic, b"second").result(DEADLINE_S)
        answer_bytes = proxy.answer_bytes - before
        assert 20 < answer_bytes < 200, "the size of one Produce answer"
        for cut_at in range(answer_bytes + 1):
            proxy.cut_after_answer_bytes = cut_at
            value = b"%d" % cut_at
            metadata = producer.send(topic, value).result(DEADLINE_S)
            sent.append((metadata.offset, value))
            proxy.cut_after_answer_bytes = None
    assert proxy.cuts >= answer_bytes
    stored = read_all(proxied_cluster.broker.bootstrap, topic)[0]
    assert stored[2:] == [value for _, value in sent]
    assert [offset for offset, _ in sent] == list(range(2, 2 + len(sent)))


def test_requests_cut_at_every_byte_double_and_lose_nothing(
    proxied_cluster: ProxiedCluster, fresh_name: FreshName
) -> None:
    topic = fresh_name("cut")
    make_topic(proxied_cluster.bootstrap, topic)
    proxy = proxied_cluster.proxy
    with Producer({"bootstrap.servers": proxied_cluster.bootstrap, "linger.ms": 0, **QUICK}) as producer:
        producer.send(topic, b"first").result(DEADLINE_S)
        before = proxy.request_bytes
        producer.send(topic, b"second").result(DEADLINE_S)
        request_bytes = proxy.request_bytes - before
        values = [b"%d" % cut_at for cut_at in range(request_bytes + 1)]
        for cut_at, value in enumerate(values):
            proxy.cut_after_request_bytes = cut_at
            producer.send(topic, value).result(DEADLINE_S)
            proxy.cut_after_request_bytes = None
    assert read_all(proxied_cluster.broker.bootstrap, topic)[0] == [b"first", b"second", *values]


def test_cuts_at_random_under_load_keep_order_and_count(proxied_cluster: ProxiedCluster, fresh_name: FreshName) -> None:
    topic, partitions, count = fresh_name("load"), 3, 20_000
    make_topic(proxied_cluster.bootstrap, topic, partitions)
    proxy, chance = proxied_cluster.proxy, random.Random(7)
    settings = {"bootstrap.servers": proxied_cluster.bootstrap, "linger.ms": 1, "batch.size": 2000, **QUICK}
    with Producer(settings) as producer:
        futures: list[DeliveryFuture] = []
        for number in range(count):
            if number % 500 == 0:
                if futures:
                    futures[-1].result(DEADLINE_S)
                proxy.cut_after_answer_bytes = chance.randrange(200)
            futures.append(producer.send(topic, b"%d" % number, partition=number % partitions))
        producer.flush(DEADLINE_S)
        proxy.cut_after_answer_bytes = None
        offsets = [future.result(0) for future in futures]
    assert proxy.cuts > 10
    stored = read_all(proxied_cluster.broker.bootstrap, topic, partitions)
    for partition in range(partitions):
        assert stored[partition] == [b"%d" % number for number in range(partition, count, partitions)]
    assert [row.offset for row in offsets[::partitions]] == list(range(len(offsets[::partitions])))


def test_a_reader_whose_connection_is_cut_reads_on(proxied_cluster: ProxiedCluster, fresh_name: FreshName) -> None:
    topic, count = fresh_name("read"), 10_000
    make_topic(proxied_cluster.bootstrap, topic)
    with Producer(bootstrap_servers=proxied_cluster.bootstrap) as producer:
        for number in range(count):
            producer.send_nowait(topic, b"%d" % number)
            if number % 50 == 49:  # so that there are many batches, and with them many answers to cut
                producer.flush(DEADLINE_S)
    proxy, chance = proxied_cluster.proxy, random.Random(11)
    settings = {
        "bootstrap.servers": proxied_cluster.bootstrap,
        "auto.offset.reset": "earliest",
        "max.partition.fetch.bytes": 5_000,
        "max.poll.records": 50,
        **QUICK,
    }
    read: list[bytes] = []
    with Consumer(settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        deadline_s = time.monotonic() + DEADLINE_S
        while len(read) < count:
            assert time.monotonic() < deadline_s, f"only {len(read)} records were read in time"
            if proxy.cut_after_answer_bytes is None:
                proxy.cut_after_answer_bytes = chance.randrange(8_000)
            read += [record.value for record in consumer.poll(0.2)]
    assert read == [b"%d" % number for number in range(count)]
    assert proxy.cuts > 5


def test_a_broker_that_stands_still_is_given_up_and_found_again(
    proxied_cluster: ProxiedCluster, fresh_name: FreshName
) -> None:
    topic = fresh_name("still")
    make_topic(proxied_cluster.bootstrap, topic)
    proxy = proxied_cluster.proxy
    settings = {
        "bootstrap.servers": proxied_cluster.bootstrap,
        "request.timeout.ms": 300,
        "delivery.timeout.ms": 30_000,
        "linger.ms": 0,
        **QUICK,
    }
    with Producer(settings) as producer:
        producer.send(topic, b"before").result(DEADLINE_S)
        made = proxy.connections_made
        proxy.stalled = True
        future = producer.send(topic, b"during")
        with pytest.raises(RequestTimeoutError):
            future.result(0.6)
        proxy.stalled = False
        proxy.cut_all()
        future.result(DEADLINE_S)
        assert proxy.connections_made > made
    assert read_all(proxied_cluster.broker.bootstrap, topic)[0] == [b"before", b"during"]


def test_memory_is_bounded_while_nothing_can_be_sent(proxied_cluster: ProxiedCluster, fresh_name: FreshName) -> None:
    topic = fresh_name("full")
    make_topic(proxied_cluster.bootstrap, topic)
    settings = {
        "bootstrap.servers": proxied_cluster.bootstrap,
        "buffer.memory": 200_000,
        "max.block.ms": 200,
        "request.timeout.ms": 400,
        "delivery.timeout.ms": 1_000,
        **QUICK,
    }
    with Producer(settings) as producer:
        producer.send(topic, b"before").result(DEADLINE_S)
        proxied_cluster.proxy.stalled = True
        futures: list[DeliveryFuture] = []
        with pytest.raises(BufferFullError, match=r"buffer\.memory"):
            futures.extend(_sends(producer, topic))
        assert 50 < len(futures) < 250
        # Every future ends, with the reason.
        for future in futures:
            error = future.exception(DEADLINE_S)
            assert error is None or isinstance(error, RetriableError)
        proxied_cluster.proxy.stalled = False
        proxied_cluster.proxy.cut_all()
        producer.send(topic, b"after").result(DEADLINE_S)


def test_kill_nine_under_load_loses_and_doubles_nothing(own_cluster: BrokerProcess, fresh_name: FreshName) -> None:
    topic, partitions = fresh_name("kill"), 2
    make_topic(own_cluster.bootstrap, topic, partitions)
    # A small buffer, so that what waits is delivered between two kills, though Kafka takes its time to come back.
    settings = {
        "bootstrap.servers": own_cluster.bootstrap,
        "batch.size": 4_000,
        "buffer.memory": 1_000_000,
        "delivery.timeout.ms": 180_000,
        "max.block.ms": 180_000,
        **QUICK,
    }
    ending = threading.Event()
    acknowledged: list[tuple[int, int, bytes]] = []
    failed: list[ClientError] = []

    def note(value: bytes) -> Callable[[object, ClientError | None], None]:
        def on_delivery(metadata: object, error: ClientError | None) -> None:
            if error is not None:
                failed.append(error)
            else:
                acknowledged.append((metadata.partition, metadata.offset, value))  # type: ignore[attr-defined]

        return on_delivery

    with Producer(settings) as producer:
        number = 0

        def load() -> None:
            nonlocal number
            while not ending.is_set():
                value = b"%d" % number
                producer.send(topic, value, partition=number % partitions, on_delivery=note(value))
                number += 1
                if number % 100 == 0:
                    time.sleep(0.002)  # a load that lasts, not one that fills the disk

        thread = threading.Thread(target=load)
        thread.start()
        try:
            for _ in range(2):
                seen = len(acknowledged)
                _wait_for(lambda seen=seen: len(acknowledged) > seen + 500)  # type: ignore[misc]
                own_cluster.kill()
                own_cluster.start()
        finally:
            ending.set()
            thread.join()
        producer.flush(DEADLINE_S)
    assert failed == []
    assert len(acknowledged) == number
    stored = read_all(own_cluster.bootstrap, topic, partitions)
    for partition in range(partitions):
        assert stored[partition] == [b"%d" % sent for sent in range(partition, number, partitions)]
    for partition, offset, value in acknowledged:
        assert stored[partition][offset] == value


def test_calls_end_when_the_broker_is_gone(own_cluster: BrokerProcess, fresh_name: FreshName) -> None:
    topic = fresh_name("gone")
    make_topic(own_cluster.bootstrap, topic)
    limits = {
        "bootstrap.servers": own_cluster.bootstrap,
        "request.timeout.ms": 500,
        "delivery.timeout.ms": 1_000,
        "max.block.ms": 1_000,
        **QUICK,
    }
    producer = Producer(limits)
    producer.send(topic, b"x").result(DEADLINE_S)
    consumer = Consumer({"bootstrap.servers": own_cluster.bootstrap, "default.api.timeout.ms": 1_000, **QUICK})
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning([TopicPartition(topic, 0)])
    assert [record.value for record in _poll_until_some(consumer)] == [b"x"]
    own_cluster.kill()
    began_s = time.monotonic()
    future = producer.send(topic, b"y")
    assert isinstance(future.exception(DEADLINE_S), RetriableError)
    assert consumer.poll(0.3) == []
    with pytest.raises(ClientError):
        consumer.end_offsets([TopicPartition(topic, 0)])
    producer.close(2.0)
    consumer.close(2.0)
    assert time.monotonic() - began_s < 20


def test_threads_and_sockets_are_gone_after_close(client_cluster: BrokerProcess, fresh_name: FreshName) -> None:
    topic = fresh_name("leak")
    make_topic(client_cluster.bootstrap, topic)
    threads, descriptors = threading.active_count(), _descriptors()
    for _ in range(5):
        with Producer(bootstrap_servers=client_cluster.bootstrap) as producer:
            producer.send(topic, b"x").result(DEADLINE_S)
        with Consumer(
            bootstrap_servers=client_cluster.bootstrap, group_id=fresh_name("group"), auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([topic])
            assert _poll_until_some(consumer)
        with Admin(bootstrap_servers=client_cluster.bootstrap) as admin:
            admin.list_topics()
    assert threading.active_count() == threads
    assert _descriptors() == descriptors


def _sends(producer: Producer, topic: str) -> Iterator[DeliveryFuture]:
    for _ in range(1_000):
        yield producer.send(topic, bytes(1_000))


def _poll_until_some(consumer: Consumer) -> list[ConsumerRecord]:
    deadline_s = time.monotonic() + DEADLINE_S
    while not (records := consumer.poll(0.2)):
        assert time.monotonic() < deadline_s, "no record came in time"
    return records


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "what the test waits for did not happen"
        time.sleep(0.005)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
