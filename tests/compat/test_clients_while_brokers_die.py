"""Clients of every family work on a cluster of three brokers, each a process, that are killed -9 and restarted.

As members of groups all of them get through. As copiers in transactions only aiokafka does without help. Two libraries
have defects that Apache Kafka's brokers meet with in the same way, so a copier that is stuck is restarted here, as
whoever runs one has to; what is asserted is that each record is copied once all the same:

- librdkafka drops a broker that Metadata doesn't list any more, but goes on waiting for it if it coordinated the group:
  `send_offsets_to_transaction` doesn't return before its time-out (confluentinc/librdkafka#5511).
- kafka-python 3.0 forgets the request that it was about to send when the coordinator refuses the connection:
  `Sender._maybe_send_pending_request` puts it back only if it had not chosen a node yet. So
  `send_offsets_to_transaction` waits for ever, or the records of a new partition are never sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker_processes import BrokerProcesses, broker_processes
from copiers.report import SESSION_MS
from copy_scenario import PARTITIONS, SOURCE, TARGET, CopyScenario
from group_scenario import TOPIC, GroupScenario
from numbered_writers import PARTITIONS as WRITTEN_PARTITIONS
from numbered_writers import Aiokafka, Confluent, KafkaPython, Ours, Writer, check, wait_for_progress
from tidelog import Admin
from tidelog.client.admin import NewTopic

FAMILIES = ("kcat", "confluent", "aiokafka", "kafka-python")
MEMBERS_PARTITIONS = 8
# Longer than a busy machine keeps a member from its heartbeats; no test waits for its end.
LONG_SESSION_MS = 30_000
KILLS = 12
KILLS_INTERVAL_S = 10.0
DOWN_S = 3.0
OWN_TOPICS = ("__consumer_offsets", "__transaction_state")
SETTINGS = {
    "group.min.session.timeout.ms": SESSION_MS,
    "group.initial.rebalance.delay.ms": 500,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerProcesses]:
    with broker_processes(tmp_path, settings=SETTINGS) as running:
        with Admin(bootstrap_servers=running.bootstrap) as admin:
            topics = [
                NewTopic(TOPIC, MEMBERS_PARTITIONS, 3),
                NewTopic(SOURCE, PARTITIONS, 3),
                NewTopic(TARGET, PARTITIONS, 3),
            ]
            admin.create_topics(topics).raise_for_errors()
        yield running
        for broker in running.brokers.values():
            assert "Traceback" not in broker.output(), broker.output()


def coordinator_of(cluster: BrokerProcesses, group: str) -> int:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return admin.describe_consumer_groups([group])[group].coordinator_id


def test_all_families_stay_in_their_group(cluster: BrokerProcesses, tmp_path: Path) -> None:
    """Their coordinator is killed, the next one stopped cleanly; both come back."""
    with GroupScenario(cluster.bootstrap, MEMBERS_PARTITIONS, tmp_path, session_ms=LONG_SESSION_MS) as group:
        for family in FAMILIES:
            group.start(family, family)
        group.wait_for_owners(*FAMILIES)
        for is_clean in (False, True):
            broker = cluster.brokers[coordinator_of(cluster, "mixed")]
            if is_clean:
                broker.stop()
            else:
                broker.kill()
            group.wait_for_reads(20)
            broker.start()
            cluster.wait_until_in_sync([TOPIC, "__consumer_offsets"])
            group.wait_for_reads(20)
        group.wait_for_owners(*FAMILIES)
        group.wait_until_read()
        group.check(brokers_died=True)


def test_no_error_reaches_a_producer_while_brokers_restart(cluster: BrokerProcesses, tmp_path: Path) -> None:
    """One after another, stopped cleanly, under producers of each family. Java's is in test_java_while_brokers_die."""
    writers: list[Writer] = [kind(cluster.bootstrap) for kind in (Ours, Confluent, Aiokafka)]
    writers.append(KafkaPython(cluster.bootstrap, tmp_path))
    topics = [writer.topic for writer in writers]
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, WRITTEN_PARTITIONS, 3) for topic in topics]).raise_for_errors()
    with ExitStack() as stack:
        for writer in writers:
            stack.enter_context(writer)
        for broker in cluster.brokers.values():
            wait_for_progress(writers, 50)
            broker.stop()
            wait_for_progress(writers, 50)
            broker.start()
            cluster.wait_until_in_sync(topics)
        wait_for_progress(writers, 50)
    check(writers)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("families", [[family] * 2 for family in FAMILIES] + [list(FAMILIES)], ids="-".join)
def test_groups_while_brokers_die(families: list[str], cluster: BrokerProcesses, tmp_path: Path) -> None:
    with GroupScenario(cluster.bootstrap, MEMBERS_PARTITIONS, tmp_path) as group:
        names = [f"{family} {number}" for number, family in enumerate(families)]
        for name, family in zip(names, families, strict=True):
            group.start(name, family)
        group.wait_for_owners(*names)
        for number in range(KILLS):
            next_s = time.monotonic() + KILLS_INTERVAL_S
            broker = cluster.brokers[1 + number % 3]
            broker.kill()
            group.wait_for_reads(20)
            broker.start()
            cluster.wait_until_in_sync([TOPIC, "__consumer_offsets"])
            while time.monotonic() < next_s:
                group.wait_for_reads(20)
        group.wait_for_owners(*names)
        group.wait_until_read()
        group.check(brokers_died=True)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", ["aiokafka", "confluent-kafka", "kafka-python"])
def test_copiers_while_brokers_die(family: str, cluster: BrokerProcesses, tmp_path: Path) -> None:
    # See the copier on aiokafka for why it needs them.
    shares = ([0, 1], [2, 3]) if family == "aiokafka" else (None, None)
    with CopyScenario(cluster.bootstrap, family, tmp_path) as scenario:
        scenario.write(20)
        for name, share in zip(("one", "other"), shares, strict=True):
            scenario.start(name, f"id of {name}", share)
        scenario.wait_until_assigned("one", "other")
        for number in range(KILLS):
            killed_s = time.monotonic()
            broker = cluster.brokers[1 + number % 3]
            broker.kill()
            tend(scenario, killed_s + DOWN_S)
            broker.start()
            cluster.wait_until_in_sync([SOURCE, TARGET, *OWN_TOPICS])
            tend(scenario, killed_s + KILLS_INTERVAL_S)
        scenario.tend_until_copied()
        scenario.check_values()
        print(f"restarts of {family} copiers: {scenario.restarts}")
        if family == "aiokafka":
            assert not scenario.restarts


def tend(scenario: CopyScenario, until_s: float) -> None:
    """Give the copiers more to copy all the time."""
    while time.monotonic() < until_s:
        scenario.write(5)
        scenario.tend()
        time.sleep(0.3)
