"""Splits the bytes that arrive on a connection into responses.

What always holds: a response is returned whole, in memory that is not written to while anybody holds a view of it, so
records can stay where they were received. Memory of the announced size is allocated only up to a bound, and beyond that
as bytes arrive, so a false size costs nothing. Small responses share one receive call; large ones are received directly
into their own memory, which is used again for later ones until a small response shows that there is no backlog.
"""

from __future__ import annotations

import socket
import struct

from tidelog.common.recycled_memory import RecycledMemory

_SIZE = struct.Struct(">i")
# How much one receive may bring of small responses; the rest of a larger one goes into its own buffer.
_SCRATCH_BYTES = 64 * 1024
# A buffer grows to at most this much more than has arrived.
_AHEAD_BYTES_MAX = 8 * 1024 * 1024
# One is being received, one waits and one is being read.
_RECYCLED_MAX = 3
FRAME_BYTES_MAX = 256 * 1024 * 1024  # no response we request comes near this; a larger size means a different protocol
_CORRELATION_ID_BYTES = 4


class FrameError(Exception):
    """The bytes are not a response of a Kafka broker."""


class FrameReader:
    """Receives from a non-blocking socket; `read` returns the complete responses."""

    def __init__(self, scratch_bytes: int = _SCRATCH_BYTES) -> None:
        self._scratch = bytearray(scratch_bytes)
        self._scratch_view = memoryview(self._scratch)
        self._scratch_filled = 0
        self._recycled = RecycledMemory(_RECYCLED_MAX, _AHEAD_BYTES_MAX)
        self._frame: bytearray | None = None  # the memory of a large, incomplete response
        self._frame_size = 0
        self._frame_filled = 0

    @property
    def held_bytes(self) -> int:
        """The memory for incomplete responses and for later ones."""
        own = self._frame if self._frame_size > _AHEAD_BYTES_MAX else None
        return len(self._scratch) + self._recycled.held_bytes + (len(own) if own is not None else 0)

    def read(self, source: socket.socket) -> list[bytearray | memoryview] | None:
        """Receive once; None if the peer has closed. Raises OSError (BlockingIOError among them) and FrameError."""
        if self._frame is not None:
            return self._read_large(source, self._frame)
        received = source.recv_into(self._scratch_view[self._scratch_filled :])
        if not received:
            return None
        self._scratch_filled += received
        return self._cut()

    def _read_large(self, source: socket.socket, frame: bytearray) -> list[bytearray | memoryview] | None:
        if self._frame_filled == len(frame):
            frame.extend(bytes(min(self._frame_size - len(frame), max(len(frame), _AHEAD_BYTES_MAX))))
        with memoryview(frame) as view, view[self._frame_filled : self._frame_size] as rest:
            received = source.recv_into(rest)
        if not received:
            return None
        self._frame_filled += received
        if self._frame_filled < self._frame_size:
            return []
        self._frame = None
        return [memoryview(frame)[: self._frame_size]]

    def _cut(self) -> list[bytearray | memoryview]:
        frames: list[bytearray | memoryview] = []
        start, filled = 0, self._scratch_filled
        while filled - start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._scratch, start)
            if not _CORRELATION_ID_BYTES <= size <= FRAME_BYTES_MAX:
                raise FrameError(f"a response of {size} bytes was announced")
            body = start + _SIZE.size
            if filled - body < size:
                if size > len(self._scratch) - _SIZE.size:
                    self._begin_large(size, self._scratch_view[body:filled])
                    start = filled
                break
            frames.append(self._scratch[body : body + size])
            self._recycled.forget()
            start = body + size
        left = filled - start
        if start and left:
            self._scratch[:left] = self._scratch[start:filled]
        self._scratch_filled = left
        return frames

    def _begin_large(self, size: int, first: memoryview) -> None:
        if size <= _AHEAD_BYTES_MAX:
            self._frame = self._recycled.take(size)
        else:
            self._frame = bytearray(min(size, len(first) + _AHEAD_BYTES_MAX))
        self._frame[: len(first)] = first
        self._frame_size = size
        self._frame_filled = len(first)
