"""Time as a dependency: code that depends on time is handed a Clock, so that tests can turn it.

What always holds: `now_ms` is wall-clock time as records carry it; `monotonic_ms` never goes back and is the only one
that time-outs and intervals may use. Waits that a remote client asked for (a long poll, an idle connection) are kept by
the event loop and follow real time even when the clock is virtual.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, the unit of record timestamps."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds on a clock that never goes back."""
        ...

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever time was moved by hand; returns the function that ends it. Real clocks never call."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1_000_000

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        return _nothing


class VirtualClock:
    """A clock that stands still until a test moves it.

    >>> clock = VirtualClock(start_ms=1_000)
    >>> clock.advance(hours=1)
    >>> clock.now_ms()
    3601000
    """

    def __init__(self, start_ms: int | None = None) -> None:
        self._now_ms = time.time_ns() // 1_000_000 if start_ms is None else start_ms
        self._monotonic_ms = 0.0
        self._callbacks: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, ms: float = 0
    ) -> None:
        """Move time forward, then notify everyone who waits for it."""
        step_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + ms
        if step_ms < 0:
            raise ValueError("a clock can only be advanced forward")
        self._now_ms += round(step_ms)
        self._monotonic_ms += step_ms
        for callback in tuple(self._callbacks):
            callback()


def _nothing() -> None:
    return None
