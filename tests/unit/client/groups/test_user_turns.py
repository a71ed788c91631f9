"""Turns of the user: the listener is called inside poll() only, and nothing it does stops the rebalance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from tidelog.client.consumer.membership import Identity, Turn
from tidelog.client.consumer.rebalance import RebalanceListener, UserCall
from tidelog.client.consumer.subscription import SubscriptionState
from tidelog.client.consumer.user_turns import UserTurns
from tidelog.client.types import TopicPartition
from tidelog.common.clock import VirtualClock

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FIRST = Turn((), frozenset(), assignment=frozenset({T0}), coming=(T0,))
CHANGE = Turn((T0,), frozenset(), tells_going=True, assignment=frozenset({T1}), coming=(T1,))
LOST = Turn((T0,), frozenset(), is_lost=True, tells_going=True)


class Member:
    """A member with turns of the test's choice."""

    def __init__(self, *turns: Turn) -> None:
        self.turns = list(turns)
        self.identity = Identity(1, "m")

    def turn(self) -> Turn | None:
        return self.turns[0] if self.turns else None

    begin_turn = turn

    def turn_done(self, turn: Turn, now_ms: float) -> None:
        assert self.turns.pop(0) is turn


class Desk(RebalanceListener):
    """A listener that keeps a record, and does what the test wants."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.does: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def _note(self, what: str) -> None:
        self.told.append(what)
        if self.does is not None:
            await self.does()

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> Coroutine[Any, Any, None]:
        return self._note(f"assigned {' '.join(map(str, partitions))}")

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Coroutine[Any, Any, None]:
        return self._note(f"revoked {' '.join(map(str, partitions))}")

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Coroutine[Any, Any, None]:
        return self._note(f"lost {' '.join(map(str, partitions))}")


class Bench:
    def __init__(self, *turns: Turn, owned: Sequence[TopicPartition] = ()) -> None:
        self.member = Member(*turns)
        self.desk = Desk()
        self.subscription = SubscriptionState()
        self.subscription.subscribe(["t"], self.desk)
        self.subscription.set_assignment(owned)
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self.ended = 0
        self.is_inside = False
        member: Any = self.member
        self.turns = UserTurns(member, self.subscription, self.call, self.commit, VirtualClock(), self.end)

    async def call(self, call: UserCall) -> None:
        assert self.is_inside
        result = call()
        if result is not None:
            await result

    async def commit(self, timeout_s: float | None) -> None:
        self.desk.told.append("commit")
        await self.may_commit.wait()

    def end(self) -> None:
        self.ended += 1

    async def poll(self, timeout_s: float | None = None) -> None:
        self.is_inside = True
        try:
            await self.turns.take(timeout_s)
        finally:
            self.is_inside = False


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # what it waits for tells nobody
            await asyncio.sleep(0)


def test_a_change_commits_tells_takes_away_and_gives() -> None:
    async def run() -> None:
        bench = Bench(CHANGE, owned=[T0])
        assert bench.turns.is_waiting
        await bench.poll()
        assert bench.desk.told == ["commit", "revoked t-0", "assigned t-1"]
        assert bench.subscription.assigned() == {T1}
        assert not bench.turns.is_waiting
        assert bench.ended == 1

    asyncio.run(run())


def test_partitions_leave_after_the_listener_was_told_and_are_there_before_it_is() -> None:
    async def run() -> None:
        bench = Bench(CHANGE, owned=[T0])
        seen = []

        async def look() -> None:
            seen.append(bench.subscription.assigned())

        bench.desk.does = look
        await bench.poll()
        assert seen == [{T0}, {T1}]

    asyncio.run(run())


def test_what_is_lost_is_not_committed() -> None:
    async def run() -> None:
        bench = Bench(LOST, FIRST, owned=[T0])
        await bench.poll()
        assert bench.desk.told == ["lost t-0", "assigned t-0"]

    asyncio.run(run())


def test_a_poll_that_ends_first_leaves_the_listener_for_the_next() -> None:
    async def run() -> None:
        bench = Bench(CHANGE, owned=[T0])
        bench.may_commit.clear()
        await bench.poll(0.01)
        assert bench.turns.is_waiting
        bench.may_commit.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert bench.desk.told == ["commit"]
        assert bench.subscription.assigned() == {T0}
        await bench.poll()
        assert bench.desk.told == ["commit", "revoked t-0", "assigned t-1"]

    asyncio.run(run())


def test_without_a_listener_a_turn_that_began_goes_on_by_itself() -> None:
    async def run() -> None:
        bench = Bench(CHANGE, owned=[T0])
        bench.subscription.listener = None
        bench.may_commit.clear()
        await bench.poll(0.01)
        bench.may_commit.set()
        await until(lambda: not bench.turns.is_waiting)
        assert bench.subscription.assigned() == {T1}
        assert bench.ended == 1

    asyncio.run(run())


def test_a_listener_that_began_is_waited_for() -> None:
    async def run() -> None:
        bench = Bench(FIRST)
        go_on = asyncio.Event()
        bench.desk.does = lambda: wait(go_on)
        poll = asyncio.create_task(bench.poll(0.01))
        await until(lambda: bench.desk.told)
        await asyncio.sleep(0.01)  # timers fire in the order of their times, so the poll's has fired, too
        for _ in range(10):
            await asyncio.sleep(0)
        assert not poll.done()
        go_on.set()
        await poll

    async def wait(event: asyncio.Event) -> None:
        await event.wait()

    asyncio.run(run())


def test_what_a_listener_raises_is_raised_once_and_stops_nothing() -> None:
    async def run() -> None:
        bench = Bench(CHANGE, owned=[T0])

        async def fail() -> None:
            raise LookupError(f"number {len(bench.desk.told)}")

        bench.desk.does = fail
        await bench.poll()
        assert bench.subscription.assigned() == {T1}
        with pytest.raises(LookupError, match="number 2"):
            bench.turns.raise_listener_error()
        bench.turns.raise_listener_error()

    asyncio.run(run())


def test_a_poll_that_is_interrupted_inside_the_listener() -> None:
    async def run() -> None:
        bench = Bench(CHANGE, owned=[T0])

        async def hang() -> None:
            await asyncio.Event().wait()

        bench.desk.does = hang
        poll = asyncio.create_task(bench.poll())
        await until(lambda: "revoked t-0" in bench.desk.told)
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        bench.desk.does = None
        await bench.poll()
        assert bench.desk.told == ["commit", "revoked t-0", "assigned t-1"]
        assert bench.subscription.assigned() == {T1}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("identity", "told"),
    [(Identity(1, "m"), ["commit", "revoked t-0 t-1"]), (Identity(-1, "m"), ["lost t-0 t-1"])],
)
def test_giving_up_all(identity: Identity, told: list[str]) -> None:
    async def run() -> None:
        bench = Bench(owned=[T1, T0])
        bench.member.identity = identity
        bench.is_inside = True
        await bench.turns.give_up_all(1.0)
        assert bench.desk.told == told
        assert bench.subscription.assigned() == frozenset()
        await bench.turns.give_up_all(1.0)
        assert bench.desk.told == told

    asyncio.run(run())


def test_giving_up_all_in_the_middle_of_a_turn() -> None:
    async def run() -> None:
        bench = Bench(CHANGE, owned=[T0])
        bench.may_commit.clear()
        await bench.poll(0.01)
        bench.is_inside = True
        ending = asyncio.create_task(bench.turns.give_up_all(0.05))
        await until(lambda: len(bench.desk.told) == 2)  # it gave up on the commit of the turn, and commits itself
        bench.may_commit.set()
        await ending
        assert bench.desk.told == ["commit", "commit", "revoked t-0"]
        assert bench.subscription.assigned() == frozenset()

    asyncio.run(run())
