"""How fast a replay may go: a fixed rate, or one that gives way when the broker gets slower.

What always holds: pure values, without a clock and without anybody being asked; a rate is never below `ROWS_PER_S_MIN`,
so a replay goes on however slow the broker is; a rate that is not used is not raised. What counts as normal is measured
while nothing is replayed, and again whenever the rate is the lowest: slowness that does not end then is not the
replay's.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# A replay that is held back as far as possible still ends some day, and a broker does not notice so many rows.
ROWS_PER_S_MIN = 500.0
ROWS_PER_S_START = 10_000.0
ROWS_PER_S_MAX = 100_000_000.0

# A broker is slower than normal when the tail of the probes is so many times, and so many milliseconds, above.
SLOWER_TIMES = 1.5
SLOWER_MS = 2.0
# What a rate becomes when the broker is slower, and how it grows when it is not: doubled until the first time that it
# was too much, then by a share of what was too much.
_DECREASE = 0.5
_INCREASE_SHARE = 0.08
# Of the allowed rows at least this share must have been read, or the limit was not what held the replay back.
_USED_SHARE = 0.7
# So many windows are looked at together: one that is slow may be anybody's doing. A change of the rate begins anew.
_WINDOWS = 3
# How fast a normal that was measured in bad times comes down again, by window.
_NORMAL_DECAY = 0.1


@dataclass(frozen=True, slots=True)
class Pace:
    """The rate that is allowed now, and what it was derived from."""

    rows_per_s: float = ROWS_PER_S_START
    # The tail of the probes while nothing, or hardly anything, was replayed.
    normal_ms: float = 0.0
    # The rate that was too much when the broker got slower last; None before.
    too_much: float | None = None
    # The tails of the last windows at this rate.
    tails_ms: tuple[float, ...] = ()

    @property
    def slow_ms(self) -> float:
        """From here on the broker counts as slower."""
        return max(self.normal_ms * SLOWER_TIMES, self.normal_ms + SLOWER_MS)


def tail_ms(probes_ms: Sequence[float]) -> float:
    """What nine of ten probes stay below: one outlier in a window is nobody's fault."""
    ordered = sorted(probes_ms)
    return ordered[min(math.ceil(len(ordered) * 0.9), len(ordered)) - 1]


def adapted(pace: Pace, probes_ms: Sequence[float], used_rows_per_s: float) -> Pace:
    """The pace after a window in which the probes took so long, and so many rows were read."""
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
        # So slow without the replay: that is normal now, and how much is too much is to be found anew.
        return dataclasses.replace(pace, normal_ms=measured_ms, too_much=None, tails_ms=())
    # Where less was read than allowed, that much was already too much.
    blamed = min(pace.rows_per_s, max(used_rows_per_s, ROWS_PER_S_MIN))
    lowered = max(blamed * _DECREASE, ROWS_PER_S_MIN)
    return dataclasses.replace(pace, rows_per_s=lowered, too_much=blamed, tails_ms=())


def rows_of_batch(rows_per_s: float, trigger_s: float, batch_s: float) -> int:
    """How many rows a micro-batch may have, so that a rate holds: batches begin a trigger apart, or one after another.

    A batch that takes longer than the trigger delays the next one, which may then have more rows; not without end, as
    it would take longer still.
    """
    interval_s = min(max(trigger_s, batch_s, 0.1), max(trigger_s, 5.0))
    return max(int(rows_per_s * interval_s), 1)


def seconds_left(rows_left: int, rows_per_s: float, arriving_rows_per_s: float = 0.0) -> float | None:
    """How long it takes to catch up; None when it never does at this rate."""
    if rows_left <= 0:
        return 0.0
    gained = rows_per_s - arriving_rows_per_s
    return rows_left / gained if gained > 0 else None
