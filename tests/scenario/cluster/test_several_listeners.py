"""Brokers with several listeners: who comes in by one is told the addresses of that one, and brokers use their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog import Admin, Consumer, Producer
from tidelog.client.admin import NewTopic
from tidelog.client.types import TopicPartition
from tidelog.common.endpoint import Endpoint

if TYPE_CHECKING:
    from tests.scenario.cluster.conftest import SmallCluster

LISTENERS = "EXTERNAL://127.0.0.1:0,INTERNAL://127.0.0.1:0"
SETTINGS = {
    "listeners": LISTENERS,
    "listener.security.protocol.map": "internal:PLAINTEXT, EXTERNAL:PLAINTEXT",
    "inter.broker.listener.name": "internal",
    # What clients outside connect to; nobody inside could.
    "advertised.listeners": "EXTERNAL://localhost:0",
    "default.replication.factor": 3,
}


def endpoints(cluster: SmallCluster) -> dict[int, dict[str, Endpoint]]:
    image = cluster.wait(lambda image: set(image.brokers) == {1, 2, 3})
    return {node_id: {each.listener_name: each for each in info.endpoints} for node_id, info in image.brokers.items()}


@pytest.mark.parametrize("name", ["EXTERNAL", "INTERNAL"])
def test_clients_stay_with_the_listener_they_came_in_by(make_cluster: Callable[..., SmallCluster], name: str) -> None:
    cluster = make_cluster(SETTINGS)
    cluster.start(1, 2, 3)
    known = endpoints(cluster)
    entrance = known[2][name]
    bootstrap = f"127.0.0.1:{entrance.port}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        nodes = admin.describe_cluster().nodes
        assert {node.node_id: (node.address.host, node.address.port) for node in nodes} == {
            node_id: (of_broker[name].host, of_broker[name].port) for node_id, of_broker in known.items()
        }
        assert {of_broker["EXTERNAL"].host for of_broker in known.values()} == {"localhost"}
        admin.create_topics([NewTopic("t", assignments={0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})]).raise_for_errors()
    with Producer(bootstrap_servers=bootstrap) as producer:
        for index in range(3):
            producer.send("t", b"%d" % index, partition=index).result()
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", index) for index in range(3)])
        values: set[bytes | None] = set()
        while len(values) < 3:
            values |= {record.value for record in consumer.poll(1.0)}
    assert values == {b"0", b"1", b"2"}


def test_brokers_reach_each_other_by_the_listener_that_is_theirs(make_cluster: Callable[..., SmallCluster]) -> None:
    cluster = make_cluster(SETTINGS)
    cluster.start(1, 2, 3)
    known = endpoints(cluster)
    follower = next(broker for node_id, broker in cluster.brokers.items() if node_id != cluster.controller_id())

    async def controller_port(server: object) -> int:
        location = server.services.controller.location.value  # type: ignore[attr-defined]
        return int(location.port)

    assert follower.call(controller_port) == known[cluster.controller_id()]["INTERNAL"].port


def test_several_listeners_of_several_brokers_need_room_for_their_ports(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidelog", "serve", "--brokers", "3", "--data", str(tmp_path)]
    command += ["--listen", "A://127.0.0.1:19092,B://127.0.0.1:19094"]
    command += ["--set", "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "must be at least 3 apart" in done.stderr
