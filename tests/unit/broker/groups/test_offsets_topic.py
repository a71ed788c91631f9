"""Where a group belongs, as Kafka computes it."""

from __future__ import annotations

import pytest

from tidelog.broker.internal_topics import coordinator_of, java_hash, partition_for
from tidelog.broker.offsets_topic import OFFSETS_TOPIC
from tidelog.controller.image import EMPTY_IMAGE


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("console-consumer-1", 35782224),
        ("polygenelubricants", -(2**31)),
        ("grüße", 98768023),
        ("\U0001f600", 1772899),
    ],
)
def test_hashes_are_those_of_java(text: str, value: int) -> None:
    """The values were printed by jshell, "...".hashCode()."""
    assert java_hash(text) == value


@pytest.mark.parametrize(
    ("group_id", "partition"), [("a", 47), ("console-consumer-1", 24), ("polygenelubricants", 0), ("x" * 200, 40)]
)
def test_groups_lie_where_kafka_puts_them(group_id: str, partition: int) -> None:
    assert partition_for(group_id, 50) == partition
    assert partition_for(group_id, 50) == partition


def test_without_the_topic_there_is_no_coordinator() -> None:
    assert coordinator_of("g", OFFSETS_TOPIC, EMPTY_IMAGE) is None
