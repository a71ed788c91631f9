"""`tidelog cluster reassign --throttle`: what it sets for exactly the moving replicas, and that it removes it again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog import Admin, Producer
from tidelog.cli.cluster import copied_bytes
from tidelog.cli.reassignment_throttle import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from tidelog.client.admin import ConfigResource, NewTopic, ResourceType
from tidelog.client.admin.placement import Move
from tidelog.client.types import TopicPartition

if TYPE_CHECKING:
    from tests.scenario.cluster.conftest import SmallCluster

TOPIC = ConfigResource(ResourceType.TOPIC, "moved")
COMMAND_TIMEOUT_S = 120
SETTINGS = {"replica.fetch.max.bytes": 1, "default.replication.factor": 2}
BATCHES = 5


@pytest.fixture
def cluster(make_cluster: Callable[..., SmallCluster]) -> SmallCluster:
    cluster = make_cluster(SETTINGS)
    cluster.start(1, 2, 3)
    cluster.wait(lambda image: set(image.brokers) == {1, 2, 3})
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("moved", assignments={0: [1, 2], 1: [2, 3]})]).raise_for_errors()
    cluster.wait_for_topic("moved")
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(BATCHES):
            producer.send("moved", b"%d" % number, partition=0).result()
    return cluster


def reassign(cluster: SmallCluster, *arguments: str) -> str:
    command = [sys.executable, "-m", "tidelog", "cluster", "reassign", *arguments, "--bootstrap", cluster.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def settings(admin: Admin) -> dict[str, str | None]:
    """What is set, on the topic and on brokers."""
    brokers = [ConfigResource(ResourceType.BROKER, str(node_id)) for node_id in (1, 2, 3)]
    described = admin.describe_configs([TOPIC, *brokers])
    return {
        f"{resource.name} {entry.name}": entry.value
        for resource, entries in described.items()
        for entry in entries.values()
        if "throttled" in entry.name and not entry.is_default
    }


def test_a_throttle_lasts_as_long_as_the_moves(cluster: SmallCluster) -> None:
    plan = cluster.directory / "plan.json"
    rows = [
        {"topic": "moved", "partition": 0, "replicas": [3, 1]},
        {"topic": "moved", "partition": 1, "replicas": [3, 2]},
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": rows}))
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        # Slow enough that it is not over before anything was looked at.
        output = reassign(cluster, "--plan", str(plan), "--throttle", "1B", "--no-wait", "--yes")
        assert "the throttle stays until: tidelog cluster reassign --status" in output
        expected = {f"{node_id} {rate}": "1" for node_id in (1, 2, 3) for rate in (LEADER_RATE, FOLLOWER_RATE)}
        lists = {f"moved {LEADER_REPLICAS}": "0:1,0:2", f"moved {FOLLOWER_REPLICAS}": "0:3"}
        assert settings(admin) == {**expected, **lists}
        status = reassign(cluster, "--status")
        assert "copying at most 1 B/s to and from each broker" in status
        assert "moved-0" in status
        assert settings(admin) == {**expected, **lists}
        assert reassign(cluster, "--throttle", "1GB") == "throttled 1 move to 1 GB/s\n"
        assert settings(admin)[f"2 {LEADER_RATE}"] == "1000000000"
        cluster.wait(lambda image: image.topics["moved"].partitions[0].replicas == (3, 1))
        assert reassign(cluster, "--verify") == "nothing is being moved\nremoved the throttle of 1 GB/s\n"
        assert settings(admin) == {}
        # Waited for, the command removes it itself.
        rows[0]["replicas"] = [2, 1]
        plan.write_text(json.dumps({"version": 1, "partitions": rows}))
        output = reassign(cluster, "--plan", str(plan), "--throttle", "50MB", "--yes")
        assert output.endswith("moved 1 partition\nremoved the throttle of 50 MB/s\n")
        assert settings(admin) == {}


def test_progress_counts_bytes() -> None:
    first, second, third = (TopicPartition("t", index) for index in range(3))
    moves = [Move(first, (1, 2), (2, 3)), Move(second, (1,), (3, 2)), Move(third, (1, 2), (2, 1))]
    sizes = {first: 1000, second: 50, third: 7}
    assert copied_bytes(moves, sizes, [first, second, third], {}) == 0
    held = {(3, first): 400, (1, first): 1000, (2, second): 60}
    assert copied_bytes(moves, sizes, [first, second], held) == 450
    assert copied_bytes(moves, sizes, [first], held) == 500
    assert copied_bytes(moves, sizes, [], {}) == 1100
