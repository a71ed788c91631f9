"""Turns filters on topic, partition, offset and timestamp into narrower ranges of offsets. Does no I/O.

What always holds: no record that a filter would keep is left out, even if timestamps are out of order. A lower bound on
the timestamp becomes the first offset at or after it, which brokers know exactly. An upper bound is ignored, because a
higher offset may hold an earlier timestamp. Spark applies every filter again.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tidelog.client.types import TopicPartition
from tidelog.spark.planning import OffsetRange

_COMPARISONS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, In)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Narrowing:
    """How filters narrow down the offsets to read."""

    filters: tuple[Filter, ...] = ()

    def keeps(self, topic_partition: TopicPartition) -> bool:
        """Whether records of the partition can pass, judging by topic and partition number alone."""
        values = {"topic": topic_partition.topic, "partition": topic_partition.partition}
        return all(_passes(each, values) for each in self.filters)

    def narrow(self, each: OffsetRange) -> OffsetRange:
        """The part of the range whose offsets can pass; it may be empty."""
        start, end = each.start, each.end
        for low, high in (_bounds(filter_, "offset") for filter_ in self.filters):
            start = start if low is None else max(start, low)
            end = end if high is None else min(end, high + 1)
        return OffsetRange(each.topic_partition, start, max(start, end))

    @property
    def timestamp_min_ms(self) -> int | None:
        """The lowest timestamp that can pass, or None if there is no lower bound."""
        return max(
            (low for low, _ in (_bounds(each, "timestamp") for each in self.filters) if low is not None), default=None
        )


def _column(each: Filter) -> str | None:
    attribute: Sequence[str] = getattr(each, "attribute", ())
    return attribute[0] if len(attribute) == 1 else None


def _passes(each: Filter, values: dict[str, Any]) -> bool:
    """Whether these values may pass; True for filters that aren't supported."""
    inner = each.child if isinstance(each, Not) else each
    column = _column(inner)
    if column not in values or not isinstance(inner, _COMPARISONS):
        return True
    try:
        found = _compare(inner, values[column])
    except TypeError:
        return True
    return not found if isinstance(each, Not) else found


_OPERATIONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, wanted: value == wanted,
    EqualNullSafe: lambda value, wanted: value == wanted,
    GreaterThan: lambda value, wanted: value > wanted,
    GreaterThanOrEqual: lambda value, wanted: value >= wanted,
    LessThan: lambda value, wanted: value < wanted,
    LessThanOrEqual: lambda value, wanted: value <= wanted,
    In: lambda value, wanted: value in wanted,
}


def _compare(each: Filter, value: Any) -> bool:
    return bool(_OPERATIONS[type(each)](value, each.value))  # type: ignore[attr-defined]  # comparisons have one


def _bounds(each: Filter, column: str) -> tuple[int | None, int | None]:
    """The lowest and highest integer that can pass, or None if there is no such bound."""
    if _column(each) != column or not isinstance(each, _COMPARISONS):
        return None, None
    try:
        values = [_number(value) for value in (each.value if isinstance(each, In) else (each.value,))]
    except TypeError:
        return None, None
    if not values:
        return None, None
    if isinstance(each, GreaterThan):
        return math.floor(values[0]) + 1, None
    if isinstance(each, GreaterThanOrEqual):
        return math.ceil(values[0]), None
    if isinstance(each, LessThan):
        return None, math.ceil(values[0]) - 1
    if isinstance(each, LessThanOrEqual):
        return None, math.floor(values[0])
    return math.ceil(min(values)), math.floor(max(values))


def _number(value: object) -> int | Fraction:
    """An integer unchanged, or a time in milliseconds; raises TypeError for anything else."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            raise TypeError("a time without a time zone is ambiguous")
        return Fraction((value - _EPOCH) // datetime.timedelta(microseconds=1), 1000)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise TypeError(f"{value!r} is neither a whole number nor a time")


class PushedFilters:
    """A reader's `pushFilters` method that works whether or not filter pushdown is enabled in the session.

    By default `spark.sql.python.filterPushdown.enabled` is off, and Spark then rejects a reader that overrides the
    method; the reader can't find out the setting. Spark checks the method's `__func__`, so ours claims to be that of
    the base class. If pushdown is enabled, Spark calls the method, and it takes the filters.
    """

    class _Bound:
        __func__ = staticmethod(DataSourceReader.pushFilters)

        def __init__(self, take: Callable[[list[Filter]], None]) -> None:
            self._take = take

        def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
            self._take(filters)
            return filters

    def __get__(self, reader: Any, owner: type | None = None) -> Any:
        return self if reader is None else self._Bound(reader.take_filters)
