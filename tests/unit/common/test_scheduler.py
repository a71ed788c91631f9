"""Recurring tasks run by the clock, one at a time each, and survive their own failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tidelog.common.clock import SystemClock, VirtualClock
from tidelog.common.scheduler import Scheduler


def _run(scenario: Callable[[VirtualClock, Scheduler], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        clock = VirtualClock()
        scheduler = Scheduler(clock)
        async with asyncio.timeout(20):
            await scenario(clock, scheduler)
            await scheduler.close()

    asyncio.run(main())


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _counting(counts: dict[str, int], name: str) -> Callable[[], Awaitable[None]]:
    async def count() -> None:
        counts[name] = counts.get(name, 0) + 1

    return count


def test_tasks_run_when_their_time_has_come() -> None:
    async def scenario(clock: VirtualClock, scheduler: Scheduler) -> None:
        counts: dict[str, int] = {}
        scheduler.every("short", 100, _counting(counts, "short"))
        scheduler.every("long", 1000, _counting(counts, "long"))
        scheduler.start()
        await _turns()
        assert counts == {}
        for _ in range(9):
            clock.advance(ms=100)
            await _turns()
        assert counts == {"short": 9}
        clock.advance(ms=100)
        await _turns()
        assert counts == {"short": 10, "long": 1}

    _run(scenario)


def test_the_first_time_may_come_earlier_or_later_than_the_interval() -> None:
    async def scenario(clock: VirtualClock, scheduler: Scheduler) -> None:
        counts: dict[str, int] = {}
        scheduler.every("soon", 1000, _counting(counts, "soon"), first_after_ms=100)
        scheduler.every("late", 100, _counting(counts, "late"), first_after_ms=1000)
        scheduler.start()
        clock.advance(ms=100)
        await _turns()
        assert counts == {"soon": 1}
        clock.advance(ms=900)
        await _turns()
        assert counts == {"soon": 1, "late": 1}
        clock.advance(ms=100)
        await _turns()
        assert counts == {"soon": 2, "late": 2}

    _run(scenario)


def test_a_task_that_fails_is_logged_and_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(clock: VirtualClock, scheduler: Scheduler) -> None:
        ran = 0

        async def fail() -> None:
            nonlocal ran
            ran += 1
            raise RuntimeError("no luck")

        scheduler.every("unlucky", 100, fail)
        scheduler.start()
        for _ in range(3):
            clock.advance(ms=100)
            await _turns()
        assert ran == 3

    _run(scenario)
    assert len(caplog.records) == 3
    assert "unlucky" in caplog.text


def test_a_task_never_overlaps_itself_and_close_waits_for_it() -> None:
    async def scenario(clock: VirtualClock, scheduler: Scheduler) -> None:
        gate = asyncio.Event()
        started = finished = 0

        async def slow() -> None:
            nonlocal started, finished
            started += 1
            await gate.wait()
            finished += 1

        scheduler.every("slow", 100, slow)
        scheduler.start()
        for _ in range(5):
            clock.advance(ms=100)
            await _turns()
        assert (started, finished) == (1, 0)
        closing = asyncio.get_running_loop().create_task(scheduler.close())
        await _turns()
        assert not closing.done()
        gate.set()
        await closing
        assert (started, finished) == (1, 1)
        clock.advance(ms=1000)
        await _turns()
        assert started == 1

    _run(scenario)


def test_it_runs_by_the_real_clock_too() -> None:
    async def main() -> None:
        scheduler = Scheduler(SystemClock())
        ran = asyncio.Event()

        async def task() -> None:
            ran.set()

        scheduler.every("often", 1, task)
        scheduler.start()
        async with asyncio.timeout(20):
            await ran.wait()
        await scheduler.close()

    asyncio.run(main())
