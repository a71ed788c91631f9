"""Which connection the client asks about the cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from tidelog.client.address import Address
from tidelog.client.network.cluster import Cluster, ClusterSettings
from tidelog.client.network.connection import Connection
from tidelog.client.types import ClusterMetadata, Node


@dataclass
class Open:
    """A connection as far as the choice depends on it."""

    in_flight: int
    is_open: bool = True
    node_id: int = -1


def test_a_broker_that_the_cluster_no_longer_names_is_asked_last() -> None:
    async def choose(named: list[int], in_flight: dict[int, int]) -> int:
        addresses = {port: Address("127.0.0.1", port) for port in in_flight}
        cluster = Cluster(ClusterSettings(bootstrap=tuple(addresses.values()), metadata_max_age_s=1e6))
        nodes = {port: Node(port, addresses[port], None) for port in named}
        cluster.metadata.remember(ClusterMetadata("c", -1, nodes, {}), everything=True)
        connections = {port: cast(Connection, Open(count)) for port, count in in_flight.items()}
        for port, connection in connections.items():
            cluster._peer(addresses[port]).connection = connection
        chosen = await cluster.any_connection()
        for task in cluster._upkeep:
            task.cancel()
        return next(port for port, connection in connections.items() if connection is chosen)

    assert asyncio.run(choose([1, 2, 3], {1: 0, 2: 1, 3: 1})) == 1
    assert asyncio.run(choose([2, 3], {1: 0, 2: 2, 3: 1})) == 3
    assert asyncio.run(choose([], {1: 1, 2: 0})) == 2
