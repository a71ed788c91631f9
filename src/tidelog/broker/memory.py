"""Memory that requests are received into: buffers that are used again, and a bound on what all connections hold.

What always holds: a buffer handed out is referred to by nobody else (a bytearray that still has views refuses to be
resized, and such a buffer is left to the garbage collector instead); an idle connection holds no buffer; when the
bound is reached, connections read only the first few kB of a request until memory is freed, except one, which may go on
so that a set of half-received requests can never wait for each other. Requests that were taken up do not count: their
handlers have consumed the bytes, and what they wait for may itself have to be received.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# Holds the largest batch a producer sends by default (1 MiB and its request around it), so such a request is received
# in place. Small requests use the first bytes of the same buffer, whichever connection they come from.
BUFFER_BYTES = 1024 * 1024 + 64 * 1024

# More than this many are in use at once only while many large requests arrive together.
_BUFFERS_KEPT_MAX = 8

_AUTOMATIC_BOUND_BYTES = 256 * 1024 * 1024


class Waiter(Protocol):
    """Something that stopped reading for want of memory."""

    def memory_freed(self) -> None: ...


def is_unshared(buffer: bytearray) -> bool:
    """Whether no view of the buffer is left, so that its bytes may be overwritten."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True


class ReceiveMemory:
    """The buffers of one broker and the count of bytes that its connections hold."""

    def __init__(self, bound_bytes: int, request_bytes_max: int, call_soon: Callable[[Callable[[], None]], object]):
        # The automatic bound leaves room for two of the largest requests.
        self.bound_bytes = bound_bytes if bound_bytes > 0 else max(_AUTOMATIC_BOUND_BYTES, 2 * request_bytes_max)
        self.held_bytes = 0
        self._free: list[bytearray] = []
        self._call_soon = call_soon
        self._waiters: dict[Waiter, None] = {}
        self._privileged: Waiter | None = None

    def take_buffer(self) -> bytearray:
        return self._free.pop() if self._free else bytearray(BUFFER_BYTES)

    def give_back(self, buffer: bytearray) -> None:
        """Keep a buffer for the next request, unless somebody still looks at it or there are enough."""
        if len(buffer) == BUFFER_BYTES and len(self._free) < _BUFFERS_KEPT_MAX and is_unshared(buffer):
            self._free.append(buffer)

    @property
    def exhausted(self) -> bool:
        return self.held_bytes >= self.bound_bytes

    @property
    def waiting_count(self) -> int:
        """How many connections stopped reading."""
        return len(self._waiters)

    def try_hold(self, waiter: Waiter, size_bytes: int) -> bool:
        """Count bytes as held if the bound allows; else the waiter is told when memory is freed."""
        if self.held_bytes + size_bytes > self.bound_bytes:
            if self._privileged is not None and self._privileged is not waiter:
                self.wait(waiter)
                return False
            self._privileged = waiter
        self.held_bytes += size_bytes
        return True

    def hold(self, size_bytes: int) -> None:
        """Count bytes that are there already, such as the first ones of a request."""
        self.held_bytes += size_bytes

    def release(self, waiter: Waiter, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        if self._privileged is waiter:
            self._privileged = None
        if self._waiters and not self.exhausted:
            waiters, self._waiters = self._waiters, {}
            for freed in waiters:
                self._call_soon(freed.memory_freed)

    def wait(self, waiter: Waiter) -> None:
        self._waiters[waiter] = None

    def forget(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)
        if self._privileged is waiter:
            self._privileged = None
