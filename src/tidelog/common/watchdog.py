"""Tells a slow machine from one where nothing is happening."""

from __future__ import annotations

import time
from collections.abc import Callable


class Watchdog:
    """Knows how long something has not changed."""

    def __init__(self, standstill_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._standstill_s = standstill_s
        self._clock = clock
        self._last: object = None
        self._since_s = clock()

    def is_standstill(self, state: object) -> bool:
        """Whether the state has been the same for too long."""
        if state != self._last:
            self._last = state
            self._since_s = self._clock()
        return self._clock() - self._since_s > self._standstill_s
