"""What a connection still has to send: bytes, and slices of log files that the kernel copies straight to the socket.

What always holds: parts leave in order; a partial send resumes where it stopped; a slice is released as soon as its
last byte has been handed to the kernel, or when the queue is dropped. Nothing here waits for the peer or for a disk:
`send` says whether everything has been sent, `is_cold` whether what comes next has to be read from disk first, and
`bring_in` returns the function with which a thread does that.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from tidelog.log.page_cache import bring_in, is_in_memory, read_in_memory

# Below this a slice is read and sent together with the bytes around it: one system call for many small partitions
# costs less than one sendfile for each of them.
SLICE_READ_MAX_BYTES = 16 * 1024

# The most that is read from small slices before it can be sent; a client that asks for thousands of them and does not
# read holds files, not memory.
_READ_AHEAD_MAX_BYTES = 1024 * 1024

# How much one connection may send before others get their turn.
SEND_TURN_BYTES = 4 * 1024 * 1024

_BUFFERS_PER_CALL_MAX = 64

# Tells the kernel that a slice follows, so that a header does not travel in a packet of its own.
_MSG_MORE: int = getattr(socket, "MSG_MORE", 0)
# Keeps back what does not fill a packet, until it is taken off.
_TCP_CORK: int | None = getattr(socket, "TCP_CORK", None)


class SendableSlice(Protocol):
    """A part of an open file."""

    @property
    def fd(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def is_recent(self) -> bool: ...
    def read(self) -> bytes: ...
    def release(self) -> None: ...


Bytes: TypeAlias = bytes | bytearray | memoryview
Part: TypeAlias = Bytes | SendableSlice


class SliceCutShort(Exception):  # noqa: N818 - names what happened to the file
    """A log file ended before the slice did, so the response can't be completed."""


class OutgoingQueue:
    """The parts that wait for one socket."""

    __slots__ = ("_parts", "_slice_in_memory_bytes", "_slice_sent_bytes", "is_cold", "sent_bytes", "waiting_bytes")

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        self._slice_sent_bytes = 0
        # How much of the first slice is known to be in memory.
        self._slice_in_memory_bytes = 0
        self.is_cold = False
        self.sent_bytes = 0
        # What waits in memory; slices of files do not count.
        self.waiting_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if isinstance(part, (bytes, bytearray, memoryview)):
                if part:
                    self._parts.append(part)
                    self.waiting_bytes += len(part)
            elif part.size_bytes > SLICE_READ_MAX_BYTES or self.waiting_bytes > _READ_AHEAD_MAX_BYTES:
                self._parts.append(part)
            else:
                self._add_small(part)

    def _add_small(self, part: SendableSlice) -> None:
        try:
            self._parts.append(
                part.read() if part.is_recent else read_in_memory(part.fd, part.size_bytes, part.position)
            )
        except BlockingIOError:
            self._parts.append(part)
        else:
            self.waiting_bytes += part.size_bytes
            part.release()

    def send_at_once(self, sock: socket.socket, parts: list[Part]) -> bool:
        """Send a response, bypassing the empty queue; False if some of it had to be queued after all.

        Most responses are one small piece of bytes that the kernel takes whole, or a slice between two of them, and
        need nothing else.
        """
        first = parts[0]
        if len(parts) == 1 and type(first) is bytes:
            sent = _send(sock, first)
            self.sent_bytes += sent
            if sent < len(first):
                self._parts.append(memoryview(first)[sent:])
                self.waiting_bytes += len(first) - sent
            return not self._parts
        if len(parts) == 3:
            middle, last = parts[1], parts[2]
            if type(first) is bytes and type(last) is bytes and not isinstance(middle, (bytes, bytearray, memoryview)):
                return self._send_around(sock, first, middle, last)
        self.add(parts)
        return False

    def _send_around(self, sock: socket.socket, first: bytes, part: SendableSlice, last: bytes) -> bool:
        """Send a response for one partition; what the kernel does not take is queued."""
        size_bytes = part.size_bytes
        if not SLICE_READ_MAX_BYTES < size_bytes <= SEND_TURN_BYTES or not (
            part.is_recent or is_in_memory(part.fd, part.position, size_bytes)
        ):
            self.add((first, part, last))
            return False
        self._slice_in_memory_bytes = size_bytes
        self._parts += (first, part, last)
        if _TCP_CORK is None:
            return self._send_three(sock, first, part, last)
        # The end, of a few bytes, travels with the last of the slice: measured, 5 % less CPU for a fetch of 1 MB.
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_CORK, 1)
        try:
            return self._send_three(sock, first, part, last)
        finally:
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_CORK, 0)

    def _send_three(self, sock: socket.socket, first: bytes, part: SendableSlice, last: bytes) -> bool:
        """Send what is queued, as long as the kernel takes each part whole."""
        parts = self._parts
        sent = _send(sock, first, _MSG_MORE)
        self.sent_bytes += sent
        self.waiting_bytes += len(first) - sent + len(last)
        if sent < len(first):
            parts[0] = memoryview(first)[sent:]
            return False
        parts.popleft()
        try:
            self.sent_bytes += self._send_slice(sock, part)
        except (OSError, SliceCutShort):
            # `send` meets the same error, or finds that the socket now takes more.
            return False
        if len(parts) > 1:
            return False
        sent = _send(sock, last)
        self.sent_bytes += sent
        self.waiting_bytes -= sent
        if sent < len(last):
            parts[0] = memoryview(last)[sent:]
            return False
        parts.popleft()
        return True

    def send(self, sock: socket.socket) -> bool:
        """Send what the kernel takes now; True if nothing is left. Raises OSError if the connection is broken."""
        turn_bytes = 0
        try:
            while self._parts:
                first = self._parts[0]
                if isinstance(first, (bytes, bytearray, memoryview)):
                    sent = self._send_bytes(sock)
                else:
                    if self._slice_in_memory_bytes <= self._slice_sent_bytes and not self._look_ahead(first):
                        break
                    sent = self._send_slice(sock, first)
                turn_bytes += sent
                if turn_bytes >= SEND_TURN_BYTES:
                    break
        except (BlockingIOError, InterruptedError):
            pass
        self.sent_bytes += turn_bytes
        return not self._parts

    def bring_in(self) -> Callable[[], None]:
        """While it is cold: the function for a thread to call before sending can continue; it raises OSError."""
        part = self._parts[0]
        assert not isinstance(part, (bytes, bytearray, memoryview))  # only slices are on disk
        position = part.position + self._slice_sent_bytes
        size_bytes = min(part.size_bytes - self._slice_sent_bytes, SEND_TURN_BYTES)
        # A descriptor of its own, because the connection may end and the file be closed in the meantime.
        fd = os.dup(part.fd)

        def read() -> None:
            try:
                bring_in(fd, position, size_bytes)
            finally:
                os.close(fd)

        self._slice_in_memory_bytes = self._slice_sent_bytes + size_bytes
        return read

    def _look_ahead(self, part: SendableSlice) -> bool:
        """Whether the next part of a slice is in memory; checked once for as much as one turn may send."""
        size_bytes = min(part.size_bytes - self._slice_sent_bytes, SEND_TURN_BYTES)
        self.is_cold = not part.is_recent and not is_in_memory(
            part.fd, part.position + self._slice_sent_bytes, size_bytes
        )
        if not self.is_cold:
            self._slice_in_memory_bytes = self._slice_sent_bytes + size_bytes
        return not self.is_cold

    def drop(self) -> None:
        """Drop everything, because the connection is gone."""
        for part in self._parts:
            if not isinstance(part, (bytes, bytearray, memoryview)):
                part.release()
        self._parts.clear()
        self.waiting_bytes = 0

    def _send_bytes(self, sock: socket.socket) -> int:
        buffers: list[Bytes] = []
        slice_follows = False
        for part in self._parts:
            if not isinstance(part, (bytes, bytearray, memoryview)):
                slice_follows = True
                break
            if len(buffers) == _BUFFERS_PER_CALL_MAX:
                break
            buffers.append(part)
        sent = sock.sendmsg(buffers, (), _MSG_MORE if slice_follows else 0)
        self.waiting_bytes -= sent
        left = sent
        for buffer in buffers:
            if left < len(buffer):
                self._parts[0] = memoryview(buffer)[left:]
                break
            left -= len(buffer)
            self._parts.popleft()
        return sent

    def _send_slice(self, sock: socket.socket, part: SendableSlice) -> int:
        remaining = part.size_bytes - self._slice_sent_bytes
        in_memory = self._slice_in_memory_bytes - self._slice_sent_bytes
        sent = os.sendfile(sock.fileno(), part.fd, part.position + self._slice_sent_bytes, min(remaining, in_memory))
        if sent == 0:
            raise SliceCutShort(f"{remaining} bytes of a slice of {part.size_bytes} are not in the file")
        if sent == remaining:
            self._slice_sent_bytes = self._slice_in_memory_bytes = 0
            self._parts.popleft()
            part.release()
        else:
            self._slice_sent_bytes += sent
        return sent


def _send(sock: socket.socket, data: bytes, flags: int = 0) -> int:
    """How much the kernel takes now; 0 on an error, which `OutgoingQueue.send` then meets and raises."""
    try:
        return sock.send(data, flags)
    except OSError:
        return 0
