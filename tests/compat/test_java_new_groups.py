"""The Java client in groups of the new consumer protocol, alone and with librdkafka's; Kafka's own tool on groups."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer

from group_scenario import SESSION_MS, GroupScenario
from tidelog.bench.brokers import kafka_jars
from tidelog.testing import Broker

pytestmark = pytest.mark.compat

PARTITIONS = 6
RECORDS = 60
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": SESSION_MS,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "offsets.topic.num.partitions": 4,
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as running:
        running.create_topic("t", PARTITIONS)
        yield running


@pytest.mark.parametrize("others", ["java", "confluent"])
def test_java_in_a_group_of_the_new_protocol(others: str, broker: Broker, java_jars: Path, tmp_path: Path) -> None:
    with GroupScenario(broker.bootstrap, PARTITIONS, tmp_path, java_jars=java_jars / "lib-4.3.1") as group:
        group.start("java", "java", protocol="consumer")
        group.wait_for_owners("java")
        group.start("other", others, protocol="consumer")
        group.wait_for_owners("java", "other")
        group.grow(PARTITIONS + 2)
        group.wait_for_owners("java", "other")
        group.kill("other")
        group.wait_for_owners("java")
        group.start("other again", others, protocol="consumer")
        group.wait_for_owners("java", "other again")
        group.leave("java")
        group.wait_for_owners("other again")
        group.wait_until_read()
        group.check()


def test_java_changes_the_protocol_of_its_group_and_back(broker: Broker, java_jars: Path, tmp_path: Path) -> None:
    with GroupScenario(broker.bootstrap, PARTITIONS, tmp_path, java_jars=java_jars / "lib-4.3.1") as group:
        group.start("old", "java")
        group.start("old 2", "confluent")
        group.wait_for_owners("old", "old 2")
        group.start("new", "java", protocol="consumer")
        group.wait_for_owners("old", "old 2", "new")
        group.leave("old")
        group.leave("old 2")
        group.wait_for_owners("new")
        group.start("old again", "java")
        group.wait_for_owners("new", "old again")
        group.leave("new")
        group.wait_for_owners("old again")
        group.wait_until_read()
        group.check()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafkas_tool_lists_describes_resets_and_deletes_groups(protocol: str, broker: Broker) -> None:
    def tool(*arguments: str) -> str:
        command = ["java", "-Xmx256m", "-cp", f"{kafka_jars()}/*", TOOL, "--bootstrap-server", broker.bootstrap]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    _produce(broker)
    consumer = _consumer(broker, protocol)
    try:
        _read(consumer, RECORDS)
        listed = tool("--list", "--state")
        assert re.search(r"^readers +Stable", listed, re.MULTILINE), listed
        types = tool("--list", "--type")
        assert re.search(rf"^readers +{protocol}", types, re.MULTILINE | re.IGNORECASE), types
        offsets = tool("--describe", "--group", "readers")
        rows = re.findall(r"^readers +t +(\d) +(\d+) +(\d+) +0 +\S+ +127\.0\.0\.1 +mine", offsets, re.MULTILINE)
        assert sorted(int(partition) for partition, _, _ in rows) == list(range(PARTITIONS)), offsets
        assert sum(int(committed) for _, committed, _ in rows) == RECORDS
        state = tool("--describe", "--group", "readers", "--state")
        assert re.search(r"Stable +1$", state.strip()), state
        members = tool("--describe", "--group", "readers", "--members", "--verbose")
        assert re.search(r"^readers +\S+ +127\.0\.0\.1 +mine +6 +", members, re.MULTILINE), members
        refused = tool("--delete", "--group", "readers")
        assert "not empty" in refused, refused
    finally:
        consumer.close()
    reset = tool("--reset-offsets", "--group", "readers", "--topic", "t", "--to-earliest", "--execute")
    assert len(re.findall(r"^readers +t +\d +0\b", reset, re.MULTILINE)) == PARTITIONS, reset
    _read_all_again(broker, protocol)
    by_one = tool("--reset-offsets", "--group", "readers", "--topic", "t:0", "--shift-by", "-1", "--execute")
    assert re.search(r"^readers +t +0 +9\b", by_one, re.MULTILINE), by_one
    assert "successful" in tool("--delete-offsets", "--group", "readers", "--topic", "t:5").lower()
    assert "successful" in tool("--delete", "--group", "readers")
    assert "readers" not in tool("--list")


def _produce(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS):
        producer.produce("t", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def _consumer(broker: Broker, protocol: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "group.protocol": protocol,
            "client.id": "mine",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["t"])
    return consumer


def _read(consumer: Consumer, count: int) -> None:
    messages: list[Message] = []
    while len(messages) < count:
        got = consumer.consume(count - len(messages), timeout=30)
        assert got, f"only {len(messages)} of {count} records came"
        messages += got
    assert all(message.error() is None for message in messages)
    consumer.commit(asynchronous=False)


def _read_all_again(broker: Broker, protocol: str) -> None:
    """The reset took: the group begins at the first record."""
    consumer = _consumer(broker, protocol)
    try:
        _read(consumer, RECORDS)
    finally:
        consumer.close()
