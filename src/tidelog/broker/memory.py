"""Memory for the requests and responses of connections: limits, and a pool of buffers.

What always holds: nobody else refers to a buffer that is handed out (a bytearray that still has views can't be resized;
such a buffer is left to the garbage collector instead), and an idle connection holds no buffer. When the limit on
requests is reached, connections read only the first few kB of a request until memory is freed, except for one, which
may continue, so half-received requests can never deadlock. No connection takes more than half of the free memory, so
there is always room for smaller requests. A request that has started counts only while its handler still needs its
bytes (`hold_request`), as a produce does while its records are being checked. Such a wait may depend on threads and on
requests of a few kB, but never on memory: that would be a deadlock.

While anyone waits for memory, peers that hold some have to make progress: those that are too slow to send the rest of a
request, or to read their response, are disconnected, the slowest first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

# Holds the largest batch a producer sends by default (1 MiB and its request around it), so such a request is received
# in place. Small requests use the first bytes of the same buffer, whichever connection they come from.
BUFFER_BYTES = 1024 * 1024 + 64 * 1024

# More than this many are in use only while many large requests arrive at the same time.
_BUFFERS_KEPT_MAX = 8

_AUTOMATIC_BOUND_BYTES = 256 * 1024 * 1024

# While others wait for memory, its holders are checked this often. Between two checks a holder has to transfer this
# many bytes, or enough to finish within a minute.
WATCH_INTERVAL_S = 1.0
_MOVED_BYTES_MIN = 16 * 1024
_WHOLE_IN_S = 60.0

# One check disconnects only enough holders to free this fraction of the limit.
_SHARE_FREED_MAX = 2


class Holder(Protocol):
    """A connection whose peer determines how long memory is held."""

    @property
    def received_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...

    def memory_freed(self) -> None:
        """It stopped reading for lack of memory; now there is some."""

    def lets_us_wait(self) -> bool:
        """Whether it is the peer's turn to send or to read."""

    def close(self, reason: str, level: int) -> None: ...


class Timers(Protocol):
    """The part of an event loop that is used here."""

    def call_soon(self, callback: Callable[[], None]) -> object: ...
    def call_later(self, delay: float, callback: Callable[[], None]) -> object: ...


def is_unshared(buffer: bytearray) -> bool:
    """Whether no view of the buffer is left, so that its bytes may be overwritten."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True


class _HeldMemory:
    """Tracks who holds how many bytes, and watches slow holders while others wait."""

    def __init__(self, bound_bytes: int, timers: Timers) -> None:
        self.bound_bytes = bound_bytes
        self.held_bytes = 0
        self._held: dict[Holder, int] = {}
        self._timers = timers
        self._is_watching = False
        # How much each holder had transferred at the last check.
        self._moved_before: dict[Holder, int] = {}

    def _add(self, holder: Holder, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        left_bytes = self._held.get(holder, 0) + size_bytes
        if left_bytes:
            self._held[holder] = left_bytes
        else:
            self._held.pop(holder, None)

    def _is_wanted(self) -> bool:
        """Whether anyone is waiting for memory."""
        raise NotImplementedError

    def _is_waiting(self, holder: Holder) -> bool:
        """Whether this holder is itself waiting for memory, so that it can't make progress."""
        raise NotImplementedError

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._moved_before = self._moved()
            self._timers.call_later(WATCH_INTERVAL_S, self._look)

    def _moved(self) -> dict[Holder, int]:
        return {holder: holder.received_bytes + holder.sent_bytes for holder in self._held}

    def _look(self) -> None:
        self._is_watching = False
        if not self._is_wanted():
            self._moved_before = {}
            return
        now = self._moved()
        slow: list[tuple[float, int, Holder]] = []
        for number, (holder, held_bytes) in enumerate(self._held.items()):
            if holder not in self._moved_before or self._is_waiting(holder):
                continue
            moved_bytes = now[holder] - self._moved_before[holder]
            wanted_bytes = max(_MOVED_BYTES_MIN, held_bytes * WATCH_INTERVAL_S / _WHOLE_IN_S)
            if moved_bytes < wanted_bytes and holder.lets_us_wait():
                slow.append((moved_bytes / wanted_bytes, number, holder))
        freed_bytes = 0
        for _, _, holder in sorted(slow):
            if freed_bytes >= self.bound_bytes // _SHARE_FREED_MAX:
                break
            freed_bytes += self._held.get(holder, 0)
            holder.close("was too slow while others waited for the memory it held", logging.WARNING)
        self._watch()


class HeldRequest:
    """A request that was taken up and whose bytes are still needed: a holder of its own, which waits for nobody's peer.

    So what its connection may still receive does not depend on it: the right to go past the bound is for one request.
    """

    received_bytes = 0
    sent_bytes = 0

    def __init__(self, memory: ReceiveMemory, connection: Holder, size_bytes: int) -> None:
        self.connection = connection
        self._memory = memory
        self._size_bytes = size_bytes

    def release(self) -> None:
        """The bytes are not needed any more; may be called again."""
        size_bytes, self._size_bytes = self._size_bytes, 0
        if size_bytes:
            self._memory.release_request(self, size_bytes)

    def memory_freed(self) -> None:
        raise AssertionError("a request that was taken up waits for no memory")

    def lets_us_wait(self) -> bool:
        return False

    def close(self, reason: str, level: int) -> None:
        raise AssertionError("a request that was taken up is never too slow")


class ReceiveMemory(_HeldMemory):
    """A broker's buffers, and the number of request bytes that its connections hold."""

    def __init__(self, bound_bytes: int, request_bytes_max: int, timers: Timers) -> None:
        # The automatic limit leaves room for two of the largest requests.
        super().__init__(bound_bytes if bound_bytes > 0 else max(_AUTOMATIC_BOUND_BYTES, 2 * request_bytes_max), timers)
        self._free: list[bytearray] = []
        self._waiters: dict[Holder, None] = {}
        self._privileged: Holder | None = None
        # How many requests are held of those that a connection sent.
        self._requests: dict[Holder, int] = {}

    def take_buffer(self) -> bytearray:
        return self._free.pop() if self._free else bytearray(BUFFER_BYTES)

    def give_back(self, buffer: bytearray) -> None:
        """Return a buffer to the pool, unless it still has views or the pool is full."""
        if len(buffer) == BUFFER_BYTES and len(self._free) < _BUFFERS_KEPT_MAX and is_unshared(buffer):
            self._free.append(buffer)

    @property
    def exhausted(self) -> bool:
        return self.held_bytes >= self.bound_bytes and self._shared_bytes >= self.bound_bytes

    @property
    def waiting_count(self) -> int:
        """How many connections stopped reading."""
        return len(self._waiters)

    @property
    def _shared_bytes(self) -> int:
        """The bytes held, without the one request that may exceed the limit: it takes no room from others."""
        return self.held_bytes - (0 if self._privileged is None else self._held.get(self._privileged, 0))

    def try_hold(self, holder: Holder, size_bytes: int) -> bool:
        """Count bytes as held if the limit allows; otherwise notify the holder when memory is freed."""
        if self._privileged is not holder and size_bytes > (self.bound_bytes - self._shared_bytes) // 2:
            if self._privileged is not None:
                self._waiters[holder] = None
                self._watch()
                return False
            self._privileged = holder
        self._add(holder, size_bytes)
        return True

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """Count bytes that are already in memory, such as the first ones of a request."""
        self._add(holder, size_bytes)

    def release(self, holder: Holder, size_bytes: int) -> None:
        self._add(holder, -size_bytes)
        if self._privileged is holder and holder not in self._held:
            self._privileged = None
        self._wake()

    def hold_request(self, connection: Holder, size_bytes: int) -> HeldRequest:
        """Count the bytes of a request that was taken up until it is released."""
        request = HeldRequest(self, connection, size_bytes)
        self._add(request, size_bytes)
        self._requests[connection] = self._requests.get(connection, 0) + 1
        if self._privileged is connection:
            self._privileged = request
        return request

    def release_request(self, request: HeldRequest, size_bytes: int) -> None:
        connection = request.connection
        self._requests[connection] -= 1
        if not self._requests[connection]:
            del self._requests[connection]
        self.release(request, size_bytes)

    def may_begin(self, connection: Holder) -> bool:
        """Whether a connection may read the first bytes of another request; if not, it is told when memory is freed.

        It may when there is room, and always when none of its requests is held: the first kB of a request are there
        for everybody, but not once for each of the requests that a connection may have under way.
        """
        if connection in self._requests and self.exhausted:
            self._waiters[connection] = None
            self._watch()
            return False
        return True

    def forget(self, holder: Holder) -> None:
        self._waiters.pop(holder, None)
        if self._privileged is holder:
            self._privileged = None
            self._wake()

    def _wake(self) -> None:
        if self._waiters and (self._privileged is None or not self.exhausted):
            waiters, self._waiters = self._waiters, {}
            for waiter in waiters:
                self._timers.call_soon(waiter.memory_freed)

    def _is_wanted(self) -> bool:
        return bool(self._waiters)

    def _is_waiting(self, holder: Holder) -> bool:
        return holder in self._waiters


class AnswerMemory(_HeldMemory):
    """The number of response bytes that are waiting for their peers to read."""

    def __init__(self, bound_bytes: int, timers: Timers) -> None:
        super().__init__(bound_bytes, timers)
        # The callback to run once a response of this size may grow.
        self._waiters: list[tuple[int, Callable[[], None]]] = []

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether a response of this size may grow; a lone response may take all the memory."""
        return not self._held or self.held_bytes + size_bytes < self.bound_bytes

    def update(self, holder: Holder, size_bytes: int) -> None:
        """A connection now has this many bytes to send."""
        changed_bytes = size_bytes - self._held.get(holder, 0)
        self._add(holder, changed_bytes)
        if changed_bytes < 0 and self._waiters:
            told = [waiter for waiter in self._waiters if self.has_room_for(waiter[0])]
            for waiter in told:
                self._waiters.remove(waiter)
                self._timers.call_soon(waiter[1])

    def wait(self, size_bytes: int, tell: Callable[[], None]) -> None:
        """Call back once a response of this size may grow."""
        self._waiters.append((size_bytes, tell))
        self._watch()

    def _is_wanted(self) -> bool:
        return bool(self._waiters)

    def _is_waiting(self, holder: Holder) -> bool:
        return False
