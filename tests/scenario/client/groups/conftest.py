"""Consumers that read in threads of their own, as members of a group, and keep a record of what they were told."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import pytest

from tidelog import Admin, Consumer, RebalanceListener, TopicPartition
from tidelog.bench.brokers import BrokerProcess, KafkaBroker, TidelogBroker, kafka_jars
from tidelog.client.admin.types import NewTopic

DEADLINE_S = 45.0

# Groups notice changes by heartbeats, so these are short; the session's is the shortest that brokers allow.
_QUICK = {"heartbeat_interval_ms": 300, "session_timeout_ms": 6_000}


def _settings_of(group_id: str, options: dict[str, Any]) -> dict[str, Any]:
    if options.get("group_protocol") == "consumer":
        if os.environ.get("COMPAT_CLIENT_PEER", "").startswith("3."):
            pytest.skip("Kafka 3.9 has the consumer protocol as a preview only, and switched off")
        return {"group_id": group_id, "auto_offset_reset": "earliest", **options}
    return {"group_id": group_id, "auto_offset_reset": "earliest", **_QUICK, **options}


@pytest.fixture(scope="session")
def client_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """As elsewhere in the suite, with quick heartbeats in the consumer protocol, where the broker sets their pace."""
    peer = os.environ.get("COMPAT_CLIENT_PEER")
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.heartbeat.interval.ms": "500",
        "log.retention.ms": "-1",
    }
    directory = tmp_path_factory.mktemp("groups")
    if peer:
        settings["group.consumer.min.heartbeat.interval.ms"] = "500"
        broker: BrokerProcess = KafkaBroker(directory, jars=kafka_jars(peer), settings=settings)
    else:
        broker = TidelogBroker(directory, settings=settings)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


class Worker(RebalanceListener):
    """One consumer in its thread: polls, notes records and rebalances, commits automatically or not at all."""

    def __init__(self, bootstrap: str, group_id: str, subscribed: Any, options: dict[str, Any]) -> None:
        self.events: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.owned: set[TopicPartition] = set()
        self.records: list[Any] = []
        self.errors: list[BaseException] = []
        self.may_poll = threading.Event()
        self.may_poll.set()
        self._stop = threading.Event()
        self.consumer = Consumer(bootstrap_servers=bootstrap, **_settings_of(group_id, options))
        self._subscribed = subscribed
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.consumer.subscribe(self._subscribed, listener=self)
            while not self._stop.is_set():
                self.may_poll.wait()
                if not self._stop.is_set():
                    self.records += self.consumer.poll(0.1)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.errors.append(error)
        finally:
            try:
                self.consumer.close(10)
            except BaseException as error:  # noqa: BLE001
                self.errors.append(error)

    def on_partitions_assigned(self, partitions: Any) -> None:
        self.owned |= set(partitions)
        self.events.append(("assigned", tuple(partitions)))

    def on_partitions_revoked(self, partitions: Any) -> None:
        assert self.owned >= set(partitions)
        self.owned -= set(partitions)
        self.events.append(("revoked", tuple(partitions)))

    def on_partitions_lost(self, partitions: Any) -> None:
        self.owned -= set(partitions)
        self.events.append(("lost", tuple(partitions)))

    def stop(self) -> None:
        """Close the consumer, which leaves the group."""
        self._stop.set()
        self.may_poll.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


class GroupBench:
    """A topic's readers."""

    def __init__(self, cluster: BrokerProcess, fresh_name: Callable[[str], str], stack: ExitStack) -> None:
        self.bootstrap = cluster.bootstrap
        self.fresh_name = fresh_name
        self.group_id = fresh_name("group")
        self._stack = stack
        self.workers: list[Worker] = []

    def make_topic(self, partitions: int = 1, word: str = "topic") -> str:
        name = self.fresh_name(word)
        self.create(name, partitions)
        return name

    def create(self, name: str, partitions: int) -> None:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics([NewTopic(name, partitions)]).raise_for_errors()

    def work(self, subscribed: Any, **options: Any) -> Worker:
        """Start a consumer."""
        worker = Worker(self.bootstrap, self.group_id, subscribed, options)
        self._stack.callback(worker.stop)
        self.workers.append(worker)
        return worker

    def settings(self, **options: Any) -> dict[str, Any]:
        """What a consumer of the group is made with."""
        return {"bootstrap_servers": self.bootstrap, **_settings_of(self.group_id, options)}

    def consumer(self, **options: Any) -> Consumer:
        """A consumer that the test itself drives."""
        return self._stack.enter_context(Consumer(**self.settings(**options)))

    def produce(self, topic: str, partitions: int, count: int, start: int = 0) -> None:
        """So many records to each partition; the value is the number."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap})
        for partition in range(partitions):
            for number in range(start, start + count):
                producer.produce(topic, str(number).encode(), partition=partition)
        assert producer.flush(DEADLINE_S) == 0

    def read(self, consumer: Consumer, count: int) -> list[Any]:
        """Poll until so many records have come."""
        records: list[Any] = []

        def polled() -> bool:
            records.extend(consumer.poll(0.1))
            return len(records) >= count

        self.wait_for(polled, f"{count} records")
        return records

    def wait_for(self, condition: Callable[[], object], what: str = "") -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, what or [
                (worker.owned, worker.events[-4:], worker.errors) for worker in self.workers
            ]
            time.sleep(0.02)

    def wait_shared(self, topic: str, partitions: int, *sizes: int) -> None:
        """Wait until the workers own so many partitions each, in any order, and all of them together."""
        wanted = {TopicPartition(topic, number) for number in range(partitions)}

        def shared() -> bool:
            owned = [set(worker.owned) for worker in self.workers]
            return sorted(map(len, owned)) == sorted(sizes) and set().union(*owned) == wanted

        self.wait_for(shared)


@pytest.fixture
def group(client_cluster: BrokerProcess, fresh_name: Callable[[str], str]) -> Iterator[GroupBench]:
    with ExitStack() as stack:
        yield GroupBench(client_cluster, fresh_name, stack)


@pytest.fixture
def own_group(own_cluster: BrokerProcess, fresh_name: Callable[[str], str]) -> Iterator[GroupBench]:
    """The same with a broker that the test may stop and start."""
    with ExitStack() as stack:
        yield GroupBench(own_cluster, fresh_name, stack)


@pytest.fixture
def make_group() -> type[GroupBench]:
    """For clusters of the test's own."""
    return GroupBench
