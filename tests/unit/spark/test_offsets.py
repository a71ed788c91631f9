"""Offsets as JSON, and the bounds that options name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.types import TopicPartition
from tidelog.spark.offsets import (
    EARLIEST,
    LATEST,
    Bound,
    check_named,
    offsets_from_json,
    offsets_to_json,
    parse_numbers,
    parse_partitions,
    read_end,
    read_start,
)
from tidelog.spark.options import OptionError, Options, Use, read_options

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
_OFFSETS = st.dictionaries(
    st.builds(TopicPartition, st.text(min_size=1, max_size=8), st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1)
)


def options(use: Use, **given_options: str) -> Options:
    return read_options({"kafka.bootstrap.servers": "127.0.0.1:9092", **given_options}, use)


@given(_OFFSETS)
def test_json_gives_the_same_offsets_back(offsets: dict[TopicPartition, int]) -> None:
    text = json.dumps(offsets_to_json(offsets))
    assert offsets_from_json(json.loads(text)) == offsets


def test_json_is_that_of_spark_and_in_order() -> None:
    text = json.dumps(offsets_to_json({B0: 3, TopicPartition("a", 10): 2, A1: 1}), separators=(",", ":"))
    assert text == '{"a":{"1":1,"10":2},"b":{"0":3}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "[]",
        '{"a":5}',
        '{"a":{"x":1}}',
        '{"a":{"0":1.5}}',
        '{"a":{"0":true}}',
        '{"a":{"0":"1"}}',
        "{",
        '{"a":{"0":1e99}}',
    ],
)
def test_bad_json_is_told_with_an_example(text: str) -> None:
    with pytest.raises(OptionError, match="topicA"):
        parse_numbers("startingOffsets", text)


@pytest.mark.parametrize("text", ["a", "{}", '{"a":[]}', '{"a":0}', '{"a":[-1]}', '{"a":["0"]}'])
def test_bad_assignments_are_told_with_an_example(text: str) -> None:
    with pytest.raises(OptionError, match="topicA"):
        parse_partitions("assign", text)


def test_partitions_are_read() -> None:
    assert parse_partitions("assign", '{"a":[0,1],"b":[0]}') == {A0, A1, B0}


def test_where_reading_begins_by_default() -> None:
    assert read_start(options(Use.BATCH_READ)).everywhere == EARLIEST
    assert read_start(options(Use.STREAM_READ)).everywhere == LATEST
    assert read_end(options(Use.BATCH_READ)).everywhere == LATEST


def test_time_goes_before_time_by_partition_before_offsets() -> None:
    times = '{"a":{"0":7}}'
    everything = {"startingTimestamp": "5", "startingOffsetsByTimestamp": times, "startingOffsets": "earliest"}
    assert read_start(options(Use.STREAM_READ, **everything)).timestamp == 5
    del everything["startingTimestamp"]
    assert read_start(options(Use.STREAM_READ, **everything)).timestamps == {A0: 7}
    del everything["startingOffsetsByTimestamp"]
    assert read_start(options(Use.STREAM_READ, **everything)).everywhere == EARLIEST


def test_what_a_group_has_committed() -> None:
    assert read_start(options(Use.STREAM_READ, startingOffsets="group: billing ")).group_id == "billing"
    with pytest.raises(OptionError, match="has no group id"):
        read_start(options(Use.STREAM_READ, startingOffsets="group:"))
    with pytest.raises(OptionError, match="is for startingOffsets"):
        read_end(options(Use.BATCH_READ, endingOffsets="group:billing"))


def test_offsets_by_partition() -> None:
    assert read_start(options(Use.STREAM_READ, startingOffsets='{"a":{"0":-1,"1":-2}}')).offsets == {A0: -1, A1: -2}
    with pytest.raises(OptionError, match="-3 is not an offset"):
        read_start(options(Use.STREAM_READ, startingOffsets='{"a":{"0":-3}}'))


@pytest.mark.parametrize("text", ["latest", '{"a":{"0":-1}}'])
def test_a_batch_does_not_begin_at_the_end(text: str) -> None:
    with pytest.raises(OptionError, match="would be empty"):
        read_start(options(Use.BATCH_READ, startingOffsets=text))


@pytest.mark.parametrize("text", ["earliest", '{"a":{"0":-2}}'])
def test_a_batch_does_not_end_at_the_beginning(text: str) -> None:
    with pytest.raises(OptionError, match="would be empty"):
        read_end(options(Use.BATCH_READ, endingOffsets=text))


def test_a_bound_by_partition_names_all_that_are_read() -> None:
    bound = Bound("startingOffsets", offsets={A0: 1, B0: 2})
    check_named(bound, [A0, B0])
    with pytest.raises(OptionError, match="lacks a-1; use -2"):
        check_named(bound, [A0, A1, B0])
    with pytest.raises(OptionError, match="includes b-0, which is not read"):
        check_named(bound, [A0])
    check_named(Bound("startingOffsets", everywhere=EARLIEST), [A0])
