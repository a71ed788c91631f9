"""Splits and limits: what they add up to, whatever the numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.types import TopicPartition
from tidelog.spark.planning import OffsetRange, count_waiting, divide, limit_bytes, limit_rows, split_ranges

_KEYS = [TopicPartition("t", number) for number in range(5)]
_RANGES = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**7)), max_size=5).map(
    lambda rows: [OffsetRange(_KEYS[n], start, start + size) for n, (start, size) in enumerate(rows)]
)
_STARTS = st.dictionaries(st.sampled_from(_KEYS), st.integers(0, 10**9))


def ends_of(starts: dict[TopicPartition, int], sizes: list[int]) -> dict[TopicPartition, int]:
    return {key: start + sizes[number] for number, (key, start) in enumerate(starts.items())}


@given(_RANGES, st.none() | st.integers(100_000, 10**7), st.none() | st.integers(1, 40))
def test_splits_lie_behind_one_another_and_cover_everything(
    ranges: list[OffsetRange], records_max: int | None, splits_min: int | None
) -> None:
    splits = split_ranges(ranges, records_max=records_max, splits_min=splits_min)
    assert all(split.size > 0 for split in splits)
    for each in ranges:
        mine = [split for split in splits if split.topic_partition == each.topic_partition]
        if each.size == 0:
            assert not mine
            continue
        assert mine[0].start == each.start
        assert mine[-1].end == each.end
        assert all(before.end == after.start for before, after in itertools.pairwise(mine))
    if records_max is not None:
        assert all(split.size <= records_max for split in splits)


def test_one_large_partition_is_split_for_all_cores() -> None:
    splits = split_ranges([OffsetRange(_KEYS[0], 0, 10_000_000)], records_max=1_000_000, splits_min=None)
    assert [split.size for split in splits] == [1_000_000] * 10


def test_a_wish_for_more_tasks_splits_the_large_ones() -> None:
    ranges = [OffsetRange(_KEYS[0], 0, 1000), OffsetRange(_KEYS[1], 0, 10)]
    splits = split_ranges(ranges, records_max=None, splits_min=6)
    assert len([split for split in splits if split.topic_partition == _KEYS[0]]) == 5
    assert OffsetRange(_KEYS[1], 0, 10) in splits
    assert split_ranges(ranges, records_max=None, splits_min=2) == ranges


def test_parts_are_nearly_equal() -> None:
    assert [part.size for part in divide(OffsetRange(_KEYS[0], 5, 15), 3)] == [3, 3, 4]


@given(st.integers(1, 10**6), _STARTS, st.lists(st.integers(0, 10**6), min_size=5, max_size=5))
def test_a_limit_is_shared_out_and_nobody_starves(
    rows_max: int, starts: dict[TopicPartition, int], sizes: list[int]
) -> None:
    ends = ends_of(starts, sizes)
    limited = limit_rows(rows_max, starts, ends)
    assert limited.keys() == ends.keys()
    assert all(starts[key] <= limited[key] <= ends[key] for key in ends)
    assert count_waiting(starts, limited) <= rows_max + len(starts)
    if count_waiting(starts, ends) <= rows_max:
        assert limited == ends
    else:
        assert all(limited[key] > starts[key] for key in ends if ends[key] > starts[key])


@given(
    st.integers(1, 10**8),
    _STARTS,
    st.lists(st.integers(0, 10**6), min_size=5, max_size=5),
    st.lists(st.floats(1, 10_000), min_size=5, max_size=5),
)
def test_a_limit_of_bytes(
    bytes_max: int, starts: dict[TopicPartition, int], sizes: list[int], widths: list[float]
) -> None:
    ends = ends_of(starts, sizes)
    offset_bytes = dict(zip(_KEYS, widths, strict=True))
    limited = limit_bytes(bytes_max, starts, ends, offset_bytes)
    assert all(starts[key] <= limited[key] <= ends[key] for key in ends)
    taken = sum((limited[key] - starts[key]) * offset_bytes[key] for key in ends)
    assert taken <= bytes_max * 1.001 + sum(offset_bytes[key] for key in ends)
    if count_waiting(starts, ends):
        assert count_waiting(starts, limited)  # or it would never get on


@pytest.mark.parametrize(("first", "last", "waiting"), [(0, 10, 10), (10, 10, 0), (10, 5, 0)])
def test_what_waits_is_never_negative(first: int, last: int, waiting: int) -> None:
    assert count_waiting({_KEYS[0]: first}, {_KEYS[0]: last, _KEYS[1]: 5}) == waiting
