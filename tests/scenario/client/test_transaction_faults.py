"""Connections break within transactions, producers are shut out: what is committed counts once, and nothing else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.client.errors import AbortableError, FatalError

if TYPE_CHECKING:
    from proxied_cluster import ProxiedCluster

DEADLINE_S = 60.0
PARTITIONS = 3
QUICK = {"retry.backoff.ms": 10, "retry.backoff.max.ms": 50, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50}

FreshName = Callable[[str], str]


@pytest.fixture
def topic(proxied_cluster: ProxiedCluster, fresh_name: FreshName) -> str:
    name = fresh_name("transactions")
    with Admin(bootstrap_servers=proxied_cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 1)]).raise_for_errors()
    return name


@pytest.fixture
def settings(proxied_cluster: ProxiedCluster, fresh_name: FreshName) -> dict[str, object]:
    return {
        "bootstrap.servers": proxied_cluster.bootstrap,
        "transactional.id": fresh_name("id"),
        "linger.ms": 0,
        **QUICK,
    }


def read_committed(cluster: ProxiedCluster, topic: str) -> dict[int, list[bytes]]:
    """What counts, by partition, once all transactions have ended."""
    found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    options = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    with (
        Consumer({"bootstrap.servers": cluster.bootstrap, **options}) as consumer,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        wanted = [TopicPartition(topic, number) for number in found]
        consumer.assign(wanted)
        deadline_s = time.monotonic() + DEADLINE_S
        while admin.list_open_transactions(wanted):
            assert time.monotonic() < deadline_s, "a transaction does not end"
            time.sleep(0.01)
        ends = consumer.end_offsets(wanted)
        while any(consumer.position(partition) < ends[partition] for partition in wanted):
            assert time.monotonic() < deadline_s, "the topic could not be read in time"
            for record in consumer.poll(0.2):
                found[record.partition].append(record.value)
    return found


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_the_answer_to_the_end_is_cut_at_every_byte(
    proxied_cluster: ProxiedCluster, topic: str, settings: dict[str, object], commits: bool
) -> None:
    proxy = proxied_cluster.proxy
    with Producer(settings) as producer:
        producer.init_transactions()

        def write(value: bytes, cut_at: int | None) -> int:
            producer.begin_transaction()
            producer.send(topic, value, partition=0).result(DEADLINE_S)
            before = proxy.answer_bytes
            proxy.cut_after_answer_bytes = cut_at
            producer.commit_transaction() if commits else producer.abort_transaction()
            proxy.cut_after_answer_bytes = None
            return proxy.answer_bytes - before

        sound = [b"first", b"second", b"third"]
        answer_bytes = min(write(value, None) for value in sound)  # the others were told to wait a moment
        values = [b"%d" % cut_at for cut_at in range(answer_bytes + 1)]
        assert 10 < answer_bytes < 100
        for cut_at, value in enumerate(values):
            write(value, cut_at)
    assert proxy.cuts > 10
    assert read_committed(proxied_cluster, topic)[0] == ([*sound, *values] if commits else [])


def test_cuts_at_random_leave_what_was_committed(
    proxied_cluster: ProxiedCluster, topic: str, settings: dict[str, object]
) -> None:
    proxy, chance = proxied_cluster.proxy, random.Random(23)
    counted: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    with Producer(settings) as producer:
        producer.init_transactions()
        for number in range(80):
            proxy.cut_after_answer_bytes = chance.randrange(300)
            sent = [(place, b"%d-%d" % (number, place)) for place in range(PARTITIONS)]
            producer.begin_transaction()
            try:
                for place, value in sent:
                    producer.send(topic, value, partition=place)
                if chance.random() < 0.3:
                    producer.abort_transaction()
                    continue
                producer.commit_transaction()
            except AbortableError:
                producer.abort_transaction()
                continue
            for place, value in sent:
                counted[place].append(value)
        proxy.cut_after_answer_bytes = None
    assert proxy.cuts > 10
    assert len(counted[0]) > 20
    assert read_committed(proxied_cluster, topic) == counted


def test_one_that_is_shut_out_while_its_connection_is_gone(
    proxied_cluster: ProxiedCluster, topic: str, settings: dict[str, object]
) -> None:
    """It finds out when it comes back, whatever it does first, and nothing of its open transaction counts."""
    proxy = proxied_cluster.proxy
    for step in ("send", "commit", "abort"):
        with Producer(settings) as old:
            old.init_transactions()
            old.begin_transaction()
            old.send(topic, b"of the old one", partition=0).result(DEADLINE_S)
            proxy.cut_all()
            with Producer(settings) as new:
                new.init_transactions()
                with new.transaction():
                    new.send(topic, step.encode(), partition=0)
                proxy.cut_all()
                if step == "send":
                    assert isinstance(old.send(topic, b"too late", partition=0).exception(DEADLINE_S), FatalError)
                else:
                    with pytest.raises(FatalError):
                        old.commit_transaction() if step == "commit" else old.abort_transaction()
                with new.transaction():
                    new.send(topic, step.encode() + b" again", partition=0)
    assert read_committed(proxied_cluster, topic)[0] == [
        b"send",
        b"send again",
        b"commit",
        b"commit again",
        b"abort",
        b"abort again",
    ]
