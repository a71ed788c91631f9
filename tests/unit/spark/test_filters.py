"""Filters as ranges of offsets: nothing is left out that would pass."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tidelog.client.types import TopicPartition
from tidelog.spark.columns import full_schema
from tidelog.spark.filters import Narrowing
from tidelog.spark.options import Use, read_options
from tidelog.spark.planning import OffsetRange
from tidelog.spark.reader import BatchReader

_KEY = TopicPartition("t", 2)
_COMPARISONS: dict[type[Filter], Any] = {
    EqualTo: lambda value, wanted: value == wanted,
    GreaterThan: lambda value, wanted: value > wanted,
    GreaterThanOrEqual: lambda value, wanted: value >= wanted,
    LessThan: lambda value, wanted: value < wanted,
    LessThanOrEqual: lambda value, wanted: value <= wanted,
}


def on(column: str, kind: type[Any], value: object) -> Any:
    return kind((column,), value)


@given(st.sampled_from(list(_COMPARISONS)), st.integers(-5, 60), st.booleans())
def test_offsets_that_pass_stay_and_few_others(kind: type[Filter], value: int, negated: bool) -> None:
    whole = OffsetRange(_KEY, 10, 50)
    each = on("offset", kind, value)
    narrowed = Narrowing((Not(each) if negated else each,)).narrow(whole)
    kept = range(narrowed.start, narrowed.end)
    passing = [offset for offset in range(10, 50) if _COMPARISONS[kind](offset, value) is not negated]
    assert set(passing) <= set(kept)
    assert set(kept) <= set(range(10, 50)) or not kept
    if not negated:
        assert list(kept) == passing


def test_several_filters_on_offsets_and_lists_of_them() -> None:
    narrowing = Narrowing((on("offset", GreaterThan, 12), on("offset", LessThan, 40), on("offset", In, (5, 20, 30))))
    assert narrowing.narrow(OffsetRange(_KEY, 0, 100)) == OffsetRange(_KEY, 13, 31)
    nothing = Narrowing((on("offset", EqualTo, 500),)).narrow(OffsetRange(_KEY, 0, 100))
    assert nothing.size == 0


@pytest.mark.parametrize(
    ("each", "keeps"),
    [
        (on("partition", EqualTo, 2), True),
        (on("partition", EqualTo, 1), False),
        (Not(on("partition", EqualTo, 2)), False),
        (on("partition", In, (1, 2)), True),
        (on("partition", LessThan, 2), False),
        (on("topic", EqualTo, "t"), True),
        (on("topic", EqualTo, "u"), False),
        (StringStartsWith(("topic",), "u"), True),
        (IsNotNull(("partition",)), True),
        (on("partition", GreaterThan, "text"), True),
        (on("value", EqualTo, b"x"), True),
        (EqualTo(("headers", "key"), "x"), True),
    ],
)
def test_whole_partitions_are_left_out(each: Filter, keeps: bool) -> None:
    assert Narrowing((each,)).keeps(_KEY) is keeps


def at(milliseconds: float) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize(
    ("each", "least"),
    [
        (on("timestamp", GreaterThanOrEqual, at(1000)), 1000),
        (on("timestamp", GreaterThanOrEqual, at(1000.5)), 1001),
        (on("timestamp", GreaterThan, at(1000)), 1001),
        (on("timestamp", GreaterThan, at(1000.5)), 1001),
        (on("timestamp", EqualTo, at(1000)), 1000),
        (on("timestamp", In, (at(3000), at(2000))), 2000),
        (on("timestamp", LessThan, at(1000)), None),
        (on("timestamp", LessThanOrEqual, at(1000)), None),
        (Not(on("timestamp", GreaterThan, at(1000))), None),
        (on("timestamp", GreaterThan, datetime.datetime(2020, 1, 1)), None),  # no zone: not certain
    ],
)
def test_only_a_lower_bound_of_time_is_used(each: Filter, least: int | None) -> None:
    assert Narrowing((each,)).timestamp_min_ms == least


def test_spark_takes_the_reader_with_and_without_the_setting() -> None:
    """As plan_data_source_read looks at it: while the setting is off, the method must be that of the base class."""
    options = read_options({"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t"}, Use.BATCH_READ)
    reader = BatchReader(full_schema(include_headers=False), options)
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    filters = [on("offset", EqualTo, 5)]
    assert list(reader.pushFilters(filters)) == filters
    pickle.loads(pickle.dumps(reader))
