"""Claims and marks in an SQLite file, for processes on one machine.

What always holds: every call is one transaction that takes the write lock first (BEGIN IMMEDIATE), so none fails
half-way because another one writes; it waits for others up to the timeout. In the caller's own transaction the mark is
written after a savepoint and becomes visible with the caller's commit. The file's journal mode is left alone.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import apsw

from tidelog.client.errors import ClosedError, ConfigError
from tidelog.client.processing.claim_store import ClaimResult, ClaimState
from tidelog.client.processing.errors import ClaimBusyError, ClaimStoreError

# SQLite has no server: the machine's clock is the one that all processes share. Milliseconds since 1970.
_NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_SAVEPOINT = "tidelog_dedup"

ResultT = TypeVar("ResultT")


class _Cursor(Protocol):
    def fetchall(self) -> list[Any]: ...


class _Connection(Protocol):
    """What sqlite3's and apsw's connections have in common."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> _Cursor: ...


class SqliteClaims:
    """The store over one connection, shared by its threads; see `ClaimStore`.

    For asyncio, its calls run in a background thread. Marks in the caller's transaction are written in the caller's
    thread, to which its connection belongs.
    """

    def __init__(self, path: str, name: str, table: str, timeout_s: float, *, is_async: bool) -> None:
        if "." in table:
            raise ConfigError(f"{table!r}: tables of SQLite have no schema before their name")
        self._path = path
        self._name = name
        self._table = table
        self._timeout_s = timeout_s
        self._executor = ThreadPoolExecutor(1, "tidelog-dedup") if is_async else None
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()
        self._is_closed = False

    # Claims with a lease

    async def claim(self, keys: Sequence[bytes], owner: str, lease_ms: int, *, partly: bool) -> list[ClaimResult]:
        def work(connection: sqlite3.Connection) -> list[ClaimResult]:
            results = self._look_up(connection, keys, owner)
            if partly or not any(result.state is ClaimState.BUSY for result in results):
                return self._write(connection, keys, results, owner, lease_ms, is_done=False)
            return results

        return await self._run(work)

    async def complete(self, keys: Sequence[bytes], owner: str, expiry_ms: int) -> list[bool]:
        sql = (
            f"INSERT INTO {self._table} AS held (name, key, owner, done, expires_at_ms) "
            f"VALUES (?, ?, ?, 1, {_NOW_MS} + ?) ON CONFLICT (name, key) "
            "DO UPDATE SET owner = excluded.owner, done = 1, expires_at_ms = excluded.expires_at_ms "
            f"WHERE held.owner = excluded.owner OR held.expires_at_ms <= {_NOW_MS} RETURNING 1"
        )
        return await self._run_each(sql, [(self._name, key, owner, expiry_ms) for key in keys])

    async def extend(self, keys: Sequence[bytes], owner: str, lease_ms: int) -> list[bool]:
        sql = (
            f"UPDATE {self._table} SET expires_at_ms = {_NOW_MS} + ? "
            f"WHERE name = ? AND key = ? AND owner = ? AND NOT done AND expires_at_ms > {_NOW_MS} RETURNING 1"
        )
        return await self._run_each(sql, [(lease_ms, self._name, key, owner) for key in keys])

    async def release(self, keys: Sequence[bytes], owner: str) -> None:
        sql = f"DELETE FROM {self._table} WHERE name = ? AND key = ? AND owner = ? AND NOT done"
        await self._run_each(sql, [(self._name, key, owner) for key in keys])

    async def purge(self, limit: int, connection: _Connection | None = None) -> int:
        def work(connection: _Connection) -> int:
            sql = (
                f"DELETE FROM {self._table} WHERE fence IN "
                f"(SELECT fence FROM {self._table} WHERE expires_at_ms <= {_NOW_MS} LIMIT ?) RETURNING 1"
            )
            return len(connection.execute(sql, (limit,)).fetchall())

        return await self._run(work) if connection is None else work(connection)

    async def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    # Marks in the caller's transaction

    async def begin_marks(
        self, connection: _Connection, keys: Sequence[bytes], owner: str, expiry_ms: int, *, partly: bool, wait_ms: int
    ) -> list[ClaimResult]:
        _check_transaction(connection)
        try:
            if not connection.in_transaction:
                connection.execute("BEGIN IMMEDIATE")
            # The caller may already hold the write lock, so the table can only be created here.
            for statement in self._schema():
                connection.execute(statement)
            connection.execute(f"SAVEPOINT {_SAVEPOINT}")
        except (sqlite3.Error, apsw.Error) as error:
            raise _translated(error) from error
        try:
            results = self._look_up(connection, keys, owner)
            if partly or not any(result.state is ClaimState.BUSY for result in results):
                return self._write(connection, keys, results, owner, expiry_ms, is_done=True)
            self._end_marks(connection, undo=True)
        except (sqlite3.Error, apsw.Error) as error:
            if connection.in_transaction:
                self._end_marks(connection, undo=True)
            raise _translated(error) from error
        # The claim's owner needs the write lock to mark it, and this transaction holds that lock.
        busy = next(key for key, result in zip(keys, results, strict=True) if result.state is ClaimState.BUSY)
        raise ClaimBusyError(
            f"{busy.decode(errors='replace')}: another process works on it with a lease, which can't be waited for "
            "in a transaction of SQLite; roll back and try again"
        )

    async def end_marks(self, connection: _Connection, *, undo: bool) -> None:
        self._end_marks(connection, undo=undo)

    def _end_marks(self, connection: _Connection, *, undo: bool) -> None:
        # An error as severe as a full disk rolls back the whole transaction, including the savepoint.
        if undo and connection.in_transaction:
            connection.execute(f"ROLLBACK TO {_SAVEPOINT}")
        if connection.in_transaction or not undo:
            connection.execute(f"RELEASE {_SAVEPOINT}")

    # SQL

    def _look_up(self, connection: _Connection, keys: Sequence[bytes], owner: str) -> list[ClaimResult]:
        sql = (
            f"SELECT done, owner, expires_at_ms - {_NOW_MS} FROM {self._table} "
            f"WHERE name = ? AND key = ? AND expires_at_ms > {_NOW_MS}"
        )
        results = []
        for key in keys:
            rows = connection.execute(sql, (self._name, key)).fetchall()
            if not rows or (not rows[0][0] and rows[0][1] == owner):
                results.append(ClaimResult(ClaimState.FIRST))
            else:
                is_done, _, left_ms = rows[0]
                results.append(ClaimResult(ClaimState.DONE if is_done else ClaimState.BUSY, busy_ms=left_ms))
        return results

    def _write(
        self,
        connection: _Connection,
        keys: Sequence[bytes],
        results: Sequence[ClaimResult],
        owner: str,
        lasting_ms: int,
        *,
        is_done: bool,
    ) -> list[ClaimResult]:
        """Write the claims or marks that are free; a replaced row gets a new fence, larger than all before."""
        sql = (
            f"INSERT OR REPLACE INTO {self._table} (name, key, owner, done, expires_at_ms) "
            f"VALUES (?, ?, ?, ?, {_NOW_MS} + ?) RETURNING fence"
        )
        written = []
        for key, result in zip(keys, results, strict=True):
            if result.state is ClaimState.FIRST:
                values = (self._name, key, owner, int(is_done), lasting_ms)
                written.append(ClaimResult(ClaimState.FIRST, fence=connection.execute(sql, values).fetchall()[0][0]))
            else:
                written.append(result)
        return written

    # The connection

    async def _run(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        if self._executor is None:
            return self._in_transaction(work)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._in_transaction, work)

    async def _run_each(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> list[bool]:
        """Execute a statement for each row of values; returns whether it produced any rows."""
        return await self._run(lambda connection: [bool(connection.execute(sql, row).fetchall()) for row in rows])

    def _in_transaction(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        with self._lock:
            connection = self._open()
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    result = work(connection)
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise self._failure(error) from error
        return result

    def _open(self) -> sqlite3.Connection:
        if self._is_closed:
            raise ClosedError("the deduplicator is closed")
        if self._pid != os.getpid():
            # A connection must not be used or closed by a child of the process that opened it.
            self._connection, self._pid = None, os.getpid()
        if self._connection is None:
            try:
                connection = sqlite3.connect(
                    self._path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False
                )
                try:
                    for statement in self._schema():
                        connection.execute(statement)
                except BaseException:
                    connection.close()
                    raise
            except sqlite3.Error as error:
                raise self._failure(error) from error
            self._connection = connection
        return self._connection

    def _schema(self) -> list[str]:
        return [
            f"CREATE TABLE IF NOT EXISTS {self._table} (fence INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, "
            "key BLOB NOT NULL, owner TEXT NOT NULL, done INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL, "
            "UNIQUE (name, key))",
            f"CREATE INDEX IF NOT EXISTS {self._table}_expires ON {self._table} (expires_at_ms)",
        ]

    def _failure(self, error: sqlite3.Error) -> ClaimStoreError:
        return ClaimStoreError(f"{self._path} could not be used: {error}")


def _check_transaction(connection: _Connection) -> None:
    if not isinstance(connection, (sqlite3.Connection, apsw.Connection)):
        raise ConfigError(f"connection= takes a connection of sqlite3 or apsw here, not {type(connection).__name__}")
    # Since Python 3.12 connections have `autocommit`; if it is True, nothing begins or commits by itself.
    begins_by_itself = (
        isinstance(connection, sqlite3.Connection)
        and connection.isolation_level is not None
        and getattr(connection, "autocommit", None) is not True
    )
    if not connection.in_transaction and not begins_by_itself:
        raise ConfigError("the connection has no open transaction: BEGIN IMMEDIATE one that holds the effect, too")


def _translated(error: sqlite3.Error | apsw.Error) -> Exception:
    if isinstance(error, apsw.BusyError) or getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
        return ClaimBusyError(
            "another connection writes to the database; begin the transaction with BEGIN IMMEDIATE, which waits for it"
        )
    return ClaimStoreError(f"the mark could not be written: {error}")
