"""Requests that wait for logs at rest keep their order in every partition."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from tidelog.broker.log_opening import LogOpening
from tidelog.broker.partition import Partition
from tidelog.log import LogManager, LogStorageError


class RestingLog:
    """A log that opens when the test lets it."""

    def __init__(self) -> None:
        self.is_open = False
        self.may_open = threading.Event()
        self.fails = False

    def open(self) -> None:
        assert self.may_open.wait(30)
        if self.fails:
            raise LogStorageError("it can't be read")
        self.is_open = True


class OnePartition:
    def __init__(self) -> None:
        self.log = RestingLog()


class Logs:
    has_logs_at_rest = True


Run = Callable[..., None]


@pytest.fixture
def partitions() -> list[OnePartition]:
    return [OnePartition() for _ in range(3)]


def as_partitions(*partitions: OnePartition) -> list[Partition]:
    return [cast(Partition, partition) for partition in partitions]


async def opening() -> LogOpening:
    return LogOpening(cast(LogManager, Logs()), asyncio.get_running_loop(), ThreadPoolExecutor(4))


async def request(opening: LogOpening, order: list[str], name: str, partitions: list[Partition]) -> asyncio.Task[None]:
    turn = opening.take_turn(partitions)

    async def run() -> None:
        try:
            await opening.wait(turn)
            order.append(name)
        finally:
            opening.end_turn(turn)

    task = asyncio.get_running_loop().create_task(run())
    task.add_done_callback(lambda _: opening.end_turn(turn))
    return task


def test_what_came_first_is_appended_first(partitions: list[OnePartition]) -> None:
    first, second, _ = partitions
    second.log.is_open = True

    async def run() -> list[str]:
        waiting, order = await opening(), list[str]()
        tasks = [await request(waiting, order, "both", as_partitions(first, second))]
        # It is open, and must not overtake what waits in front of it.
        assert all(map(waiting.must_wait, as_partitions(second)))
        tasks.append(await request(waiting, order, "second", as_partitions(second)))
        tasks.append(await request(waiting, order, "first", as_partitions(first)))
        first.log.may_open.set()
        await asyncio.gather(*tasks)
        assert not any(map(waiting.must_wait, as_partitions(first, second)))
        return order

    order = asyncio.run(run())
    assert order[0] == "both"
    assert sorted(order) == ["both", "first", "second"]


def test_others_do_not_wait(partitions: list[OnePartition]) -> None:
    slow, quick, _ = partitions
    quick.log.may_open.set()

    async def run() -> list[str]:
        waiting, order = await opening(), list[str]()
        held = await request(waiting, order, "slow", as_partitions(slow))
        await (await request(waiting, order, "quick", as_partitions(quick)))
        slow.log.may_open.set()
        await held
        return order

    assert asyncio.run(run()) == ["quick", "slow"]


def test_a_request_that_is_given_up_holds_nobody(partitions: list[OnePartition]) -> None:
    first = partitions[0]

    async def run() -> list[str]:
        waiting, order = await opening(), list[str]()
        given_up = await request(waiting, order, "given up", as_partitions(first))
        given_up.cancel()  # before it ran at all
        behind = await request(waiting, order, "behind", as_partitions(first))
        first.log.may_open.set()
        await behind
        assert given_up.cancelled()
        return order

    assert asyncio.run(run()) == ["behind"]


def test_a_log_that_can_not_be_opened_is_left_to_the_append(partitions: list[OnePartition]) -> None:
    first = partitions[0]
    first.log.fails = True
    first.log.may_open.set()

    async def run() -> list[str]:
        waiting, order = await opening(), list[str]()
        await (await request(waiting, order, "refused", as_partitions(first)))
        return order

    assert asyncio.run(run()) == ["refused"]
