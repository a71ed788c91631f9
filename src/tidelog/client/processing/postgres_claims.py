"""Claims and marks in a table of PostgreSQL, over connections of the store's own or in the caller's transaction.

What always holds: a claim is one round trip; a connection that broke is thrown away and the call repeated on a new one,
until the time-out; the table is made when it is first used. What the SQL says is in `postgres_sql`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import psycopg
from psycopg.rows import tuple_row

from tidelog.client.errors import ClosedError, ConfigError
from tidelog.client.processing.claim_store import ClaimResult
from tidelog.client.processing.errors import ClaimStoreError
from tidelog.client.processing.postgres_sql import PostgresSql, Program, ResultT, Rows, Statement, check_transaction

_RETRY_S = 0.05
# Idle connections to keep; more are opened when more threads need one at the same time.
_IDLE_MAX = 8


class PostgresClaims:
    """The store over blocking connections; see `ClaimStore`."""

    def __init__(self, url: str, name: str, table: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._sql = PostgresSql(name, table)
        self._lock = threading.Lock()
        self._idle: list[psycopg.Connection[Any]] = []
        self._pid = os.getpid()
        self._is_closed = False
        self._has_table = False

    def claim(self, keys: Sequence[bytes], owner: str, lease_ms: int, *, partly: bool) -> list[ClaimResult]:
        return self._run(lambda: self._sql.claim(keys, owner, lease_ms, partly=partly))

    def complete(self, keys: Sequence[bytes], owner: str, expiry_ms: int) -> list[bool]:
        return self._run(lambda: self._sql.complete(keys, owner, expiry_ms))

    def extend(self, keys: Sequence[bytes], owner: str, lease_ms: int) -> list[bool]:
        return self._run(lambda: self._sql.extend(keys, owner, lease_ms))

    def release(self, keys: Sequence[bytes], owner: str) -> None:
        self._run(lambda: self._sql.release(keys, owner))

    def purge(self, limit: int, connection: object = None) -> int:
        return self._run(lambda: self._sql.purge(limit))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        if self._pid == os.getpid():
            for connection in idle:
                connection.close()

    def begin_marks(
        self,
        connection: psycopg.Connection[Any],
        keys: Sequence[bytes],
        owner: str,
        expiry_ms: int,
        *,
        partly: bool,
        wait_ms: int,
    ) -> list[ClaimResult]:
        if not isinstance(connection, psycopg.Connection):
            raise ConfigError(f"connection= takes a psycopg.Connection here, not {type(connection).__name__}")
        check_transaction(connection)
        if not self._has_table:
            self._run(self._sql.create)
        program = self._sql.begin_marks(keys, owner, expiry_ms, partly=partly, wait_ms=wait_ms)
        return _carry_out(connection, program)

    def end_marks(self, connection: psycopg.Connection[Any], *, undo: bool) -> None:
        if not connection.closed:
            _carry_out(connection, self._sql.end_marks(undo=undo))

    def _run(self, program: Callable[[], Program[ResultT]]) -> ResultT:
        """Run a program on one of the store's own connections; it may be restarted."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            connection = None
            try:
                connection = self._take()
                result = _carry_out(connection, program())
            except psycopg.Error as error:
                # Whatever else is wrong, such as a missing right, is as wrong on a new connection.
                is_broken = isinstance(error, psycopg.OperationalError) and (connection is None or connection.closed)
                if connection is not None:
                    connection.close()
                if not is_broken or time.monotonic() + _RETRY_S > deadline_s:
                    raise _failure(error) from error
                threading.Event().wait(_RETRY_S)
            except BaseException:
                if connection is not None:
                    connection.close()
                raise
            else:
                self._give_back(connection)
                return result

    def _take(self) -> psycopg.Connection[Any]:
        with self._lock:
            if self._is_closed:
                raise ClosedError("the deduplicator is closed")
            if self._pid != os.getpid():
                # Connections of the parent must not be used, nor closed, by its child.
                self._idle, self._pid = [], os.getpid()
            if self._idle:
                return self._idle.pop()
        connection = psycopg.connect(self._url, autocommit=True, **_connect_options(self._timeout_s))
        try:
            _carry_out(connection, _prepare(self._timeout_s))
            if not self._has_table:
                _carry_out(connection, self._sql.create())
                self._has_table = True
        except BaseException:
            connection.close()
            raise
        return connection

    def _give_back(self, connection: psycopg.Connection[Any]) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()


class AsyncPostgresClaims:
    """The store over connections for asyncio; see `AsyncClaimStore`."""

    def __init__(self, url: str, name: str, table: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._sql = PostgresSql(name, table)
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        self._is_closed = False
        self._has_table = False

    async def claim(self, keys: Sequence[bytes], owner: str, lease_ms: int, *, partly: bool) -> list[ClaimResult]:
        return await self._run(lambda: self._sql.claim(keys, owner, lease_ms, partly=partly))

    async def complete(self, keys: Sequence[bytes], owner: str, expiry_ms: int) -> list[bool]:
        return await self._run(lambda: self._sql.complete(keys, owner, expiry_ms))

    async def extend(self, keys: Sequence[bytes], owner: str, lease_ms: int) -> list[bool]:
        return await self._run(lambda: self._sql.extend(keys, owner, lease_ms))

    async def release(self, keys: Sequence[bytes], owner: str) -> None:
        await self._run(lambda: self._sql.release(keys, owner))

    async def purge(self, limit: int, connection: object = None) -> int:
        return await self._run(lambda: self._sql.purge(limit))

    async def close(self) -> None:
        self._is_closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def begin_marks(
        self,
        connection: psycopg.AsyncConnection[Any],
        keys: Sequence[bytes],
        owner: str,
        expiry_ms: int,
        *,
        partly: bool,
        wait_ms: int,
    ) -> list[ClaimResult]:
        if not isinstance(connection, psycopg.AsyncConnection):
            raise ConfigError(f"connection= takes a psycopg.AsyncConnection here, not {type(connection).__name__}")
        check_transaction(connection)
        if not self._has_table:
            await self._run(self._sql.create)
        program = self._sql.begin_marks(keys, owner, expiry_ms, partly=partly, wait_ms=wait_ms)
        return await _carry_out_async(connection, program)

    async def end_marks(self, connection: psycopg.AsyncConnection[Any], *, undo: bool) -> None:
        if not connection.closed:
            await _carry_out_async(connection, self._sql.end_marks(undo=undo))

    async def _run(self, program: Callable[[], Program[ResultT]]) -> ResultT:
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            connection = None
            try:
                connection = await self._take()
                result = await _carry_out_async(connection, program())
            except psycopg.Error as error:
                # Whatever else is wrong, such as a missing right, is as wrong on a new connection.
                is_broken = isinstance(error, psycopg.OperationalError) and (connection is None or connection.closed)
                if connection is not None:
                    await connection.close()
                if not is_broken or time.monotonic() + _RETRY_S > deadline_s:
                    raise _failure(error) from error
                await asyncio.sleep(_RETRY_S)
            except BaseException:
                if connection is not None:
                    await connection.close()
                raise
            else:
                await self._give_back(connection)
                return result

    async def _take(self) -> psycopg.AsyncConnection[Any]:
        if self._is_closed:
            raise ClosedError("the deduplicator is closed")
        if self._idle:
            return self._idle.pop()
        connection = await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, **_connect_options(self._timeout_s)
        )
        try:
            await _carry_out_async(connection, _prepare(self._timeout_s))
            if not self._has_table:
                await _carry_out_async(connection, self._sql.create())
                self._has_table = True
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _give_back(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if not self._is_closed and len(self._idle) < _IDLE_MAX:
            self._idle.append(connection)
        else:
            await connection.close()


def _connect_options(timeout_s: float) -> dict[str, Any]:
    # libpq counts whole seconds, and takes 0 for no limit.
    return {"connect_timeout": max(2, round(timeout_s)), "application_name": "tidelog-dedup"}


def _prepare(timeout_s: float) -> Program[None]:
    yield "SELECT set_config('statement_timeout', %(limit)s, false)", {"limit": f"{round(timeout_s * 1000)}ms"}


def _failure(error: psycopg.Error) -> ClaimStoreError:
    text = " ".join(str(error).split())
    return ClaimStoreError(f"PostgreSQL could not be reached: {text}")


# Client-side cursors put the values into the text, so that several statements go in one round trip.


def _carry_out(connection: psycopg.Connection[Any], program: Program[ResultT]) -> ResultT:
    with psycopg.ClientCursor(connection, row_factory=tuple_row) as cursor:

        def execute(statement: Statement) -> Rows:
            cursor.execute(statement[0].encode(), statement[1] or None)
            rows = []
            while True:
                rows += [cursor.fetchall()] if cursor.description else []
                if not cursor.nextset():
                    return rows

        try:
            statement = next(program)
            while True:
                try:
                    rows = execute(statement)
                except psycopg.Error as error:
                    statement = program.throw(error)
                else:
                    statement = program.send(rows)
        except StopIteration as end:
            return cast("ResultT", end.value)


async def _carry_out_async(connection: psycopg.AsyncConnection[Any], program: Program[ResultT]) -> ResultT:
    async with psycopg.AsyncClientCursor(connection, row_factory=tuple_row) as cursor:

        async def execute(statement: Statement) -> Rows:
            await cursor.execute(statement[0].encode(), statement[1] or None)
            rows = []
            while True:
                rows += [await cursor.fetchall()] if cursor.description else []
                if not cursor.nextset():
                    return rows

        try:
            statement = next(program)
            while True:
                try:
                    rows = await execute(statement)
                except psycopg.Error as error:
                    statement = program.throw(error)
                else:
                    statement = program.send(rows)
        except StopIteration as end:
            return cast("ResultT", end.value)
