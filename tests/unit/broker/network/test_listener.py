"""A listener accepts what it may, pauses when it can't, and goes on by itself."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import cast

import pytest

from tidelog.broker.connection_set import ConnectionSet
from tidelog.broker.listener import Listener
from tidelog.log.open_files import OPEN_FILES


class _Loop:
    """An event loop that only remembers what it was asked for."""

    def __init__(self) -> None:
        self.reader: Callable[[], None] | None = None
        self.timers: list[Callable[[], None]] = []

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self.reader = callback

    def remove_reader(self, fd: int) -> None:
        self.reader = None

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> object:
        self.timers.append(callback)
        return callback


class _ListeningSocket:
    def __init__(self, *outcomes: OSError | str) -> None:
        self.outcomes = list(outcomes)

    def fileno(self) -> int:
        return 3

    def accept(self) -> tuple[str, tuple[str, int]]:
        if not self.outcomes:
            raise BlockingIOError
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome, ("10.0.0.1", 1)


class _Connections:
    def __init__(self, room: int = 1000) -> None:
        self.opened: list[str] = []
        self.room = room
        self.callback: Callable[[], None] | None = None
        self.limits = type("Limits", (), {"connections_max": room})

    def on_room(self, callback: Callable[[], None]) -> None:
        self.callback = callback

    def __len__(self) -> int:
        return len(self.opened)

    @property
    def is_full(self) -> bool:
        return len(self.opened) >= self.room

    def open(self, sock: str, host: str, listener_name: str) -> None:
        self.opened.append(sock)


def _listener(sock: _ListeningSocket, connections: _Connections) -> _Loop:
    loop = _Loop()
    Listener(
        cast(socket.socket, sock),
        "PLAINTEXT",
        cast(ConnectionSet, connections),
        cast(asyncio.AbstractEventLoop, loop),
    ).start()
    return loop


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS])
def test_without_file_descriptors_it_pauses_and_tries_again(number: int, caplog: pytest.LogCaptureFixture) -> None:
    connections = _Connections()
    trouble = OSError(number, "too many open files")
    loop = _listener(_ListeningSocket("a", trouble, trouble, "b"), connections)
    assert loop.reader is not None
    loop.reader()
    assert connections.opened == ["a"]
    assert loop.reader is None, "a listening socket that stays readable would spin"
    assert connections.callback is not None
    connections.callback()
    assert loop.reader is None, "it waits for its own time"
    for _ in range(2):
        loop.timers.pop()()
        assert loop.reader is not None
        loop.reader()
    assert connections.opened == ["a", "b"]
    assert len(caplog.records) == 1, "the same trouble is told once"


def test_the_last_descriptors_are_left_to_the_logs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connections = _Connections()
    loop = _listener(_ListeningSocket("a", "b", "c"), connections)
    monkeypatch.setattr(OPEN_FILES, "leaves_room_for", lambda count: count < 2)
    assert loop.reader is not None
    loop.reader()
    assert connections.opened == ["a", "b"]
    assert loop.reader is None
    assert len(caplog.records) == 1
    monkeypatch.undo()
    loop.timers.pop()()
    assert loop.reader is not None
    loop.reader()
    assert connections.opened == ["a", "b", "c"]


def test_a_client_that_gave_up_does_not_stop_the_next() -> None:
    connections = _Connections()
    loop = _listener(_ListeningSocket(ConnectionAbortedError(errno.ECONNABORTED, "gone"), "b"), connections)
    assert loop.reader is not None
    loop.reader()
    assert connections.opened == ["b"]
    assert loop.reader is not None


def test_it_accepts_no_more_than_allowed_until_there_is_room() -> None:
    connections = _Connections(room=1)
    loop = _listener(_ListeningSocket("a", "b"), connections)
    assert loop.reader is not None
    loop.reader()
    assert connections.opened == ["a"]
    assert loop.reader is None
    connections.opened.clear()
    assert connections.callback is not None
    connections.callback()
    assert loop.reader is not None
    loop.reader()
    assert connections.opened == ["b"]


def test_a_storm_is_taken_a_bounded_number_at_a_time() -> None:
    connections = _Connections()
    loop = _listener(_ListeningSocket(*("x" for _ in range(500))), connections)
    assert loop.reader is not None
    loop.reader()
    assert 0 < len(connections.opened) < 100
