"""Availability: seconds with an acknowledged write, the longest gap, and latencies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.torture.availability import Second, availability, quantile_ms
from torture_histories import Run

S, MS = 1_000_000_000, 1_000_000


def probe(run: Run, process: str, at_ns: int, took_ns: int, outcome: str = "ok") -> None:
    run.add(process, "probe", [["send", "probe-0", [1], [None]]], outcome, (at_ns - took_ns, at_ns))


def test_seconds_gaps_and_latencies(tmp_path: Path) -> None:
    run = Run(tmp_path)
    probe(run, "probe-0", 10 * S - 1, MS)  # before the start
    probe(run, "probe-0", 10 * S + 100 * MS, 2 * MS)
    probe(run, "probe-1", 10 * S + 900 * MS, 4 * MS)
    probe(run, "probe-0", 12 * S, 500 * MS, "unknown")
    probe(run, "probe-1", 12 * S + 1, 500 * MS, "fail")
    probe(run, "probe-0", 14 * S + 400 * MS, 3000 * MS)
    found = availability(sorted(tmp_path.glob("*")), 10 * S)
    assert found is not None
    assert found.series == (
        Second(0, 2, 0, 2.0, 4.0),
        Second(1, 0, 0),
        Second(2, 0, 2),
        Second(3, 0, 0),
        Second(4, 1, 0, 3000.0, 3000.0),
    )
    assert (found.seconds, found.seconds_with_writes, found.share) == (5, 2, 0.4)
    assert found.longest_gap_s == 3.5
    assert (found.p50_ms, found.p99_ms, found.max_ms) == (4.0, 3000.0, 3000.0)


def test_until_an_end(tmp_path: Path) -> None:
    run = Run(tmp_path)
    probe(run, "probe-0", 1 * S, MS)
    probe(run, "probe-0", 20 * S, MS)
    found = availability(sorted(tmp_path.glob("*")), 0, 10 * S)
    assert found is not None
    assert (found.seconds, found.seconds_with_writes, found.longest_gap_s) == (10, 1, 9.0)


def test_nothing_was_acknowledged(tmp_path: Path) -> None:
    run = Run(tmp_path)
    probe(run, "probe-0", 3 * S, S, "unknown")
    found = availability(sorted(tmp_path.glob("*")), 0)
    assert found is not None
    assert (found.seconds, found.share, found.longest_gap_s, found.p99_ms) == (3, 0.0, 3.0, None)


def test_without_probes_there_is_nothing_to_say(tmp_path: Path) -> None:
    Run(tmp_path).send("queue-send-0", "q-0", [1], [0])
    assert availability(sorted(tmp_path.glob("*")), 0) is None


@pytest.mark.parametrize(
    ("count", "share", "place"), [(1, 0.5, 0), (2, 0.5, 0), (3, 0.5, 1), (100, 0.99, 98), (101, 0.99, 99), (7, 1, 6)]
)
def test_quantiles_are_values_that_occurred(count: int, share: float, place: int) -> None:
    assert quantile_ms([number * MS for number in range(count)], share) == place
