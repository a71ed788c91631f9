"""Connections to a group's coordinator that nothing else uses.

A broker answers the requests of one connection one after the other, and a join is answered when the whole group has
joined, a fetch when there is something to read. So heartbeats and joins have a connection of their own, and commits
another: neither waits behind a fetch, and a commit does not wait behind a join. What always holds: the coordinator is
looked up when it is not known, and `forget` makes it unknown; the channels of one group share what was found.
"""

from __future__ import annotations

import asyncio

from tidelog.client.errors import BrokerError, ClientError, ClosedError, RetriableError
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.network.routing import KeyType, find_coordinator
from tidelog.protocol import ErrorCode

_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class GroupCoordinator:
    """Which broker coordinates the group, as last heard of."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self.cluster = cluster
        self.group_id = group_id
        self._node_id: int | None = None

    async def node_id(self) -> int:
        """Asks once when it is not known; errors are the caller's to retry."""
        if self._node_id is None:
            self._node_id = await find_coordinator(self.cluster, KeyType.GROUP, self.group_id)
        return self._node_id

    def forget(self) -> None:
        self._node_id = None

    def note_error(self, error: BaseException) -> None:
        """Forget it if the error may mean that it has moved."""
        if isinstance(error, BrokerError):
            if error.code in _MOVED:
                self.forget()
        elif isinstance(error, RetriableError):
            self.forget()


class CoordinatorChannel:
    """One connection to the coordinator, made when it is needed."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self._connection: Connection | None = None
        self._node_id = -1
        self._opening = asyncio.Lock()
        self._closed = False

    async def connection(self) -> Connection:
        """The connection, opened if need be; one attempt, so errors are the caller's to retry."""
        node_id = await self._coordinator.node_id()
        async with self._opening:
            if self._closed:
                raise ClosedError("the consumer is closed")
            if self._connection is not None and self._connection.is_open and self._node_id == node_id:
                return self._connection
            self.drop()
            try:
                self._connection = await self._open(node_id)
            except ClientError as error:
                self._coordinator.note_error(error)
                raise
            self._node_id = node_id
            return self._connection

    async def _open(self, node_id: int) -> Connection:
        cluster = self._coordinator.cluster
        node = cluster.nodes.get(node_id)
        if node is None:
            await cluster.refresh([])
            node = cluster.nodes.get(node_id)
            if node is None:
                raise BrokerError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"broker {node_id}, its coordinator, is not in the cluster",
                    subject=f"group {self._coordinator.group_id}",
                )
        settings = cluster.settings
        connection = await Connection.open(
            node.address,
            client_id=settings.client_id,
            connect_timeout_s=settings.connect_timeout_s,
            request_timeout_s=settings.request_timeout_s,
            send_buffer_bytes=settings.send_buffer_bytes,
            receive_buffer_bytes=settings.receive_buffer_bytes,
        )
        connection.node_id = node_id
        cluster.note_reached()
        return connection

    def drop(self) -> None:
        """End the connection; what is under way fails. The next use makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self._closed = True
        self.drop()
