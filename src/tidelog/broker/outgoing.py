"""What a connection still has to send: bytes, and slices of log files that the kernel copies straight to the socket.

What always holds: parts leave in order; a partial send goes on where it stopped; a slice is released as soon as its
last byte was handed to the kernel, or when the queue is dropped. It never waits: `send` says whether all is gone.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterable
from typing import Protocol, TypeAlias

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
    def read(self) -> bytes: ...
    def release(self) -> None: ...


Bytes: TypeAlias = bytes | bytearray | memoryview
Part: TypeAlias = Bytes | SendableSlice


class SliceCutShort(Exception):  # noqa: N818 - names what happened to the file
    """A log file ended before the slice did, so the answer that was begun can't be finished."""


class OutgoingQueue:
    """The parts that wait for one socket."""

    __slots__ = ("_parts", "_slice_sent_bytes", "sent_bytes")

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        self._slice_sent_bytes = 0
        self.sent_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if isinstance(part, (bytes, bytearray, memoryview)):
                if part:
                    self._parts.append(part)
            elif part.size_bytes <= SLICE_READ_MAX_BYTES:
                self._parts.append(part.read())
                part.release()
            else:
                self._parts.append(part)

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
                    sent = self._send_slice(sock, first)
                turn_bytes += sent
                if turn_bytes >= SEND_TURN_BYTES:
                    break
        except (BlockingIOError, InterruptedError):
            pass
        self.sent_bytes += turn_bytes
        return not self._parts

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
        sent = os.sendfile(
            sock.fileno(), part.fd, part.position + self._slice_sent_bytes, min(remaining, SEND_TURN_BYTES)
        )
        if sent == 0:
            raise SliceCutShort(f"{remaining} bytes of a slice of {part.size_bytes} are not in the file")
        if sent == remaining:
            self._slice_sent_bytes = 0
            self._parts.popleft()
            part.release()
        else:
            self._slice_sent_bytes += sent
        return sent
