"""Our consumers and Java's in one group, on Tidelog and on Apache Kafka: rebalances while all of them read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from group_scenario import SESSION_MS, GroupScenario
from tidelog import Admin, NewTopic
from tidelog.bench.brokers import KafkaBroker, kafka_jars
from tidelog.testing import Broker

pytestmark = pytest.mark.compat

PARTITIONS = 8
KAFKA_VERSION = "4.3.1"
JAVA_VERSION = "4.3.1"
SETTINGS = {
    "group.min.session.timeout.ms": SESSION_MS,
    "group.initial.rebalance.delay.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "offsets.topic.num.partitions": 4,
}
# Only Kafka has bounds for what it is told itself.
KAFKA_SETTINGS = {
    **SETTINGS,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.min.session.timeout.ms": SESSION_MS,
}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Starts a broker of this kind with the topic that all read; gives its address."""
    with ExitStack() as stack:

        def begin(kind: str) -> str:
            if kind == "tidelog":
                bootstrap = stack.enter_context(Broker(settings=SETTINGS)).bootstrap
            else:
                settings = {name: str(value) for name, value in KAFKA_SETTINGS.items()}
                kafka = KafkaBroker(tmp_path / "kafka", jars=kafka_jars(KAFKA_VERSION), settings=settings)
                kafka.start()
                stack.callback(kafka.kill)
                bootstrap = kafka.bootstrap
            with Admin(bootstrap_servers=bootstrap) as admin:
                admin.create_topics([NewTopic("t", PARTITIONS, 1)]).raise_for_errors()
            return bootstrap

        yield begin


@pytest.mark.parametrize(
    ("kind", "protocol", "assignor"),
    [
        ("kafka", "classic", "range"),
        ("kafka", "classic", "cooperative-sticky"),
        ("kafka", "consumer", "range"),
        ("tidelog", "consumer", "range"),
    ],
)
def test_members_come_and_go(
    kind: str, protocol: str, assignor: str, start: Callable[[str], str], java_jars: Path, tmp_path: Path
) -> None:
    jars = java_jars / f"lib-{JAVA_VERSION}"
    with GroupScenario(start(kind), PARTITIONS, tmp_path, java_jars=jars) as group:
        group.start("ours", "tidelog", assignor, protocol=protocol)
        group.wait_for_owners("ours")
        group.start("java", "java", assignor, protocol=protocol)
        group.wait_for_owners("ours", "java")
        group.start("ours too", "tidelog", assignor, protocol=protocol)
        group.wait_for_owners("ours", "java", "ours too")
        group.kill("ours")
        group.wait_for_owners("java", "ours too")
        group.grow(PARTITIONS + 4)
        group.wait_for_owners("java", "ours too")
        group.kill("java")
        group.wait_for_owners("ours too")
        group.start("java again", "java", assignor, protocol=protocol)
        group.wait_for_owners("ours too", "java again")
        group.leave("ours too")
        group.wait_for_owners("java again")
        group.wait_until_read()
        group.check()


def test_a_group_moves_from_java_to_ours_and_to_the_new_protocol(
    start: Callable[[str], str], java_jars: Path, tmp_path: Path
) -> None:
    """Member by member, while it reads, on Kafka."""
    jars = java_jars / f"lib-{JAVA_VERSION}"
    with GroupScenario(start("kafka"), PARTITIONS, tmp_path, java_jars=jars) as group:
        group.start("java", "java")
        group.wait_for_owners("java")
        group.start("ours", "tidelog")
        group.wait_for_owners("java", "ours")
        group.start("new", "tidelog", protocol="consumer")
        group.wait_for_owners("java", "ours", "new")
        group.leave("java")
        group.wait_for_owners("ours", "new")
        group.leave("ours")
        group.wait_for_owners("new")
        group.start("new java", "java", protocol="consumer")
        group.wait_for_owners("new", "new java")
        group.wait_until_read()
        group.check()
