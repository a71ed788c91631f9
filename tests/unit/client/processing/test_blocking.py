"""Coroutines that a blocking caller runs without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tidelog.client.processing.blocking import BlockingContext, pause, resolved, run_blocking


async def _answer() -> int:
    await pause(0, is_async=False)
    return await resolved(41) + 1


def test_a_coroutine_runs_to_its_end_in_the_callers_thread() -> None:
    assert run_blocking(_answer()) == 42
    assert asyncio.run(_answer()) == 42


def test_an_error_reaches_the_caller() -> None:
    async def fail() -> None:
        raise ValueError("no ink")

    with pytest.raises(ValueError, match="no ink"):
        run_blocking(fail())


def test_a_coroutine_that_needs_a_loop_is_refused_and_closed() -> None:
    ended = []

    async def suspend() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    with pytest.raises(RuntimeError, match="event loop"):
        run_blocking(suspend())
    assert ended == [True]


def test_a_context_manager_ends_after_its_block_and_sees_its_error() -> None:
    seen: list[object] = []

    @asynccontextmanager
    async def context() -> AsyncIterator[str]:
        try:
            yield "inside"
        except ValueError as error:
            seen.append(error)
            raise
        seen.append("left")

    with BlockingContext(context()) as value:
        assert value == "inside"
    assert seen == ["left"]
    error = ValueError("no ink")

    def fail() -> None:
        with BlockingContext(context()):
            raise error

    with pytest.raises(ValueError, match="no ink"):
        fail()
    assert seen == ["left", error]
