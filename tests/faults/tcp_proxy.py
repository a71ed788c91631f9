"""A TCP proxy between a client and its broker that breaks connections as a test asks it to.

What always holds: it listens on loopback; bytes go through in order and unchanged until the fault; a fault is counted
in bytes of the direction it concerns, so a test can cut after each byte of an answer. It runs in a thread of its own.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 64 * 1024


class _Half:
    """One direction of one connection."""

    def __init__(self, source: socket.socket, target: socket.socket, *, is_answer: bool) -> None:
        self.source = source
        self.target = target
        self.is_answer = is_answer
        self.rests_until_s = 0.0  # with a rate: when the next bytes may go


class TcpProxy:
    """Forwards connections to `target_port`; set the attributes at any time, they hold from the next bytes on."""

    def __init__(self, target_port: int = 0) -> None:
        self.target_port = target_port
        self._guard = threading.Lock()
        self._halves: dict[socket.socket, _Half] = {}
        self.reset()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._main, name="tcp-proxy", daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """End all faults, connections and counts, as if it was just made."""
        # The connections are reset once this many more bytes of answers went through; None: never.
        self.cut_after_answer_bytes: int | None = None
        self.cut_after_request_bytes: int | None = None
        # Bytes are held back while this is set; the connection stays open, as with a broker that hangs.
        self.stalled = False
        # How many bytes a second go through in each direction of each connection; None: as many as come.
        self.bytes_per_second: int | None = None
        self.refusing = False
        self.answer_bytes = 0
        self.request_bytes = 0
        self.connections_made = 0
        self.connections_refused = 0
        self.cuts = 0
        self.cut_all()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._ending.set()
        self._thread.join(10)
        self.cut_all()
        self._listener.close()
        self._selector.close()

    def cut_all(self) -> None:
        """Reset every connection now."""
        with self._guard:
            for half in list(self._halves.values()):
                self._cut(half)

    def wait_for(self, condition: Callable[[], bool], deadline_s: float = 20.0) -> None:
        ends_s = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > ends_s:
                raise TimeoutError("what the test waits for did not happen at the proxy")
            time.sleep(0.002)

    def _main(self) -> None:
        while not self._ending.is_set():
            if self.stalled:
                self._ending.wait(0.002)
                continue
            rests = False
            for key, _ in self._selector.select(0.02):
                with self._guard:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._halves:
                        half = self._halves[key.fileobj]
                        if half.rests_until_s > time.monotonic():
                            rests = True
                        else:
                            self._forward(half)
            if rests:
                self._ending.wait(0.002)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self.refusing:
            self.connections_refused += 1
            client.close()
            return
        try:
            broker = socket.create_connection(("127.0.0.1", self.target_port), timeout=5)
        except OSError:
            client.close()
            return
        self.connections_made += 1
        for half in (_Half(client, broker, is_answer=False), _Half(broker, client, is_answer=True)):
            half.source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._halves[half.source] = half
            self._selector.register(half.source, selectors.EVENT_READ, half)

    def _forward(self, half: _Half) -> None:
        left = self.cut_after_answer_bytes if half.is_answer else self.cut_after_request_bytes
        rate = self.bytes_per_second
        chunk_bytes = _CHUNK_BYTES if rate is None else max(1, rate // 50)
        try:
            data = half.source.recv(chunk_bytes if left is None else max(1, min(left, chunk_bytes)))
            if not data:
                self._cut(half)
                return
            if left is not None and left <= 0:
                self._cut(half)
                self._spent(half)
                return
            # Counted first: who has the bytes may ask how many there were.
            if half.is_answer:
                self.answer_bytes += len(data)
            else:
                self.request_bytes += len(data)
            half.target.sendall(data)
            if rate is not None:
                half.rests_until_s = time.monotonic() + len(data) / rate
        except OSError:
            self._cut(half)
            return
        if left is not None:
            left -= len(data)
            if half.is_answer:
                self.cut_after_answer_bytes = left
            else:
                self.cut_after_request_bytes = left
            if left == 0:
                self._cut(half)
                self._spent(half)

    def _spent(self, half: _Half) -> None:
        """The fault has happened, and happens once."""
        self.cuts += 1
        if half.is_answer:
            self.cut_after_answer_bytes = None
        else:
            self.cut_after_request_bytes = None

    def _cut(self, half: _Half) -> None:
        for end in (half.source, half.target):
            if self._halves.pop(end, None) is not None:
                self._selector.unregister(end)
            end.close()
