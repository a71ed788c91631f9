"""How fast a replay goes: the rate it must not exceed, and when it will be done at the speed it has.

What always holds: within any stretch of a replay, no more offsets are begun than the rate allows for the time since it
started, plus one chunk. Plain arithmetic; whoever waits brings the clock.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

CHUNK_INTERVAL_S = 1.0  # how often a replay with a rate begins a chunk: often enough that traffic is even
CHUNK_OFFSETS = 500_000  # without a rate: large enough that the start of a Spark job does not matter
SPEED_WINDOW_S = 30.0  # what lies further back says little about the time left

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmM]?)\s*(?:/s)?")
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


def parse_rate(text: str) -> float:
    """Rows a second: `5000`, `5k`, `0.5`, `2k/s`; raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    rate = float(match[1]) * _UNITS[match[2].lower()] if match else 0.0
    if rate <= 0:
        raise ValueError(f"{text!r} is no rate; write rows a second, as 5000 or 20k")
    return rate


@dataclass(slots=True)
class Pace:
    """When the next chunk may begin, and how large it is."""

    rate: float | None
    _next_s: float | None = None

    @property
    def chunk_offsets(self) -> int:
        if self.rate is None:
            return CHUNK_OFFSETS
        return max(1, min(CHUNK_OFFSETS, round(self.rate * CHUNK_INTERVAL_S)))

    def wait_s(self, now_s: float) -> float:
        """How long the next chunk has to wait."""
        return 0.0 if self._next_s is None else max(0.0, self._next_s - now_s)

    def begin(self, offsets: int, now_s: float) -> None:
        """Note that a chunk of so many offsets begins.

        A replay that is late, because Spark or the broker is slower than the rate, does not catch up later: the rate
        is for those who share the broker.
        """
        if self.rate is not None:
            self._next_s = now_s + offsets / self.rate


@dataclass(slots=True)
class Speed:
    """Offsets a second over the last while, and the time left at that speed."""

    _points: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now_s: float, done: int) -> None:
        self._points.append((now_s, done))
        while len(self._points) > 2 and self._points[0][0] < now_s - SPEED_WINDOW_S:
            self._points.popleft()

    @property
    def offsets_per_second(self) -> float | None:
        """None until two moments were noted."""
        if len(self._points) < 2:
            return None
        (first_s, first), (last_s, last) = self._points[0], self._points[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None

    def left_s(self, left: int) -> float | None:
        """None when it can't be told."""
        speed = self.offsets_per_second
        return left / speed if speed else None
