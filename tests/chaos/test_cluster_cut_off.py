"""Brokers that reach the metadata store and clients, but not each other: the cluster goes on without who is cut off.

Each broker has a network of its own (see `tidelog.torture.networks`), and the metadata is in one SQLite file. What the
load checks is in `cluster_load`. In the end the replicas' files are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from broker_processes import BrokerProcesses, broker_processes
from cluster_load import COPY, PARTITIONS, SOURCE, ClusterLoad, loaded, wait_for_progress, wait_until
from tidelog import Admin, Producer
from tidelog.client.admin import NewTopic
from tidelog.client.errors import BrokerError
from tidelog.protocol import ErrorCode
from tidelog.torture.networks import Networks

SESSION_MS = 3_000
SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    # The defaults are 9 s and 30 s.
    "broker.session.timeout.ms": SESSION_MS,
    "replica.lag.time.max.ms": 3_000,
    # Fetches that wait for an answer over a connection that is cut.
    "replica.socket.timeout.ms": 5_000,
}
TOPICS = {SOURCE: PARTITIONS, COPY: PARTITIONS, "__consumer_offsets": 2, "__transaction_state": 2}
PAIR = "pair"
# With two partitions of either internal topic, some of them were coordinated by any given broker, very likely.
GROUPS = 8


class CutCluster(NamedTuple):
    """A cluster that is worked with, and its networks."""

    cluster: BrokerProcesses
    networks: Networks[int]
    load: ClusterLoad

    def admin(self) -> Admin:
        return Admin(bootstrap_servers=self.cluster.bootstrap, request_timeout_ms=5_000)

    def controller_id(self) -> int:
        with self.admin() as admin:
            return admin.describe_cluster().controller_id

    def isrs(self, topic: str) -> list[list[int]]:
        """The ISR of the topic's partition as each broker knows it."""
        known = []
        for broker in self.cluster.brokers.values():
            with Admin(bootstrap_servers=broker.bootstrap, request_timeout_ms=5_000) as admin:
                known.append(sorted(admin.describe_topics([topic])[topic].partitions[0].isr))
        return known

    def wait_for_isr(self, topic: str, *members: int) -> None:
        """Wait until every broker knows it: a leader that doesn't yet still accepts what it can't commit."""
        wanted = [sorted(members)] * len(self.cluster.brokers)
        wait_until(lambda: self.isrs(topic) == wanted, lambda: self.isrs(topic), self.load.workers)

    def wait_for_log(self, node_id: int, text: str, past: int) -> None:
        broker = self.cluster.brokers[node_id]
        wait_until(lambda: text in broker.output()[past:], lambda: len(broker.output()), self.load.workers)

    def output_length(self, node_id: int) -> int:
        return len(self.cluster.brokers[node_id].output())

    def recover(self) -> None:
        self.networks.mend()
        self.cluster.wait_until_in_sync(TOPICS)
        wait_for_progress(self.load.workers, 2)


@pytest.fixture
def networks() -> Iterator[Networks[int]]:
    with Networks(range(1, 4)) as networks:
        yield networks


@pytest.mark.timeout(400)
def test_brokers_that_do_not_reach_each_other(tmp_path: Path, networks: Networks[int]) -> None:
    with (
        broker_processes(tmp_path, settings=SETTINGS, networks=networks) as cluster,
        loaded(cluster, 5, TOPICS) as load,
    ):
        here = CutCluster(cluster, networks, load)
        cut_leader_from_follower(here)
        cut_off_from_all(here)
        cut_off_controller(here)


def cut_leader_from_follower(here: CutCluster) -> None:
    """One way is enough. Both are in touch with the controller: the ISR shrinks, and the minimum is judged by it.

    Transactions wait meanwhile: some coordinators can't reach the leader of one of the partitions.
    """
    controller = here.controller_id()
    leader, follower = (node_id for node_id in here.networks.members if node_id != controller)
    with here.admin() as admin:
        topics = [
            NewTopic("three", assignments={0: [leader, follower, controller]}),
            NewTopic(PAIR, assignments={0: [leader, follower]}),
        ]
        admin.create_topics(topics).raise_for_errors()
    here.networks.cut(follower, leader)
    # Although nothing is written to them.
    here.wait_for_isr("three", leader, controller)
    here.wait_for_isr(PAIR, leader)
    with Producer(bootstrap_servers=here.cluster.bootstrap, enable_idempotence=False, retries=0) as producer:
        producer.send("three", b"written").result()
        with pytest.raises(BrokerError) as caught:
            producer.send(PAIR, b"refused").result()
        assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert here.controller_id() == controller
    here.recover()
    here.wait_for_isr("three", 1, 2, 3)
    here.wait_for_isr(PAIR, leader, follower)
    with Producer(bootstrap_servers=here.cluster.bootstrap) as producer:
        producer.send(PAIR, b"written").result()


def cut_off_from_all(here: CutCluster) -> None:
    """A broker that no other one reaches: it can't even ask for a smaller ISR. Others lead what it led."""
    controller = here.controller_id()
    node_id = next(node_id for node_id in here.networks.members if node_id != controller)
    seen = here.output_length(node_id)
    here.networks.cut_off(node_id)
    here.wait_for_log(node_id, "can't reach the controller, and is fenced", seen)
    wait_for_progress(here.load.workers, 5)
    assert here.controller_id() == controller
    work_by_way_of(here.cluster.brokers[node_id].bootstrap)
    here.recover()


def work_by_way_of(bootstrap: str) -> None:
    """Clients that know no other address than that of the broker that is cut off find the others by its metadata."""
    for number in range(GROUPS):
        name = f"newcomer-{number}"
        with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("three", name.encode())
            producer.commit_transaction()
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.list_consumer_group_offsets(name).raise_for_errors()


def cut_off_controller(here: CutCluster) -> None:
    """The others can't follow it any more, so it leaves the role to one of them, and is fenced by that."""
    controller = here.controller_id()
    seen = here.output_length(controller)
    here.networks.cut_off(controller)
    here.wait_for_log(controller, "no longer the controller", seen)
    here.wait_for_log(controller, "can't reach the controller, and is fenced", seen)
    wait_for_progress(here.load.workers, 5)
    here.recover()
    assert here.controller_id() != controller


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_brokers_that_are_all_cut_off_from_each_other(tmp_path: Path, networks: Networks[int]) -> None:
    """Nobody can be acknowledged meanwhile; one after another is controller, and all is well when they meet again."""
    with (
        broker_processes(tmp_path, settings=SETTINGS, networks=networks) as cluster,
        loaded(cluster, 6, TOPICS) as load,
    ):
        here = CutCluster(cluster, networks, load)
        for _ in range(3):
            seen = {node_id: here.output_length(node_id) for node_id in networks.members}
            networks.cut(1, 2, 3)
            networks.cut(2, 1, 3)
            networks.cut(3, 1, 2)
            for node_id in networks.members:
                here.wait_for_log(node_id, "no longer the controller", seen[node_id])
            here.recover()
