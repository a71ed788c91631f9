"""What a connection still has to send: bytes, and slices of log files that the kernel copies straight to the socket.

What always holds: parts leave in order; a partial send goes on where it stopped; a slice is released as soon as its
last byte was handed to the kernel, or when the queue is dropped. It never waits, neither for the peer nor for a disk:
`send` says whether all is gone, `is_cold` whether what comes next has to be read from the disk first, and `bring_in`
makes the function that a thread does this by.
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

# How much one connection may send before others have their turn.
SEND_TURN_BYTES = 4 * 1024 * 1024

_BUFFERS_PER_CALL_MAX = 64

# Tells the kernel that a slice follows, so that a header does not travel in a packet of its own.
_MSG_MORE: int = getattr(socket, "MSG_MORE", 0)


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
    """A log file ended before the slice did, so the answer that was begun can't be finished."""


class OutgoingQueue:
    """The parts that wait for one socket."""

    __slots__ = ("_parts", "_slice_in_memory_bytes", "_slice_sent_bytes", "is_cold", "sent_bytes")

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        self._slice_sent_bytes = 0
        # How much of the first slice was found, or brought, into memory.
        self._slice_in_memory_bytes = 0
        self.is_cold = False
        self.sent_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if isinstance(part, (bytes, bytearray, memoryview)):
                if part:
                    self._parts.append(part)
            elif part.size_bytes > SLICE_READ_MAX_BYTES:
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
            part.release()

    def send_at_once(self, sock: socket.socket, parts: list[Part]) -> bool:
        """Send an answer past the empty queue; False when (some of) it had to be queued after all.

        Most answers are one small piece of bytes that the kernel takes whole, and need none of what follows.
        """
        first = parts[0]
        if len(parts) > 1 or not isinstance(first, bytes):
            self.add(parts)
            return False
        try:
            sent = sock.send(first)
        except OSError:
            # `send` meets the same error, or finds that the socket takes more meanwhile.
            sent = 0
        self.sent_bytes += sent
        if sent == len(first):
            return True
        self._parts.append(memoryview(first)[sent:])
        return False

    def send(self, sock: socket.socket) -> bool:
        """Send what the kernel takes now; True when nothing is left. Raises OSError when the connection broke."""
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
        """While it is cold: what a thread is to call, so that sending can go on; it raises OSError."""
        part = self._parts[0]
        assert not isinstance(part, (bytes, bytearray, memoryview))  # only slices are on disk
        position = part.position + self._slice_sent_bytes
        size_bytes = min(part.size_bytes - self._slice_sent_bytes, SEND_TURN_BYTES)
        # Its own, as the connection may end and the file be closed meanwhile.
        fd = os.dup(part.fd)

        def read() -> None:
            try:
                bring_in(fd, position, size_bytes)
            finally:
                os.close(fd)

        self._slice_in_memory_bytes = self._slice_sent_bytes + size_bytes
        return read

    def _look_ahead(self, part: SendableSlice) -> bool:
        """Whether what is sent next of a slice is in memory; asked once for as much as one turn may send."""
        size_bytes = min(part.size_bytes - self._slice_sent_bytes, SEND_TURN_BYTES)
        self.is_cold = not part.is_recent and not is_in_memory(
            part.fd, part.position + self._slice_sent_bytes, size_bytes
        )
        if not self.is_cold:
            self._slice_in_memory_bytes = self._slice_sent_bytes + size_bytes
        return not self.is_cold

    def drop(self) -> None:
        """Forget everything, as the connection is gone."""
        for part in self._parts:
            if not isinstance(part, (bytes, bytearray, memoryview)):
                part.release()
        self._parts.clear()

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
