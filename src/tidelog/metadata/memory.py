"""The metadata store in memory: the model that other stores are compared with, and a store for tests.

What always holds: it does what the contract says, and nothing can fail. Its contents end with the process, and it
serves one process only.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from tidelog.common.clock import Clock, SystemClock
from tidelog.common.light_dataclass import dataclass
from tidelog.metadata.lease import Lease
from tidelog.metadata.store import (
    ABSENT,
    Check,
    Conflict,
    Ok,
    Op,
    Put,
    Rec,
    SessionLost,
    Snapshot,
    TxnResult,
    check_key,
    check_txn,
    matches,
)
from tidelog.metadata.watching import Changes


@dataclass(slots=True)
class _SessionRow:
    ttl_ms: float
    deadline_ms: float


class MemoryStore:
    """A `Store` over a dict."""

    def __init__(self, clock: Clock | None = None, poll_interval_ms: float = 20) -> None:
        self._clock = clock or SystemClock()
        self._rev = 0
        self._records: dict[str, Rec] = {}
        self._sessions: dict[str, _SessionRow] = {}
        self._changes = Changes(self._poll, poll_interval_ms)

    async def get(self, key: str) -> Rec | None:
        check_key(key)
        self._expire_sessions()
        return self._records.get(key)

    async def list(self, prefix: str) -> Mapping[str, Rec]:
        return (await self._snapshot(prefix)).records

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        check_txn(checks, ops)
        self._expire_sessions()
        for key, token in checks:
            rec = self._records.get(key)
            if (ABSENT if rec is None else rec.token) != token:
                return Conflict(key)
        for op in ops:
            if isinstance(op, Put) and op.owner is not None:
                if op.owner not in self._sessions:
                    return SessionLost(op.owner)
                rec = self._records.get(op.key)
                if rec is not None and rec.owner != op.owner:
                    return Conflict(op.key)
        return self._apply(ops)

    def watch(self, prefix: str) -> AsyncGenerator[Snapshot, None]:
        return self._changes.watch(prefix, lambda: self._snapshot(prefix))

    async def session(self, ttl_ms: float) -> Lease:
        session_id = uuid.uuid4().hex
        sent_ms = self._clock.monotonic_ms()
        self._sessions[session_id] = _SessionRow(ttl_ms, sent_ms + ttl_ms)
        return Lease(session_id, ttl_ms, self, self._clock.monotonic_ms, sent_ms)

    async def barrier(self) -> int:
        self._rev += 1
        return self._rev

    async def close(self) -> None:
        self._changes.close()

    def renew_session(self, session_id: str) -> bool:
        self._expire_sessions()
        row = self._sessions.get(session_id)
        if row is None:
            return False
        row.deadline_ms = self._clock.monotonic_ms() + row.ttl_ms
        return True

    def repeat(self, call: Callable[[], object], interval_s: float) -> Callable[[], None]:
        """Call again and again on the event loop, until the returned function is called."""

        async def repeat_forever() -> None:
            while True:
                await asyncio.sleep(interval_s)
                call()

        task = asyncio.get_running_loop().create_task(repeat_forever(), name="heartbeats")

        def stop() -> None:
            task.cancel()

        return stop

    async def run(self, call: Callable[[], bool]) -> bool:
        return call()

    async def end_session(self, session_id: str) -> None:
        if self._sessions.pop(session_id, None) is not None:
            self._remove_owned({session_id})

    def _apply(self, ops: Sequence[Op]) -> Ok:
        if not ops:
            return Ok(self._rev)
        self._rev += 1
        tokens = {}
        for op in ops:
            if not isinstance(op, Put):
                self._records.pop(op.key, None)
                continue
            rec = self._records.get(op.key)
            created, owner = (self._rev, op.owner) if rec is None else (rec.created, rec.owner)
            self._records[op.key] = Rec(bytes(op.value), self._rev, self._rev, created, owner)
            tokens[op.key] = self._rev
        self._changes.announce([op.key for op in ops])
        return Ok(self._rev, tokens)

    async def _snapshot(self, prefix: str) -> Snapshot:
        self._expire_sessions()
        return Snapshot(self._rev, {key: self._records[key] for key in sorted(self._records) if matches(prefix, key)})

    async def _poll(self) -> None:
        self._expire_sessions()

    def _expire_sessions(self) -> None:
        now_ms = self._clock.monotonic_ms()
        ended = {session_id for session_id, row in self._sessions.items() if row.deadline_ms <= now_ms}
        for session_id in ended:
            del self._sessions[session_id]
        if ended:
            self._remove_owned(ended)

    def _remove_owned(self, session_ids: set[str]) -> None:
        owned = [key for key, rec in self._records.items() if rec.owner in session_ids]
        if owned:
            self._rev += 1
            for key in owned:
                del self._records[key]
            self._changes.announce(owned)
