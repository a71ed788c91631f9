"""A cluster that belongs to somebody: only what a run itself has made there is touched."""

from __future__ import annotations

import random

import pytest

from tidelog.client.admin import Admin
from tidelog.testing import Broker, Cluster
from tidelog.torture.cluster import ForeignCluster
from tidelog.torture.fault_kinds import FAULT_KINDS, FOREIGN_KINDS
from tidelog.torture.faults import Refused, Scene, draw


def test_only_topics_of_the_run_are_touched(broker: Broker) -> None:
    broker.create_topic("torture-of-somebody-else")
    broker.create_topic("orders")
    cluster = ForeignCluster(broker.bootstrap, "torture-")
    cluster.start()
    broker.create_topic("payments")
    elect = draw("elect", Scene(cluster, [], random.Random(1)))
    assert elect is not None
    # With no partitions, a request to elect leaders would mean all of them.
    with pytest.raises(Refused, match="no topics"):
        elect.begin()
    broker.create_topic("torture-mine", partitions=2)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        assert cluster.own_topics(admin) == ["torture-mine"]
        assert {partition.topic for partition in cluster.partitions(admin)} == {"torture-mine"}
    assert str(elect.begin()).endswith("of 2 partitions changed leaders")
    cluster.wait_until_healthy(print)
    assert cluster.compare_replicas() == []
    cluster.close()
    assert {kind for kind in FAULT_KINDS if cluster.can(kind) is None} == FOREIGN_KINDS
    assert "a cluster of its own" in str(cluster.can("kill"))


def test_partitions_of_the_run_move() -> None:
    with Cluster(brokers=3) as brokers:
        foreign = ForeignCluster(brokers.bootstrap, "torture-")
        foreign.start()
        assert foreign.replication_factor == 3
        brokers.create_topic("torture-mine", partitions=1)
        foreign.wait_until_healthy(print)
        fault = draw("reassign", Scene(foreign, [], random.Random(1)))
        assert fault is not None
        assert fault.target == "torture-mine-0"
        fault.begin()
        assert fault.during is not None
        fault.during(lambda _seconds: True)
        fault.end()
        foreign.wait_until_healthy(print)
        with foreign.admin() as admin:
            ((partition, state),) = foreign.partitions(admin).items()
        assert partition.topic == "torture-mine"
        assert sorted(state.isr) == [1, 2, 3]
        foreign.close()
