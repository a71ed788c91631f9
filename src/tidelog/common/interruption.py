"""Signals that end a command: noted when they come, obeyed where the command says so."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, Self

POLL_S = 0.1

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Ctrl-C, SIGTERM and a closed terminal end a command between two steps, when it is known what to clean up.

    An exception out of a signal handler may come up anywhere, even where Python drops it. A second signal does so.
    """

    def __init__(self) -> None:
        self._number: int | None = None

    def check(self) -> None:
        """Raise if the command is to end."""
        if self._number is not None:
            _raise_for(self._number)

    @property
    def has_come(self) -> bool:
        return self._number is not None

    def wait(self, seconds: float) -> None:
        """Sleep, but not through a signal."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            self.check()
            time.sleep(min(POLL_S, left_s))

    @contextmanager
    def caught(self) -> Iterator[Self]:
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._number is not None:
            _raise_for(number)
        self._number = number


@contextmanager
def ended_by_signals() -> Iterator[Callable[[], None]]:
    """Let a signal raise where the command is, so that its `finally` blocks run; later ones do not disturb those.

    Gives a function that a command which runs on and on has to call now and then. It raises once a signal has come:
    Python drops what is raised while it happens to be in a finalizer or in a callback. SIGINT counts even where the
    shell has it ignored, as for a command in the background of a script; an ignored SIGHUP stays ignored, for nohup.
    """
    came: int | None = None

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal came
        if came is None:
            came = number
            _raise_for(number)

    def check() -> None:
        if came is not None:
            _raise_for(came)

    numbers = [each for each in _SIGNALS if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep signals back until the work inside is done, such as starting a process and noting that it is there."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread
        return
    kept_back: list[int] = []
    before = {number: signal.signal(number, lambda number, _: kept_back.append(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for came in kept_back:
            signal.raise_signal(came)


def _raise_for(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)  # as a shell counts it
