"""Bounds of a replay as people write them, the offsets they mean, and the chunks they are cut into."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.pipeline.event_replay.range import (
    AtTime,
    Bound,
    OffsetRange,
    RangeError,
    next_chunk,
    parse_bound,
    resolve,
    total,
)

NOW_MS = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
AVAILABLE = {0: OffsetRange(10, 100), 1: OffsetRange(0, 50), 2: OffsetRange(7, 7)}


def no_times(times: Mapping[int, int]) -> Mapping[int, int | None]:
    raise AssertionError(f"no time was asked for: {times}")


def find_at(offsets: Mapping[int, Mapping[int, int | None]]) -> object:
    """Looks times up in a table: partition, time, offset."""
    return lambda times: {partition: offsets[partition][time] for partition, time in times.items()}


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Bound("earliest", "earliest")),
        (" latest ", Bound("latest", "latest")),
        ("0", Bound("0", 0)),
        ("1500", Bound("1500", 1500)),
        ("-2h", Bound("-2h", AtTime(NOW_MS - 7_200_000))),
        ("-90s", Bound("-90s", AtTime(NOW_MS - 90_000))),
        ("-PT1H30M", Bound("-PT1H30M", AtTime(NOW_MS - 5_400_000))),
        ("2026-03-01T11:00:00Z", Bound("2026-03-01T11:00:00Z", AtTime(NOW_MS - 3_600_000))),
        ("2026-03-01T12:00:00+01:00", Bound("2026-03-01T12:00:00+01:00", AtTime(NOW_MS - 3_600_000))),
        ("0:5,2:earliest, 1:latest", Bound("0:5,2:earliest, 1:latest", None, {0: 5, 2: "earliest", 1: "latest"})),
    ],
)
def test_bounds(text: str, bound: Bound) -> None:
    assert parse_bound(text, NOW_MS) == bound


@pytest.mark.parametrize("text", ["", "soon", "-5", "-", "1.5", "0:5,x", "0:5,0:6", "0:-1", "2026-13-01", "latest,0:1"])
def test_what_is_no_bound(text: str) -> None:
    with pytest.raises(RangeError):
        parse_bound(text, NOW_MS)


def bounds(first: str, last: str) -> tuple[Bound, Bound]:
    return parse_bound(first, NOW_MS), parse_bound(last, NOW_MS)


@pytest.mark.parametrize(
    ("first", "last", "ranges", "notes"),
    [
        ("earliest", "latest", AVAILABLE, 0),
        ("20", "40", {0: (20, 40), 1: (20, 40), 2: (7, 7)}, 1),
        ("5", "latest", {0: (10, 100), 1: (5, 50), 2: (7, 7)}, 2),
        ("0:20,1:0", "latest", {0: (20, 100), 1: (0, 50)}, 0),
        ("earliest", "1:30", {1: (0, 30)}, 0),
        ("0:15", "0:500", {0: (15, 100)}, 1),
        ("60", "latest", {0: (60, 100), 1: (50, 50), 2: (7, 7)}, 0),
    ],
)
def test_ranges_by_offset(first: str, last: str, ranges: Mapping[int, tuple[int, int]], notes: int) -> None:
    resolved = resolve(*bounds(first, last), AVAILABLE, no_times)
    assert resolved.ranges == ranges
    assert len(resolved.notes) == notes, resolved.notes


def test_ranges_by_time() -> None:
    first, last = NOW_MS - 7_200_000, NOW_MS - 3_600_000
    found = find_at({0: {first: 30, last: 60}, 1: {first: 40, last: None}, 2: {first: None, last: None}})
    resolved = resolve(*bounds("-2h", "-1h"), AVAILABLE, found)  # type: ignore[arg-type]  # a lambda
    assert resolved.ranges == {0: (30, 60), 1: (40, 50), 2: (7, 7)}
    assert resolved.notes == ()


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("latest", "latest"),
        ("earliest", "earliest"),
        ("40", "40"),
        ("40", "20"),
        ("-1h", "-2h"),
        ("0:40", "0:20"),
        ("0:1", "1:9"),
        ("3:1", "latest"),
    ],
)
def test_ranges_that_can_not_be_meant(first: str, last: str) -> None:
    with pytest.raises(RangeError):
        resolve(*bounds(first, last), AVAILABLE, no_times)


sizes = st.dictionaries(st.integers(0, 6), st.tuples(st.integers(0, 50), st.integers(0, 200)), min_size=1)


@given(sizes, st.integers(1, 300))
def test_chunks_cover_the_ranges_once(sizes: dict[int, tuple[int, int]], offsets_max: int) -> None:
    ranges = {partition: OffsetRange(start, start + size) for partition, (start, size) in sizes.items()}
    done = {partition: each.start for partition, each in ranges.items()}
    while chunk := next_chunk(done, ranges, offsets_max):
        allowed = min(offsets_max, sum(ranges[each].end - done[each] for each in ranges))
        assert max(1, allowed - len(ranges)) <= total(chunk) <= allowed
        for partition, each in chunk.items():
            assert each.start == done[partition]
            assert each.end > each.start
            done[partition] = each.end
    assert done == {partition: each.end for partition, each in ranges.items()}


def test_chunks_are_shared_out_by_what_is_left() -> None:
    ranges = {0: OffsetRange(0, 1000), 1: OffsetRange(0, 3000)}
    assert next_chunk({0: 0, 1: 0}, ranges, 400) == {0: (0, 100), 1: (0, 300)}
