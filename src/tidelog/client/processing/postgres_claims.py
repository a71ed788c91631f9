"""Claims and marks in a PostgreSQL table, over the store's own connections or in the caller's transaction.

What always holds: a claim is one round trip. A broken connection is discarded and the call repeated on a new one, until
the timeout. The table is created on first use. The SQL is in `postgres_sql`. Connections are blocking ones or asyncio
ones; psycopg gives both the same methods, so one source serves both (see `blocking`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row

from tidelog.client.errors import ClosedError, ConfigError
from tidelog.client.processing.blocking import pause, resolved
from tidelog.client.processing.claim_store import ClaimResult
from tidelog.client.processing.errors import ClaimStoreError
from tidelog.client.processing.postgres_sql import Execute, PostgresSql, Rows, check_transaction

_RETRY_S = 0.05
# Idle connections to keep; more are opened when more callers need one at the same time.
_IDLE_MAX = 8

ResultT = TypeVar("ResultT")
Connection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


class PostgresClaims:
    """The store, over connections of either kind; see `ClaimStore`."""

    def __init__(self, url: str, name: str, table: str, timeout_s: float, *, is_async: bool) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._is_async = is_async
        self._connection_type = psycopg.AsyncConnection if is_async else psycopg.Connection
        self._sql = PostgresSql(name, table)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._pid = os.getpid()
        self._is_closed = False
        self._has_table = False

    async def claim(self, keys: Sequence[bytes], owner: str, lease_ms: int, *, partly: bool) -> list[ClaimResult]:
        return await self._run(lambda execute: self._sql.claim(execute, keys, owner, lease_ms, partly=partly))

    async def complete(self, keys: Sequence[bytes], owner: str, expiry_ms: int) -> list[bool]:
        return await self._run(lambda execute: self._sql.complete(execute, keys, owner, expiry_ms))

    async def extend(self, keys: Sequence[bytes], owner: str, lease_ms: int) -> list[bool]:
        return await self._run(lambda execute: self._sql.extend(execute, keys, owner, lease_ms))

    async def release(self, keys: Sequence[bytes], owner: str) -> None:
        await self._run(lambda execute: self._sql.release(execute, keys, owner))

    async def purge(self, limit: int, connection: object = None) -> int:
        return await self._run(lambda execute: self._sql.purge(execute, limit))

    async def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        if self._pid == os.getpid():
            for connection in idle:
                await resolved(connection.close())

    async def begin_marks(
        self,
        connection: Connection,
        keys: Sequence[bytes],
        owner: str,
        expiry_ms: int,
        *,
        partly: bool,
        wait_ms: int,
    ) -> list[ClaimResult]:
        if not isinstance(connection, self._connection_type):
            wanted = self._connection_type.__name__
            raise ConfigError(f"connection= takes a psycopg.{wanted} here, not {type(connection).__name__}")
        check_transaction(connection)
        if not self._has_table:
            await self._run(self._sql.create)
        execute = _executor(connection)
        return await self._sql.begin_marks(execute, keys, owner, expiry_ms, partly=partly, wait_ms=wait_ms)

    async def end_marks(self, connection: Connection, *, undo: bool) -> None:
        if not connection.closed:
            await self._sql.end_marks(_executor(connection), undo=undo)

    async def _run(self, work: Callable[[Execute], Awaitable[ResultT]]) -> ResultT:
        """Run the work on one of the store's own connections, and again on a new one if it broke."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            connection = None
            try:
                connection = await self._take()
                result = await work(_executor(connection))
            except psycopg.Error as error:
                # Any other error, such as a missing privilege, would occur again on a new connection.
                is_broken = isinstance(error, psycopg.OperationalError) and (connection is None or connection.closed)
                if connection is not None:
                    await resolved(connection.close())
                if not is_broken or time.monotonic() + _RETRY_S > deadline_s:
                    text = " ".join(str(error).split())
                    raise ClaimStoreError(f"PostgreSQL could not be reached: {text}") from error
                await pause(_RETRY_S, is_async=self._is_async)
            except BaseException:
                if connection is not None:
                    await resolved(connection.close())
                raise
            else:
                await self._give_back(connection)
                return result

    async def _take(self) -> Connection:
        with self._lock:
            if self._is_closed:
                raise ClosedError("the deduplicator is closed")
            if self._pid != os.getpid():
                # A child process must neither use nor close its parent's connections.
                self._idle, self._pid = [], os.getpid()
            if self._idle:
                return self._idle.pop()
        # libpq counts whole seconds, and 0 means no limit.
        options: dict[str, Any] = {
            "connect_timeout": max(2, round(self._timeout_s)),
            "application_name": "tidelog-dedup",
        }
        connection: Connection = await resolved(self._connection_type.connect(self._url, autocommit=True, **options))
        try:
            execute = _executor(connection)
            limit = {"limit": f"{round(self._timeout_s * 1000)}ms"}
            await execute("SELECT set_config('statement_timeout', %(limit)s, false)", limit)
            if not self._has_table:
                await self._sql.create(execute)
                self._has_table = True
        except BaseException:
            await resolved(connection.close())
            raise
        return connection

    async def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        await resolved(connection.close())


def _executor(connection: Connection) -> Execute:
    """The function that executes statements on a connection.

    Client-side cursors put the values into the text, so several statements can go in one round trip.
    """
    cursor_type: Any = (
        psycopg.AsyncClientCursor if isinstance(connection, psycopg.AsyncConnection) else psycopg.ClientCursor
    )

    async def execute(text: str, values: Mapping[str, Any]) -> Rows:
        cursor = cursor_type(connection, row_factory=tuple_row)
        try:
            await resolved(cursor.execute(text.encode(), values or None))
            rows = []
            while True:
                rows += [await resolved(cursor.fetchall())] if cursor.description else []
                if not cursor.nextset():
                    return rows
        finally:
            await resolved(cursor.close())

    return execute
