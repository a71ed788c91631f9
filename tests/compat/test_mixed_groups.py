"""Consumers of different families in one group, killed, stopped, restarted, with partitions added."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from group_scenario import SESSION_MS, GroupScenario
from tidelog.testing import Broker

PARTITIONS = 8

LONG_SESSION_MS = 30_000
"""Longer than a process takes to start again, however busy the machine is; no test waits for its end."""


SETTINGS = {
    # Short sessions, so that the death of a member is noticed within a test.
    "group.min.session.timeout.ms": SESSION_MS,
    "group.initial.rebalance.delay.ms": 500,
    "offsets.topic.num.partitions": 4,
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as running:
        running.create_topic("t", PARTITIONS)
        yield running


def test_all_families_in_one_group(broker: Broker, tmp_path: Path) -> None:
    with GroupScenario(broker.bootstrap, PARTITIONS, tmp_path) as group:
        for family in ("kcat", "confluent", "aiokafka", "kafka-python"):
            group.start(family, family)
        group.wait_for_owners("kcat", "confluent", "aiokafka", "kafka-python")
        group.kill("aiokafka")
        group.wait_for_owners("kcat", "confluent", "kafka-python")
        group.stop("kafka-python")
        group.wait_for_owners("kcat", "confluent")
        group.resume("kafka-python")
        group.wait_for_owners("kcat", "confluent", "kafka-python")
        group.start("aiokafka again", "aiokafka")
        group.wait_for_owners("kcat", "confluent", "kafka-python", "aiokafka again")
        group.grow(PARTITIONS + 4)
        group.wait_for_owners("kcat", "confluent", "kafka-python", "aiokafka again")
        for name in ("confluent", "aiokafka again"):
            group.leave(name)
        # kcat can't be asked to leave: it would drop a record that it has taken, and commit it all the same.
        group.kill("kcat")
        group.wait_for_owners("kafka-python")
        group.wait_until_read()
        group.check()


@pytest.mark.parametrize(
    ("assignor", "families"),
    [
        ("roundrobin", ["kcat", "confluent", "aiokafka", "kafka-python"]),
        ("sticky", ["aiokafka", "kafka-python"]),
        ("cooperative-sticky", ["kcat", "confluent", "kafka-python"]),
    ],
)
def test_other_assignors(assignor: str, families: list[str], broker: Broker, tmp_path: Path) -> None:
    with GroupScenario(broker.bootstrap, PARTITIONS, tmp_path) as group:
        for family in families:
            group.start(family, family, assignor)
        group.wait_for_owners(*families)
        group.start("another", families[-1], assignor)
        group.wait_for_owners(*families, "another")
        group.kill(families[0])
        group.wait_for_owners(*families[1:], "another")
        group.leave(families[-1])
        group.wait_for_owners(*families[1:-1], "another")
        group.wait_until_read()
        group.check()


@pytest.mark.parametrize("family", ["kcat", "confluent", "aiokafka", "kafka-python"])
def test_the_bounce_of_a_static_member_moves_nothing(family: str, broker: Broker, tmp_path: Path) -> None:
    with GroupScenario(broker.bootstrap, PARTITIONS, tmp_path, session_ms=LONG_SESSION_MS) as group:
        group.start("stays", "confluent", instance="stays")
        bounce(group, family)


def test_more_members_than_partitions(tmp_path: Path) -> None:
    with Broker(settings=SETTINGS) as broker:
        broker.create_topic("t", 2)
        with GroupScenario(broker.bootstrap, 2, tmp_path) as group:
            names = ("one", "two", "three")
            for name in names:
                group.start(name, "confluent")
            group.wait(
                lambda: all(group.assignments(name) for name in names) and len(group.ownership()) == 2,
                lambda: f"not shared out: {group.ownership()}",
            )
            owners = set(group.ownership().values())
            assert len(owners) == 2
            (spare,) = set(names) - owners
            group.leave(owners.pop())
            group.wait_for_owners(spare, owners.pop())
            group.wait_until_read()
            group.check()


@pytest.mark.compat
@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
@pytest.mark.parametrize(
    ("assignor", "families"),
    [
        ("range", ["java", "kcat", "confluent", "aiokafka", "kafka-python"]),
        ("roundrobin", ["java", "confluent"]),
        ("sticky", ["java", "aiokafka", "kafka-python"]),
        ("cooperative-sticky", ["java", "confluent", "kcat", "kafka-python"]),
    ],
)
def test_java_among_others(
    assignor: str, families: list[str], version: str, broker: Broker, java_jars: Path, tmp_path: Path
) -> None:
    with GroupScenario(broker.bootstrap, PARTITIONS, tmp_path, java_jars=java_jars / f"lib-{version}") as group:
        for family in families:
            group.start(family, family, assignor)
        group.wait_for_owners(*families)
        group.kill("java")
        group.wait_for_owners(*families[1:])
        group.start("java again", "java", assignor)
        group.wait_for_owners(*families[1:], "java again")
        group.grow(PARTITIONS + 4)
        group.wait_for_owners(*families[1:], "java again")
        group.stop("java again")
        group.wait_for_owners(*families[1:])
        group.resume("java again")
        group.wait_for_owners(*families[1:], "java again")
        group.leave("java again")
        group.wait_for_owners(*families[1:])
        group.wait_until_read()
        group.check()


@pytest.mark.compat
@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
def test_the_bounce_of_a_static_java_member_moves_nothing(
    version: str, broker: Broker, java_jars: Path, tmp_path: Path
) -> None:
    jars = java_jars / f"lib-{version}"
    with GroupScenario(broker.bootstrap, PARTITIONS, tmp_path, java_jars=jars, session_ms=LONG_SESSION_MS) as group:
        group.start("stays", "java", instance="stays")
        bounce(group, "java")


def bounce(group: GroupScenario, family: str) -> None:
    """Have an instance join "stays", be killed and come back."""
    group.start("goes", family, instance="bounces")
    group.wait_for_owners("stays", "goes")
    before = group.ownership()
    assignments = group.assignments("stays")
    group.kill("goes")
    group.start("back", family, instance="bounces")
    group.wait_for_owners("stays", "back")
    assert group.ownership() == {partition: "back" if name == "goes" else name for partition, name in before.items()}
    assert group.assignments("stays") == assignments
    group.wait_until_read()
    group.check()


def test_two_owners_would_be_noticed(broker: Broker, tmp_path: Path) -> None:
    """The record of owners is of use only if it complains: here two groups pass for one."""
    with GroupScenario(broker.bootstrap, PARTITIONS, tmp_path) as group:
        for name in ("one", "other"):
            group.start(name, "confluent", group=name)
        everything = set(range(PARTITIONS))
        group.wait(
            lambda: group.owned("one") == group.owned("other") == everything, lambda: "not everything was assigned"
        )
        with pytest.raises(AssertionError, match="had two owners"):
            group.check()
