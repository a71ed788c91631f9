"""Plans which offsets a batch covers and how they are split into tasks. Does no I/O.

What always holds: the splits of a range are contiguous and cover it exactly; a limited batch never ends beyond the
current end of a partition, nor before its own start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.client.types import TopicPartition
from tidelog.spark.offsets import Offsets


class OffsetRange(NamedTuple):
    """Offsets of one partition; the end is exclusive."""

    topic_partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def split_ranges(
    ranges: Iterable[OffsetRange], *, records_max: int | None, splits_min: int | None
) -> list[OffsetRange]:
    """Ranges of at most `records_max` offsets, and about `splits_min` of them if there are enough offsets."""
    parts = [part for each in ranges if each.size > 0 for part in _split_by_size(each, records_max)]
    if splits_min is None or len(parts) >= splits_min:
        return parts
    # Ranges too small to split count as one each; the rest of the target is divided among the others.
    total = sum(part.size for part in parts)
    small = {part for part in parts if _share(part.size, total, splits_min) == 1}
    rest = total - sum(part.size for part in small)
    target = max(splits_min - len(small), 1)
    return [
        split
        for part in parts
        for split in divide(part, 1 if part in small else _share(part.size, rest, target))
        if split.size > 0
    ]


def _split_by_size(each: OffsetRange, records_max: int | None) -> list[OffsetRange]:
    return divide(each, 1 if records_max is None else math.ceil(each.size / records_max))


def _share(size: int, total: int, target: int) -> int:
    return max(round(size / total * target), 1)


def divide(each: OffsetRange, count: int) -> list[OffsetRange]:
    """Split a range into parts of nearly equal size."""
    bounds = [each.start + each.size * number // count for number in range(count + 1)]
    return [OffsetRange(each.topic_partition, bounds[number], bounds[number + 1]) for number in range(count)]


def limit_rows(rows_max: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Offsets:
    """Where the next batch ends if it may cover `rows_max` offsets, shared in proportion to each partition's backlog.

    As in Spark's own source, a partition with a small backlog gets at least one, so the total may be slightly higher.
    """
    waiting = {key: end[key] - start[key] for key in end if key in start and end[key] > start[key]}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(end)
    limited = dict(end)
    for key, size in waiting.items():
        share = rows_max * size / total
        limited[key] = start[key] + min(size, math.ceil(share) if share < 1 else math.floor(share))
    return limited


def limit_bytes(
    bytes_max: int,
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    offset_bytes: Mapping[TopicPartition, float],
) -> Offsets:
    """Where the next batch ends if it may cover about `bytes_max`, estimated from the average bytes per offset.

    It covers at least one offset, or a large record would never be read.
    """
    waiting = {key: end[key] - start[key] for key in end if key in start and end[key] > start[key]}
    total = sum(size * offset_bytes.get(key, 0.0) for key, size in waiting.items())
    if total <= bytes_max:
        return dict(end)
    limited = dict(end)
    for key, size in waiting.items():
        limited[key] = start[key] + min(size, max(math.floor(size * bytes_max / total), 1))
    return limited


def count_waiting(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """The number of offsets between start and end."""
    return sum(max(end[key] - start[key], 0) for key in end if key in start)
