"""Runs coroutines for blocking callers without an event loop, so that the code for both kinds of callers exists once.

Deduplicators, claim stores and worker pools are coroutines. Where they wait, the asyncio form awaits, and the blocking
form makes a blocking call inside the coroutine. Such a coroutine never suspends: `run_blocking` runs it to its end in
the caller's thread, for about the price of a function call. A loop in a background thread, as producers and consumers
have, would cost two thread switches per call. It also could not use the caller's SQLite connection, which belongs to
the caller's thread.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar, cast

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    coroutine.close()
    raise RuntimeError("blocking code awaited something that only an event loop can bring about")


class BlockingContext(AbstractContextManager[T]):
    """An asynchronous context manager that never suspends, for a plain `with`."""

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._manager = manager

    def __enter__(self) -> T:
        return run_blocking(self._manager.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return run_blocking(self._manager.__aexit__(kind, error, trace))


async def resolved(answer: T | Awaitable[T]) -> T:
    """The result of a driver's call: a blocking driver returns it, an asyncio driver returns an awaitable."""
    return await answer if inspect.isawaitable(answer) else answer


async def pause(pause_s: float, *, is_async: bool) -> None:
    if is_async:
        await asyncio.sleep(pause_s)
    else:
        threading.Event().wait(pause_s)
