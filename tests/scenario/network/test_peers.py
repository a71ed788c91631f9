"""A broker's connections to others: shared and own ones, brokers that restart, move or stay away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tidelog.broker import peers as peers_module
from tidelog.broker.peers import SHARED_CONNECTIONS_MAX, Peers
from tidelog.client.address import Address
from tidelog.client.errors import ClientError, ClosedError, ConnectError, ConnectionLostError, RequestTimeoutError
from tidelog.controller.image import ClusterImage
from tidelog.protocol.messages.k01_fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataResponse
from tidelog.testing.broker import Broker

TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def first() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("orders")
        yield broker


@pytest.fixture(scope="module")
def second() -> Iterator[Broker]:
    with Broker(settings={"node.id": 2}) as broker:
        yield broker


def image_of(*brokers: Broker) -> ClusterImage:
    return ClusterImage(
        brokers={
            node_id: info
            for broker in brokers
            for node_id, info in broker.server.services.replicas.image.brokers.items()
        }
    )


@asynccontextmanager
async def peers_of(*brokers: Broker) -> AsyncIterator[Peers]:
    peers = Peers(node_id=9)
    peers.follow(image_of(*brokers))
    try:
        yield peers
    finally:
        await peers.close()


async def controller_id(peers: Peers, node_id: int, *, timeout_s: float = TIMEOUT_S) -> int:
    response = await peers.call(node_id, METADATA, MetadataRequest(topics=[]), MetadataResponse, timeout_s=timeout_s)
    return response.controller_id


def parked_fetch(broker: Broker) -> FetchRequest:
    topic_id = broker.server.services.replicas.image.topics["orders"].topic_id
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    return FetchRequest(
        max_wait_ms=int(TIMEOUT_S * 1000), min_bytes=1, topics=[FetchTopic(topic_id=topic_id, partitions=[partition])]
    )


def connections(broker: Broker) -> int:
    async def count(server: object) -> int:
        return len(broker.server.connections)

    return broker.call(count)


def test_requests_reach_the_broker_they_are_meant_for(first: Broker, second: Broker) -> None:
    async def run() -> None:
        async with peers_of(first, second) as peers:
            for _ in range(3):
                assert await controller_id(peers, 1) == 1
                assert await controller_id(peers, 2) == 2

    asyncio.run(run())


def test_a_request_that_waits_holds_up_no_other(first: Broker) -> None:
    async def run() -> None:
        async with peers_of(first) as peers:
            waiting = asyncio.create_task(
                peers.call(1, FETCH, parked_fetch(first), FetchResponse, timeout_s=2 * TIMEOUT_S, version=13)
            )
            assert await controller_id(peers, 1) == 1
            assert not waiting.done()
        with pytest.raises(ClosedError):
            await waiting

    asyncio.run(run())


def test_requests_share_few_connections() -> None:
    async def run() -> None:
        with Broker() as broker:
            async with peers_of(broker) as peers:
                for _ in range(3):
                    await controller_id(peers, 1)
                assert connections(broker) == 1
                for _ in range(10):
                    await asyncio.gather(*[controller_id(peers, 1) for _ in range(20)])
                assert connections(broker) <= SHARED_CONNECTIONS_MAX

    asyncio.run(run())


def test_an_own_connection_is_the_callers_alone(first: Broker) -> None:
    async def run() -> None:
        async with peers_of(first) as peers:
            own = await peers.open(1)
            fetch = own.send(FETCH, parked_fetch(first), FetchResponse, version=13, timeout_s=2 * TIMEOUT_S)
            assert await controller_id(peers, 1) == 1
        assert own.is_open
        assert own.node_id == 1
        own.close()
        with pytest.raises(ConnectionLostError):
            await fetch

    asyncio.run(run())


def test_a_broker_that_restarts_is_found_again() -> None:
    with Broker() as broker:

        async def run() -> None:
            async with peers_of(broker) as peers:
                assert await controller_id(peers, 1) == 1
                broker.crash()
                with pytest.raises((ConnectionLostError, ConnectError)):
                    await controller_id(peers, 1)
                with pytest.raises(ConnectError):
                    await controller_id(peers, 1)
                broker.start()
                assert await controller_id(peers, 1) == 1

        asyncio.run(run())


def test_a_broker_that_moves_is_asked_at_its_new_address(first: Broker, second: Broker) -> None:
    async def run() -> None:
        async with peers_of(first) as peers:
            waiting = asyncio.create_task(
                peers.call(1, FETCH, parked_fetch(first), FetchResponse, timeout_s=2 * TIMEOUT_S, version=13)
            )
            assert await controller_id(peers, 1) == 1
            peers.learn(1, Address("127.0.0.1", second.port))
            with pytest.raises(ConnectionLostError, match="moved"):
                await waiting
            assert await controller_id(peers, 1) == 2

    asyncio.run(run())


def test_an_unreachable_broker_is_tried_with_growing_pauses() -> None:
    async def run() -> None:
        attempts = 0

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal attempts
            attempts += 1
            writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        peers = Peers(node_id=9)
        peers.learn(1, Address("127.0.0.1", server.sockets[0].getsockname()[1]))
        calls = 0
        while attempts < 5:
            calls += 1
            # Many callers share an attempt.
            with pytest.raises(ConnectError):
                await asyncio.gather(*[controller_id(peers, 1) for _ in range(10)])
        assert calls == 5
        # The pauses were at least 0.8 * (20 + 40 + 80 + 160) ms, so far fewer attempts fit than a busy loop would make.
        started_s = asyncio.get_running_loop().time()
        with pytest.raises(ConnectError):
            await controller_id(peers, 1)
        assert asyncio.get_running_loop().time() - started_s > 0.2
        with pytest.raises(ConnectError, match=r"within 0\.01 s"):
            await controller_id(peers, 1, timeout_s=0.01)
        await peers.close()
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def test_a_silent_broker_ends_in_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        connected = asyncio.Event()
        ended = asyncio.Event()

        async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set()
            await reader.read()
            writer.close()
            ended.set()

        server = await asyncio.start_server(stay_silent, "127.0.0.1", 0)
        peers = Peers(node_id=9)
        peers.learn(1, Address("127.0.0.1", server.sockets[0].getsockname()[1]))
        monkeypatch.setattr(peers_module, "CONNECT_TIMEOUT_S", 0.05)
        with pytest.raises(ConnectError):
            await controller_id(peers, 1)
        with pytest.raises(ConnectError):
            await peers.open(1, timeout_s=0.01)
        await connected.wait()
        await peers.close()
        async with asyncio.timeout(TIMEOUT_S):
            await ended.wait()
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def test_a_broker_that_stops_answering_ends_in_a_timeout(first: Broker) -> None:
    async def run() -> None:
        async with peers_of(first) as peers:
            with pytest.raises(RequestTimeoutError):
                await peers.call(1, FETCH, parked_fetch(first), FetchResponse, timeout_s=0.2, version=13)
            assert await controller_id(peers, 1) == 1

    asyncio.run(run())


def test_unknown_brokers_and_closed_peers_are_errors(first: Broker) -> None:
    async def run() -> None:
        async with peers_of(first) as peers:
            with pytest.raises(ConnectError, match="broker 5 is not known"):
                await controller_id(peers, 5)
        with pytest.raises(ClosedError):
            await controller_id(peers, 1)
        with pytest.raises(ClientError):
            await peers.open(1)

    asyncio.run(run())
