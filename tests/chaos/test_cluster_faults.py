"""Brokers hang or are cut off from the metadata store, and the store goes away, under a load that must go on.

One cluster with its metadata in SQLite and one with ZooKeeper go through all these faults, one after another, and one
load runs all the time: what it checks is in `cluster_load`. In the end the replicas' files are compared.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from broker_processes import BrokerProcesses, ClusterBroker, broker_processes
from cluster_load import COPY, PARTITIONS, SOURCE, ClusterLoad, cluster_load, wait_for_progress, wait_until
from tcp_proxy import TcpProxy
from tidelog import Admin
from tidelog.torture.zookeeper_ensemble import Ensemble

OWN_PARTITIONS = 3
SETTINGS = {"offsets.topic.num.partitions": OWN_PARTITIONS, "transaction.state.log.num.partitions": OWN_PARTITIONS}
TOPICS = {SOURCE: PARTITIONS, COPY: PARTITIONS, "__consumer_offsets": 3, "__transaction_state": OWN_PARTITIONS}
# How long a broker may be silent, as `controller/membership.py` has it, and then some.
PAST_SESSION_S = 8.0


class Loaded(NamedTuple):
    """A cluster that is worked with."""

    cluster: BrokerProcesses
    load: ClusterLoad
    proxies: dict[int, TcpProxy]

    def recover(self) -> None:
        """All is well again: every worker gets on, and every replica is in sync."""
        wait_for_progress(self.load.workers, 2)
        self.cluster.wait_until_in_sync(TOPICS)
        wait_for_progress(self.load.workers, 2)


@contextmanager
def loaded(cluster: BrokerProcesses, proxies: dict[int, TcpProxy]) -> Iterator[Loaded]:
    with cluster_load(cluster, seed=1) as load:
        wait_for_progress(load.workers, 2)
        yield Loaded(cluster, load, proxies)
    cluster.stop()
    for topic, partitions in TOPICS.items():
        cluster.compare_replicas(topic, partitions)
    for broker in cluster.brokers.values():
        assert "Traceback" not in broker.output(), broker.output()


def wait_for_log(broker: ClusterBroker, text: str, load: ClusterLoad, past: int = 0) -> None:
    """Until the broker has logged this."""
    wait_until(lambda: text in broker.output()[past:], lambda: len(broker.output()), load.workers)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_cluster_on_one_machine(tmp_path: Path) -> None:
    with broker_processes(tmp_path, settings=SETTINGS) as cluster, loaded(cluster, {}) as here:
        hang(here)
        lock_metadata(here, tmp_path / "data" / "metadata.sqlite")


def hang(here: Loaded) -> None:
    """A broker is silent for longer than its session, and goes on as if nothing had happened."""
    for node_id in (controller_id(here.cluster), 1):
        broker = here.cluster.brokers[node_id]
        seen = len(broker.output())
        broker.pause()
        pause_s = time.monotonic() + PAST_SESSION_S
        wait_for_progress(here.load.workers, 5)
        time.sleep(max(0.0, pause_s - time.monotonic()))
        broker.resume()
        wait_for_log(broker, "has lost its session", here.load, seen)
        here.recover()


def lock_metadata(here: Loaded, path: Path) -> None:
    """Another program holds the metadata database, for less and for more than brokers' sessions last."""
    for hold_s in (1.0, PAST_SESSION_S):
        with sqlite3.connect(path, isolation_level=None) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            time.sleep(hold_s)
            connection.execute("ROLLBACK")
        here.recover()


def controller_id(cluster: BrokerProcesses) -> int:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        return admin.describe_cluster().controller_id


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.xdist_group("zookeeper")
def test_a_cluster_with_zookeeper(tmp_path: Path) -> None:
    with ExitStack() as stack:
        ensemble = stack.enter_context(Ensemble(tmp_path / "zookeeper", servers=1))
        port = int(ensemble.address.rpartition(":")[2])
        proxies = {node_id: stack.enter_context(TcpProxy(port)) for node_id in (1, 2, 3)}
        stores = [f"zookeeper://{proxy.address}/faults" for proxy in proxies.values()]
        cluster = stack.enter_context(broker_processes(tmp_path, settings=SETTINGS, metadata=stores))
        here = stack.enter_context(loaded(cluster, proxies))
        cut_off_from_store(here)
        stop_store(here, ensemble)


def cut_off_from_store(here: Loaded) -> None:
    """One broker can't reach the store any more; clients and the other brokers still reach it."""
    for node_id in (controller_id(here.cluster), 2):
        broker, proxy = here.cluster.brokers[node_id], here.proxies[node_id]
        seen = len(broker.output())
        proxy.refusing = True
        proxy.cut_all()
        wait_for_log(broker, "has lost its session", here.load, seen)
        wait_for_progress(here.load.workers, 5)
        proxy.reset()
        here.recover()


def stop_store(here: Loaded, ensemble: Ensemble) -> None:
    """The whole store hangs, for less and for more than sessions last."""
    for hang_s in (1.0, PAST_SESSION_S):
        pids = ensemble.pause()
        # For a time, not until something is done: with no session left, nothing is until the store is back.
        time.sleep(hang_s)
        ensemble.resume(pids)
        here.recover()
