"""How fast a replay runs: the rate it must not exceed, and the time left at its current speed.

What always holds: in any period of a replay, it starts no more offsets than the rate allows for that period, plus one
chunk. Plain arithmetic; the caller supplies the clock.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

CHUNK_INTERVAL_S = 1.0  # how often a replay with a rate starts a chunk: often enough for even traffic
CHUNK_OFFSETS = 500_000  # without a rate: large enough that the cost of starting a Spark job doesn't matter
SPEED_WINDOW_S = 30.0  # older measurements say little about the time left

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmM]?)\s*(?:/s)?")
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


def parse_rate(text: str) -> float:
    """Rows per second, such as `5000`, `5k`, `0.5` or `2k/s`; raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    rate = float(match[1]) * _UNITS[match[2].lower()] if match else 0.0
    if rate <= 0:
        raise ValueError(f"{text!r} is not a rate; write rows per second, such as 5000 or 20k")
    return rate


@dataclass(slots=True)
class Pace:
    """When the next chunk may start, and how large it is."""

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
        """Record that a chunk with this many offsets starts.

        A replay that falls behind, because Spark or the broker is slower than the rate, doesn't catch up later: the
        rate protects others who use the broker.
        """
        if self.rate is not None:
            self._next_s = now_s + offsets / self.rate


@dataclass(slots=True)
class Speed:
    """Recent offsets per second, and the time left at that speed."""

    _points: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now_s: float, done: int) -> None:
        self._points.append((now_s, done))
        while len(self._points) > 2 and self._points[0][0] < now_s - SPEED_WINDOW_S:
            self._points.popleft()

    @property
    def offsets_per_second(self) -> float | None:
        """None until there are two measurements."""
        if len(self._points) < 2:
            return None
        (first_s, first), (last_s, last) = self._points[0], self._points[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None

    def left_s(self, left: int) -> float | None:
        """None if it can't be estimated."""
        speed = self.offsets_per_second
        return left / speed if speed else None
