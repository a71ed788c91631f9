"""What a consumer's methods take for topics, partitions and offsets, and what they refuse."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tidelog.client.consumer.arguments import read_offset, read_offsets, read_partition, read_partitions, read_topics
from tidelog.client.types import OffsetAndMetadata, TopicPartition

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.mark.parametrize(
    "given",
    [FIRST, ("orders", 0), [FIRST], [("orders", 0)], {FIRST}, (FIRST,), iter([FIRST]), {FIRST: 7}],
    ids=["one", "a pair", "a list", "a list of pairs", "a set", "a tuple", "an iterator", "a mapping"],
)
def test_partitions_may_be_one_or_several(given: Any) -> None:
    assert read_partitions(given) == [FIRST]
    assert type(read_partitions([("orders", 0)])[0]) is TopicPartition


def test_several_partitions_keep_their_order() -> None:
    assert read_partitions((SECOND, FIRST)) == [SECOND, FIRST]
    assert read_partitions([]) == []


@pytest.mark.parametrize("given", ["orders", b"orders", 3, None, ["orders"], [3], [("orders", "0")], ["ab"], (0, "x")])
def test_what_is_no_partition_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"a partition is a topic and a number, as TopicPartition\("):
        read_partitions(given)


def test_one_partition_is_not_several() -> None:
    assert read_partition(("orders", 1)) == SECOND
    with pytest.raises(TypeError, match=r"not \[TopicPartition"):
        read_partition([FIRST])


def test_a_name_is_part_of_the_advice() -> None:
    with pytest.raises(TypeError, match=r"as TopicPartition\('clicks', 0\), not 'clicks'"):
        read_partitions("clicks")  # type: ignore[arg-type]  # which is the point


def test_topics_are_names_or_a_pattern() -> None:
    assert read_topics("orders", None) == (["orders"], None)
    assert read_topics({"orders"}, None) == (["orders"], None)
    compiled = re.compile("o.*")
    assert read_topics(compiled, None) == ([], compiled)
    assert read_topics((), "o.*") == ([], compiled)


@pytest.mark.parametrize("given", [[3], 3, b"orders", [b"orders"], [None], [["orders"]], [re.compile("o.*")], None])
def test_what_is_no_name_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"must be (a string|strings), not .*; write subscribe\(\['orders'\]\)"):
        read_topics(given, None)


@pytest.mark.parametrize("given", [3, re.compile(b"o.*"), b"o.*"])
def test_what_is_no_pattern_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="a pattern is a string or a compiled expression over strings"):
        read_topics((), given)


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="can't be empty"):
        read_topics([""], None)


def test_offsets_are_numbers_or_with_notes() -> None:
    noted = OffsetAndMetadata(7, 3, "note")
    assert read_offsets({FIRST: 5, SECOND: noted}) == {FIRST: OffsetAndMetadata(5), SECOND: noted}
    with pytest.raises(TypeError, match="a number or an OffsetAndMetadata, not '7'"):
        read_offset("7")  # type: ignore[arg-type]  # which is the point
    with pytest.raises(TypeError, match="offsets are a mapping"):
        read_offsets([FIRST])  # type: ignore[arg-type]  # which is the point
