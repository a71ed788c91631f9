"""Worker pools over real consumers: order by key, rebalances between pools, and members that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tidelog import Admin, AsyncConsumer, AsyncKeyedWorkerPool, Consumer, KeyedWorkerPool, NewTopic
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.types import TopicPartition

PARTITIONS = 4
KEYS = 23


class Topic:
    """A topic whose records, which another client writes, have a number that grows within each key."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.written = 0

    def write(self, count: int) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap})
        for number in range(self.written, self.written + count):
            producer.produce(self.name, b"%d" % number, key=b"key-%d" % (number % KEYS))
        assert producer.flush(60) == 0
        self.written += count

    def consumer_options(self, group: str, **options: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "max_poll_records": 50,
            "heartbeat_interval_ms": 500,
        } | options

    def uncommitted(self, group: str) -> int:
        """How many records lie behind what the group has committed."""
        places = [TopicPartition(self.name, number) for number in range(PARTITIONS)]
        with Consumer(**self.consumer_options(group)) as consumer:
            ends, committed = consumer.end_offsets(places), consumer.committed(places)
        offsets = [committed[place] for place in places]
        return sum(ends.values()) - sum(offset.offset for offset in offsets if offset is not None)


@pytest.fixture
def topic(client_cluster: BrokerProcess, fresh_name: Callable[[str], str]) -> Topic:
    name = fresh_name("orders")
    with Admin(bootstrap_servers=client_cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])
    return Topic(client_cluster.bootstrap, name)


class Handled:
    """What handlers did, by key, and that no two worked on a key at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[bytes] = set()
        self.numbers: dict[bytes, list[int]] = defaultdict(list)
        self.by_pool: dict[str, int] = defaultdict(int)

    def handler(self, pool: str) -> Callable[[Any], None]:
        def handle(record: Any) -> None:
            with self._lock:
                assert record.key not in self._running, "two records of a key run at once"
                self._running.add(record.key)
            threading.Event().wait(0.002)
            with self._lock:
                self._running.remove(record.key)
                self.numbers[record.key].append(int(record.value))
                self.by_pool[pool] += 1

        return handle

    @property
    def count(self) -> int:
        with self._lock:
            return sum(map(len, self.numbers.values()))

    def check(self, written: int) -> None:
        """Everything in order, and with nobody killed nothing twice."""
        assert set(self.numbers) == {b"key-%d" % number for number in range(KEYS)}
        for key, numbers in self.numbers.items():
            assert numbers == list(range(int(key[4:]), written, KEYS))


def test_a_pool_handles_everything_in_order(
    topic: Topic, fresh_name: Callable[[str], str], wait_until: Callable[..., None]
) -> None:
    group = fresh_name("group")
    topic.write(2000)
    handled = Handled()
    with Consumer(**topic.consumer_options(group)) as consumer:
        pool = KeyedWorkerPool(consumer, handled.handler("one"), topics=[topic.name], workers=8, max_in_flight=200)
        with pool:
            wait_until(lambda: handled.count == 2000, "all are handled")
            assert pool.metrics().in_flight <= 200 + 50
        assert pool.metrics().done == 2000
    handled.check(2000)
    assert topic.uncommitted(group) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"partition_assignment_strategy": "range"},
        {"partition_assignment_strategy": "cooperative-sticky"},
        {"group_protocol": "consumer"},
    ],
    ids=["eager", "cooperative", "new protocol"],
)
def test_pools_that_come_and_go_repeat_and_lose_nothing(
    topic: Topic, fresh_name: Callable[[str], str], wait_until: Callable[..., None], options: dict[str, Any]
) -> None:
    """Partitions are drained and committed before they change hands, so that order holds across pools, too."""
    if "group_protocol" in options and os.environ.get("COMPAT_CLIENT_PEER", "").startswith("3."):
        pytest.skip("Kafka 3.9 has the consumer protocol as a preview only, and switched off")
    group = fresh_name("group")
    handled = Handled()
    topic.write(1000)
    with (
        Consumer(**topic.consumer_options(group, **options)) as one,
        Consumer(**topic.consumer_options(group, **options)) as two,
    ):
        first = KeyedWorkerPool(one, handled.handler("one"), topics=[topic.name]).start()
        wait_until(lambda: handled.count > 300, "the first has begun")
        second = KeyedWorkerPool(two, handled.handler("two"), topics=[topic.name]).start()
        topic.write(1000)
        wait_until(lambda: handled.by_pool["two"] > 50 or handled.count == 2000, "the second works, too")
        while handled.by_pool["two"] <= 50:
            # All was done before the second had its partitions: there is more to do.
            topic.write(500)
            seen = handled.by_pool["two"], topic.written
            wait_until(lambda seen=seen: handled.by_pool["two"] > seen[0] or handled.count == seen[1], "it is done")
        first.stop()
        one.close()
        topic.write(500)
        wait_until(lambda: handled.count >= topic.written, "all are handled")
        second.stop()
    handled.check(topic.written)
    assert topic.uncommitted(group) == 0


def test_slow_handlers_do_not_cost_the_membership(
    topic: Topic, fresh_name: Callable[[str], str], wait_until: Callable[..., None]
) -> None:
    """A handler takes longer than max.poll.interval.ms; the pool polls on, so the member is not taken for dead."""
    group = fresh_name("group")
    topic.write(KEYS)
    handled: list[int] = []

    def handle(record: Any) -> None:
        if int(record.value) == 0:
            threading.Event().wait(3)
        handled.append(int(record.value))

    options = topic.consumer_options(group, max_poll_interval_ms=1500)
    with Consumer(**options) as consumer:
        with KeyedWorkerPool(consumer, handle, topics=[topic.name], max_in_flight=1) as pool:
            wait_until(lambda: len(handled) == KEYS, "all are handled")
        assert pool.metrics().done == KEYS
    assert sorted(handled) == list(range(KEYS))
    assert topic.uncommitted(group) == 0


def test_a_pool_of_coroutines(topic: Topic, fresh_name: Callable[[str], str]) -> None:
    group = fresh_name("group")
    topic.write(1000)
    numbers: dict[bytes, list[int]] = defaultdict(list)

    async def handle(record: Any) -> None:
        await asyncio.sleep(0)
        numbers[record.key].append(int(record.value))

    async def main() -> None:
        async with (
            AsyncConsumer(**topic.consumer_options(group)) as consumer,
            AsyncKeyedWorkerPool(consumer, handle, topics=[topic.name]) as pool,
        ):
            while pool.metrics().done < 1000:  # noqa: ASYNC110 - what is waited for is another object's state
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))
    for key, values in numbers.items():
        assert values == list(range(int(key[4:]), 1000, KEYS))
    assert topic.uncommitted(group) == 0


# Handles records with an effect in SQLite, in one transaction with the mark, and notes what it was given.
KILLED_POOL = """
import sqlite3, sys, threading
from tidelog import Consumer, Deduplicator, KeyedWorkerPool

bootstrap, topic, group, database, stuck = sys.argv[1:]
dedup = Deduplicator(f"sqlite:///{database}", name="ledger")
local = threading.local()

def handle(record):
    if record.value == stuck.encode():
        threading.Event().wait()
    if not hasattr(local, "connection"):
        local.connection = sqlite3.connect(database, timeout=30)
        local.connection.execute("PRAGMA synchronous=OFF")  # processes die here, machines do not
    with local.connection as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO given VALUES (?)", (int(record.value),))
        with dedup.once(record, connection=connection) as first:
            if first:
                connection.execute("INSERT INTO effects VALUES (?)", (int(record.value),))

consumer = Consumer(
    bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
    session_timeout_ms=6000, heartbeat_interval_ms=500, max_poll_records=50,
)
KeyedWorkerPool(consumer, handle, topics=[topic], workers=4, commit_interval_s=0.2).run()
"""


def test_killed_pools_lose_nothing_and_a_deduplicator_makes_it_once(
    topic: Topic, fresh_name: Callable[[str], str], wait_until: Callable[..., None], tmp_path: Path
) -> None:
    """A pool is killed with -9 in the middle of its work; its successor ends it."""
    database = tmp_path / "ledger.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript("CREATE TABLE given (number int); CREATE TABLE effects (number int)")
    topic.write(1000)
    command = [sys.executable, "-c", KILLED_POOL, topic.bootstrap, topic.name, fresh_name("group"), str(database)]

    def effects() -> int:
        with closing(sqlite3.connect(database)) as connection:
            return int(connection.execute("SELECT count(*) FROM effects").fetchone()[0])

    # The first pool never ends one record, so it can't commit the others of that partition which it does end.
    for enough, stuck in ((300, "17"), (1000, "none")):
        process = subprocess.Popen([*command, stuck], stderr=subprocess.PIPE)
        try:
            wait_until(lambda enough=enough, process=process: effects() >= enough or process.poll() is not None, "work")
        finally:
            process.kill()
            _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors.decode()
    with closing(sqlite3.connect(database)) as connection:
        numbers = sorted(number for (number,) in connection.execute("SELECT number FROM effects"))
        given = connection.execute("SELECT count(*), count(DISTINCT number) FROM given").fetchone()
    assert numbers == list(range(1000)), "each effect once"
    assert given[1] == 1000
    assert given[0] > 1000, "no record was given twice, so nothing was kept from happening twice"
