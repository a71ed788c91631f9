"""The clock of simulated processes: the time of their event loop; the wall clock may be wrong, and jump."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulated_loop import SimulatedLoop

_START_MS: Final = 1_700_000_000_000


class SimulatedClock:
    """A `Clock` that goes as the loop goes."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        # How wrong the time of day is; the monotonic time never jumps.
        self.wrong_by_ms = 0

    def now_ms(self) -> int:
        return _START_MS + int(self._loop.time() * 1000) + self.wrong_by_ms

    def monotonic_ms(self) -> float:
        return self._loop.time() * 1000

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None
