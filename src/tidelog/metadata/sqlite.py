"""The metadata store in a SQLite file: for one machine, any number of processes.

What always holds: the event loop never waits for the disk, since all SQL runs in one thread that the store owns; that
thread also sends the heartbeats of sessions, so a busy loop doesn't lose them; writes of this process are seen by its
watches at once, those of other processes within the poll interval, and nothing is polled while nobody watches. Sessions
end at once when their process dies.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from tidelog.metadata.database import Database
from tidelog.metadata.lease import Lease
from tidelog.metadata.liveness import boot_time_ms
from tidelog.metadata.sql_thread import CallThread, SqlThread
from tidelog.metadata.store import (
    Check,
    Conflict,
    MetadataStoreError,
    Ok,
    Op,
    Rec,
    Snapshot,
    TxnResult,
    check_key,
    check_txn,
)
from tidelog.metadata.watching import Changes

POLL_INTERVAL_MS: Final = 100
"""How often a watch checks for writes by other processes; a check costs half a millisecond of CPU, 0.5 % of a core."""

_T = TypeVar("_T")


class SqliteStore:
    """A `Store` in a file, which `open` or the first use opens."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        poll_interval_ms: float = POLL_INTERVAL_MS,
        clock_ms: Callable[[], float] = boot_time_ms,
        thread: CallThread | None = None,
    ) -> None:
        """`thread` runs the SQL: one of its own unless a simulation has another."""
        self.path = Path(path).absolute()
        self._clock_ms = clock_ms
        self._database: Database | None = None
        self._data_version = -1
        self._is_closed = False
        self._thread: CallThread = SqlThread("metadata") if thread is None else thread
        self._changes = Changes(self._poll, poll_interval_ms)

    async def open(self) -> None:
        """Open or create the file; raises MetadataStoreError when it can't be used."""
        await self._run(lambda database: None)

    async def get(self, key: str) -> Rec | None:
        check_key(key)
        return await self._run(lambda database: database.get(key))

    async def list(self, prefix: str) -> Mapping[str, Rec]:
        return (await self._snapshot(prefix)).records

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        check_txn(checks, ops)
        result = await self._run(lambda database: database.txn(checks, ops))
        if isinstance(result, Conflict):
            # The conflicting key may belong to a dead session: remove it now instead of waiting for the next poll.
            removed = await self._run(Database.reap_sessions)
            if removed:
                self._changes.announce(removed)
                result = await self._run(lambda database: database.txn(checks, ops))
        if isinstance(result, Ok):
            self._changes.announce([op.key for op in ops])
        return result

    def watch(self, prefix: str) -> AsyncGenerator[Snapshot, None]:
        return self._changes.watch(prefix, lambda: self._snapshot(prefix))

    async def session(self, ttl_ms: float) -> Lease:
        sent_ms = self._clock_ms()
        session_id = await self._run(lambda database: database.open_session(ttl_ms))
        return Lease(session_id, ttl_ms, self, self._clock_ms, sent_ms)

    async def barrier(self) -> int:
        return await self._run(Database.barrier)

    async def close(self) -> None:
        self._changes.close()
        if self._is_closed:
            return
        self._is_closed = True
        # Heartbeats end before the database is closed, whose close is the thread's last call.
        closing = None if self._database is None else self.run(self._database.close)
        self._thread.shutdown()
        if closing is not None:
            await closing

    def renew_session(self, session_id: str) -> bool:
        """Only in the store's thread, which has opened the session and so the database."""
        assert self._database is not None
        return self._database.renew_session(session_id)

    def repeat(self, call: Callable[[], object], interval_s: float) -> Callable[[], None]:
        """Call again and again in the store's thread, until the returned function is called."""
        return self._thread.repeat(call, interval_s)

    def run(self, call: Callable[[], _T]) -> Awaitable[_T]:
        """Call once in the store's thread."""
        return asyncio.wrap_future(self._thread.submit(call))

    async def end_session(self, session_id: str) -> None:
        self._changes.announce(await self._run(lambda database: database.end_session(session_id)))

    async def _snapshot(self, prefix: str) -> Snapshot:
        return await self._run(lambda database: database.snapshot(prefix))

    async def _poll(self) -> None:
        removed, is_changed = await self._run(self._look_for_changes)
        if is_changed:
            self._changes.announce(None)
        elif removed:
            self._changes.announce(removed)

    def _look_for_changes(self, database: Database) -> tuple[Sequence[str], bool]:
        removed = database.reap_sessions()
        before, self._data_version = self._data_version, database.data_version()
        return removed, before != self._data_version

    async def _run(self, call: Callable[[Database], _T]) -> _T:
        if self._is_closed:
            raise MetadataStoreError(f"the metadata store {self.path} is closed")

        def opened() -> _T:
            if self._database is None:
                self._database = Database(self.path, self._clock_ms)
            return call(self._database)

        return await self.run(opened)
