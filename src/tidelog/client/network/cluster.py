"""The cluster as a client sees it: its brokers, the leaders of partitions, and which broker to ask.

What always holds: there is at most one shared connection per broker, opened on first use, with one attempt at a time. A
broker that can't be reached is left alone for a growing pause. A request for a partition goes to its last known leader.
After a retriable error the client refreshes its metadata and retries, with growing pauses, until the time is up; then
it raises the last error unchanged. Everything runs on one event loop; only `known_topic` may be called from elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from tidelog.client.address import Address, parse_addresses
from tidelog.client.errors import (
    BrokerError,
    ClientError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    NoSuchPartitionError,
    RequestTimeoutError,
    RetriableError,
    error_code,
)
from tidelog.client.network.backoff import Backoff
from tidelog.client.network.connection import Connection
from tidelog.client.network.metadata_cache import MetadataCache, find_partition, read_metadata
from tidelog.client.network.outage import OutageLog, Reminders
from tidelog.client.settings import ClientSettings
from tidelog.client.types import ClusterMetadata, Node, TopicMetadata, TopicPartition
from tidelog.common.light_dataclass import dataclass
from tidelog.protocol import Api, ErrorCode
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataRequestTopic, MetadataResponse

logger = logging.getLogger(__name__)

# Before version 1 a request can't ask for no topics: an empty list meant all of them.
_NO_TOPICS_FROM = 1
_AUTO_CREATION_SAID_FROM = 4
# How often to look for idle connections, at most.
_IDLE_CHECK_S = 10.0
# How long to prefer a broker that the cluster names, while a connection to another address is open.
_NAMED_CONNECT_S = 1.0
# Kafka's retry.backoff.ms and reconnect.backoff.ms, with their maximums.
_RETRY = Backoff(0.1, 1.0)
_RECONNECT = Backoff(0.05, 1.0)

T = TypeVar("T")
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How to reach brokers, in the units of the event loop."""

    bootstrap: tuple[Address, ...]
    client_id: str = "tidelog"
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    api_timeout_s: float = 60.0
    retry: Backoff = _RETRY
    reconnect: Backoff = _RECONNECT
    max_idle_s: float | None = 540.0
    metadata_max_age_s: float = 300.0
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1

    @classmethod
    def read(cls, settings: ClientSettings) -> ClusterSettings:
        max_idle_s = settings.get_seconds("connections.max.idle.ms")
        return cls(
            bootstrap=tuple(parse_addresses(",".join(settings["bootstrap.servers"]))),
            client_id=settings.get_str("client.id"),
            connect_timeout_s=settings.get_seconds("socket.connection.setup.timeout.ms"),
            request_timeout_s=settings.get_seconds("request.timeout.ms"),
            api_timeout_s=settings.get_seconds("default.api.timeout.ms"),
            retry=Backoff(settings.get_seconds("retry.backoff.ms"), settings.get_seconds("retry.backoff.max.ms")),
            reconnect=Backoff(
                settings.get_seconds("reconnect.backoff.ms"), settings.get_seconds("reconnect.backoff.max.ms")
            ),
            max_idle_s=max_idle_s if max_idle_s >= 0 else None,
            metadata_max_age_s=settings.get_seconds("metadata.max.age.ms"),
            send_buffer_bytes=settings.get_int("send.buffer.bytes"),
            receive_buffer_bytes=settings.get_int("receive.buffer.bytes"),
        )


class _Peer:
    """The state of a broker's address: its connection, or its failed attempts."""

    __slots__ = ("blocked_until_s", "connection", "failures", "opening")

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.opening: asyncio.Task[Connection] | None = None
        self.failures = 0
        self.blocked_until_s = 0.0


class Cluster:
    """Connections to a cluster's brokers, and the routing of requests to them."""

    def __init__(self, settings: ClusterSettings, *, tells_outages: bool = False) -> None:
        """With `tells_outages`, an unreachable cluster is logged: for clients whose calls don't raise it."""
        self.settings = settings
        self._outage = OutageLog(settings.client_id) if tells_outages else None
        self.metadata = MetadataCache()
        self._peers: dict[Address, _Peer] = {}
        self._listeners: list[Callable[[ClusterMetadata], None]] = []
        self._watched: frozenset[str] | None = frozenset()
        self._upkeep: list[asyncio.Task[None]] = []
        self._refreshing: dict[frozenset[str] | None, asyncio.Task[ClusterMetadata]] = {}
        self._refreshed_at_s = 0.0
        self._closed = False

    async def close(self) -> None:
        """Close all connections; pending requests fail."""
        if self._closed:
            return
        self._closed = True
        tasks: list[asyncio.Task[None] | asyncio.Task[Connection] | asyncio.Task[ClusterMetadata]] = [*self._upkeep]
        tasks += self._refreshing.values()
        for peer in self._peers.values():
            if peer.opening is not None:
                tasks.append(peer.opening)
            if peer.connection is not None:
                peer.connection.close(ClosedError("the client was closed"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self) -> None:
        if self._closed:
            raise ClosedError("the client is closed")
        if not self._upkeep:
            self._refreshed_at_s = self._now_s()  # nothing is known yet that could be outdated
            self._upkeep.append(asyncio.create_task(self._keep_metadata_fresh()))
            if self.settings.max_idle_s is not None:
                self._upkeep.append(asyncio.create_task(self._close_idle(self.settings.max_idle_s)))

    # Connections

    async def any_connection(self) -> Connection:
        """The open connection with the fewest requests in flight, or one to the first broker that can be reached.

        A broker that the cluster no longer names comes last: it may be cut off and know nothing new.
        """
        self._begin()
        first_error: ConnectError | None = None
        known = [node.address for node in self.metadata.nodes.values()]
        open_ones = [
            (address not in known, peer.connection.in_flight, number, peer.connection)
            for number, (address, peer) in enumerate(self._peers.items())
            if peer.connection and peer.connection.is_open
        ]
        if open_ones:
            is_unnamed, *_, best = min(open_ones)
            named = await self._first_named(known) if is_unnamed and known else None
            return named or best
        addresses = list(dict.fromkeys([*known, *self.settings.bootstrap]))
        # Brokers in their backoff pause come last, but are tried all the same: there is nobody else.
        for address in sorted(addresses, key=lambda address: self._peer(address).blocked_until_s > self._now_s()):
            try:
                return await self._connect(address)
            except ConnectError as problem:
                first_error = first_error or problem
        error = first_error or ConnectError("no broker address is known")
        if self._outage is not None:
            self._outage.failed(error, self._now_s())
        raise error

    async def _first_named(self, known: Iterable[Address]) -> Connection | None:
        """A connection to a broker that the cluster names, if one can be reached soon.

        Otherwise the caller has an open connection to another address, which may be all that leads to the cluster from
        here: a bootstrap address that the brokers don't advertise.
        """
        try:
            async with asyncio.timeout(_NAMED_CONNECT_S):
                for address in known:
                    if self._peer(address).blocked_until_s <= self._now_s():
                        with contextlib.suppress(ConnectError):
                            return await self._connect(address)
        except TimeoutError:
            pass  # the attempt goes on, and the next caller may find it successful
        return None

    async def connection_to(self, node_id: int) -> Connection:
        """The connection to this broker; raises ConnectError, or BrokerError for an unknown broker."""
        node = await self._node(node_id)
        peer = self._peers.get(node.address)
        if peer is not None and peer.connection is not None and peer.connection.is_open:
            peer.connection.node_id = node_id
            return peer.connection
        wait_s = self._peer(node.address).blocked_until_s - self._now_s()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        connection = await self._connect(node.address)
        connection.node_id = node_id
        return connection

    async def _node(self, node_id: int) -> Node:
        node = self.metadata.nodes.get(node_id)
        if node is None:
            await self.refresh([])
            node = self.metadata.nodes.get(node_id)
            if node is None:
                known = ", ".join(str(known_id) for known_id in sorted(self.metadata.nodes)) or "none"
                raise BrokerError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE if node_id < 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                    f"broker {node_id} is not in the cluster (brokers: {known})",
                )
        return node

    def open_connection_to(self, node_id: int) -> Connection | None:
        """The connection to this broker if one is open; never waits."""
        node = self.metadata.nodes.get(node_id)
        peer = self._peers.get(node.address) if node is not None else None
        connection = peer.connection if peer is not None else None
        return connection if connection is not None and connection.is_open else None

    def _peer(self, address: Address) -> _Peer:
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = _Peer()
        return peer

    async def _connect(self, address: Address) -> Connection:
        self._begin()
        peer = self._peer(address)
        if peer.connection is not None and peer.connection.is_open:
            return peer.connection
        if peer.opening is None:
            peer.opening = asyncio.create_task(self._open(address, peer))
        # Shielded: other callers waiting for the same connection are not affected when this one gives up.
        return await asyncio.shield(peer.opening)

    async def _open(self, address: Address, peer: _Peer) -> Connection:
        try:
            connection = await self._dial(address)
        except ClientError as error:
            peer.failures += 1
            peer.blocked_until_s = self._now_s() + self.settings.reconnect.pause_s(peer.failures)
            if isinstance(error, (ConnectionLostError, RequestTimeoutError)):
                # Only versions were requested, so trying again does no harm.
                raise ConnectError(str(error)) from error
            raise
        finally:
            peer.opening = None
        peer.failures = 0
        peer.blocked_until_s = 0.0
        peer.connection = connection
        return connection

    async def open_own_connection(self, node_id: int) -> Connection:
        """A new connection to this broker, which the caller alone uses and closes; one attempt.

        For requests that would wait behind others or keep others waiting, because brokers answer the requests of a
        connection one after another. Raises ConnectError, or BrokerError for an unknown broker.
        """
        connection = await self._dial((await self._node(node_id)).address)
        connection.node_id = node_id
        return connection

    async def _dial(self, address: Address) -> Connection:
        """Connect; every connection of the client is opened here."""
        settings = self.settings
        connection = await Connection.open(
            address,
            client_id=settings.client_id,
            connect_timeout_s=settings.connect_timeout_s,
            request_timeout_s=settings.request_timeout_s,
            send_buffer_bytes=settings.send_buffer_bytes,
            receive_buffer_bytes=settings.receive_buffer_bytes,
        )
        if self._outage is not None:
            self._outage.reached(self._now_s())
        return connection

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    # Metadata

    async def refresh(
        self, topics: Iterable[str] | None, *, allow_auto_topic_creation: bool = False
    ) -> ClusterMetadata:
        """Request metadata of these topics (None: all) and remember it; topics with errors are in `.errors`.

        Concurrent requests for the same topics are merged into one.
        """
        names = None if topics is None else frozenset(topics)
        if allow_auto_topic_creation:
            return await self._ask_metadata(names, True)
        task = self._refreshing.get(names)
        if task is None:
            task = self._refreshing[names] = asyncio.create_task(self._ask_metadata(names, False))
            task.add_done_callback(lambda done: self._refreshing.pop(names, None))
        return await asyncio.shield(task)

    async def _ask_metadata(self, names: frozenset[str] | None, create: bool) -> ClusterMetadata:
        connection = await self.any_connection()
        version = connection.version_for(METADATA)
        rows = None if names is None else [MetadataRequestTopic(name=name) for name in sorted(names)]
        if version < _NO_TOPICS_FROM and rows is None:
            rows = []
        request = MetadataRequest(topics=rows)
        if version >= _AUTO_CREATION_SAID_FROM:  # before that, asking for a topic created it
            request.allow_auto_topic_creation = create
        response = await connection.request(METADATA, request, MetadataResponse, version=version)
        if response.error_code != ErrorCode.NONE:
            raise BrokerError(error_code(response.error_code))
        told = read_metadata(response)
        self.metadata.remember(told, everything=names is None)
        self._refreshed_at_s = self._now_s()
        for listener in tuple(self._listeners):
            listener(told)
        return told

    def add_listener(self, listener: Callable[[ClusterMetadata], None]) -> Callable[[], None]:
        """Call it with every metadata response about topics; returns a function that unregisters it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def watch_topics(self, names: Iterable[str] | None) -> None:
        """The topics that are refreshed every `metadata.max.age.ms`; None: all topics."""
        self._watched = None if names is None else frozenset(names)

    async def _keep_metadata_fresh(self) -> None:
        reminders = Reminders()
        while True:
            wait_s = self._refreshed_at_s + self.settings.metadata_max_age_s - self._now_s()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            wanted = self._watched if self._watched is None else self._watched | frozenset(self.metadata.topics)
            try:
                await self.refresh(wanted)
                reminders.reset()
            except ClientError as error:
                if reminders.is_due(self._now_s()):
                    logger.warning("client %s could not refresh metadata, retrying: %s", self.settings.client_id, error)
                await asyncio.sleep(self.settings.retry.longest_s)

    async def _close_idle(self, max_idle_s: float) -> None:
        while True:
            await asyncio.sleep(min(max_idle_s / 2, _IDLE_CHECK_S))
            for peer in self._peers.values():
                connection = peer.connection
                if connection is None or connection.in_flight or connection.unsent_bytes:
                    continue
                if self._now_s() - connection.last_used_s > max_idle_s:
                    connection.close()
                    peer.connection = None

    @property
    def nodes(self) -> Mapping[int, Node]:
        return self.metadata.nodes

    def known_topic(self, name: str) -> TopicMetadata | None:
        """The topic's last known metadata; never waits, and may be called from any thread."""
        return self.metadata.topics.get(name)

    async def topic(self, name: str, *, timeout_s: float | None = None) -> TopicMetadata:
        """The topic's last known metadata; requested if unknown. Raises NoSuchPartitionError."""
        known = self.metadata.topics.get(name)
        if known is not None:
            return known
        return await self.retry(lambda: self._ask_topic(name), timeout_s=timeout_s)

    async def _ask_topic(self, name: str) -> TopicMetadata:
        metadata = await self.refresh([name])
        code = metadata.errors.get(name)
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise NoSuchPartitionError(f"there is no topic {name!r}; create it with 'tidelog topics create {name}'")
        if code is not None:
            raise BrokerError(code, subject=f"topic {name}")
        topic = metadata.topics.get(name)
        if topic is None:
            raise BrokerError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's answer left it out", subject=f"topic {name}"
            )
        return topic

    def topic_name(self, topic_id: object) -> str | None:
        return self.metadata.name_of(topic_id)  # type: ignore[arg-type]  # any other value is simply not found

    def forget(self, name: str) -> None:
        """Refresh the metadata on the next use."""
        self.metadata.forget(name)

    async def leader(self, topic: str, partition: int) -> int:
        """The id of the partition's leader; raises NoSuchPartitionError, or BrokerError with LEADER_NOT_AVAILABLE."""
        topic_partition = TopicPartition(topic, partition)
        found = self.metadata.partition(topic_partition)
        if found is None:
            self.forget(topic)  # it may have grown since
            known = await self.topic(topic)
            # Not looked up again: whoever else waited for the same answer may have had it forgotten by now.
            found = find_partition(known, partition)
            if found is None:
                last = len(known.partitions) - 1
                raise NoSuchPartitionError(f"topic {topic!r} has no partition {partition}; it has 0 to {last}")
        if found.leader_id < 0:
            self.forget(topic)
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {topic_partition} has no leader now")
        return found.leader_id

    async def by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[int, list[TopicPartition]], list[BaseException]]:
        """The partitions, grouped by the id of their leader, and what is wrong with those that have none."""
        grouped: dict[int, list[TopicPartition]] = {}
        errors: list[BaseException] = []
        for topic_partition in partitions:
            try:
                leader_id = await self.leader(topic_partition.topic, topic_partition.partition)
            except (BrokerError, NoSuchPartitionError) as error:
                errors.append(error)
            else:
                grouped.setdefault(leader_id, []).append(topic_partition)
        return grouped, errors

    def note_leader(self, topic_partition: TopicPartition, leader_id: int, leader_epoch: int) -> bool:
        """A broker's refusal named the new leader; returns whether that was news."""
        return self.metadata.note_leader(topic_partition, leader_id, leader_epoch)

    # Requests

    async def call(self, api: Api, message: object, response_class: type[ResponseT]) -> ResponseT:
        """Send to any broker; those that can't handle an admin request forward it to the controller."""
        connection = await self.any_connection()
        return await connection.request(api, message, response_class)

    async def retry(
        self,
        action: Callable[[], Awaitable[T]],
        *,
        timeout_s: float | None = None,
        giving_up_on: frozenset[ErrorCode] = frozenset(),
        repeatable: bool = True,
        patient: bool = False,
    ) -> T:
        """Retry temporary failures until the time is up.

        If no broker can be reached it fails immediately, unless it is `patient`: a user at a terminal wants to know.
        `repeatable` means that doing it twice does no harm, so it is also retried after a lost connection.
        """
        timeout_s = self.settings.api_timeout_s if timeout_s is None else timeout_s
        deadline_s = self._now_s() + timeout_s
        failures = 0
        last_error: RetriableError | None = None
        while True:
            try:
                # A single attempt can outlast the whole deadline: it may have to connect first and then wait for the
                # answer.
                async with asyncio.timeout_at(deadline_s):
                    return await action()
            except TimeoutError:
                raise last_error or RequestTimeoutError(f"no broker answered within {timeout_s:g} s") from None
            except RetriableError as error:
                failures += 1
                last_error = error
                pause_s = self.settings.retry.pause_s(failures)
                if self._now_s() + pause_s >= deadline_s:
                    raise
                if isinstance(error, BrokerError) and error.code in giving_up_on:
                    raise
                if isinstance(error, (ConnectionLostError, RequestTimeoutError)) and not repeatable:
                    raise
                if isinstance(error, ConnectError) and not patient:
                    await self.any_connection()
            await asyncio.sleep(pause_s)
