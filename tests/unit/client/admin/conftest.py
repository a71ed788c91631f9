"""A cluster without sockets: the real routing and retries over brokers whose answers a test writes by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tidelog.client.address import Address
from tidelog.client.errors import ConnectError, ConnectionLostError, UnsupportedVersionError
from tidelog.client.network.backoff import Backoff
from tidelog.client.network.cluster import Cluster, ClusterSettings
from tidelog.client.network.connection import Connection
from tidelog.client.types import TopicPartition
from tidelog.protocol import Api, ErrorCode
from tidelog.protocol.messages import k03_metadata, k10_find_coordinator

Answer = Callable[[int, Any], object]
AT_ONCE = Backoff(0.0, 0.0)


@dataclass
class FakeBrokers:
    """Brokers 1 and 2; each request is answered by the function for its API, which gets the broker's id.

    `leaders` says who leads which partition; one that is left out there is not. `coordinators` are told one after the
    other, the last one again and again. An answer that is an exception is raised.
    """

    answers: dict[Api, Answer] = field(default_factory=dict)
    leaders: dict[TopicPartition, int] = field(default_factory=dict)
    coordinators: list[int] = field(default_factory=lambda: [1])
    controller_id: int = 2
    versions: dict[Api, int] = field(default_factory=dict)
    unsupported: set[Api] = field(default_factory=set)
    unreachable: set[int] = field(default_factory=set)
    asked: list[tuple[int, Api, Any]] = field(default_factory=list)

    def requests(self, api: Api) -> list[tuple[int, Any]]:
        """Who was asked what by this API."""
        return [(node_id, message) for node_id, asked, message in self.asked if asked == api]

    def answer(self, node_id: int, api: Api, message: Any) -> object:
        self.asked.append((node_id, api, message))
        if api == k03_metadata.METADATA and api not in self.answers:
            return self._metadata(message)
        if api == k10_find_coordinator.FIND_COORDINATOR:
            return self._coordinator(message)
        answered = self.answers[api](node_id, message)
        if isinstance(answered, Exception):
            raise answered
        return answered

    def _metadata(self, request: k03_metadata.MetadataRequest) -> object:
        names = {key.topic for key in self.leaders} if request.topics is None else [t.name for t in request.topics]
        topics = []
        for name in names:
            rows = [
                k03_metadata.MetadataResponsePartition(partition_index=key.partition, leader_id=leader)
                for key, leader in self.leaders.items()
                if key.topic == name
            ]
            code = ErrorCode.NONE if rows else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(k03_metadata.MetadataResponseTopic(error_code=code, name=name, partitions=rows))
        brokers = [k03_metadata.MetadataResponseBroker(node_id=number, host=f"b{number}", port=1) for number in (1, 2)]
        return k03_metadata.MetadataResponse(brokers=brokers, controller_id=self.controller_id, topics=topics)

    def _coordinator(self, request: k10_find_coordinator.FindCoordinatorRequest) -> object:
        node_id = self.coordinators.pop(0) if len(self.coordinators) > 1 else self.coordinators[0]
        rows = [
            k10_find_coordinator.Coordinator(key=key, node_id=node_id, host=f"b{node_id}", port=1)
            for key in request.coordinator_keys
        ]
        return k10_find_coordinator.FindCoordinatorResponse(coordinators=rows)


class FakeConnection:
    """What admin calls need of a connection."""

    in_flight = 0
    unsent_bytes = 0
    last_used_s = 0.0

    def __init__(self, address: Address, brokers: FakeBrokers) -> None:
        self.address = address
        self.node_id = int(address.host[1:])
        self.is_open = True
        self._brokers = brokers

    def close(self, error: Exception | None = None) -> None:
        self.is_open = False

    def supports(self, api: Api) -> bool:
        return api not in self._brokers.unsupported

    def version_for(self, api: Api, *, at_most: int | None = None) -> int:
        if not self.supports(api):
            raise UnsupportedVersionError(f"no {api.name}")
        known = self._brokers.versions.get(api, api.versions.last)
        return known if at_most is None else min(known, at_most)

    async def request(
        self, api: Api, message: object, response_class: type, *, version: int | None = None, timeout_s: object = None
    ) -> object:
        try:
            return self._brokers.answer(self.node_id, api, message)
        except ConnectionLostError:
            self.is_open = False
            raise


class FakeCluster(Cluster):
    def __init__(self, brokers: FakeBrokers) -> None:
        settings = ClusterSettings(
            (Address("b1", 1), Address("b2", 1)), retry=AT_ONCE, reconnect=AT_ONCE, api_timeout_s=1.0, max_idle_s=None
        )
        super().__init__(settings)
        self._brokers = brokers
        self._made: dict[Address, FakeConnection] = {}

    async def any_connection(self) -> Connection:
        for address in self.settings.bootstrap:
            try:
                return await self._connect(address)
            except ConnectError:
                continue
        raise ConnectError("nobody can be reached")

    async def connection_to(self, node_id: int) -> Connection:
        if node_id not in self.nodes:
            await self.refresh([])
        return await self._connect(self.nodes[node_id].address)

    async def _connect(self, address: Address) -> Connection:
        if int(address.host[1:]) in self._brokers.unreachable:
            raise ConnectError(f"cannot reach broker at {address}")
        made = self._made.get(address)
        if made is None or not made.is_open:
            made = self._made[address] = FakeConnection(address, self._brokers)
        return cast(Connection, made)


@pytest.fixture
def brokers() -> FakeBrokers:
    return FakeBrokers()


@pytest.fixture
def cluster(brokers: FakeBrokers) -> Cluster:
    return FakeCluster(brokers)
