"""A session's own view of its life, by a clock that the test turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog.common.clock import VirtualClock
from tidelog.metadata.lease import Lease
from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.store import MetadataStoreError

TTL_MS = 60_000


class Keeper:
    """A store's side whose answers the test chooses."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.answer: bool | MetadataStoreError = True
        self.answer_takes_ms = 0
        self.ended: list[str] = []
        self.was_asked = asyncio.Event()

    def repeat(self, call: Callable[[], object], interval_s: float) -> Callable[[], None]:
        return MemoryStore().repeat(call, interval_s)

    async def run(self, call: Callable[[], bool]) -> bool:
        return call()

    def renew_session(self, session_id: str) -> bool:
        self.was_asked.set()
        self.clock.advance(ms=self.answer_takes_ms)
        if isinstance(self.answer, MetadataStoreError):
            raise self.answer
        return self.answer

    async def end_session(self, session_id: str) -> None:
        self.ended.append(session_id)


def lease(keeper: Keeper) -> Lease:
    return Lease("s", TTL_MS, keeper, keeper.clock.monotonic_ms, keeper.clock.monotonic_ms())


def test_the_deadline_counts_from_the_sending_of_the_last_good_heartbeat() -> None:
    async def scenario() -> None:
        keeper = Keeper(VirtualClock())
        session = lease(keeper)
        keeper.clock.advance(ms=10_000)
        keeper.answer_takes_ms = 5_000
        assert await session.heartbeat()
        assert session.deadline_ms == 10_000 + TTL_MS
        await session.close()
        assert keeper.ended == ["s"]

    asyncio.run(scenario())


def test_past_its_deadline_it_is_lost_whatever_the_store_would_say() -> None:
    async def scenario() -> None:
        keeper = Keeper(VirtualClock())
        session = lease(keeper)
        keeper.clock.advance(ms=TTL_MS)
        assert not await session.heartbeat()
        assert session.lost.is_set()
        keeper.answer = True
        assert not await session.heartbeat()
        await session.close()
        assert keeper.ended == ["s"]

    asyncio.run(scenario())


def test_a_refused_heartbeat_loses_it() -> None:
    async def scenario() -> None:
        keeper = Keeper(VirtualClock())
        session = lease(keeper)
        keeper.answer = False
        assert not await session.heartbeat()
        assert session.lost.is_set()
        await session.close()

    asyncio.run(scenario())


def test_the_background_task_heartbeats_until_it_is_closed() -> None:
    async def scenario() -> None:
        keeper = Keeper(VirtualClock())
        session = Lease("s", 30, keeper, keeper.clock.monotonic_ms, keeper.clock.monotonic_ms())
        keeper.answer_takes_ms = 1
        async with asyncio.timeout(10):
            await keeper.was_asked.wait()
        keeper.answer = MetadataStoreError("away")
        async with asyncio.timeout(10):
            await session.lost.wait()
        assert keeper.clock.monotonic_ms() >= 30
        await session.close()

    asyncio.run(scenario())
