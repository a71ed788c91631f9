"""Brokers that answer a few bytes at a time: work goes on, groups hold together, and no call waits for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog import Admin, Consumer, ConsumerRecord, NewTopic, Producer, RebalanceListener, TopicPartition
from tidelog.client.errors import ClientError, RetriableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxied_cluster import ProxiedCluster

DEADLINE_S = 60.0
QUICK = {"retry.backoff.ms": 10, "retry.backoff.max.ms": 50, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50}

FreshName = Callable[[str], str]


def make_topic(cluster: ProxiedCluster, name: str) -> TopicPartition:
    with Admin(bootstrap_servers=cluster.broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1)]).raise_for_errors()
    return TopicPartition(name, 0)


def read(bootstrap: str, partition: TopicPartition, count: int) -> list[bytes]:
    found: list[bytes] = []
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        deadline_s = time.monotonic() + DEADLINE_S
        while len(found) < count:
            assert time.monotonic() < deadline_s, f"only {len(found)} of {count} records were read"
            found += [record.value for record in consumer.poll(0.5)]
    return found


def test_a_trickle_is_enough(proxied_cluster: ProxiedCluster, fresh_name: FreshName) -> None:
    partition = make_topic(proxied_cluster, fresh_name("slow"))
    values = [b"%05d" % number * 20 for number in range(400)]
    proxied_cluster.proxy.bytes_per_second = 40_000
    settings = {"bootstrap.servers": proxied_cluster.bootstrap, "batch.size": 4_000}
    with Producer(settings) as producer:
        futures = [producer.send(partition.topic, value) for value in values]
        producer.flush(DEADLINE_S)
    assert [future.result(0).offset for future in futures] == list(range(len(values)))
    assert read(proxied_cluster.bootstrap, partition, len(values)) == values


def test_answers_that_come_too_late_double_nothing(proxied_cluster: ProxiedCluster, fresh_name: FreshName) -> None:
    """Requests time out in the middle of their answers or on their way; each record is stored once all the same."""
    partition = make_topic(proxied_cluster, fresh_name("late"))
    proxy = proxied_cluster.proxy
    settings = {
        "bootstrap.servers": proxied_cluster.bootstrap,
        "request.timeout.ms": 300,
        "delivery.timeout.ms": 60_000,
        "linger.ms": 0,
        **QUICK,
    }
    values = [b"%d" % number for number in range(12)]
    with Producer(settings) as producer:
        producer.send(partition.topic, b"first").result(DEADLINE_S)
        for number, value in enumerate(values):
            made = proxy.connections_made
            # Less than an answer's bytes go through before the time is up.
            proxy.bytes_per_second = 60 + 10 * number
            future = producer.send(partition.topic, value)
            proxy.wait_for(lambda made=made: proxy.connections_made > made)  # type: ignore[misc]
            proxy.bytes_per_second = None
            assert future.result(DEADLINE_S).offset == number + 1
    assert read(proxied_cluster.broker.bootstrap, partition, len(values) + 1) == [b"first", *values]


def test_calls_end_in_their_time_though_bytes_keep_coming(
    proxied_cluster: ProxiedCluster, fresh_name: FreshName
) -> None:
    partition = make_topic(proxied_cluster, fresh_name("ends"))
    limits = {
        "bootstrap.servers": proxied_cluster.bootstrap,
        "request.timeout.ms": 500,
        "default.api.timeout.ms": 1_000,
        **QUICK,
    }
    with (
        Producer({**limits, "delivery.timeout.ms": 1_000, "linger.ms": 0, "max.block.ms": 1_000}) as producer,
        Consumer(limits) as consumer,
        Admin(limits) as admin,
    ):
        producer.send(partition.topic, b"x").result(DEADLINE_S)
        proxied_cluster.proxy.bytes_per_second = 50
        began_s = time.monotonic()
        future = producer.send(partition.topic, b"y")
        assert isinstance(future.exception(DEADLINE_S), RetriableError)
        with pytest.raises(ClientError):
            consumer.end_offsets([partition])
        with pytest.raises(ClientError):
            admin.list_topics()
        assert time.monotonic() - began_s < 15
        proxied_cluster.proxy.bytes_per_second = None


class Listener(RebalanceListener):
    def __init__(self) -> None:
        self.lost: list[TopicPartition] = []

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.lost.extend(partitions)


def test_a_member_outlives_an_answer_that_takes_longer_than_its_session(
    proxied_cluster: ProxiedCluster, fresh_name: FreshName
) -> None:
    """Heartbeats do not stand behind records that come slowly."""
    partition = make_topic(proxied_cluster, fresh_name("large"))
    with Producer(bootstrap_servers=proxied_cluster.broker.bootstrap) as producer:
        producer.send(partition.topic, bytes(160_000)).result(DEADLINE_S)
    settings = {
        "bootstrap.servers": proxied_cluster.bootstrap,
        "group.id": fresh_name("group"),
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 500,
    }
    listener = Listener()
    with Consumer(settings) as consumer:
        proxied_cluster.proxy.bytes_per_second = 20_000
        consumer.subscribe([partition.topic], listener=listener)
        began_s = time.monotonic()
        records: list[ConsumerRecord] = []
        while not records:
            assert time.monotonic() < began_s + DEADLINE_S, "the record did not come"
            records = consumer.poll(0.5)
        assert time.monotonic() - began_s > 7, "it came too fast to show anything"
        generation = consumer.group_metadata().generation_id
        consumer.commit_sync()
        assert consumer.group_metadata().generation_id == generation
        proxied_cluster.proxy.bytes_per_second = None
    assert listener.lost == []
