"""A listening socket that accepts connections and passes them on.

What always holds: it accepts a limited number at a time, so that a burst of connects doesn't hold up requests. It stops
accepting while max.connections are open or the only file descriptors left are those needed for logs, and resumes when
there is room; each such stop is logged in one line. Meanwhile, clients wait in the kernel's backlog.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

from tidelog.broker.connection_set import ConnectionSet
from tidelog.common.congestion import prevent_pacing_on_loopback
from tidelog.common.endpoint import Endpoint
from tidelog.log.open_files import OPEN_FILES

logger = logging.getLogger(__name__)

_ACCEPTS_PER_TURN = 32
_PAUSE_WITHOUT_DESCRIPTORS_S = 0.5
_WITHOUT_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def bind(endpoint: Endpoint, *, backlog: int, receive_buffer_bytes: int = -1) -> socket.socket:
    """A listening socket; raises OSError if the address can't be used.

    A broker does this before it opens anything else, so that it notices a port conflict first. Clients that connect
    while it is loading wait in the backlog.
    """
    host = endpoint.host or "0.0.0.0"
    # As bytes, because Python has international names prepared for any other, and loads a table of all letters for it.
    name = host.encode() if host.isascii() else host
    family, kind, protocol, _, address = socket.getaddrinfo(
        name, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        # A restarted broker gets its port back while connections of its previous run linger.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        prevent_pacing_on_loopback(sock, str(address[0]))
        sock.bind(address)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


class Listener:
    """Accepts the connections of one listening socket."""

    def __init__(
        self, sock: socket.socket, listener_name: str, connections: ConnectionSet, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._listener_name = listener_name
        self._connections = connections
        self._loop = loop
        self._accepting = False
        self._closed = False
        self._pause: asyncio.TimerHandle | None = None
        self._is_short_of_descriptors = False
        connections.on_room(self._go_on)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._sock.getsockname()[:2]
        return host, port

    def start(self) -> None:
        self._set_accepting(True)

    def close(self) -> None:
        if self._closed:
            return
        self._set_accepting(False)
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._sock.close()

    def _on_connect(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if self._connections.is_full:
                logger.warning(
                    "max.connections=%d reached; new connections have to wait", self._connections.limits.connections_max
                )
                self._set_accepting(False)
                return
            if not OPEN_FILES.leaves_room_for(len(self._connections)):
                self._pause_accepting("the remaining file descriptors are reserved for logs")
                return
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _WITHOUT_DESCRIPTORS:
                    self._pause_accepting(str(error))
                    return
                continue  # this one client gave up before it was accepted
            self._is_short_of_descriptors = False
            try:
                self._connections.open(sock, address[0], self._listener_name)
            except OSError:
                sock.close()  # it was reset while its options were set

    def _pause_accepting(self, reason: str) -> None:
        if not self._is_short_of_descriptors:
            self._is_short_of_descriptors = True
            logger.error(
                "can't accept connections: %s; %d are open, new ones wait; raise ulimit -n, or lower max.open.files",
                reason,
                len(self._connections),
            )
        self._set_accepting(False)
        self._pause = self._loop.call_later(_PAUSE_WITHOUT_DESCRIPTORS_S, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self._go_on()

    def _go_on(self) -> None:
        if self._pause is None and not self._connections.is_full:
            self._set_accepting(True)

    def _set_accepting(self, wanted: bool) -> None:
        if self._closed or wanted == self._accepting:
            return
        self._accepting = wanted
        if wanted:
            self._loop.add_reader(self._fd, self._on_connect)
        else:
            self._loop.remove_reader(self._fd)
