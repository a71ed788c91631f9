"""Brokers of a cluster are killed -9 under transactions and groups: nothing is lost, doubled or seen that was aborted.

What is checked all the time, and what in the end, is in `cluster_load`. A failure names its seed; to run it again, or
another one: CLUSTER_SEED=<seed>.
"""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker_processes import BrokerProcesses, broker_processes
from cluster_load import COPY, PARTITIONS, SOURCE, ClusterLoad, cluster_load, wait_for_progress
from tidelog.torture.zookeeper_ensemble import Ensemble

# Fewer partitions of the brokers' own, so that each has much to do; their number changes nothing else.
OWN_PARTITIONS = 3
SETTINGS = {"offsets.topic.num.partitions": OWN_PARTITIONS, "transaction.state.log.num.partitions": OWN_PARTITIONS}
TOPICS = {SOURCE: PARTITIONS, COPY: PARTITIONS, "__consumer_offsets": 3, "__transaction_state": OWN_PARTITIONS}


def kill_brokers(cluster: BrokerProcesses, load: ClusterLoad, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(kills):
        wait_for_progress(load.workers, rng.randrange(1, 6))
        broker = cluster.brokers[rng.choice(sorted(cluster.brokers))]
        broker.kill()
        if number % 3 == 2:
            # One more: with one of three nothing can be written, and nothing may be lost by that.
            other = cluster.brokers[rng.choice(sorted(cluster.brokers.keys() - {broker.node_id}))]
            other.kill()
            other.start()
        else:
            wait_for_progress(load.workers, rng.randrange(1, 4))
        broker.start()
        cluster.wait_until_in_sync(TOPICS)


@pytest.mark.parametrize(
    ("kills", "metadata"),
    [
        pytest.param(5, "sqlite", id="five kills"),
        pytest.param(100, "sqlite", id="a hundred kills", marks=pytest.mark.soak),
        pytest.param(
            100,
            "zookeeper",
            id="a hundred kills, ZooKeeper",
            marks=[pytest.mark.soak, pytest.mark.xdist_group("zookeeper")],
        ),
    ],
)
@pytest.mark.timeout(7200)
def test_transactions_and_groups_survive_kills(tmp_path: Path, kills: int, metadata: str) -> None:
    seed = int(os.environ.get("CLUSTER_SEED", kills))
    with ExitStack() as stack:
        if metadata == "zookeeper":
            ensemble = stack.enter_context(Ensemble(tmp_path / "zookeeper", servers=1))
            metadata = f"{ensemble.address}/kills"
        cluster = stack.enter_context(broker_processes(tmp_path, settings=SETTINGS, metadata=metadata))
        with cluster_load(cluster, seed) as load:
            kill_brokers(cluster, load, kills, seed)
        cluster.stop()
        for topic, partitions in TOPICS.items():
            cluster.compare_replicas(topic, partitions)
        for broker in cluster.brokers.values():
            assert "Traceback" not in broker.output(), broker.output()
