"""Tidelog's own consumers in one group with those of other families: whoever leads, all agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from group_scenario import SESSION_MS, GroupScenario
from tidelog.testing import Broker

PARTITIONS = 8
LONG_SESSION_MS = 30_000

SETTINGS = {
    "group.min.session.timeout.ms": SESSION_MS,
    "group.initial.rebalance.delay.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
    "offsets.topic.num.partitions": 4,
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as running:
        running.create_topic("t", PARTITIONS)
        yield running


LONGER = pytest.mark.compat  # the same with other assignors, where there is time


@pytest.mark.parametrize(
    ("assignor", "others", "leads"),
    [
        pytest.param("range", ["confluent", "aiokafka", "kafka-python"], True, id="range, we lead"),
        pytest.param("cooperative-sticky", ["confluent", "kafka-python"], False, id="cooperative, they lead"),
        pytest.param("range", ["confluent", "aiokafka", "kafka-python"], False, id="range, they lead", marks=LONGER),
        pytest.param(
            "cooperative-sticky", ["confluent", "kafka-python"], True, id="cooperative, we lead", marks=LONGER
        ),
        pytest.param("roundrobin", ["confluent", "aiokafka"], True, id="round-robin, we lead", marks=LONGER),
        pytest.param("roundrobin", ["confluent", "aiokafka"], False, id="round-robin, they lead", marks=LONGER),
        pytest.param("sticky", ["aiokafka", "kafka-python"], True, id="sticky, we lead", marks=LONGER),
        pytest.param("sticky", ["aiokafka", "kafka-python"], False, id="sticky, they lead", marks=LONGER),
    ],
)
def test_classic_groups(assignor: str, others: list[str], leads: bool, broker: Broker, tmp_path: Path) -> None:
    with GroupScenario(broker.bootstrap, PARTITIONS, tmp_path) as group:
        mixed(group, assignor, others, leads=leads)


def mixed(group: GroupScenario, assignor: str, others: list[str], *, leads: bool) -> None:
    """The first of a group leads it: either ours or one of the others; then members come, die, and go."""
    first, rest = ("tidelog", others) if leads else (others[0], ["tidelog", *others[1:]])
    group.start(first, first, assignor)
    group.wait_for_owners(first)
    for family in rest:
        group.start(family, family, assignor)
    everybody = [first, *rest]
    group.wait_for_owners(*everybody)
    group.start("ours too", "tidelog", assignor)
    group.wait_for_owners(*everybody, "ours too")
    group.kill("ours too")
    group.wait_for_owners(*everybody)
    group.grow(PARTITIONS + 4)
    group.wait_for_owners(*everybody)
    group.stop("tidelog")
    group.wait_for_owners(*(name for name in everybody if name != "tidelog"))
    group.resume("tidelog")
    group.wait_for_owners(*everybody)
    group.leave(others[-1])
    group.wait_for_owners(*(name for name in everybody if name != others[-1]))
    group.wait_until_read()
    group.check()


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_the_bounce_of_a_static_member_moves_nothing(assignor: str, broker: Broker, tmp_path: Path) -> None:
    with GroupScenario(broker.bootstrap, PARTITIONS, tmp_path, session_ms=LONG_SESSION_MS) as group:
        group.start("stays", "confluent", assignor, instance="stays")
        group.start("goes", "tidelog", assignor, instance="bounces")
        group.wait_for_owners("stays", "goes")
        before, assignments = group.ownership(), group.assignments("stays")
        group.kill("goes")
        group.start("back", "tidelog", assignor, instance="bounces")
        group.wait_for_owners("stays", "back")
        moved = {partition: "back" if name == "goes" else name for partition, name in before.items()}
        assert group.ownership() == moved
        assert group.assignments("stays") == assignments
        group.wait_until_read()
        group.check()


def test_the_consumer_protocol_with_librdkafka(broker: Broker, tmp_path: Path) -> None:
    with GroupScenario(broker.bootstrap, PARTITIONS, tmp_path) as group:
        group.start("ours", "tidelog", protocol="consumer")
        group.start("theirs", "confluent", protocol="consumer")
        group.wait_for_owners("ours", "theirs")
        group.start("ours too", "tidelog", protocol="consumer")
        group.wait_for_owners("ours", "theirs", "ours too")
        group.leave("theirs")
        group.wait_for_owners("ours", "ours too")
        group.leave("ours too")
        group.wait_for_owners("ours")
        group.wait_until_read()
        group.check()


def test_from_the_classic_protocol_to_the_consumer_protocol_and_back(broker: Broker, tmp_path: Path) -> None:
    """A group is moved member by member, while it reads."""
    with GroupScenario(broker.bootstrap, PARTITIONS, tmp_path) as group:
        group.start("old one", "tidelog")
        group.start("old two", "confluent")
        group.wait_for_owners("old one", "old two")
        group.start("new one", "tidelog", protocol="consumer")
        group.wait_for_owners("old one", "old two", "new one")
        group.leave("old one")
        group.wait_for_owners("old two", "new one")
        group.leave("old two")
        group.wait_for_owners("new one")
        group.start("old again", "tidelog")
        group.wait_for_owners("new one", "old again")
        group.leave("new one")
        group.wait_for_owners("old again")
        group.wait_until_read()
        group.check()


@pytest.mark.compat
@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
@pytest.mark.parametrize("leads", [True, False], ids=["we lead", "Java leads"])
def test_with_java(assignor: str, leads: bool, version: str, broker: Broker, java_jars: Path, tmp_path: Path) -> None:
    jars = java_jars / f"lib-{version}"
    with GroupScenario(broker.bootstrap, PARTITIONS, tmp_path, java_jars=jars) as group:
        mixed(group, assignor, ["java"], leads=leads)
