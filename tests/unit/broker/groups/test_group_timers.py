"""Timers of groups: due by the broker's clock, put off without growing, cancelled one by one or all of an owner."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Hashable

import pytest

from tidelog.broker.group_timers import TimerHeap
from tidelog.common.clock import SystemClock, VirtualClock


class Fixture:
    """A heap over a virtual clock, and what was due."""

    def __init__(self) -> None:
        self.clock = VirtualClock(start_ms=0)
        self.due: list[tuple[int, Hashable]] = []
        self.heap = TimerHeap(self.clock, self._on_due)
        self.then: Callable[[], None] = lambda: None

    def _on_due(self, owner: int, key: Hashable) -> None:
        self.due.append((owner, key))
        self.then()

    def advance(self, ms: float) -> list[tuple[int, Hashable]]:
        """What becomes due within that time."""
        self.due.clear()
        self.clock.advance(ms=ms)
        self.heap.run_due()
        return list(self.due)


def test_keys_of_cancelled_timers_are_forgotten(run: Callable[[Callable[[Fixture], None]], None]) -> None:
    """A key holds names that clients chose; a million of them may be cancelled before the first would be due."""

    def check(fixture: Fixture) -> None:
        alive: weakref.WeakSet[Name] = weakref.WeakSet()
        for number in range(2_000):
            name = Name(number)
            alive.add(name)
            fixture.heap.set((0, name), 1_800_000.0 + number)
            if number % 10:
                fixture.heap.cancel((0, name))
            del name
        assert len(alive) < 700
        assert [key for _, key in fixture.advance(2_000_000)] == list(range(0, 2_000, 10))

    run(check)


def test_timers_that_are_due_together_do_not_hold_the_loop() -> None:
    async def main() -> None:
        clock, due, turns = VirtualClock(start_ms=0), [], 0

        def on_due(owner: int, key: Hashable) -> None:
            due.append(key)
            time.sleep(0.001)

        heap = TimerHeap(clock, on_due)
        for number in range(40):
            heap.set((0, number), 1_000.0)
        clock.advance(ms=1_000)
        while len(due) < 40:
            turns += 1
            await asyncio.sleep(0)
        heap.close()
        assert due == list(range(40))
        assert turns > 10

    asyncio.run(main())


class Name:
    """A key that can be watched."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self.number == (other.number if isinstance(other, Name) else other)


@pytest.fixture
def run() -> Callable[[Callable[[Fixture], None]], None]:
    """Runs a test on an event loop, on which the heap has to be made."""

    def run(test: Callable[[Fixture], None]) -> None:
        async def main() -> None:
            fixture = Fixture()
            try:
                test(fixture)
            finally:
                fixture.heap.close()

        asyncio.run(main())

    return run


Run = Callable[[Callable[[Fixture], None]], None]


def test_what_is_due_comes_in_its_order(run: Run) -> None:
    def test(timers: Fixture) -> None:
        for key, due_ms in (("b", 20.0), ("a", 10.0), ("c", 20.0), ("d", 30.0)):
            timers.heap.set((1, key), due_ms)
        assert timers.advance(9) == []
        assert timers.advance(11) == [(1, "a"), (1, "b"), (1, "c")]
        assert timers.advance(100) == [(1, "d")]
        assert timers.advance(100) == []
        assert len(timers.heap) == 0

    run(test)


def test_a_timer_that_is_put_off_costs_no_entry(run: Run) -> None:
    def test(timers: Fixture) -> None:
        for beat in range(10_000):
            timers.heap.set((1, "session"), 1_000.0 + beat)
        assert len(timers.heap._heap) == 1
        assert timers.advance(10_998) == []
        assert timers.advance(1) == [(1, "session")]

    run(test)


def test_a_timer_that_is_brought_forward_is_due_once(run: Run) -> None:
    def test(timers: Fixture) -> None:
        timers.heap.set((1, "x"), 1_000.0)
        timers.heap.set((1, "x"), 10.0)
        assert timers.advance(10) == [(1, "x")]
        assert timers.advance(5_000) == []

    run(test)


def test_a_timer_set_again_after_a_cancellation_counts_anew(run: Run) -> None:
    def test(timers: Fixture) -> None:
        timers.heap.set((1, "x"), 10.0)
        timers.heap.cancel((1, "x"))
        assert timers.advance(5) == []
        timers.heap.set((1, "x"), 50.0)
        assert timers.advance(40) == []
        assert timers.advance(5) == [(1, "x")]

    run(test)


def test_all_timers_of_an_owner_are_cancelled(run: Run) -> None:
    def test(timers: Fixture) -> None:
        for owner in (1, 2):
            for key in "ab":
                timers.heap.set((owner, key), 10.0)
        timers.heap.cancel_all(1)
        assert timers.advance(10) == [(2, "a"), (2, "b")]

    run(test)


def test_a_timer_may_set_timers(run: Run) -> None:
    def test(timers: Fixture) -> None:
        def again() -> None:
            timers.heap.set((1, "x"), timers.clock.monotonic_ms() + 10.0)

        timers.then = again
        timers.heap.set((1, "x"), 10.0)
        assert timers.advance(10) == [(1, "x")]
        assert timers.advance(10) == [(1, "x")]
        assert len(timers.heap) == 1

    run(test)


def test_the_event_loop_wakes_for_what_is_due_by_the_real_clock() -> None:
    async def main() -> None:
        due = asyncio.Event()
        heap = TimerHeap(SystemClock(), lambda owner, key: due.set())
        heap.set((1, "x"), SystemClock().monotonic_ms() + 20)
        await asyncio.wait_for(due.wait(), 20)
        heap.close()

    asyncio.run(main())


def test_a_virtual_clock_that_is_advanced_wakes_the_loop() -> None:
    async def main() -> None:
        clock, due = VirtualClock(), asyncio.Event()
        heap = TimerHeap(clock, lambda owner, key: due.set())
        heap.set((1, "x"), 3_600_000.0)
        await asyncio.to_thread(clock.advance, hours=1)
        await asyncio.wait_for(due.wait(), 20)
        heap.close()

    asyncio.run(main())
