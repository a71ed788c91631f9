"""A network between simulated processes: streams of bytes that arrive late, in pieces, or not at all.

What always holds: the bytes of a connection arrive in order or the connection breaks, as with TCP; what was sent before
an end was closed, or its process killed, may still arrive, unless its sender is one for whom only requests that are
not `may_be_late` are safe: then it is lost with the connection. What is lost on a broken connection can't be told from
what was only not answered. What a machine sends to another that it is cut off from is lost with its connection, which
both ends notice only after a while; a cut may be in one direction. A broker, and the real client, have sockets of the
usual kind; simple clients have `ClientConnection`.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import struct
from collections import deque
from dataclasses import dataclass
from typing import Any

from simulated_loop import Process, SimulatedLoop

_FIRST_FD = 1_000_000
ANY_ADDRESS = ("127.0.0.1", 9092)

# A connection over which nothing arrives any more is given up by the kernel, or by who waits for an answer.
_CUT_NOTICED_S = (0.5, 10.0)
# Connecting to a machine that is cut off: those who wait have time-outs of their own.
_UNREACHABLE_S = 60.0
_SIZE = struct.Struct(">i")


@dataclass
class Weather:
    """How the network treats what is sent; `calm` is for the time in which everybody must come to an end."""

    delay_s: float = 0.001
    break_share: float = 0.0
    split_share: float = 0.0
    # Of what is sent by those who allow it, this share takes up to `late_s`: its sender has given up by then.
    late_share: float = 0.0
    late_s: float = 8.0

    def calm(self) -> None:
        self.delay_s = 0.0005
        self.break_share = self.late_share = 0.0


class SimulatedSocket:
    """One end of a connection, as far as a broker uses it."""

    def __init__(
        self,
        network: SimulatedNetwork,
        process: Process,
        fd: int,
        address: tuple[str, int],
        *,
        is_client: bool,
        may_be_late: bool,
    ) -> None:
        self._network = network
        self._address = address
        self.process = process
        # Its own: a broker that stops closes its connections in any order.
        self.random = random.Random(network.seed + fd)
        self.is_client = is_client
        self.peer: SimulatedSocket | None = None
        self.may_be_late = may_be_late
        self.arrived = bytearray()
        self.has_ended = False
        self.is_broken = False
        self.is_closed = False
        # Nothing that is sent goes anywhere any more, though nobody has noticed.
        self.is_cut = False
        # When the last bytes that were sent from here arrive.
        self.last_arrival_s = 0.0
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def setsockopt(self, *_: object) -> None:
        """It has no options."""

    @property
    def is_readable(self) -> bool:
        return not self.is_closed and bool(self.arrived or self.has_ended or self.is_broken)

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        if self.is_broken:
            raise ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        if not self.arrived:
            if self.has_ended:
                return 0
            raise BlockingIOError
        size_bytes = min(len(self.arrived), len(buffer))
        memoryview(buffer)[:size_bytes] = memoryview(self.arrived)[:size_bytes]
        del self.arrived[:size_bytes]
        return size_bytes

    def getsockopt(self, *_: object) -> bytes:
        """No congestion control, and nothing else that is worth asking for."""
        return b""

    def send(self, data: Any, _flags: int = 0) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: Any, _ancillary: Any = (), _flags: int = 0) -> int:
        if self.is_broken or self.is_closed:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        data = b"".join(buffers)
        self._network.transmit(self, data)
        return len(data)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._network.ended(self)


class SimulatedListener:
    """A listening socket."""

    def __init__(self, network: SimulatedNetwork, process: Process, fd: int, address: tuple[str, int]) -> None:
        self.process = process
        self.address = address
        self.waiting: deque[SimulatedSocket] = deque()
        self.is_accepting = True
        self._network = network
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def accept(self) -> tuple[SimulatedSocket, tuple[str, int]]:
        if not self.waiting:
            raise BlockingIOError
        return self.waiting.popleft(), ("127.0.0.1", 0)

    def close(self) -> None:
        self.is_accepting = False
        self._network.stop_listening(self)


class SimulatedNetwork:
    """All connections of one simulation."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, weather: Weather) -> None:
        self.weather = weather
        self._loop = loop
        self.seed = rng.getrandbits(64)
        self._random = rng
        self._fds = itertools.count(_FIRST_FD)
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        self._sockets: dict[int, SimulatedSocket] = {}
        self._open: dict[Process, dict[SimulatedSocket, None]] = {}
        # From whom to whom nothing arrives, by the names of machines.
        self._cuts: set[tuple[str, str]] = set()
        self.broken = 0
        self.late = 0
        self.lost_to_cuts = 0

    # Cuts

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing that one machine sends arrives at the other any more."""
        self._cuts.add((sender, receiver))

    def heal(self) -> None:
        self._cuts.clear()

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._cuts

    # Connections

    def listen(self, address: tuple[str, int] = ANY_ADDRESS) -> SimulatedListener:
        process = self._loop.current
        listener = SimulatedListener(self, process, next(self._fds), address)
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, "address already in use")
        self._listeners[address] = listener
        process.on_death.append(lambda: self.stop_listening(listener))
        return listener

    def stop_listening(self, listener: SimulatedListener) -> None:
        self._loop.forget(listener.fileno())
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]
        for socket in listener.waiting:
            socket.close()

    async def connect(self, *, may_be_late: bool = False, address: tuple[str, int] = ANY_ADDRESS) -> ClientConnection:
        """Connect to whoever listens; raises ConnectionError."""
        return ClientConnection(await self.dial(address, may_be_late=may_be_late), self._loop)

    async def dial(self, address: tuple[str, int], *, may_be_late: bool = False) -> SimulatedSocket:
        """A socket that is connected; raises ConnectionError."""
        process = self._loop.current
        await asyncio.sleep(self._delay_s(self._random))
        listener = self._listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        there = listener.process.host
        if self.is_cut(process.host, there) or self.is_cut(there, process.host):
            await asyncio.sleep(_UNREACHABLE_S)
            raise TimeoutError(errno.ETIMEDOUT, "connection timed out")
        near = self._socket(process, address, is_client=True, may_be_late=may_be_late)
        far = self._socket(listener.process, address, is_client=False, may_be_late=False)
        near.peer, far.peer = far, near
        listener.waiting.append(far)
        self._loop.set_readable(listener.fileno(), lambda: bool(listener.waiting))
        return near

    def sendfile(self, socket_fd: int, file_fd: int, position: int, size_bytes: int) -> int:
        """`os.sendfile` for these sockets."""
        return self._sockets[socket_fd].send(os.pread(file_fd, size_bytes, position))

    def owns(self, fd: int) -> bool:
        return fd in self._sockets

    def _socket(
        self, process: Process, address: tuple[str, int], *, is_client: bool, may_be_late: bool
    ) -> SimulatedSocket:
        if process not in self._open:
            self._open[process] = {}
            process.on_death.append(lambda: self._end_all(process))
        socket = SimulatedSocket(self, process, next(self._fds), address, is_client=is_client, may_be_late=may_be_late)
        self._open[process][socket] = None
        self._sockets[socket.fileno()] = socket
        return socket

    def _end_all(self, process: Process) -> None:
        for socket in tuple(self._open.pop(process)):
            socket.close()

    def transmit(self, sender: SimulatedSocket, data: bytes) -> None:
        if not sender.process.is_alive or sender.is_cut:
            return
        assert sender.peer is not None
        if self.is_cut(sender.process.host, sender.peer.process.host):
            self._lose(sender)
            return
        if sender.random.random() < self.weather.break_share:
            self._break(sender)
            return
        pieces = [data]
        if len(data) > 1 and sender.random.random() < self.weather.split_share:
            cut = sender.random.randrange(1, len(data))
            pieces = [data[:cut], data[cut:]]
        for piece in pieces:
            self._deliver(sender, lambda receiver, piece=piece: receiver.arrived.extend(piece))

    def ended(self, sender: SimulatedSocket) -> None:
        """One end is closed; the other learns of it behind all that was sent."""
        self._loop.forget(sender.fileno())
        self._sockets.pop(sender.fileno(), None)
        self._open.get(sender.process, {}).pop(sender, None)
        assert sender.peer is not None
        if sender.is_cut:
            return
        if self.is_cut(sender.process.host, sender.peer.process.host):
            self._lose(sender)
        else:
            self._deliver(sender, _end)

    def _break(self, sender: SimulatedSocket) -> None:
        """What is under way is lost, and each end learns of it some time."""
        self.broken += 1
        for socket in (sender, sender.peer):
            assert socket is not None
            socket.is_cut = True
            self._loop.schedule(
                socket.process, self._loop.time() + self._delay_s(socket.random), self._notice_break, socket
            )

    def _lose(self, sender: SimulatedSocket) -> None:
        """What is sent across a cut is lost, and the connection with it; what comes the other way still arrives."""
        self.lost_to_cuts += 1
        sender.is_cut = True
        for socket in (sender, sender.peer):
            assert socket is not None
            noticed_s = self._loop.time() + socket.random.uniform(*_CUT_NOTICED_S)
            self._loop.schedule(socket.process, noticed_s, self._notice_break, socket)

    def _notice_break(self, socket: SimulatedSocket) -> None:
        socket.is_broken = True
        self._wake(socket)

    def _deliver(self, sender: SimulatedSocket, arrive: Any) -> None:
        receiver = sender.peer
        assert receiver is not None
        delay_s = self._delay_s(sender.random)
        if sender.may_be_late and sender.random.random() < self.weather.late_share:
            delay_s += sender.random.uniform(0, self.weather.late_s)
            self.late += 1
        sender.last_arrival_s = max(sender.last_arrival_s, self._loop.time() + delay_s)

        def at_arrival() -> None:
            is_lost = (
                arrive is not _end
                and not sender.may_be_late
                and sender.is_client
                and (sender.is_cut or sender.is_closed)
            )
            if not is_lost and not receiver.is_broken and not receiver.is_closed:
                arrive(receiver)
                self._wake(receiver)

        self._loop.schedule(receiver.process, sender.last_arrival_s, at_arrival)

    def _wake(self, socket: SimulatedSocket) -> None:
        self._loop.set_readable(socket.fileno(), lambda: socket.is_readable)

    def _delay_s(self, rng: random.Random) -> float:
        return rng.expovariate(1 / self.weather.delay_s)


def _end(receiver: SimulatedSocket) -> None:
    receiver.has_ended = True


class ClientConnection:
    """A client's end: frames out, frames in."""

    def __init__(self, socket: SimulatedSocket, loop: SimulatedLoop) -> None:
        self._socket = socket
        self._loop = loop
        self._received = bytearray()
        self._waiting: asyncio.Future[None] | None = None
        loop.add_reader(socket.fileno(), self._on_readable)

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)

    async def receive(self, timeout_s: float) -> bytes:
        """The next frame without its size; raises ConnectionError or TimeoutError."""
        deadline_s = self._loop.time() + timeout_s
        while True:
            if len(self._received) >= _SIZE.size:
                end = _SIZE.size + _SIZE.unpack_from(self._received)[0]
                if len(self._received) >= end:
                    frame = bytes(self._received[_SIZE.size : end])
                    del self._received[:end]
                    return frame
            if self._socket.is_broken or self._socket.has_ended:
                raise ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
            self._waiting = self._loop.create_future()
            async with asyncio.timeout_at(deadline_s):
                await self._waiting

    def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _on_readable(self) -> None:
        if self._socket.is_broken or (self._socket.has_ended and not self._socket.arrived):
            self._loop.remove_reader(self._socket.fileno())
        self._received += self._socket.arrived
        self._socket.arrived.clear()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
