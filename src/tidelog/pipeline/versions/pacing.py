"""How fast a replay may run: at a fixed rate, or at one that drops when the broker gets slower.

What always holds: pure functions without a clock or I/O; the rate never falls below `ROWS_PER_S_MIN`, so a replay makes
progress however slow the broker is; a rate that is not used up is not raised. The normal latency is measured before the
replay starts, and again whenever the rate is at its minimum: if the broker is still slow then, the replay is not the
cause.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# At the minimum rate a replay still ends some day, and a broker doesn't notice this many rows.
ROWS_PER_S_MIN = 500.0
ROWS_PER_S_START = 10_000.0
ROWS_PER_S_MAX = 100_000_000.0

# A broker counts as slower than normal if the tail of the probes exceeds the normal by this factor and this much.
SLOWER_TIMES = 1.5
SLOWER_MS = 2.0
# How the rate changes: it is cut by this factor when the broker is slower, doubled until the first time it was too
# high, and afterwards raised by a share of the rate that was too high.
_DECREASE = 0.5
_INCREASE_SHARE = 0.08
# If less than this share of the allowed rows was read, the limit is not what slowed the replay down.
_USED_SHARE = 0.7
# How many windows are evaluated together, because a single slow one may have any cause. A new rate starts over.
_WINDOWS = 3
# How fast a normal latency that was measured in bad times comes down again, per window.
_NORMAL_DECAY = 0.1


@dataclass(frozen=True, slots=True)
class Pace:
    """The rate that is currently allowed, and what it was derived from."""

    rows_per_s: float = ROWS_PER_S_START
    # The tail of the probes while nothing, or hardly anything, was replayed.
    normal_ms: float = 0.0
    # The rate that was too high the last time the broker got slower; None before that.
    too_much: float | None = None
    # The tails of the last windows at this rate.
    tails_ms: tuple[float, ...] = ()

    @property
    def slow_ms(self) -> float:
        """The latency above which the broker counts as slower."""
        return max(self.normal_ms * SLOWER_TIMES, self.normal_ms + SLOWER_MS)


def tail_ms(probes_ms: Sequence[float]) -> float:
    """The 90th percentile of the probes, which ignores single outliers in a window."""
    ordered = sorted(probes_ms)
    return ordered[min(math.ceil(len(ordered) * 0.9), len(ordered)) - 1]


def adapted(pace: Pace, probes_ms: Sequence[float], used_rows_per_s: float) -> Pace:
    """The pace after a window with these probe latencies and this many rows read per second."""
    if not probes_ms:
        return pace
    tails_ms = (*pace.tails_ms, tail_ms(probes_ms))[-_WINDOWS:]
    measured_ms = statistics.median(tails_ms)
    pace = dataclasses.replace(pace, tails_ms=tails_ms)
    if measured_ms > pace.slow_ms:
        # With two windows the better one counts, with three the one in the middle.
        is_sure = len(tails_ms) >= _WINDOWS or (len(tails_ms) > 1 and min(tails_ms) > pace.slow_ms)
        return _slower(pace, measured_ms, used_rows_per_s) if is_sure else pace
    if measured_ms < pace.normal_ms:
        pace = dataclasses.replace(pace, normal_ms=pace.normal_ms + _NORMAL_DECAY * (measured_ms - pace.normal_ms))
    if used_rows_per_s < pace.rows_per_s * _USED_SHARE:
        return pace
    if pace.too_much is None:
        faster = pace.rows_per_s * 2
    else:
        faster = pace.rows_per_s + max(pace.too_much * _INCREASE_SHARE, ROWS_PER_S_MIN)
    return dataclasses.replace(pace, rows_per_s=min(faster, ROWS_PER_S_MAX))


def _slower(pace: Pace, measured_ms: float, used_rows_per_s: float) -> Pace:
    if pace.rows_per_s <= ROWS_PER_S_MIN:
        # It is this slow without the replay, so that is normal now, and the highest good rate must be found again.
        return dataclasses.replace(pace, normal_ms=measured_ms, too_much=None, tails_ms=())
    # If less was read than allowed, even that was already too much.
    blamed = min(pace.rows_per_s, max(used_rows_per_s, ROWS_PER_S_MIN))
    lowered = max(blamed * _DECREASE, ROWS_PER_S_MIN)
    return dataclasses.replace(pace, rows_per_s=lowered, too_much=blamed, tails_ms=())


def rows_of_batch(rows_per_s: float, trigger_s: float, batch_s: float) -> int:
    """How many rows a micro-batch may have to keep to a rate; batches start a trigger apart, or back to back.

    A batch that takes longer than the trigger delays the next one, which may then have more rows. This is bounded,
    because the next one would take even longer.
    """
    interval_s = min(max(trigger_s, batch_s, 0.1), max(trigger_s, 5.0))
    return max(int(rows_per_s * interval_s), 1)


def seconds_left(rows_left: int, rows_per_s: float, arriving_rows_per_s: float = 0.0) -> float | None:
    """How long it takes to catch up; None if it never will at this rate."""
    if rows_left <= 0:
        return 0.0
    gained = rows_per_s - arriving_rows_per_s
    return rows_left / gained if gained > 0 else None
