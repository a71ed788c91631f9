"""Which connection the client asks about the cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import pytest

from tidelog.client.address import Address
from tidelog.client.errors import ConnectError
from tidelog.client.network.cluster import Cluster, ClusterSettings
from tidelog.client.network.connection import Connection
from tidelog.client.types import ClusterMetadata, Node, PartitionMetadata, TopicMetadata
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import ErrorCode


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


class Dialling(Cluster):
    """A cluster whose brokers are reached, refuse or never answer, by their ports."""

    def __init__(self, bootstrap: Address, *, refusing: frozenset[int], silent: frozenset[int]) -> None:
        super().__init__(ClusterSettings(bootstrap=(bootstrap,), metadata_max_age_s=1e6))
        self.dialled: list[int] = []
        self._refusing = refusing
        self._silent = silent

    async def _dial(self, address: Address) -> Connection:
        self.dialled.append(address.port)
        if address.port in self._refusing:
            raise ConnectError("refused")
        if address.port in self._silent:
            await asyncio.Event().wait()
        return cast(Connection, Open(0, node_id=address.port))


@pytest.mark.parametrize(
    ("refusing", "silent", "chosen", "dialled"),
    [
        (set[int](), set[int](), 2, [1, 2]),
        ({2}, set[int](), 3, [1, 2, 3]),
        ({2, 3}, set[int](), 1, [1, 2, 3]),
        (set[int](), {2}, 1, [1, 2]),
    ],
    ids=["reached", "the next one", "none", "no answer"],
)
def test_a_bootstrap_server_that_does_not_name_itself_is_left_for_named_ones(
    refusing: set[int], silent: set[int], chosen: int, dialled: list[int]
) -> None:
    """It may be cut off from the cluster; where nobody else can be reached, it is asked all the same."""

    async def choose() -> None:
        bootstrap = Address("127.0.0.1", 1)
        cluster = Dialling(bootstrap, refusing=frozenset(refusing), silent=frozenset(silent))
        assert cast(Open, await cluster.any_connection()).node_id == 1  # nothing is known yet
        nodes = {port: Node(port, Address("127.0.0.1", port), None) for port in (2, 3)}
        cluster.metadata.remember(ClusterMetadata("c", -1, nodes, {}), everything=True)
        found = cast(Open, await cluster.any_connection())
        assert (found.node_id, cluster.dialled) == (chosen, dialled)
        for peer in cluster._peers.values():
            peer.connection = None
        await cluster.close()

    asyncio.run(choose())


class Answering(Cluster):
    """A cluster in which partition 0 has no leader and broker 7 leads partition 1, asked once for all who wait."""

    async def _ask_metadata(self, names: frozenset[str] | None, create: bool) -> ClusterMetadata:
        await asyncio.sleep(0)
        partitions = tuple(
            PartitionMetadata(index, leader_id=leader_id, leader_epoch=1, replicas=(), isr=(), offline_replicas=())
            for index, leader_id in enumerate((-1, 7))
        )
        told = ClusterMetadata("c", -1, {}, {"t": TopicMetadata("t", ZERO_UUID, False, partitions)}, {})
        self.metadata.remember(told, everything=names is None)
        return told


def test_a_partition_is_found_though_others_forget_the_topic_meanwhile() -> None:
    """Two wait for one answer; the first finds no leader for its partition, and has the topic asked for again."""

    async def scenario() -> tuple[int | BaseException, int | BaseException]:
        cluster = Answering(ClusterSettings(bootstrap=(Address("127.0.0.1", 1),), metadata_max_age_s=1e6))
        without, led = await asyncio.gather(cluster.leader("t", 0), cluster.leader("t", 1), return_exceptions=True)
        for task in cluster._upkeep:
            task.cancel()
        return without, led

    without, led = asyncio.run(scenario())
    assert getattr(without, "code", None) is ErrorCode.LEADER_NOT_AVAILABLE
    assert led == 7
