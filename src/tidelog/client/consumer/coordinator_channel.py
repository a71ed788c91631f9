"""Dedicated connections to a group's coordinator.

A broker answers the requests on a connection one after the other. A join is answered only when the whole group has
joined, and a fetch when there is something to read. So heartbeats and joins have a connection of their own, and commits
another: neither waits behind a fetch, and a commit does not wait behind a join.

What always holds: the coordinator is looked up when it is unknown, and `forget` makes it unknown. All channels of a
group share the result.
"""

from __future__ import annotations

import asyncio

from tidelog.client.errors import ClientError, ClosedError
from tidelog.client.network.connection import Connection
from tidelog.client.network.routing import Coordinator


class CoordinatorChannel:
    """One connection to the coordinator, made on first use."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._connection: Connection | None = None
        self._node_id = -1
        self._opening = asyncio.Lock()
        self._closed = False

    async def connection(self) -> Connection:
        """The connection, opened if need be. It tries once; retrying after errors is up to the caller."""
        node_id = await self._coordinator.find()
        async with self._opening:
            if self._closed:
                raise ClosedError("the consumer is closed")
            if self._connection is not None and self._connection.is_open and self._node_id == node_id:
                return self._connection
            self.drop()
            try:
                self._connection = await self._coordinator.cluster.open_own_connection(node_id)
            except ClientError as error:
                self._coordinator.note_error(error)
                raise
            self._node_id = node_id
            return self._connection

    def drop(self) -> None:
        """Close the connection; pending requests fail. The next use opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self._closed = True
        self.drop()
