"""The Java client on a cluster of three brokers, each a process, of which one is killed -9 every ten seconds.

Idempotent producers, members of groups of both protocols, and copiers in transactions: each record is there once, read
by somebody, and copied once, and no error reaches an application that it would have to end for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_processes import BrokerProcesses, broker_processes
from copiers.report import SESSION_MS
from copy_scenario import PARTITIONS, SOURCE, TARGET, CopyScenario
from group_scenario import TOPIC, GroupScenario
from numbered_writers import PARTITIONS as WRITTEN_PARTITIONS
from numbered_writers import Java, check, wait_for_progress
from tidelog import Admin
from tidelog.client.admin import NewTopic

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

JAVA_VERSION = "4.3.1"
MEMBERS_PARTITIONS = 8
KILLS = 3
KILLS_INTERVAL_S = 10.0
DOWN_S = 3.0
OWN_TOPICS = ("__consumer_offsets", "__transaction_state")
SETTINGS = {
    "group.min.session.timeout.ms": SESSION_MS,
    "group.consumer.min.session.timeout.ms": SESSION_MS,
    "group.initial.rebalance.delay.ms": 500,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerProcesses]:
    with broker_processes(tmp_path, settings=SETTINGS) as running:
        yield running
        for broker in running.brokers.values():
            assert "Traceback" not in broker.output(), broker.output()


def create(cluster: BrokerProcesses, **partitions: int) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, count, 3) for name, count in partitions.items()]).raise_for_errors()


def wait_until(moment_s: float) -> None:
    """The kills are ten seconds apart, as long as that is."""
    time.sleep(max(0.0, moment_s - time.monotonic()))


def test_an_idempotent_producer(cluster: BrokerProcesses, java_jars: Path, tmp_path: Path) -> None:
    writer = Java(cluster.bootstrap, tmp_path, java_jars / f"lib-{JAVA_VERSION}")
    create(cluster, **{writer.topic: WRITTEN_PARTITIONS})
    with writer:
        wait_for_progress([writer], 100)
        for number in range(KILLS):
            killed_s = time.monotonic()
            broker = cluster.brokers[1 + number % 3]
            broker.kill()
            wait_for_progress([writer], 100)
            wait_until(killed_s + DOWN_S)
            broker.start()
            cluster.wait_until_in_sync([writer.topic])
            wait_until(killed_s + KILLS_INTERVAL_S)
            wait_for_progress([writer], 100)
        for broker in cluster.brokers.values():
            broker.stop()
            wait_for_progress([writer], 100)
            broker.start()
            cluster.wait_until_in_sync([writer.topic])
    check([writer])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_of_a_group(protocol: str, cluster: BrokerProcesses, java_jars: Path, tmp_path: Path) -> None:
    create(cluster, **{TOPIC: MEMBERS_PARTITIONS})
    jars = java_jars / f"lib-{JAVA_VERSION}"
    with GroupScenario(cluster.bootstrap, MEMBERS_PARTITIONS, tmp_path, java_jars=jars) as group:
        for name in ("one", "other"):
            group.start(name, "java", protocol=protocol)
        group.wait_for_owners("one", "other")
        for number in range(KILLS):
            next_s = time.monotonic() + KILLS_INTERVAL_S
            broker = cluster.brokers[1 + number % 3]
            broker.kill()
            group.wait_for_reads(20)
            broker.start()
            cluster.wait_until_in_sync([TOPIC, "__consumer_offsets"])
            while time.monotonic() < next_s:
                group.wait_for_reads(20)
        group.wait_for_owners("one", "other")
        group.wait_until_read()
        group.check(brokers_died=True)


def test_copiers_in_transactions(cluster: BrokerProcesses, java_jars: Path, tmp_path: Path) -> None:
    create(cluster, **{SOURCE: PARTITIONS, TARGET: PARTITIONS})
    jars = java_jars / f"lib-{JAVA_VERSION}"
    with CopyScenario(cluster.bootstrap, "java", tmp_path, java_jars=jars) as scenario:
        scenario.write(20)
        for name in ("one", "other"):
            scenario.start(name, f"id of {name}")
        scenario.wait_until_assigned("one", "other")
        for number in range(KILLS):
            killed_s = time.monotonic()
            broker = cluster.brokers[1 + number % 3]
            broker.kill()
            scenario.write(20)
            wait_until(killed_s + DOWN_S)
            broker.start()
            cluster.wait_until_in_sync([SOURCE, TARGET, *OWN_TOPICS])
            scenario.write(20)
            wait_until(killed_s + KILLS_INTERVAL_S)
        scenario.tend_until_copied()
        scenario.check_values()
        assert not scenario.restarts
