"""Partitions change their leaders under load: nothing is lost, doubled or put out of order, and nobody waits long."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from moving_leaders import MovingLeaders
from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition

if TYPE_CHECKING:
    from tidelog.bench.brokers import BrokerProcess

DEADLINE_S = 60.0
PARTITIONS = 4
QUICK = {"retry.backoff.ms": 10, "retry.backoff.max.ms": 50, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50}

FreshName = Callable[[str], str]


@pytest.fixture
def leaders(client_cluster: BrokerProcess) -> Iterator[MovingLeaders]:
    with MovingLeaders(client_cluster.port) as running:
        yield running


@pytest.fixture
def topic(client_cluster: BrokerProcess, fresh_name: FreshName) -> str:
    """On the one broker that the two stand in front of, however many there are."""
    name = fresh_name("moving")
    with Admin(bootstrap_servers=client_cluster.bootstrap) as admin:
        nodes = admin.describe_cluster().nodes
        (node_id,) = (node.node_id for node in nodes if node.address.port == client_cluster.port)
        assignments = {number: [node_id] for number in range(PARTITIONS)}
        admin.create_topics([NewTopic(name, assignments=assignments)]).raise_for_errors()
    return name


@contextmanager
def moving(leaders: MovingLeaders) -> Iterator[None]:
    """Leaders change all the time, one partition at a time."""
    ending, chance = threading.Event(), random.Random(13)

    def move() -> None:
        while not ending.wait(0.03):
            leaders.move(chance.randrange(PARTITIONS))

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def read(
    bootstrap: str, topic: str, count: int, between_polls: Callable[[], None] = lambda: None, **options: object
) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", **QUICK, **options}
    with Consumer(settings) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in found])
        deadline_s = time.monotonic() + DEADLINE_S
        while sum(map(len, found.values())) < count:
            assert time.monotonic() < deadline_s, f"{sum(map(len, found.values()))} of {count} records were read"
            for record in consumer.poll(0.5):
                found[record.partition].append(record.value)
            between_polls()
    return found


def numbers_of(partition: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(partition, count, PARTITIONS)]


@pytest.mark.parametrize("gives_hints", [True, False], ids=["hints", "no hints"])
def test_what_is_sent_is_stored_once_and_in_order(
    leaders: MovingLeaders, client_cluster: BrokerProcess, topic: str, gives_hints: bool
) -> None:
    leaders.gives_hints = gives_hints
    count = 0
    with Producer({"bootstrap.servers": leaders.bootstrap, "batch.size": 2_000, "linger.ms": 1, **QUICK}) as producer:
        futures = []
        with moving(leaders):
            ends_s = time.monotonic() + 2.0
            while time.monotonic() < ends_s or leaders.refusals < 10:
                for _ in range(100):
                    futures.append(producer.send(topic, b"%d" % count, partition=count % PARTITIONS))
                    count += 1
                futures[-1].result(DEADLINE_S)
            producer.flush(DEADLINE_S)
        offsets = [future.result(0).offset for future in futures]
    stored = read(client_cluster.bootstrap, topic, count)
    for partition in range(PARTITIONS):
        assert stored[partition] == numbers_of(partition, count)
        assert offsets[partition::PARTITIONS] == list(range(len(stored[partition])))


@pytest.mark.parametrize("gives_hints", [True, False], ids=["hints", "no hints"])
def test_what_is_read_is_read_once_and_in_order(
    leaders: MovingLeaders, client_cluster: BrokerProcess, topic: str, gives_hints: bool
) -> None:
    leaders.gives_hints = gives_hints
    count = 8_000
    with Producer(bootstrap_servers=client_cluster.bootstrap) as producer:
        for number in range(count):
            producer.send_nowait(topic, b"%d" % number, partition=number % PARTITIONS)
            if number % 400 == 399:  # so that there are many batches to fetch
                producer.flush(DEADLINE_S)
    # Little is fetched ahead, so that most of it is fetched after a move.
    little = {"max.partition.fetch.bytes": 1_500, "max.poll.records": 100, "queued.max.bytes": 6_000}
    chance = random.Random(19)
    found = read(leaders.bootstrap, topic, count, lambda: leaders.move(chance.randrange(PARTITIONS)), **little)
    assert leaders.refusals > 5
    for partition in range(PARTITIONS):
        assert found[partition] == numbers_of(partition, count)


def test_a_hint_spares_a_look_at_the_metadata(leaders: MovingLeaders, topic: str) -> None:
    """With hours between two tries, only what the refusal itself tells can help."""
    slow = {"retry.backoff.ms": 1, "metadata.max.age.ms": 3_600_000, "linger.ms": 0}
    with Producer({"bootstrap.servers": leaders.bootstrap, **slow}) as producer:
        producer.send(topic, b"first", partition=0).result(DEADLINE_S)
        for _ in range(10):
            refusals = leaders.refusals
            leaders.move(0)
            began_s = time.monotonic()
            producer.send(topic, b"next", partition=0).result(DEADLINE_S)
            assert leaders.refusals == refusals + 1, "one refusal tells who leads now"
            assert time.monotonic() - began_s < 5
