"""Keeps waiters in the order of their arrival, even if each of them waits for something else.

What always holds: taking a place never waits, so places are in the order of arrival; giving up a place, for whatever
reason, lets the next waiter continue. Keys that nobody waits for take no memory.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Hashable


class Place:
    """A place in the queue for one key."""

    __slots__ = ("_before", "_is_over")

    def __init__(self, before: asyncio.Future[None] | None, is_over: asyncio.Future[None]) -> None:
        self._before = before
        self._is_over = is_over

    async def wait(self) -> None:
        """Wait until all earlier places have been given up."""
        if self._before is not None:
            await asyncio.shield(self._before)

    def end(self) -> None:
        """Let the next waiter continue; if it isn't this one's turn yet, as soon as it would have been."""
        if self._before is None or self._before.done():
            self._end()
        else:
            self._before.add_done_callback(lambda _: self._end())

    def _end(self) -> None:
        if not self._is_over.done():
            self._is_over.set_result(None)


class ArrivalOrder:
    """The queues of all keys."""

    def __init__(self) -> None:
        # The last place taken for each key that has waiters.
        self._last: dict[Hashable, asyncio.Future[None]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._last

    def take(self, key: Hashable) -> Place:
        before = self._last.get(key)
        is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last[key] = is_over
        is_over.add_done_callback(functools.partial(self._on_over, key))
        return Place(before, is_over)

    def _on_over(self, key: Hashable, is_over: asyncio.Future[None]) -> None:
        if self._last.get(key) is is_over:
            del self._last[key]
