"""Keeps peers from filling the log: a misbehaving client can repeat its mistake thousands of times a second.

What always holds: the first lines of an interval are written as they come; suppressed lines are counted, and the first
line of a later interval reports how many there were.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_LINES_PER_INTERVAL_MAX = 20
_INTERVAL_S = 10.0


class LimitedLog:
    """A logger that writes a limited number of lines per interval."""

    def __init__(self, logger: logging.Logger, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._monotonic_s = monotonic_s
        self._interval_ends_s = 0.0
        self._lines = 0
        self._left_out = 0

    def log(self, level: int, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        if not self._logger.isEnabledFor(level):
            return
        now_s = self._monotonic_s()
        if now_s >= self._interval_ends_s:
            self._interval_ends_s = now_s + _INTERVAL_S
            self._lines = 0
            if self._left_out:
                self._logger.log(level, "%d more lines about connections were suppressed", self._left_out)
                self._left_out = 0
        if self._lines >= _LINES_PER_INTERVAL_MAX:
            self._left_out += 1
            return
        self._lines += 1
        self._logger.log(level, message, *args, exc_info=exc_info)
