"""A metadata store as an ensemble of ZooKeeper is one: what is true, and clients that hear of it late or not at all.

What always holds: the ensemble itself does what the contract of a store says. Everything a client meets, a client of a
real ensemble may meet: its calls take time; when it is cut off, its calls end without an answer, and a transaction
whose answer is lost may have happened, may happen a little later, or never; its reads may be old, but no older than its
own last write; watches come late and skip states; a session ends on time whether or not its owner knows.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from simulated_clock import SimulatedClock
from simulated_loop import Process, SimulatedLoop
from simulated_network import SimulatedNetwork
from tidelog.metadata.lease import Lease
from tidelog.metadata.memory import MemoryStore, _SessionRow
from tidelog.metadata.store import (
    Check,
    MetadataStoreError,
    Ok,
    Op,
    Put,
    Rec,
    SessionLost,
    Snapshot,
    TxnResult,
    Unknown,
    matches,
)

T = TypeVar("T")

STORE_HOST = "store"

_HISTORY = 40
_NO_ANSWER_S = (0.5, 3.0)
# A real client looks again by itself from time to time, in case it was not told of a change.
_LOOK_AGAIN_S = 1.0


@dataclass
class StoreWeather:
    """How badly clients are served; `calm` is for the time in which everybody must come to an end."""

    delay_s: float = 0.001
    lost_share: float = 0.0
    stale_share: float = 0.0
    watch_delay_s: float = 0.002

    def calm(self) -> None:
        self.lost_share = self.stale_share = 0.0
        self.delay_s = self.watch_delay_s = 0.001


class Ensemble:
    """The truth. It never fails; what fails is on the way to it."""

    def __init__(
        self, loop: SimulatedLoop, network: SimulatedNetwork, rng: random.Random, weather: StoreWeather
    ) -> None:
        self.loop = loop
        self.network = network
        self.weather = weather
        self.clock = SimulatedClock(loop)
        self.memory = MemoryStore(self.clock)
        self.process = loop.process(STORE_HOST)
        self.lost = 0
        self._random = rng
        # Told of each write that was carried out, with the process that asked for it.
        self.observers: list[Callable[[Process, Sequence[Op]], None]] = []
        self._watchers: dict[Callable[[], None], Process] = {}
        self._history: deque[tuple[int, Mapping[str, Rec]]] = deque([(0, {})], _HISTORY)

    def client(self) -> StoreClient:
        """For the process that runs now."""
        return StoreClient(self, self.loop.current, random.Random(self._random.getrandbits(64)))

    async def txn(self, process: Process, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        result = await self.memory.txn(checks, ops)
        if isinstance(result, Ok):
            for observer in self.observers:
                observer(process, ops)
        self.look()
        return result

    def renew(self, session_id: str) -> bool:
        is_alive = self.memory.renew_session(session_id)
        self.look()
        row = self.memory._sessions.get(session_id)
        if row is not None:
            self.loop.schedule(self.process, row.deadline_ms / 1000 + 0.001, self.look)
        return is_alive

    def begin_session(self, ttl_ms: float) -> str:
        """Returns its id. What keeps it alive is up to its owner."""
        session_id = uuid.uuid4().hex
        self.memory._sessions[session_id] = _SessionRow(ttl_ms, self.clock.monotonic_ms() + ttl_ms)
        self.renew(session_id)
        return session_id

    async def end_session(self, session_id: str) -> None:
        await self.memory.end_session(session_id)
        self.look()

    def expire(self, session_id: str) -> None:
        """End a session before its time, as an ensemble may that was away itself."""
        row = self.memory._sessions.get(session_id)
        if row is not None:
            row.deadline_ms = self.clock.monotonic_ms()
        self.look()

    def owner_of(self, key: str) -> str | None:
        rec = self.memory._records.get(key)
        return None if rec is None else rec.owner

    def state(self, rev_min: int, *, age: int = 0) -> tuple[int, Mapping[str, Rec]]:
        """All records, as they were so many changes ago, but not before this revision."""
        self.look()
        known = [each for each in self._history if each[0] >= rev_min]
        return known[max(0, len(known) - 1 - age)]

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call it, in the process that runs now, some time after each change, until the returned function is called."""
        self._watchers[callback] = self.loop.current

        def stop() -> None:
            self._watchers.pop(callback, None)

        return stop

    def look(self) -> None:
        """Note what has changed, expired sessions among it, and tell those who watch."""
        self.memory._expire_sessions()
        if self.memory._rev == self._history[-1][0]:
            return
        self._history.append((self.memory._rev, dict(self.memory._records)))
        for callback, process in tuple(self._watchers.items()):
            if not process.is_alive:
                del self._watchers[callback]
            elif not self.network.is_cut(STORE_HOST, process.host):
                due_s = self.loop.time() + self._random.expovariate(1 / self.weather.watch_delay_s)
                self.loop.schedule(process, due_s, callback)


class StoreClient:
    """A `Store`: one broker's way to the ensemble."""

    def __init__(self, ensemble: Ensemble, process: Process, rng: random.Random) -> None:
        self._ensemble = ensemble
        self._process = process
        self._random = rng
        self._written_rev = 0
        self._delayed: list[tuple[Sequence[Check], Sequence[Op]]] = []
        self._leases: dict[str, Lease] = {}
        self._is_closed = False

    async def get(self, key: str) -> Rec | None:
        return (await self._read()).records.get(key)

    async def list(self, prefix: str) -> Mapping[str, Rec]:
        records = (await self._read()).records
        return {key: records[key] for key in sorted(records) if matches(prefix, key)}

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        owners = {op.owner for op in ops if isinstance(op, Put) and op.owner is not None}
        for owner in owners:
            if owner not in self._leases or self._leases[owner].lost.is_set():
                return SessionLost(owner)
        try:
            await self._there()
        except MetadataStoreError as error:
            if self._random.random() < 0.3:
                # On its way when the connection broke: it may still arrive, before this client's next write.
                self._delayed.append((checks, ops))
                self._ensemble.loop.schedule(
                    self._ensemble.process, self._ensemble.loop.time() + self._random.uniform(0, 2), self._arrive_late
                )
            return Unknown(str(error))
        await self._let_delayed_happen()
        result = await self._ensemble.txn(self._process, checks, ops)
        try:
            await self._back()
        except MetadataStoreError as error:
            return Unknown(str(error))
        if isinstance(result, Ok):
            self._written_rev = max(self._written_rev, result.rev)
        return result

    async def watch(self, prefix: str) -> AsyncGenerator[Snapshot, None]:
        changed = asyncio.Event()
        stop = self._ensemble.watch(changed.set)
        seen: Mapping[str, Rec] | None = None
        rev = -1
        try:
            while not self._is_closed:
                changed.clear()
                snapshot = await self._read()
                records = {key: rec for key, rec in snapshot.records.items() if matches(prefix, key)}
                if snapshot.rev >= rev and records != seen:
                    seen, rev = records, snapshot.rev
                    yield Snapshot(rev, records)
                try:
                    async with asyncio.timeout(_LOOK_AGAIN_S):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            stop()

    async def session(self, ttl_ms: float) -> Lease:
        clock = self._ensemble.clock
        sent_ms = clock.monotonic_ms()
        await self._there()
        session_id = self._ensemble.begin_session(ttl_ms)
        await self._back()
        lease = self._leases[session_id] = Lease(session_id, ttl_ms, self, clock.monotonic_ms, sent_ms)
        return lease

    async def barrier(self) -> int:
        result = await self.txn([], [Put("barrier", b"")])
        if not isinstance(result, Ok):
            raise MetadataStoreError(f"the outcome of a barrier is unknown: {result}")
        return result.rev

    async def close(self) -> None:
        self._is_closed = True

    # Sessions, for `Lease`

    def renew_session(self, session_id: str) -> bool:
        """As if no time passed on the way."""
        if self._is_cut_off:
            raise MetadataStoreError("the store does not answer a heartbeat")
        return self._ensemble.renew(session_id)

    def repeat(self, call: Callable[[], object], interval_s: float) -> Callable[[], None]:
        loop, process = self._ensemble.loop, self._process
        is_stopped = False

        def beat() -> None:
            if not is_stopped:
                call()
                loop.schedule(process, loop.time() + interval_s, beat)

        def stop() -> None:
            nonlocal is_stopped
            is_stopped = True

        loop.schedule(process, loop.time() + interval_s, beat)
        return stop

    async def run(self, call: Callable[[], bool]) -> bool:
        return call()

    async def end_session(self, session_id: str) -> None:
        self._leases.pop(session_id, None)
        await self._there()
        await self._ensemble.end_session(session_id)

    # The way there and back

    @property
    def _is_cut_off(self) -> bool:
        network, host = self._ensemble.network, self._process.host
        return network.is_cut(host, STORE_HOST) or network.is_cut(STORE_HOST, host)

    async def _there(self) -> None:
        if self._is_closed:
            raise MetadataStoreError("the store is closed")
        await self._travel(self._process.host, STORE_HOST)

    async def _back(self) -> None:
        await self._travel(STORE_HOST, self._process.host)

    async def _travel(self, sender: str, receiver: str) -> None:
        """Raises MetadataStoreError where nothing arrives."""
        weather = self._ensemble.weather
        await asyncio.sleep(self._random.expovariate(1 / weather.delay_s))
        if self._ensemble.network.is_cut(sender, receiver) or self._random.random() < weather.lost_share:
            self._ensemble.lost += 1
            await asyncio.sleep(self._random.uniform(*_NO_ANSWER_S))
            raise MetadataStoreError(f"{receiver} did not hear of {sender}")

    async def _read(self) -> Snapshot:
        await self._there()
        weather = self._ensemble.weather
        age = self._random.randint(1, 5) if self._random.random() < weather.stale_share else 0
        rev, records = self._ensemble.state(self._written_rev, age=age)
        await self._back()
        return Snapshot(rev, records)

    async def _let_delayed_happen(self) -> None:
        while self._delayed:
            await self._ensemble.txn(self._process, *self._delayed.pop(0))

    def _arrive_late(self) -> Any:
        return asyncio.ensure_future(self._let_delayed_happen())
