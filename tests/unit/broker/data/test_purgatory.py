"""Waiting operations: who is woken, by what, and that nobody is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tidelog.broker.purgatory import Purgatory

T = TypeVar("T")


class HandTimer:
    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HandTimers:
    """Timers that a test turns by hand, beside the futures of the running loop."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[HandTimer] = []

    def call_later(self, delay: float, callback: Callable[[], None], /) -> HandTimer:
        self.timers.append(HandTimer(self.now_s + delay, callback))
        return self.timers[-1]

    def create_future(self) -> asyncio.Future[bool]:
        return asyncio.get_running_loop().create_future()

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        for timer in self.timers:
            if not timer.cancelled and timer.due_s <= self.now_s:
                timer.callback()

    @property
    def live(self) -> int:
        return sum(not timer.cancelled for timer in self.timers)


class Counted:
    """Satisfied once the keys it was woken for add up to a number."""

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.seen: list[str] = []
        self.counts: dict[str, int] = {}

    def is_satisfied(self, key: str, /) -> bool:
        self.seen.append(key)
        return sum(self.counts.values()) >= self.needed


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def run(scenario: Callable[[Purgatory[str], HandTimers], Coroutine[Any, Any, T]]) -> T:
    async def main() -> T:
        timers = HandTimers()
        return await scenario(Purgatory(timers), timers)

    return asyncio.run(main())


def test_an_operation_that_is_satisfied_already_does_not_wait() -> None:
    async def scenario(purgatory: Purgatory[str], timers: HandTimers) -> None:
        assert await purgatory.wait(Counted(0), ["a"], 1000) is True
        assert len(purgatory) == 0
        assert timers.timers == []

    run(scenario)


def test_a_change_wakes_only_those_who_wait_for_its_key() -> None:
    async def scenario(purgatory: Purgatory[str], timers: HandTimers) -> None:
        one, two = Counted(1), Counted(1)
        waiting_one = asyncio.ensure_future(purgatory.wait(one, ["a", "b"], 1000))
        waiting_two = asyncio.ensure_future(purgatory.wait(two, ["b", "c"], 1000))
        await settle()
        assert purgatory.waiting("b") == 2
        one.seen.clear()
        two.seen.clear()
        one.counts["a"] = 1
        purgatory.check("a")
        assert await waiting_one is True
        assert (one.seen, two.seen) == (["a"], [])
        assert purgatory.waiting("a") == 0
        assert purgatory.waiting("b") == 1
        two.counts["c"] = 1
        purgatory.check("c")
        assert await waiting_two is True
        assert len(purgatory) == 0
        assert timers.live == 0

    run(scenario)


def test_time_over_ends_the_wait_with_false() -> None:
    async def scenario(purgatory: Purgatory[str], timers: HandTimers) -> None:
        waiting = asyncio.ensure_future(purgatory.wait(Counted(1), ["a"], 500))
        await settle()
        timers.advance(0.499)
        await settle()
        assert not waiting.done()
        timers.advance(0.001)
        assert await waiting is False
        assert len(purgatory) == 0

    run(scenario)


def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    async def scenario(purgatory: Purgatory[str], timers: HandTimers) -> None:
        waiting = asyncio.ensure_future(purgatory.wait(Counted(1), ["a", "b"], 500))
        await settle()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(purgatory) == 0
        assert timers.live == 0
        never_started = asyncio.ensure_future(purgatory.wait(Counted(1), ["a"], 500))
        never_started.cancel()
        with pytest.raises(asyncio.CancelledError):
            await never_started
        assert len(purgatory) == 0

    run(scenario)


def test_a_change_before_the_wait_began_is_not_missed() -> None:
    async def scenario(purgatory: Purgatory[str], timers: HandTimers) -> None:
        operation = Counted(1)
        waiting = asyncio.ensure_future(purgatory.wait(operation, ["a"], 500))
        # The task has not run yet: nobody is parked that this could wake.
        operation.counts["a"] = 1
        purgatory.check("a")
        assert await waiting is True

    run(scenario)


def test_an_operation_satisfied_twice_before_it_goes_on_ends_once() -> None:
    async def scenario(purgatory: Purgatory[str], timers: HandTimers) -> None:
        operation = Counted(1)
        waiting = asyncio.ensure_future(purgatory.wait(operation, ["a"], 500))
        await settle()
        operation.counts["a"] = 1
        purgatory.check("a")
        operation.seen.clear()
        purgatory.check("a")
        timers.advance(1)
        assert operation.seen == []
        assert await waiting is True

    run(scenario)


MANY = [f"key-{number}" for number in range(1000)]


class _KeyWatch:
    """Satisfied by one key once it is set."""

    def __init__(self) -> None:
        self.changed: str | None = None

    def is_satisfied(self, key: str, /) -> bool:
        return key == self.changed


def test_many_keys_are_waited_for_in_pieces() -> None:
    async def scenario(purgatory: Purgatory[str], timers: HandTimers) -> None:
        waiting = asyncio.ensure_future(purgatory.wait(_KeyWatch(), MANY, 500))
        await asyncio.sleep(0)
        assert 0 < sum(map(purgatory.waiting, MANY)) < len(MANY)
        await settle()
        assert sum(map(purgatory.waiting, MANY)) == len(MANY)
        timers.advance(0.5)
        assert await waiting is False
        assert len(purgatory) == 0

    run(scenario)


@pytest.mark.parametrize("key", [MANY[0], MANY[-1]])
@pytest.mark.parametrize("is_parked", [False, True])
def test_a_change_of_one_of_many_keys_is_not_missed(key: str, is_parked: bool) -> None:
    """Whether it happens when all are waited for, or while some are not yet."""

    async def scenario(purgatory: Purgatory[str], timers: HandTimers) -> None:
        operation = _KeyWatch()
        waiting = asyncio.ensure_future(purgatory.wait(operation, MANY, 500))
        await asyncio.sleep(0)
        if is_parked:
            await settle()
        operation.changed = key
        purgatory.check(key)
        assert await waiting is True
        assert len(purgatory) == 0
        assert timers.live == 0

    run(scenario)


def test_a_wait_for_many_keys_can_be_cancelled_while_it_begins() -> None:
    async def scenario(purgatory: Purgatory[str], timers: HandTimers) -> None:
        waiting = asyncio.ensure_future(purgatory.wait(_KeyWatch(), MANY, 500))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(purgatory) == 0
        assert timers.live == 0

    run(scenario)
