"""Brokers that must not start, and clients that say they are brokers: each is refused, and the cluster works on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from broker_processes import BrokerProcesses, broker_processes
from tidelog import Admin, Consumer, Producer
from tidelog.bench.brokers import free_port
from tidelog.client.admin import NewTopic
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k01_fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from tidelog.protocol.messages.k18_api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.k56_alter_partition import (
    ALTER_PARTITION,
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
)
from tidelog.protocol.messages.k63_broker_heartbeat import (
    BROKER_HEARTBEAT,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from tidelog.protocol.messages.k10001_follow_cluster import (
    FOLLOW_CLUSTER,
    FollowClusterRequest,
    FollowClusterResponse,
)
from tidelog.testing.raw_client import RawClient
from tidelog.torture.zookeeper_ensemble import Ensemble

TOPIC = "orders"
PARTITION = TopicPartition(TOPIC, 0)
OTHER_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    with broker_processes(tmp_path_factory.mktemp("cluster"), count=2) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            leader = admin.describe_cluster().controller_id
            assignment = {0: [leader, 3 - leader]}
            admin.create_topics([NewTopic(TOPIC, assignments=assignment)]).raise_for_errors()
        yield cluster


class BadStart(NamedTuple):
    process: subprocess.Popen[str]
    says: str

    def check(self) -> None:
        output, _ = self.process.communicate()
        # Log lines begin with the time; what the user is told is the one line that does not.
        told = [line for line in output.splitlines() if line.startswith("tidelog: ")]
        assert len(told) == 1, output
        assert self.says in told[0]
        assert "Traceback" not in output
        assert self.process.returncode == 2, output


def start(says: str, *options: object) -> BadStart:
    command = [sys.executable, "-m", "tidelog", "serve", "--listen", f"127.0.0.1:{free_port()}", *map(str, options)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return BadStart(process, says)


def test_brokers_that_do_not_belong_here_say_so_and_harm_nobody(cluster: BrokerProcesses, tmp_path: Path) -> None:
    data_dir = cluster.brokers[1].log_dir.parent
    metadata = f"sqlite:{data_dir / 'metadata.sqlite'}"
    foreign = tmp_path / "foreign" / "broker-4" / "meta.properties"
    foreign.parent.mkdir(parents=True)
    foreign.write_text(f"version=1\ncluster.id={OTHER_CLUSTER}\nnode.id=4\n")
    renamed = tmp_path / "renamed" / "broker-5" / "meta.properties"
    renamed.parent.mkdir(parents=True)
    renamed.write_text((cluster.brokers[1].log_dir / "meta.properties").read_text())
    started = [
        start(
            "node id 1 is used by another running broker; stop that one, or choose another id with --node-id",
            *("--node-id", 1, "--data", tmp_path / "new", "--metadata", metadata),
        ),
        start(
            f"is in use by process {cluster.brokers[2].pid}; stop it or choose another directory with --data",
            *("--node-id", 2, "--data", data_dir, "--metadata", metadata),
        ),
        start(
            f"has cluster.id {OTHER_CLUSTER}, this broker has",
            *("--node-id", 4, "--data", foreign.parents[1], "--metadata", metadata),
        ),
        start(
            "has node.id 1, this broker has 5; correct --node-id",
            *("--node-id", 5, "--data", renamed.parents[1], "--metadata", metadata),
        ),
        start(
            "start it, for example with `tidelog zookeeper`, or correct --metadata",
            *("--node-id", 6, "--data", tmp_path / "6", "--metadata", f"zookeeper://127.0.0.1:{free_port()}/tidelog"),
        ),
        start(
            "--metadata: '/tide//log' can't be a path in ZooKeeper",
            *("--node-id", 7, "--data", tmp_path / "7", "--metadata", "zookeeper://127.0.0.1:2181/tide//log"),
        ),
    ]
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        written = 0
        while any(each.process.poll() is None for each in started):
            producer.send(TOPIC, b"%d" % written, partition=0).result()
            written += 1
    for each in started:
        each.check()
    assert written
    check_still_whole(cluster)


def check_still_whole(cluster: BrokerProcesses) -> None:
    """Both brokers are members that nothing happened to, and the partition has both replicas."""
    cluster.wait_until_in_sync([TOPIC])
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert [node.node_id for node in admin.describe_cluster().nodes] == [1, 2]
        (partition,) = admin.describe_topics(TOPIC)[TOPIC].partitions
        assert partition.leader_epoch == 0
    for broker in cluster.brokers.values():
        assert "Traceback" not in broker.output()


@pytest.mark.xdist_group("zookeeper")
def test_a_wrong_path_in_zookeeper_is_another_cluster(tmp_path: Path) -> None:
    with Ensemble(tmp_path / "zookeeper", servers=1) as ensemble:
        with broker_processes(tmp_path, count=1, metadata=f"{ensemble.address}/right") as cluster:
            cluster.stop()
        start(
            "correct --metadata, choose another directory",
            *("--node-id", 1, "--data", tmp_path / "data", "--metadata", f"{ensemble.address}/wrong"),
        ).check()


def test_a_client_that_says_it_is_a_broker_changes_nothing(cluster: BrokerProcesses) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        described = admin.describe_topics(TOPIC)[TOPIC]
        topic_id, leader_id = described.topic_id, described.partitions[0].leader_id
        assert admin.describe_cluster().controller_id == leader_id
    leader, follower = cluster.brokers[leader_id], cluster.brokers[3 - leader_id]
    with (
        Producer(bootstrap_servers=cluster.bootstrap) as producer,
        Consumer(bootstrap_servers=cluster.bootstrap) as consumer,
        RawClient(leader.port) as client,
        RawClient(leader.port) as stranger,
    ):
        producer.send(TOPIC, b"in both replicas", partition=0).result()
        committed = consumer.end_offsets([PARTITION])[PARTITION]
        # A follower that does not fetch keeps the next record from being committed; nobody else may say it has it.
        os.kill(follower.pid, signal.SIGSTOP)
        try:
            pending = producer.send(TOPIC, b"in one replica", partition=0)
            for replica_id in (1, 2, 3, 2**31 - 1):
                for epoch in (-1, 0, 2**62):
                    row = FetchPartition(fetch_offset=committed + 1, last_fetched_epoch=0, partition_max_bytes=1000)
                    request = FetchRequest(
                        replica_state=ReplicaState(replica_id=replica_id, replica_epoch=epoch),
                        topics=[FetchTopic(topic_id=topic_id, partitions=[row])],
                    )
                    answer = client.ask(FETCH, request, FetchResponse, 17)
                    codes = {
                        answer.error_code,
                        *(row.error_code for each in answer.responses for row in each.partitions),
                    }
                    assert codes != {0}, (replica_id, epoch)
            assert alter_isr(stranger, leader_id, topic_id, broker_epoch=2**62) == ErrorCode.STALE_BROKER_EPOCH
            assert alter_isr(stranger, leader_id, topic_id, broker_epoch=-1) == ErrorCode.STALE_BROKER_EPOCH
            heartbeat = BrokerHeartbeatRequest(broker_id=leader_id, broker_epoch=2**62, want_fence=True)
            beaten = stranger.ask(BROKER_HEARTBEAT, heartbeat, BrokerHeartbeatResponse, 1)
            assert beaten.error_code == ErrorCode.STALE_BROKER_EPOCH
            followed = stranger.ask(FOLLOW_CLUSTER, FollowClusterRequest(node_id=77), FollowClusterResponse, 0)
            assert followed.error_code == 0  # metadata is no secret
            assert consumer.end_offsets([PARTITION])[PARTITION] == committed
            assert not pending.done()
        finally:
            os.kill(follower.pid, signal.SIGCONT)
        pending.result()
        for connection in (client, stranger):
            assert connection.ask(API_VERSIONS, ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0
    check_still_whole(cluster)


def alter_isr(client: RawClient, leader_id: int, topic_id: uuid.UUID, broker_epoch: int) -> int:
    """Ask to have the leader alone in the ISR, as the leader of the partition would."""
    row = AlterPartitionRequestPartitionData(new_isr=[leader_id])
    topic = AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[row])
    request = AlterPartitionRequest(broker_id=leader_id, broker_epoch=broker_epoch, topics=[topic])
    return client.ask(ALTER_PARTITION, request, AlterPartitionResponse, 2).error_code
