"""Throttles (KIP-73) slow the copying of moving replicas down, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from replica_nodes import ReplicaCluster, run_cluster, until
from tidelog.protocol.config_values import ConfigResource, ResourceType

# One batch is sent at a time, so that a rate of one byte lets one pass and no more.
SETTINGS: Mapping[str, object] = {"replica.fetch.max.bytes": 1, "replica.fetch.wait.max.ms": 200}
BROKERS = ConfigResource(ResourceType.BROKER, "")
BATCHES = 5


def throttle(cluster: ReplicaCluster, side: str, replicas: str, rate: str) -> None:
    topic = ConfigResource(ResourceType.TOPIC, "t")
    configs = {topic: {f"{side}.replication.throttled.replicas": replicas}}
    rates = {BROKERS: {f"{side}.replication.throttled.rate": rate}}
    cluster.controller.publish(cluster.controller.image.with_configs({**configs, **rates}))


async def fill(cluster: ReplicaCluster, topic: str) -> None:
    for number in range(BATCHES):
        assert (await cluster[1].produce(topic, [b"%d" % number])).error_code == 0


def end_offset(cluster: ReplicaCluster, node_id: int, topic: str) -> int:
    found = list(cluster[node_id].replicas.find_some([(topic, 0)]))
    return found[0].log.log_end_offset if found else -1


@pytest.mark.parametrize(("side", "replicas"), [("leader", "0:1,0:2"), ("follower", "0:3"), ("follower", "*")])
def test_a_moving_replica_waits_for_the_quota_and_others_do_not(tmp_path: Path, side: str, replicas: str) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        controller = cluster.controller
        for topic in ("t", "other"):
            await cluster.create(topic, (1, 2), configs={"min.insync.replicas": "2"})
            await fill(cluster, topic)
        throttle(cluster, side, replicas, "1")
        for topic in ("t", "other"):
            controller.change(topic, replicas=(1, 2, 3), adding=(3,))
        await cluster.until_isr("other", 1, 2, 3)
        await until(lambda: end_offset(cluster, 3, "t") > 0)
        # Replicas in sync go on: these are acknowledged by both of them, on a topic that is throttled.
        await fill(cluster, "t")
        await fill(cluster, "other")
        assert await cluster.until_equal("other") == 2 * BATCHES
        assert end_offset(cluster, 3, "t") < BATCHES
        assert sorted(controller.state("t").isr) == [1, 2]
        throttle(cluster, side, replicas, str(10**9))
        await cluster.until_isr("t", 1, 2, 3)
        assert await cluster.until_equal("t") == 2 * BATCHES

    run_cluster(tmp_path, scenario, settings=SETTINGS)


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_replicas_in_sync_are_never_throttled(tmp_path: Path, side: str) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        await cluster.create("t", (1, 2, 3), configs={"min.insync.replicas": "3"})
        throttle(cluster, side, "*", "1")
        for _ in range(4):
            await fill(cluster, "t")
        assert await cluster.until_equal("t") == 4 * BATCHES
        assert sorted(cluster.controller.state("t").isr) == [1, 2, 3]

    run_cluster(tmp_path, scenario, settings=SETTINGS)


def test_a_leader_that_holds_records_back_still_tells_that_it_is_leader_no_longer(tmp_path: Path) -> None:
    async def scenario(cluster: ReplicaCluster) -> None:
        controller = cluster.controller
        await cluster.create("t", (1, 2), configs={"min.insync.replicas": "1"})
        await fill(cluster, "t")
        await cluster.until_equal("t")
        throttle(cluster, "leader", "0:1", "1")
        controller.change("t", replicas=(1, 2, 3), adding=(3,))
        await until(lambda: end_offset(cluster, 3, "t") > 0)
        controller.change("t", leader=2)
        await cluster.until_isr("t", 1, 2, 3)
        assert await cluster.until_equal("t") == BATCHES

    run_cluster(
        tmp_path,
        scenario,
        settings={**SETTINGS, "replica.fetch.wait.max.ms": 100_000, "replica.socket.timeout.ms": 200_000},
    )
