"""Availability over time: in which seconds each partition took a write, and how long acknowledged writes took.

What always holds: only seconds in which somebody tried to write count, so a prober that is slow or gone makes nothing
look unavailable; a write that takes three seconds leaves the seconds before its acknowledgement without one. The log's
own promises are not judged here, only whether and when clients got an answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.torture.history import OK, Operation, read_history
from tidelog.torture.verdict import NS_PER_S, Availability, Second

NS_PER_MS = 1_000_000


@dataclass
class _Second:
    """What happened in one second: by partition, and the latencies of what was acknowledged in it."""

    tried: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    latencies_ms: list[float] = field(default_factory=list)
    failed: int = 0


def measure(histories: Sequence[Path], start_ns: int) -> Availability | None:
    """What the histories of probes say; None if nobody tried to write."""
    seconds: dict[int, _Second] = {}
    longest_gap_ns = 0
    by_partition: dict[str, list[Operation]] = {}
    for path in histories:
        for operation in read_history(path):
            if operation.f == "probe":
                by_partition.setdefault(operation.events[0][1], []).append(operation)
    for key, operations in by_partition.items():
        operations.sort(key=lambda operation: operation.start_ns)
        longest_gap_ns = max(longest_gap_ns, _longest_gap_ns(operations))
        for operation in operations:
            _note(seconds, key, operation, start_ns)
    if not seconds:
        return None
    series = tuple(_summary(at_s, second) for at_s, second in sorted(seconds.items()))
    latencies = sorted(latency for second in seconds.values() for latency in second.latencies_ms)
    return Availability(
        seconds=len(series),
        seconds_all_partitions=sum(each.written == each.tried for each in series),
        seconds_without_writes=sum(not each.written for each in series),
        share=sum(each.written for each in series) / sum(each.tried for each in series),
        longest_gap_s=longest_gap_ns / NS_PER_S,
        p50_ms=percentile(latencies, 0.5),
        p99_ms=percentile(latencies, 0.99),
        max_ms=percentile(latencies, 1.0),
        series=series,
    )


def _note(seconds: dict[int, _Second], key: str, operation: Operation, start_ns: int) -> None:
    first_s, last_s = ((at - start_ns) // NS_PER_S for at in (operation.start_ns, operation.end_ns))
    for at_s in range(first_s, last_s + 1):
        seconds.setdefault(at_s, _Second()).tried.add(key)
    last = seconds[last_s]
    if operation.outcome == OK:
        last.written.add(key)
        last.latencies_ms.append((operation.end_ns - operation.start_ns) / NS_PER_MS)
    else:
        last.failed += 1


def _longest_gap_ns(operations: Iterable[Operation]) -> int:
    """The longest time in which somebody tried to write to a partition and nothing was acknowledged."""
    longest, trying_since, last_end = 0, None, 0
    for operation in operations:
        if trying_since is None:
            trying_since = operation.start_ns
        last_end = max(last_end, operation.end_ns)
        longest = max(longest, last_end - trying_since)
        if operation.outcome == OK:
            trying_since = None
    return longest


def _summary(at_s: int, second: _Second) -> Second:
    latencies = sorted(second.latencies_ms)
    return Second(
        at_s=at_s,
        tried=len(second.tried),
        written=len(second.written),
        acknowledged=len(latencies),
        failed=second.failed,
        p50_ms=percentile(latencies, 0.5),
        max_ms=percentile(latencies, 1.0),
    )


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that this share of all values does not exceed; None without values."""
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(len(ordered) * share) - 1)], 3)
