"""Where requests wait that can't be answered yet: a long poll for data, a produce for its replicas.

What always holds: an operation waits under every key (partition) that can satisfy it and is looked at only when one of
these keys changes, so a change costs as much as there are operations waiting for that key; it leaves all its keys when
it is satisfied, when its time is over and when it is cancelled because its connection went away. The purgatory answers
nobody: whoever waited goes on in its own task, after the change that woke it has been finished and answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar

KeyT = TypeVar("KeyT")
KeyT_contra = TypeVar("KeyT_contra", contravariant=True)


# An operation with more keys than this is parked in pieces of this size, which take a fraction of a millisecond each.
_KEYS_AT_ONCE_MAX = 256


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """What the purgatory needs of an event loop; tests turn one by hand."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Cancellable: ...

    def create_future(self) -> asyncio.Future[bool]: ...


class Operation(Protocol[KeyT_contra]):
    """Something that waits."""

    def is_satisfied(self, key: KeyT_contra, /) -> bool:
        """Look at one key that may have changed; True ends the wait. It must not wait or change the purgatory."""
        ...


class _Parked(Generic[KeyT]):
    __slots__ = ("future", "operation")

    def __init__(self, operation: Operation[KeyT], future: asyncio.Future[bool]) -> None:
        self.operation = operation
        self.future = future

    def end(self, satisfied: bool) -> None:
        if not self.future.done():
            self.future.set_result(satisfied)


class Purgatory(Generic[KeyT]):
    """Operations waiting by key."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        # Dicts without values keep the order of arrival, and an operation leaves them at the cost of one look-up.
        self._parked: dict[KeyT, dict[_Parked[KeyT], None]] = {}

    def waiting(self, key: KeyT) -> int:
        return len(self._parked.get(key, ()))

    def __len__(self) -> int:
        return len({parked for by_key in self._parked.values() for parked in by_key})

    def check(self, key: KeyT) -> None:
        """Something about this key changed."""
        parked_here = self._parked.get(key)
        if parked_here is None:
            return
        for parked in parked_here:
            if not parked.future.done() and parked.operation.is_satisfied(key):
                parked.end(True)

    async def wait(self, operation: Operation[KeyT], keys: Collection[KeyT], timeout_ms: float) -> bool:
        """Wait until the operation is satisfied (True) or its time is over (False)."""
        if len(keys) > _KEYS_AT_ONCE_MAX:
            return await self._wait_for_many(operation, keys, timeout_ms)
        # The caller looked before this coroutine was started, and whatever happened since woke nobody.
        if any(operation.is_satisfied(key) for key in keys):
            return True
        parked = _Parked(operation, self._timers.create_future())
        for key in keys:
            self._parked.setdefault(key, {})[parked] = None
        timer = self._timers.call_later(timeout_ms / 1000, lambda: parked.end(False))
        try:
            return await parked.future
        finally:
            timer.cancel()
            for key in keys:
                self._leave(key, parked)

    async def _wait_for_many(self, operation: Operation[KeyT], keys: Collection[KeyT], timeout_ms: float) -> bool:
        """As `wait`, with pauses: whatever happens to a key in one of them is noticed as soon as it is waited for."""
        parked = _Parked(operation, self._timers.create_future())
        timer = self._timers.call_later(timeout_ms / 1000, lambda: parked.end(False))
        entered: list[KeyT] = []
        try:
            for key in keys:
                self._parked.setdefault(key, {})[parked] = None
                entered.append(key)
                if not parked.future.done() and operation.is_satisfied(key):
                    parked.end(True)
                if parked.future.done():
                    break
                if not len(entered) % _KEYS_AT_ONCE_MAX:
                    await asyncio.sleep(0)
            return await parked.future
        finally:
            timer.cancel()
            for key in entered:
                self._leave(key, parked)

    def _leave(self, key: KeyT, parked: _Parked[KeyT]) -> None:
        parked_here = self._parked[key]
        del parked_here[parked]
        if not parked_here:
            del self._parked[key]
