"""Connections of a group break at random while it joins, beats and commits: nothing is lost, no commit runs ahead."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from proxied_cluster import ProxiedCluster
from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.client.errors import CommitFailedError, RetriableError

DEADLINE_S = 90.0
PARTITIONS = 3
CUTS = 50
QUICK = {"retry.backoff.ms": 10, "retry.backoff.max.ms": 50, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50}
CLASSIC = {
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 200,
}
EAGER = {**CLASSIC, "partition.assignment.strategy": "range"}
NEW = {"group.protocol": "consumer"}


class Readers:
    """Members of one group in threads of their own, and what they have been handed."""

    def __init__(self, bootstrap: str, topic: str, settings: dict[str, Any]) -> None:
        self._topic = topic
        self._settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", **QUICK, **settings}
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self.guard = threading.Lock()
        self.seen: dict[int, set[int]] = {partition: set() for partition in range(PARTITIONS)}
        self.errors: list[BaseException] = []

    def start(self, polls: int | None = None) -> None:
        """Let one more member read, for so many polls with records or until the end."""
        thread = threading.Thread(target=self._run, args=(polls,))
        thread.start()
        self._threads.append(thread)

    def join(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))

    def _run(self, polls: int | None) -> None:
        try:
            with Consumer(self._settings) as consumer:
                consumer.subscribe([self._topic])
                is_committed = True
                while not self._ending.is_set() and polls != 0:
                    if self._read(consumer):
                        is_committed = False
                        polls = None if polls is None else polls - 1
                    is_committed = is_committed or self._commit(consumer)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.errors.append(error)

    def _read(self, consumer: Consumer) -> bool:
        records = consumer.poll(0.1)
        with self.guard:
            for record in records:
                self.seen[record.partition].add(record.offset)
        return bool(records)

    def _commit(self, consumer: Consumer) -> bool:
        if self._settings["enable.auto.commit"]:
            return True
        try:
            consumer.commit_sync(timeout=5.0)
        except CommitFailedError:
            return True  # somebody else has these partitions now, and reads the records again
        except RetriableError:
            return False
        return True


def check_commits(admin: Admin, group: str, readers: Readers) -> dict[TopicPartition, int]:
    """What is committed has been handed out, all of it."""
    committed = admin.list_consumer_group_offsets(group)[group]
    with readers.guard:
        for partition, offset in committed.items():
            behind = set(range(offset.offset)) - readers.seen[partition.partition]
            assert not behind, f"{partition} is committed up to {offset.offset}, without {sorted(behind)[:5]}"
    return {partition: offset.offset for partition, offset in committed.items()}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({**CLASSIC, "enable.auto.commit": False}, id="cooperative"),
        pytest.param({**EAGER, "enable.auto.commit": True, "auto.commit.interval.ms": 50}, id="eager, auto"),
        pytest.param({**NEW, "enable.auto.commit": True, "auto.commit.interval.ms": 50}, id="consumer, auto"),
    ],
)
def test_commits_never_run_ahead(
    proxied_cluster: ProxiedCluster, fresh_name: Callable[[str], str], settings: dict[str, Any]
) -> None:
    if settings.get("group.protocol") and os.environ.get("COMPAT_CLIENT_PEER", "").startswith("3."):
        pytest.skip("Kafka 3.9 has the consumer protocol as a preview only, and switched off")
    topic, group, proxy, chance = fresh_name("faults"), fresh_name("group"), proxied_cluster.proxy, random.Random(17)
    with (
        Admin({"bootstrap.servers": proxied_cluster.bootstrap, **QUICK}) as admin,
        Producer({"bootstrap.servers": proxied_cluster.bootstrap, **QUICK}) as producer,
    ):
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).raise_for_errors()
        limits = {"max.poll.records": 20, "max.partition.fetch.bytes": 2_000, "group.id": group}
        readers = Readers(proxied_cluster.bootstrap, topic, {**limits, **settings})
        sent = 0  # to each partition
        try:
            for polls in (None, 5, None, 10):
                readers.start(polls)
            began_s = time.monotonic()
            while proxy.cuts < CUTS or readers.count < sent * PARTITIONS:
                assert time.monotonic() < began_s + DEADLINE_S, f"{readers.count} of {sent * PARTITIONS} were read"
                assert not readers.errors
                # A cut somewhere in one of the next answers, whatever it answers; and all at once now and then.
                proxy.cut_after_answer_bytes = chance.randrange(600)
                if chance.random() < 0.1:
                    proxy.cut_all()
                if proxy.cuts < CUTS:
                    for number in range(60 * PARTITIONS):
                        producer.send_nowait(topic, b"%d" % number, partition=number % PARTITIONS)
                    producer.flush(DEADLINE_S)
                    sent += 60
                check_commits(admin, group, readers)
            proxy.reset()
        finally:
            readers.join()
        assert not readers.errors
        assert check_commits(admin, group, readers) == {
            TopicPartition(topic, partition): sent for partition in range(PARTITIONS)
        }
