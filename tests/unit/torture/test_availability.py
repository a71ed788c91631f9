from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.torture.availability import measure, percentile
from tidelog.torture.history import FAIL, OK, UNKNOWN, HistoryWriter, Operation

NS = 10**9
START_NS = 7 * NS


def history(path: Path, key: str, *probes: tuple[float, float, str]) -> Path:
    """A prober's history; times in seconds since the run began."""
    with HistoryWriter(path) as writer:
        for number, (start_s, end_s, outcome) in enumerate(probes):
            times = (START_NS + round(start_s * NS), START_NS + round(end_s * NS))
            events = [["send", key, [number], [number if outcome == OK else None]]]
            writer.write(Operation(path.stem, "probe", outcome, *times, events))
    return path


def test_seconds_count_by_partition(tmp_path: Path) -> None:
    steady = history(tmp_path / "probe-0.jsonl", "p-0", *((at, at + 0.01, OK) for at in (0.1, 1.1, 2.1, 3.1)))
    cut = history(tmp_path / "probe-1.jsonl", "p-1", (0.2, 0.21, OK), (1.2, 3.2, UNKNOWN), (3.3, 3.9, OK))
    found = measure([steady, cut], START_NS)
    assert found is not None
    assert [(each.tried, each.written) for each in found.series] == [(2, 2), (2, 1), (2, 1), (2, 2)]
    assert (found.seconds, found.seconds_all_partitions, found.seconds_without_writes) == (4, 2, 0)
    assert found.share == 6 / 8
    assert found.longest_gap_s == pytest.approx(2.7), "from the first try that failed to the next acknowledgement"
    assert found.max_ms == pytest.approx(600)
    assert found.p50_ms == pytest.approx(10)
    assert [each.failed for each in found.series] == [0, 0, 0, 1]


def test_a_write_that_takes_long_leaves_the_seconds_before_it_without_one(tmp_path: Path) -> None:
    found = measure([history(tmp_path / "probe-0.jsonl", "p-0", (0.5, 3.5, OK))], START_NS)
    assert found is not None
    assert [each.written for each in found.series] == [0, 0, 0, 1]
    assert found.seconds_without_writes == 3
    assert found.longest_gap_s == pytest.approx(3.0)


def test_seconds_in_which_nobody_tried_do_not_count(tmp_path: Path) -> None:
    found = measure([history(tmp_path / "probe-0.jsonl", "p-0", (0.5, 0.6, OK), (50.5, 50.6, OK))], START_NS)
    assert found is not None
    assert [each.at_s for each in found.series] == [0, 50]
    assert found.share == 1.0
    assert found.longest_gap_s == pytest.approx(0.1)


def test_a_prober_that_was_killed_and_its_successor_are_one_partition(tmp_path: Path) -> None:
    first = history(tmp_path / "probe-0.jsonl", "p-0", (0.1, 0.2, OK), (0.3, 0.4, FAIL))
    second = history(tmp_path / "probe-0.1.jsonl", "p-0", (2.0, 2.2, OK))
    found = measure([first, second], START_NS)
    assert found is not None
    assert found.longest_gap_s == pytest.approx(1.9)
    assert found.seconds == 2


def test_nothing_tried_and_nothing_acknowledged(tmp_path: Path) -> None:
    assert measure([], START_NS) is None
    found = measure([history(tmp_path / "probe-0.jsonl", "p-0", (0.1, 1.2, UNKNOWN))], START_NS)
    assert found is not None
    assert (found.share, found.p50_ms, found.p99_ms) == (0.0, None, None)
    assert found.longest_gap_s == pytest.approx(1.1)


@pytest.mark.parametrize(("share", "value"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.0, 1.0)])
def test_percentiles(share: float, value: float) -> None:
    assert percentile([float(number) for number in range(1, 101)], share) == value
