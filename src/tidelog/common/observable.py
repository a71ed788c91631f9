"""A value that changes now and then, and those who wait for it to do so. On one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Observable(Generic[T]):
    """A value; those who wait see the newest one, and may miss some in between."""

    def __init__(self, value: T) -> None:
        self.value = value
        self._waiting: dict[asyncio.Future[T], Callable[[T], bool]] = {}

    def set(self, value: T) -> None:
        self.value = value
        for waiting, is_wanted in tuple(self._waiting.items()):
            if not waiting.done() and is_wanted(value):
                waiting.set_result(value)

    async def wait_for(self, is_wanted: Callable[[T], bool]) -> T:
        """The first value for which this holds, beginning with the current one."""
        if is_wanted(self.value):
            return self.value
        waiting: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = is_wanted
        try:
            return await waiting
        finally:
            del self._waiting[waiting]
