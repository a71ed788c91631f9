"""A metadata store that behaves as badly as the contract allows, to test the code that uses one.

What always holds: everything it does, a ZooKeeper ensemble may do to a client that follows the contract, and no more.
It loses track of transactions, which then happened, never happen, or happen just before the client's next write; its
reads may be as old as the client's last successful write; its watches come late and skip states; its sessions are
declared lost while the store still keeps them. The same seed gives the same faults in the same order of calls.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence

from tidelog.common.light_dataclass import dataclass
from tidelog.metadata.store import (
    Check,
    MetadataStoreError,
    Ok,
    Op,
    Put,
    Rec,
    Session,
    SessionLost,
    Snapshot,
    Store,
    TxnResult,
    Unknown,
)


@dataclass(frozen=True, slots=True)
class Faults:
    """The probability of each fault, from 0 to 1, for each call that it can affect."""

    unknown: float = 0.0
    stale_read: float = 0.0
    late_watch: float = 0.0
    session_lost: float = 0.0


NO_FAULTS = Faults()


class FaultySession:
    """A session that can be declared lost early."""

    def __init__(self, inner: Session) -> None:
        self._inner = inner
        self.id = inner.id
        self.lost = asyncio.Event()
        self._follower = asyncio.get_running_loop().create_task(self._follow(), name=f"loss of session {inner.id}")

    @property
    def deadline_ms(self) -> float:
        return self._inner.deadline_ms

    @property
    def is_over(self) -> bool:
        return self.lost.is_set() or self._inner.is_over

    def lose(self) -> None:
        self.lost.set()

    async def close(self) -> None:
        self._follower.cancel()
        await self._inner.close()
        self.lost.set()

    async def _follow(self) -> None:
        await self._inner.lost.wait()
        self.lost.set()


class FaultyStore:
    """One client's unreliable access to a store; each client of the same store has its own wrapper."""

    def __init__(self, inner: Store, faults: Faults = NO_FAULTS, seed: int = 0) -> None:
        self.faults = faults
        self._inner = inner
        self._random = random.Random(seed)
        self._delayed: list[tuple[Sequence[Check], Sequence[Op]]] = []
        # What was read since the last successful write, and may be returned again.
        self._old_recs: dict[str, Rec | None] = {}
        self._old_lists: dict[str, Mapping[str, Rec]] = {}
        self._sessions: dict[str, FaultySession] = {}

    async def get(self, key: str) -> Rec | None:
        if key in self._old_recs and self._strikes(self.faults.stale_read):
            return self._old_recs[key]
        rec = self._old_recs[key] = await self._inner.get(key)
        return rec

    async def list(self, prefix: str) -> Mapping[str, Rec]:
        if prefix in self._old_lists and self._strikes(self.faults.stale_read):
            return self._old_lists[prefix]
        records = self._old_lists[prefix] = await self._inner.list(prefix)
        return records

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        await self._let_delayed_happen()
        for op in ops:
            if isinstance(op, Put) and op.owner is not None and op.owner in self._sessions:
                session = self._sessions[op.owner]
                if self._strikes(self.faults.session_lost):
                    session.lose()
                if session.lost.is_set():
                    return SessionLost(op.owner)
        if self._strikes(self.faults.unknown):
            fate = self._random.choice(("done", "lost", "delayed"))
            if fate == "done":
                await self._inner.txn(checks, ops)
            elif fate == "delayed":
                self._delayed.append((checks, ops))
            return Unknown(f"injected: {fate}")
        result = await self._inner.txn(checks, ops)
        if isinstance(result, Ok):
            self._forget_reads()
        return result

    async def watch(self, prefix: str) -> AsyncGenerator[Snapshot, None]:
        # The state is read after the delay, so changes in between are skipped, as by a coalesced watch.
        async for snapshot in self._inner.watch(prefix):
            latest = snapshot
            if self._strikes(self.faults.late_watch):
                for _ in range(self._random.randint(1, 20)):
                    await asyncio.sleep(0)
                records = await self._inner.list(prefix)
                latest = Snapshot(max((snapshot.rev, *(rec.rev for rec in records.values()))), records)
            yield latest

    async def session(self, ttl_ms: float) -> FaultySession:
        session = FaultySession(await self._inner.session(ttl_ms))
        self._sessions[session.id] = session
        return session

    async def barrier(self) -> int:
        await self._let_delayed_happen()
        if self._strikes(self.faults.unknown):
            raise MetadataStoreError("injected: the outcome of a barrier is unknown")
        rev = await self._inner.barrier()
        self._forget_reads()
        return rev

    async def close(self) -> None:
        await self._inner.close()

    def _strikes(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def _forget_reads(self) -> None:
        self._old_recs.clear()
        self._old_lists.clear()

    async def _let_delayed_happen(self) -> None:
        for checks, ops in self._delayed:
            await self._inner.txn(checks, ops)
        self._delayed.clear()
