"""All open connections of a broker: limits, idle time, counts and shutdown.

What always holds: no more connections are open than max.connections and max.connections.per.ip allow; one timer finds
the idle ones among all of them. A connection that waits for a response is not idle; one that does not read its
response, or will send nothing more, is.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tidelog.broker.connection import Connection
from tidelog.broker.dispatch import Dispatcher
from tidelog.broker.half_closed import HalfClosed
from tidelog.broker.log_limit import LimitedLog
from tidelog.broker.memory import ReceiveMemory
from tidelog.broker.request_context import ClientSession
from tidelog.common.congestion import stop_pacing_on_loopback
from tidelog.common.light_dataclass import dataclass
from tidelog.common.settings import Settings

logger = logging.getLogger(__name__)

# The idle time is counted in this many ticks, so a connection is closed at most an eighth too late.
_TICKS_PER_IDLE_TIME = 8

# Disks serve a few reads in parallel; beyond that, reads would only wait longer for each other.
_COLD_READ_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """What a broker allows its clients; the fields correspond to Kafka's settings of similar names."""

    request_bytes_max: int
    queued_request_bytes_max: int
    queued_response_bytes_max: int
    connections_max: int
    connections_max_per_ip: int
    idle_ms_max: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    listen_backlog: int

    @classmethod
    def from_settings(cls, settings: Settings) -> NetworkLimits:
        return cls(
            request_bytes_max=settings.get_int("socket.request.max.bytes"),
            queued_request_bytes_max=settings.get_int("queued.max.request.bytes"),
            queued_response_bytes_max=settings.get_int("tidelog.queued.max.response.bytes"),
            connections_max=settings.get_int("max.connections"),
            connections_max_per_ip=settings.get_int("max.connections.per.ip"),
            idle_ms_max=settings.get_int("connections.max.idle.ms"),
            send_buffer_bytes=settings.get_int("socket.send.buffer.bytes"),
            receive_buffer_bytes=settings.get_int("socket.receive.buffer.bytes"),
            listen_backlog=settings.get_int("socket.listen.backlog.size"),
        )


class ConnectionSet:
    """Opens, counts and closes the connections of one broker."""

    def __init__(self, limits: NetworkLimits, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop) -> None:
        self.limits = limits
        self.dispatcher = dispatcher
        self.memory = ReceiveMemory(limits.queued_request_bytes_max, limits.request_bytes_max, loop)
        # Reads records that are no longer in memory.
        self.cold_reads = ThreadPoolExecutor(_COLD_READ_THREADS, thread_name_prefix="cold-reads")
        self.half_closed = HalfClosed(loop)
        # A tick counter; connections note it instead of reading the clock for every request.
        self.tick = 0
        self.accepted_total = 0
        self._closed_received_bytes = 0
        self._closed_sent_bytes = 0
        self._loop = loop
        self._log = LimitedLog(logger)
        self._open: set[Connection] = set()
        self._open_by_host: Counter[str] = Counter()
        self._on_room: list[Callable[[], None]] = []
        self._emptied: asyncio.Event | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        if limits.idle_ms_max > 0:
            self._idle_timer = loop.call_later(self._tick_s, self._close_idle)

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> tuple[Connection, ...]:
        return tuple(self._open)

    @property
    def is_full(self) -> bool:
        return len(self._open) >= self.limits.connections_max

    @property
    def received_bytes(self) -> int:
        return self._closed_received_bytes + sum(connection.received_bytes for connection in self._open)

    @property
    def sent_bytes(self) -> int:
        return self._closed_sent_bytes + sum(connection.sent_bytes for connection in self._open)

    def change_limits(self, limits: NetworkLimits) -> None:
        """Allow more or fewer connections from now on; open ones stay open."""
        self.limits = limits
        for callback in self._on_room:
            callback()

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call back when a connection closes or more are allowed, so that a paused listener can resume."""
        self._on_room.append(callback)

    def open(self, sock: socket.socket, host: str, listener_name: str) -> None:
        """Take over an accepted socket, or close it if its host has too many."""
        limits = self.limits
        if self._open_by_host[host] >= limits.connections_max_per_ip:
            sock.close()
            self._log.log(
                logging.WARNING, "refused a connection from %s: it already has max.connections.per.ip open", host
            )
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stop_pacing_on_loopback(sock, host)
        # Hosts that vanish silently are noticed even if idle connections are never closed.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if limits.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        self.accepted_total += 1
        self._open_by_host[host] += 1
        session = ClientSession(client_host=host, listener_name=listener_name)
        self._open.add(Connection(sock, session, self, self.dispatcher, self.memory, self._loop))

    def closed(self, connection: Connection, reason: str, level: int) -> None:
        """A connection closed itself."""
        host = connection.session.client_host
        self._log.log(level, "connection from %s %s", host, reason)
        self._open.discard(connection)
        self._open_by_host[host] -= 1
        if not self._open_by_host[host]:
            del self._open_by_host[host]
        self._closed_received_bytes += connection.received_bytes
        self._closed_sent_bytes += connection.sent_bytes
        for callback in self._on_room:
            callback()
        if self._emptied is not None and not self._open:
            self._emptied.set()

    async def drain(self, deadline_s: float) -> None:
        """Finish every request that was started, then close; what is not done by the deadline is cut off."""
        self._emptied = asyncio.Event()
        for connection in tuple(self._open):
            connection.drain()
        if self._open:
            try:
                async with asyncio.timeout(deadline_s):
                    await self._emptied.wait()
            except TimeoutError:
                logger.warning("%d connections were still waiting for answers when the shutdown ended", len(self._open))
        self.close()

    def close(self) -> None:
        """Close everything now."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for connection in tuple(self._open):
            connection.close("closed: the broker is stopping")
        self.half_closed.close()
        self.cold_reads.shutdown(wait=False)

    @property
    def _tick_s(self) -> float:
        return self.limits.idle_ms_max / 1000 / _TICKS_PER_IDLE_TIME

    def _close_idle(self) -> None:
        self.tick += 1
        oldest_tick = self.tick - _TICKS_PER_IDLE_TIME
        for connection in tuple(self._open):
            if connection.waits_for_answer:
                connection.idle_since_tick = self.tick
            elif connection.idle_since_tick < oldest_tick:
                connection.close(f"was idle for {self.limits.idle_ms_max} ms")
        self._idle_timer = self._loop.call_later(self._tick_s, self._close_idle)
