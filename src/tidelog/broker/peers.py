"""Connections to the other brokers of the cluster.

What always holds: a request goes to the address that the newest image gives for its broker; a broker that could not be
reached is left alone for a growing while, so callers may simply try again; a request is sent at most once, and its
caller decides about a retry. Brokers answer the requests of one connection one after another, so requests that wait for
something (a fetch, a long poll) need a connection of their own: `open`. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.broker.request_context import BROKER_SOFTWARE_NAME
from tidelog.client.address import Address
from tidelog.client.errors import ClientError, ClosedError, ConnectError, ConnectionLostError, RequestTimeoutError
from tidelog.client.network.backoff import Backoff
from tidelog.client.network.connection import Connection
from tidelog.common.endpoint import PLAINTEXT

if TYPE_CHECKING:
    from tidelog.controller.image import BrokerInfo, ClusterImage
    from tidelog.protocol import Api

SHARED_CONNECTIONS_MAX: Final = 4
"""Shared connections to one broker. A second one is made only while the first waits for an answer, so that a request
that takes long, such as the creation of a large topic, does not hold up all others."""

CONNECT_TIMEOUT_S: Final = 5.0
"""Brokers of one cluster are near each other; one that takes longer is down or cut off."""

_RECONNECT: Final = Backoff(0.02, 1.0)
"""A restarted broker is found within a second, and one that stays away costs a connection attempt a second."""

ResponseT = TypeVar("ResponseT")


class _Peer:
    """One other broker: its address, the connections that requests share, and how often it could not be reached."""

    __slots__ = ("address", "blocked_until_s", "connections", "failures", "opening")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.connections: list[Connection] = []
        self.opening: asyncio.Task[Connection] | None = None
        self.failures = 0
        self.blocked_until_s = 0.0

    def close(self, error: ClientError) -> None:
        if self.opening is not None:
            self.opening.cancel()
        for connection in self.connections:
            connection.close(error)


class Peers:
    """The other brokers, by node id."""

    def __init__(self, node_id: int, listener_name: str = PLAINTEXT) -> None:
        """`listener_name` is the listener that brokers reach each other by."""
        self._listener_name = listener_name
        self._client_id = f"broker-{node_id}"
        self._peers: dict[int, _Peer] = {}
        self._is_closed = False

    def follow(self, image: ClusterImage) -> None:
        """Take over the addresses of this image. Brokers it does not name stay known: it may be an old one."""
        for broker in image.brokers.values():
            self.learn(broker.node_id, _address(broker, self._listener_name))

    def learn(self, node_id: int, address: Address) -> None:
        """Where a broker can be reached: for a broker that has no image yet, or an old one."""
        peer = self._peers.get(node_id)
        if peer is not None and peer.address == address:
            return
        if peer is not None:
            peer.close(ConnectionLostError(f"broker {node_id} has moved from {peer.address} to {address}"))
        self._peers[node_id] = _Peer(address)

    async def open(self, node_id: int, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Connection:
        """A new connection that the caller alone uses and closes. Raises ClientError, ConnectError in most cases.

        A broker that could not be reached a moment ago is tried again after a pause only, so callers may loop.
        """
        peer = self._peer(node_id)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._open(node_id, peer)
        except TimeoutError:
            raise _not_reached(node_id, peer, timeout_s) from None

    async def call(
        self,
        node_id: int,
        api: Api,
        request: object,
        response_class: type[ResponseT],
        *,
        timeout_s: float,
        version: int | None = None,
    ) -> ResponseT:
        """Send one request over a shared connection and wait for its answer; raises ClientError.

        After ConnectError nothing was sent; after ConnectionLostError and RequestTimeoutError the peer may have
        carried it out.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        peer = self._peer(node_id)
        connection = self._idle_connection(peer)
        if connection is None:
            try:
                async with asyncio.timeout_at(deadline_s):
                    connection = await self._shared_connection(node_id, peer)
            except TimeoutError:
                raise _not_reached(node_id, peer, timeout_s) from None
        left_s = max(0.0, deadline_s - loop.time())
        return await connection.request(api, request, response_class, version=version, timeout_s=left_s)

    async def close(self) -> None:
        """End all shared connections; requests under way fail. Connections made by `open` are their callers'."""
        self._is_closed = True
        opening = [peer.opening for peer in self._peers.values() if peer.opening is not None]
        for peer in self._peers.values():
            peer.close(ClosedError("this broker is shutting down"))
        await asyncio.gather(*opening, return_exceptions=True)

    def _peer(self, node_id: int) -> _Peer:
        if self._is_closed:
            raise ClosedError("this broker is shutting down")
        peer = self._peers.get(node_id)
        if peer is None:
            raise ConnectError(f"the address of broker {node_id} is not known")
        return peer

    def _idle_connection(self, peer: _Peer) -> Connection | None:
        return next((each for each in peer.connections if each.is_open and not each.in_flight), None)

    async def _shared_connection(self, node_id: int, peer: _Peer) -> Connection:
        """A new connection, or the one with the least under way where there are enough of them."""
        peer.connections = [connection for connection in peer.connections if connection.is_open]
        if len(peer.connections) >= SHARED_CONNECTIONS_MAX:
            return min(peer.connections, key=lambda connection: connection.in_flight)
        opening = peer.opening
        if opening is None:
            opening = peer.opening = asyncio.get_running_loop().create_task(self._open(node_id, peer))
            opening.add_done_callback(lambda task: self._on_opened(peer, task))
        # Others wait for the same connection, so it goes on when this caller is cancelled.
        await asyncio.wait([opening])
        if opening.cancelled():
            raise ConnectError(f"broker {node_id} is no longer at {peer.address}, or this broker is shutting down")
        return opening.result()

    def _on_opened(self, peer: _Peer, task: asyncio.Task[Connection]) -> None:
        peer.opening = None
        # The exception is looked at here too, as all who waited for the connection may have given up.
        if task.cancelled() or task.exception() is not None:
            return
        connection = task.result()
        if self._is_closed or peer not in self._peers.values():
            connection.close()
        else:
            peer.connections.append(connection)

    async def _open(self, node_id: int, peer: _Peer) -> Connection:
        loop = asyncio.get_running_loop()
        pause_s = peer.blocked_until_s - loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        try:
            connection = await Connection.open(
                peer.address,
                client_id=self._client_id,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                software_name=BROKER_SOFTWARE_NAME,
            )
        except ClientError as error:
            peer.failures += 1
            peer.blocked_until_s = loop.time() + _RECONNECT.pause_s(peer.failures)
            if isinstance(error, (ConnectionLostError, RequestTimeoutError)):
                # Only versions were asked for, so nothing that matters was sent.
                raise ConnectError(str(error)) from error
            raise
        peer.failures = 0
        connection.node_id = node_id
        return connection


def _address(broker: BrokerInfo, listener_name: str) -> Address:
    _, host, port = broker.endpoint(listener_name)
    return Address(host, port)


def _not_reached(node_id: int, peer: _Peer, timeout_s: float) -> ConnectError:
    return ConnectError(f"could not connect to broker {node_id} at {peer.address} within {timeout_s:g} s")
