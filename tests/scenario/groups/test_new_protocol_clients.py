"""Real consumers (librdkafka's) in groups of the new protocol: hand-overs, restarts, deaths, a change of protocol.

Consumers run in the test's own thread, so that it knows at every moment who owns what: a partition that is given to one
while another still has it is found at once.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tidelog.client.admin import Admin, GroupDescription
from tidelog.testing import Broker

GROUP = "readers"
TOPIC = "orders"
PARTITIONS = 6
DEADLINE_S = 20.0
SESSION_MS = 2_000
SETTINGS = {
    "offsets.topic.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.assignment.interval.ms": 0,
}

Partition = tuple[str, int]


class Crowd:
    """Consumers of one group, and who of them owns what."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 2})
        self._consumers: dict[str, Consumer] = {}
        self._produced = 0
        self._values: list[bytes] = []
        self._violations: list[str] = []
        self.owners: dict[Partition, str] = {}
        self.given: list[tuple[str, Partition]] = []

    # Members

    def start(self, name: str, protocol: str = "consumer", topic: str = TOPIC, instance: str | None = None) -> None:
        config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self._bootstrap,
            "client.id": name,
            "group.id": GROUP,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 200,
            "log_level": 2,
        }
        if protocol == "classic":
            config |= {
                "session.timeout.ms": 3_000,
                "heartbeat.interval.ms": 100,
                "partition.assignment.strategy": "range",
            }
        if instance is not None:
            config["group.instance.id"] = instance
        consumer = Consumer(config)

        def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
            for key in map(_key, partitions):
                if key in self.owners:
                    self._violations.append(f"{key} was given to {name} while {self.owners[key]} had it")
                self.owners[key] = name
                self.given.append((name, key))

        def on_revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
            for key in map(_key, partitions):
                if self.owners.pop(key, None) != name:
                    self._violations.append(f"{name} gave up {key}, which it did not have")

        consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke)
        self._consumers[name] = consumer

    def close(self, *names: str) -> None:
        for name in names or tuple(self._consumers):
            self._consumers.pop(name).close()

    def owned(self, name: str) -> set[Partition]:
        return {key for key, owner in self.owners.items() if owner == name}

    # Records

    def produce(self, count: int = 60, topic: str = TOPIC) -> None:
        for number in range(self._produced, self._produced + count):
            self._producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        self._produced += count
        assert self._producer.flush(DEADLINE_S) == 0

    def read_everything(self) -> None:
        """Wait until all that was produced is read, and see that nothing was read twice."""
        self.until(lambda: len(self._values) >= self._produced, lambda: f"{len(self._values)} of {self._produced} read")
        assert sorted(self._values, key=int) == [b"%d" % number for number in range(self._produced)]

    # Time

    def until(self, condition: Callable[[], bool], what: Callable[[], object]) -> None:
        """Let all consumers poll until the condition holds."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"waited in vain: {what()}"
            self._poll_once()

    def until_shared_out(self, partitions: int = PARTITIONS) -> None:
        """Wait until every consumer of the test has its part, even to one partition, of so many in all."""

        def is_shared_out() -> bool:
            shares = [len(self.owned(name)) for name in self._consumers]
            return sum(shares) == partitions and max(shares) - min(shares) <= 1

        self.until(is_shared_out, lambda: self.owners)

    def until_group(self, condition: Callable[[GroupDescription], bool]) -> GroupDescription:
        """Wait until the coordinator describes the group so."""
        seen: list[GroupDescription] = []

        def is_so() -> bool:
            seen.append(describe(self._bootstrap))
            return condition(seen[-1])

        self.until(is_so, lambda: seen[-1])
        return seen[-1]

    def _poll_once(self) -> None:
        for consumer in list(self._consumers.values()):
            message = consumer.poll(0.01)
            while message is not None:
                self._take(message)
                message = consumer.poll(0)
        assert not self._violations

    def _take(self, message: Message) -> None:
        if (error := message.error()) is not None:
            assert error.retriable() or not error.fatal(), error
            return
        value = message.value()
        assert value is not None
        self._values.append(value)


@pytest.fixture
def fast_groups(start_broker: Callable[..., Broker]) -> Broker:
    """A broker whose members of the new protocol speak ten times a second and are given up after two seconds."""
    broker = start_broker(settings=SETTINGS)
    broker.create_topic(TOPIC, PARTITIONS)
    return broker


@pytest.fixture
def crowd(fast_groups: Broker) -> Iterator[Crowd]:
    crowd = Crowd(fast_groups.bootstrap)
    yield crowd
    crowd.close()


def describe(bootstrap: str) -> GroupDescription:
    with Admin(bootstrap_servers=bootstrap) as admin:
        return admin.describe_consumer_groups(GROUP)[GROUP]


def test_a_second_member_takes_over_what_the_first_gave_up(crowd: Crowd) -> None:
    """Behaviour 55"""
    crowd.produce()
    crowd.start("one")
    crowd.read_everything()
    assert len(crowd.owned("one")) == PARTITIONS
    crowd.start("two")
    crowd.until_shared_out()
    # Only what moved was given: the first went on with the rest meanwhile.
    assert len(crowd.given) == PARTITIONS + PARTITIONS // 2
    crowd.produce()
    crowd.read_everything()
    crowd.close("one")
    crowd.until_shared_out()
    crowd.produce()
    # The first committed when it gave its partitions up, so nothing is read twice.
    crowd.read_everything()


def test_a_subscription_by_expression_follows_the_topics(fast_groups: Broker, crowd: Crowd) -> None:
    """Behaviour 55"""
    fast_groups.create_topic("others", 2)
    crowd.start("one", topic="^orders.*")
    crowd.until_shared_out()
    fast_groups.create_topic("orders-of-today", 2)
    crowd.until_shared_out(PARTITIONS + 2)
    assert {topic for topic, _ in crowd.owners} == {TOPIC, "orders-of-today"}


def test_an_instance_that_restarts_moves_nothing(crowd: Crowd) -> None:
    """Behaviour 55"""
    crowd.start("one", instance="first")
    crowd.start("two", instance="second")
    crowd.until_shared_out()
    before = crowd.until_group(lambda group: group.state == "Stable")
    had, others = crowd.owned("one"), crowd.owned("two")
    given = len(crowd.given)
    crowd.close("one")
    crowd.start("one again", instance="first")
    crowd.until(lambda: crowd.owned("one again") == had, lambda: crowd.owners)
    after = crowd.until_group(lambda group: group.state == "Stable")
    assert after.group_epoch == before.group_epoch
    assert crowd.owned("two") == others
    assert {name for name, _ in crowd.given[given:]} == {"one again"}


def test_a_killed_member_is_given_up_after_its_session(fast_groups: Broker, crowd: Crowd) -> None:
    """Behaviour 55"""
    with other_process(fast_groups.bootstrap) as process:
        crowd.start("one")
        crowd.until(lambda: len(crowd.owned("one")) == PARTITIONS // 2, lambda: crowd.owners)
        process.kill()
        process.wait()
        killed_s = time.monotonic()
        crowd.until_shared_out()
        # Its last heartbeat may have been up to an interval before.
        assert time.monotonic() - killed_s > SESSION_MS / 1000 - 1
    crowd.produce()
    crowd.read_everything()


@pytest.mark.parametrize("ends", [Broker.stop, Broker.crash])
def test_members_go_on_after_a_restart_of_the_broker(
    fast_groups: Broker, crowd: Crowd, ends: Callable[[Broker], None]
) -> None:
    """Behaviour 55"""
    crowd.produce()
    crowd.start("one")
    crowd.start("two")
    crowd.until_shared_out()
    crowd.read_everything()
    before = crowd.until_group(lambda group: group.state == "Stable")
    owners, given = dict(crowd.owners), len(crowd.given)
    ends(fast_groups)
    fast_groups.start()
    crowd.produce()
    crowd.read_everything()
    after = crowd.until_group(lambda group: group.state == "Stable")
    assert after.group_epoch == before.group_epoch
    assert (crowd.owners, len(crowd.given)) == (owners, given), "a restart moved partitions"
    # A later member goes on behind what was committed before and after it.
    crowd.close()
    crowd.start("three")
    crowd.until_shared_out()
    crowd.produce()
    crowd.read_everything()


def test_a_group_changes_its_protocol_member_by_member_and_back(crowd: Crowd) -> None:
    """Behaviour 55"""
    crowd.produce()
    crowd.start("old 1", "classic")
    crowd.start("old 2", "classic")
    crowd.until_shared_out()
    assert crowd.until_group(lambda group: group.state == "Stable").type == "classic"
    for name, protocol, leaves in [
        ("new 1", "consumer", "old 1"),
        ("new 2", "consumer", "old 2"),
        ("old 3", "classic", "new 1"),
        ("old 4", "classic", "new 2"),
    ]:
        crowd.start(name, protocol)
        crowd.until_shared_out()
        assert crowd.until_group(lambda group: group.state == "Stable").type == "consumer"
        crowd.produce()
        crowd.read_everything()
        crowd.close(leaves)
        crowd.until_shared_out()
    assert crowd.until_group(lambda group: group.state == "Stable").type == "classic"
    crowd.produce()
    crowd.read_everything()


_MEMBER = f"""
import sys
from confluent_kafka import Consumer
consumer = Consumer({{
    "bootstrap.servers": sys.argv[1], "client.id": "other", "group.id": "{GROUP}", "group.protocol": "consumer",
    "auto.offset.reset": "earliest",
}})
consumer.subscribe(["{TOPIC}"], on_assign=lambda _, partitions: print(len(partitions), flush=True))
while True:
    consumer.poll(0.05)
"""


@contextmanager
def other_process(bootstrap: str) -> Iterator[subprocess.Popen[bytes]]:
    """A member in a process of its own, once it has everything."""
    process = subprocess.Popen([sys.executable, "-c", _MEMBER, bootstrap], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == PARTITIONS
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _key(partition: TopicPartition) -> Partition:
    return partition.topic, partition.partition
