"""How available a cluster was for writes: what became of probes, one record each with acks=all, while things broke.

A second counts as one with writes if a probe was acknowledged in it, whenever that had been sent. What is unknown or
failed is not acknowledged, whatever may have been stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from tidelog.torture.history import OK, read_rows

PROBE: Final = "probe"
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True)
class Second:
    """A second of the probe's writes: how many were acknowledged, and how long those took."""

    at_s: int
    acknowledged: int
    failed: int
    p50_ms: float | None = None
    max_ms: float | None = None


@dataclass(frozen=True)
class Availability:
    """How often and how fast a write with acks=all was acknowledged while things broke."""

    seconds: int
    seconds_with_writes: int
    longest_gap_s: float
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    series: tuple[Second, ...] = ()

    @property
    def share(self) -> float:
        return self.seconds_with_writes / self.seconds if self.seconds else 0.0


def availability(histories: Sequence[Path], start_ns: int, end_ns: int | None = None) -> Availability | None:
    """The availability from a moment on, until another one or the last probe; None if there are no probes."""
    acknowledged: list[tuple[int, int]] = []  # when, and how long it took
    others: list[int] = []
    for path in histories:
        for _, (f, outcome, sent_ns, ended_ns, _, _) in read_rows(path):
            if f == PROBE and ended_ns >= start_ns and (end_ns is None or ended_ns <= end_ns):
                if outcome == OK:
                    acknowledged.append((ended_ns, ended_ns - sent_ns))
                else:
                    others.append(ended_ns)
    if not (acknowledged or others):
        return None
    acknowledged.sort()
    last_ns = max([ended_ns for ended_ns, _ in acknowledged[-1:]] + others) if end_ns is None else end_ns
    series = _series(acknowledged, others, start_ns, last_ns)
    took_ns = sorted(latency_ns for _, latency_ns in acknowledged)
    return Availability(
        seconds=len(series),
        seconds_with_writes=sum(second.acknowledged > 0 for second in series),
        longest_gap_s=_longest_gap_ns([ended_ns for ended_ns, _ in acknowledged], start_ns, last_ns) / _NS_PER_S,
        p50_ms=quantile_ms(took_ns, 0.50),
        p99_ms=quantile_ms(took_ns, 0.99),
        max_ms=quantile_ms(took_ns, 1.0),
        series=series,
    )


def quantile_ms(sorted_ns: Sequence[int], share: float) -> float | None:
    """The smallest of these that this share of them doesn't exceed, in ms."""
    if not sorted_ns:
        return None
    place = max(0, -int(-share * len(sorted_ns) // 1) - 1)  # rounded up
    return sorted_ns[place] / _NS_PER_MS


def _longest_gap_ns(acknowledged_ns: Sequence[int], start_ns: int, last_ns: int) -> int:
    """The longest time without an acknowledged write, the times before the first and after the last one included."""
    moments = [start_ns, *acknowledged_ns, last_ns]
    return max(later - earlier for earlier, later in pairwise(moments))


def _series(
    acknowledged: Sequence[tuple[int, int]], others: Sequence[int], start_ns: int, last_ns: int
) -> tuple[Second, ...]:
    seconds = max(1, -((start_ns - last_ns) // _NS_PER_S))
    took_ns: list[list[int]] = [[] for _ in range(seconds)]
    failed = [0] * seconds
    for ended_ns, latency_ns in acknowledged:
        took_ns[min((ended_ns - start_ns) // _NS_PER_S, seconds - 1)].append(latency_ns)
    for ended_ns in others:
        failed[min((ended_ns - start_ns) // _NS_PER_S, seconds - 1)] += 1
    return tuple(
        Second(at_s, len(took), failed[at_s], quantile_ms(sorted(took), 0.5), quantile_ms(sorted(took), 1.0))
        for at_s, took in enumerate(took_ns)
    )
