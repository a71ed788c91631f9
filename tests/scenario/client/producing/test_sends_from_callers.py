"""Threads that wait for single records send them by themselves: faster, and in no other way different."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from proxied_cluster import ProxiedCluster
from tidelog import Producer
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.errors import ClosedError, RequestTimeoutError
from tidelog.client.types import RecordMetadata

DEADLINE_S = 60.0

MakeTopic = Callable[..., str]
ReadTopic = Callable[..., list[Any]]


@pytest.fixture
def producer(client_cluster: BrokerProcess) -> Iterator[Producer]:
    with Producer(bootstrap_servers=client_cluster.bootstrap) as producer:
        yield producer


def sends_from_callers(producer: Producer) -> int:
    return producer._core.sender.sends_from_callers


def send_until_callers_do_it(producer: Producer, topic: str) -> int:
    """Send and wait until this thread has sent a record by itself; gives the number of records."""
    before, sent = sends_from_callers(producer), 0
    deadline_s = time.monotonic() + DEADLINE_S
    while sends_from_callers(producer) == before:
        assert time.monotonic() < deadline_s, "the producer never let its caller send"
        producer.send(topic, b"warm-up").result(DEADLINE_S)
        sent += 1
    return sent


def test_offsets_and_values_are_as_ever(producer: Producer, make_topic: MakeTopic, read_topic: ReadTopic) -> None:
    topic = make_topic()
    first = send_until_callers_do_it(producer, topic)
    results = [producer.send(topic, b"%d" % number, b"k").result(DEADLINE_S) for number in range(300)]
    assert [result.offset for result in results] == list(range(first, first + 300))
    assert {(result.topic, result.partition, result.serialized_key_size) for result in results} == {(topic, 0, 1)}
    assert [row.value for row in read_topic(topic)][first:] == [b"%d" % number for number in range(300)]
    assert producer.metrics().requests_in_flight == 0
    assert producer.metrics().records_delivered == first + 300
    assert producer.metrics().buffer_available_bytes == producer.metrics().buffer_total_bytes


def test_the_order_of_a_partition_is_kept_among_all_ways_to_send(
    producer: Producer, make_topic: MakeTopic, read_topic: ReadTopic
) -> None:
    topic = make_topic()
    send_until_callers_do_it(producer, topic)
    before = sends_from_callers(producer)

    def work(name: int) -> None:
        for number in range(400):
            if number % 3:
                producer.send_nowait(topic, b"%d %d" % (name, number))
            else:
                producer.send(topic, b"%d %d" % (name, number)).result(DEADLINE_S)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    producer.flush(DEADLINE_S)
    stored: dict[int, list[int]] = {}
    for row in read_topic(topic):
        if row.value != b"warm-up":
            name, number = row.value.split()
            stored.setdefault(int(name), []).append(int(number))
    assert stored == {name: list(range(400)) for name in range(3)}
    assert sends_from_callers(producer) > before


def test_callbacks_still_run_on_the_producers_thread(producer: Producer, make_topic: MakeTopic) -> None:
    topic = make_topic()
    send_until_callers_do_it(producer, topic)
    before = sends_from_callers(producer)
    threads: list[str] = []

    def note(metadata: RecordMetadata | None, error: object) -> None:
        threads.append(threading.current_thread().name)

    for _ in range(20):
        producer.send(topic, b"v", on_delivery=note).result(DEADLINE_S)
    producer.flush(DEADLINE_S)
    assert threads == ["tidelog-producer"] * 20
    assert sends_from_callers(producer) > before


def test_lost_connections_lose_and_double_nothing(
    proxied_cluster: ProxiedCluster, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("cut")
    quick = {"retry.backoff.ms": 5, "reconnect.backoff.ms": 5, "bootstrap.servers": proxied_cluster.bootstrap}
    with Producer(quick) as producer:
        count = send_until_callers_do_it(producer, topic)
        for answer_bytes in range(0, 60, 4):  # within the answer to a produce request
            count += send_until_callers_do_it(producer, topic)
            proxied_cluster.proxy.cut_after_answer_bytes = answer_bytes
            assert producer.send(topic, b"v").result(DEADLINE_S).offset == count
            count += 1
            proxied_cluster.proxy.cut_after_answer_bytes = None
        assert producer.send(topic, b"last").result(DEADLINE_S).offset == count
        assert proxied_cluster.proxy.cuts >= 15


def test_a_broker_that_hangs_does_not_hold_up_the_caller(
    proxied_cluster: ProxiedCluster, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("hangs")
    with Producer(bootstrap_servers=proxied_cluster.bootstrap) as producer:
        count = send_until_callers_do_it(producer, topic)
        proxied_cluster.proxy.stalled = True
        future = producer.send(topic, b"late")
        with pytest.raises(RequestTimeoutError):
            future.result(0.1)
        behind = producer.send(topic, b"behind")
        with pytest.raises(RequestTimeoutError):
            behind.result(0.1)
        proxied_cluster.proxy.stalled = False
        assert future.result(DEADLINE_S).offset == count
        assert behind.result(DEADLINE_S).offset == count + 1
        # The next ones go by themselves again, over a new connection.
        send_until_callers_do_it(producer, topic)


def test_a_close_ends_the_wait_of_a_caller(proxied_cluster: ProxiedCluster, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("closed")
    producer = Producer(bootstrap_servers=proxied_cluster.bootstrap)
    send_until_callers_do_it(producer, topic)
    before = sends_from_callers(producer)
    proxied_cluster.proxy.stalled = True
    errors: list[BaseException | None] = []
    thread = threading.Thread(target=lambda: errors.append(producer.send(topic, b"v").exception(DEADLINE_S)))
    thread.start()
    deadline_s = time.monotonic() + DEADLINE_S
    while sends_from_callers(producer) == before:
        assert time.monotonic() < deadline_s, "the thread did not send by itself"
    producer.close(0.1)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [ClosedError]


def test_a_connection_that_the_broker_closed_while_idle_is_noticed(
    proxied_cluster: ProxiedCluster, fresh_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.client.network.connection._CHECKED_AFTER_S", -1.0)
    topic = fresh_name("idle")
    with Producer(bootstrap_servers=proxied_cluster.bootstrap, retry_backoff_ms=60_000, retries=0) as producer:
        count = send_until_callers_do_it(producer, topic)
        proxied_cluster.proxy.cut_all()
        lent = next(iter(producer._core.sender._lent.values())).connection
        deadline_s = time.monotonic() + DEADLINE_S
        while not lent.has_ended():
            assert time.monotonic() < deadline_s, "the cut was not seen"
        # It is not sent over the dead connection, where it would have failed for good.
        assert producer.send(topic, b"v").result(DEADLINE_S).offset == count
