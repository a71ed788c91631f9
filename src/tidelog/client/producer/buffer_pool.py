"""The memory of a producer: buffers that are lent to batches and returned, bounded by `buffer.memory`.

What always holds: lent memory never exceeds the bound, and neither does lent memory plus what is kept for reuse. A
caller that finds no room can leave a callback, and callbacks run in order once there is room again. Being called is no
promise: others may have been faster, in which case the caller asks again. The pool never waits: that is up to its
users, who have a thread or an event loop for it.

It is used under the accumulator's lock, except for `available`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple


class MemoryWaiter(NamedTuple):
    """A caller waiting for this many bytes."""

    size: int
    wake: Callable[[], None]


class BufferPool:
    """Lends buffers of any size and keeps those that are likely to be needed again."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.lent_bytes = 0
        self.exhausted = 0  # how often a caller had to wait
        self._free: dict[int, list[bytearray]] = {}
        self._free_bytes = 0
        self._waiters: deque[MemoryWaiter] = deque()

    @property
    def available_bytes(self) -> int:
        return self.memory_bytes - self.lent_bytes

    @property
    def has_waiters(self) -> bool:
        return bool(self._waiters)

    def lend(self, size: int) -> bytearray | None:
        """A buffer of exactly this size, with arbitrary contents; None if there is no room."""
        if size > self.available_bytes:
            return None
        self.lent_bytes += size
        free = self._free.get(size)
        if free:
            self._free_bytes -= size
            return free.pop()
        self._drop_free(self.lent_bytes + self._free_bytes - self.memory_bytes)
        return bytearray(size)

    def give_back(self, buffer: bytearray, *, keep: bool) -> None:
        """Take it back; with `keep` it is held for the next request of that size."""
        size = len(buffer)
        self.lent_bytes -= size
        if keep:
            self._free.setdefault(size, []).append(buffer)
            self._free_bytes += size

    def reserve(self, size: int, *, spare: int) -> bool:
        """Count external bytes as lent, if at least `spare` bytes are left after that; returns whether they are."""
        if size + spare > self.available_bytes:
            return False
        self.lent_bytes += size
        self._drop_free(self.lent_bytes + self._free_bytes - self.memory_bytes)
        return True

    def unreserve(self, size: int) -> None:
        self.lent_bytes -= size

    def _drop_free(self, excess: int) -> None:
        """Free cached buffers until at least this many bytes are released."""
        while excess > 0 and self._free_bytes:
            size, buffers = next((size, buffers) for size, buffers in self._free.items() if buffers)
            buffers.pop()
            self._free_bytes -= size
            excess -= size

    def wait_for(self, size: int, wake: Callable[[], None], *, first: bool = False) -> MemoryWaiter:
        """Have `wake` called once there is room (with `first`, before all others)."""
        waiter = MemoryWaiter(size, wake)
        if first:
            self._waiters.appendleft(waiter)
        else:
            self._waiters.append(waiter)
        self.exhausted += 1
        return waiter

    def forget(self, waiter: MemoryWaiter) -> None:
        """The waiter has given up, or was woken."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def wake_all(self) -> None:
        """Nothing more is lent; waiters are told."""
        while self._waiters:
            self._waiters.popleft().wake()

    def wake_waiters(self, *, at_least: int = 0) -> None:
        """Wake waiters for whom there is room, in order; nobody as long as less than `at_least` is available.

        A woken waiter must have this called again after its next attempt: it may have left room for others.
        """
        room = self.available_bytes
        if room < min(at_least, self.memory_bytes):
            return
        while self._waiters and self._waiters[0].size <= room:
            waiter = self._waiters.popleft()
            room -= waiter.size
            waiter.wake()
