"""Notices that a peer which has closed its side of a connection is gone for good.

A peer that has closed its side may still read, so its requests are answered. TCP does not say whether it does: a client
that ended looks the same. What always holds: a reset of such a connection is reported at once; the end of a client that
closed its socket is reported when its system no longer knows the connection, on Linux after a minute and a half. The
event loop can't tell: it would report such a socket as readable all the time, so it doesn't watch it any more. Where
there is no epoll, nothing is reported, and the connection ends with its request or when it has been idle for too long.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable

# A system forgets a closed socket a minute after the other side confirmed it, and answers a probe with a reset then.
PROBE_INTERVAL_S = 30

_NO_EVENTS = 0  # a reset and the end of both directions are reported all the same


class HalfClosed:
    """The sockets of peers that will send nothing more, each with the function to call when the peer is gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._on_gone: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        if self._epoll is not None:
            loop.add_reader(self._epoll.fileno(), self._look)

    def __len__(self) -> int:
        return len(self._on_gone)

    def watch(self, sock: socket.socket, on_gone: Callable[[], None]) -> None:
        """Watch a socket until it is forgotten, which must be before it is closed."""
        if self._epoll is None:
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_INTERVAL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_INTERVAL_S)
        self._on_gone[sock.fileno()] = on_gone
        self._epoll.register(sock.fileno(), _NO_EVENTS)

    def forget(self, sock: socket.socket) -> None:
        if self._epoll is not None and self._on_gone.pop(sock.fileno(), None) is not None:
            self._epoll.unregister(sock.fileno())

    def close(self) -> None:
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _look(self) -> None:
        assert self._epoll is not None  # it is what the event loop reported
        for fd, _ in self._epoll.poll(0):
            self._on_gone[fd]()
