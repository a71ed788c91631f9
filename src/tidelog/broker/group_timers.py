"""Timers of group coordinators: any number of them behind a single event loop timer, on the broker's clock.

What always holds: a timer that is set again counts from the last time it was set; postponing one, as every heartbeat
does, costs a lookup but no new entry; with a virtual clock nothing is due until the clock is advanced; however many
timers are due at once, other events have their turn in between. A timer is identified by its owner, which can cancel
all of its timers together, and the owner's own key for it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Hashable
from math import inf

from tidelog.common.clock import Clock

# Timers that are due close together run in few turns of the loop, and a stopped clock is not polled constantly.
_PAUSE_MIN_S = 0.01
_PAUSE_MAX_S = 60.0

SLICE_S = 0.002
"""Timers that are due together have this much of a turn of the loop; the rest follow in the next ones."""

_STALE_ENTRIES_MIN = 100
"""So many entries without a timer are always left alone, so that few timers do not rebuild the heap all the time."""


TimerId = tuple[int, Hashable]


class TimerHeap:
    """Timers by key."""

    def __init__(self, clock: Clock, on_due: Callable[[int, Hashable], None]) -> None:
        """To be made on the running event loop, where `on_due` is called with the owner and key of each due timer."""
        self._clock = clock
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        # By owner, so that giving up an owner with many timers takes no time.
        self._due_ms: dict[int, dict[Hashable, float]] = {}
        # If a timer was postponed, its entry is checked at the old time and put back with the new one.
        self._heap: list[tuple[float, int, TimerId]] = []
        self._heap_due_ms: dict[TimerId, float] = {}
        self._order = itertools.count()
        self._handle: asyncio.TimerHandle | None = None
        self._handle_due_ms = 0.0
        self._is_closed = False
        self._stop_listening = clock.on_advance(self._wake)

    def __len__(self) -> int:
        return sum(map(len, self._due_ms.values()))

    def set(self, key: TimerId, due_ms: float) -> None:
        owner, name = key
        owned = self._due_ms.get(owner)
        if owned is None:
            owned = self._due_ms[owner] = {}
        owned[name] = due_ms
        known_ms = self._heap_due_ms.get(key)
        if known_ms is None or due_ms < known_ms:
            self._push(key, due_ms)
            if self._handle is None or due_ms < self._handle_due_ms:
                self._arm()

    def cancel(self, key: TimerId) -> None:
        owner, name = key
        self._due_ms.get(owner, {}).pop(name, None)

    def cancel_all(self, owner: int) -> None:
        """Forget every timer of this owner."""
        self._due_ms.pop(owner, None)

    def run_due(self, time_s: float = inf) -> None:
        """Call back for everything that is due now, or as much of it as there is time for."""
        began_s = time.perf_counter()
        while not self._is_closed and self._heap and time.perf_counter() - began_s < time_s:
            due_ms, _, key = self._heap[0]
            if due_ms > self._clock.monotonic_ms():
                break
            heapq.heappop(self._heap)
            if self._heap_due_ms.get(key) == due_ms:
                del self._heap_due_ms[key]
            owner, name = key
            owned = self._due_ms.get(owner)
            current_ms = None if owned is None else owned.get(name)
            if owned is None or current_ms is None:
                continue
            if current_ms > due_ms:
                if key not in self._heap_due_ms:
                    self._push(key, current_ms)
                continue
            del owned[name]
            self._on_due(owner, name)

    def close(self) -> None:
        """Stop calling back."""
        self._is_closed = True
        self._stop_listening()
        if self._handle is not None:
            self._handle.cancel()

    def _push(self, key: TimerId, due_ms: float) -> None:
        if len(self._heap) > 2 * len(self) + _STALE_ENTRIES_MIN:
            self._drop_stale()
        self._heap_due_ms[key] = due_ms
        heapq.heappush(self._heap, (due_ms, next(self._order), key))

    def _drop_stale(self) -> None:
        """Rebuild the heap without the entries of timers that were cancelled or set to an earlier time.

        Their keys contain group and member names, which may be large, and they might not be due for half an hour.
        """
        self._heap_due_ms = {
            key: due_ms for key, due_ms in self._heap_due_ms.items() if key[1] in self._due_ms.get(key[0], {})
        }
        self._heap = [(due_ms, next(self._order), key) for key, due_ms in self._heap_due_ms.items()]
        heapq.heapify(self._heap)

    def _arm(self, pause_min_s: float = _PAUSE_MIN_S) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._is_closed or not self._heap:
            return
        self._handle_due_ms = self._heap[0][0]
        pause_s = (self._handle_due_ms - self._clock.monotonic_ms()) / 1000
        self._handle = self._loop.call_later(min(max(pause_s, pause_min_s), _PAUSE_MAX_S), self._tick)

    def _tick(self) -> None:
        self._handle = None
        try:
            self.run_due(SLICE_S)
        finally:
            # What is still due did not fit into this turn of the loop.
            is_behind = self._heap and self._heap[0][0] <= self._clock.monotonic_ms()
            self._arm(0.0 if is_behind else _PAUSE_MIN_S)

    def _wake(self) -> None:
        # A test may advance a virtual clock from its own thread.
        self._loop.call_soon_threadsafe(self._tick)
