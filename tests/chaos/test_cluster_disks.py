"""Disks of a cluster's brokers fill up or fail under load: others write on, and nothing acknowledged is lost.

The disks are small file systems in files, mounted for one test; errors are injected into a broker's system calls. What
the load checks is in `cluster_load`. In the end the replicas' files are compared.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker_processes import BrokerProcesses, broker_processes
from cluster_load import COPY, PARTITIONS, SOURCE, ClusterLoad, loaded, wait_for_progress, wait_until
from tidelog import Admin, Consumer, Producer
from tidelog.client.admin import NewTopic
from tidelog.client.types import TopicPartition

if TYPE_CHECKING:
    from tests.chaos.conftest import MakeDisk, Trace

SETTINGS = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}
TOPICS = {SOURCE: PARTITIONS, COPY: PARTITIONS, "__consumer_offsets": 2, "__transaction_state": 2}
# A follower that only lags stays in the ISR for longer, by replica.lag.time.max.ms; whoever leaves before that was told
# to. A busy machine takes some seconds for it.
AT_ONCE_S = 20.0
SOLE = "sole"


def roles(cluster: BrokerProcesses, node_id: int) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """What the broker leads, and what it is in sync with."""
    with Admin(bootstrap_servers=cluster.bootstrap, request_timeout_ms=5_000) as admin:
        found = admin.describe_topics(TOPICS)
        found.raise_for_errors()
        partitions = [(name, each) for name in found for each in found[name].partitions]
    leads = {(name, each.partition) for name, each in partitions if each.leader_id == node_id}
    return leads, {(name, each.partition) for name, each in partitions if node_id in each.isr}


def wait_until_out(cluster: BrokerProcesses, node_id: int, load: ClusterLoad) -> None:
    """Until the broker leads nothing and is in no ISR, without having been waited for."""
    began_s = time.monotonic()
    wait_until(lambda: roles(cluster, node_id) == (set(), set()), lambda: roles(cluster, node_id), load.workers)
    assert time.monotonic() - began_s < AT_ONCE_S


def read(bootstrap: str, topic: str) -> list[bytes | None]:
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        found: list[bytes | None] = []
        while len(found) < end:
            found += [record.value for record in consumer.poll(1.0)]
        return found


@pytest.mark.timeout(300)
def test_a_disk_that_fills_up_under_load(tmp_path: Path, make_disk: MakeDisk) -> None:
    """Others lead and commit without it; what only it has is read from it; it is back once there is room."""
    disk = make_disk()
    (disk.path / "logs").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "broker-1").symlink_to(disk.path / "logs")
    with broker_processes(tmp_path, settings=SETTINGS) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            sole = NewTopic(SOLE, assignments={0: [1]}, configs={"min.insync.replicas": "1"})
            admin.create_topics([sole]).raise_for_errors()
        with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for number in range(10):
                producer.send(SOLE, b"%d" % number)
        with loaded(cluster, 3, TOPICS) as load:
            broker = cluster.brokers[1]
            assert roles(cluster, 1)[0], "it leads nothing"
            disk.fill()
            wait_until_out(cluster, 1, load)
            wait_for_progress(load.workers, 5)
            assert read(cluster.bootstrap, SOLE) == [b"%d" % number for number in range(10)]
            assert roles(cluster, 1) == (set(), set()), "it comes and goes"
            disk.make_room()
            cluster.wait_until_in_sync(TOPICS)
            wait_for_progress(load.workers, 2)
            assert broker.output().count("is full") == broker.output().count("has room again") == 1
            assert "goes offline" not in broker.output()


@pytest.mark.timeout(300)
def test_disks_that_fail_under_load(tmp_path: Path, trace: Trace) -> None:
    """Once for a partition that the broker leads, once for one that it follows; its whole directory is given up."""
    with broker_processes(tmp_path, settings=SETTINGS) as cluster, loaded(cluster, 4, TOPICS) as load:
        for node_id, is_leader in ((2, True), (3, False)):
            broker = cluster.brokers[node_id]
            leads, in_sync = roles(cluster, node_id)
            topic, index = min(each for each in (leads if is_leader else in_sync - leads) if each[0] == SOURCE)
            path = broker.log_dir / f"{topic}-{index}" / f"{0:020d}.log"
            tracing = trace(broker, "-P", str(path), "-e", "trace=pwrite64", "-e", "inject=pwrite64:error=EIO")
            wait_until_out(cluster, node_id, load)
            tracing.stop()
            wait_for_progress(load.workers, 5)
            assert "Input/output error" in broker.output()
            broker.stop()
            broker.start()
            cluster.wait_until_in_sync(TOPICS)
            wait_for_progress(load.workers, 2)
