"""The demo's events: the same for the same seed, ordered, with as many broken ones as are said."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import UTC, datetime, timedelta

import orjson
import pytest

from tidelog.demo.shop import (
    BROKEN_MIN,
    BROKEN_VALUES,
    CATEGORIES,
    CLICKS,
    MINUTES,
    ORDERS,
    last_whole_hour,
    open_shop,
)

START = datetime(2026, 3, 1, 9, tzinfo=UTC)


def test_the_same_seed_gives_the_same_events() -> None:
    first, second, other = open_shop(2000, 7, START), open_shop(2000, 7, START), open_shop(2000, 8, START)
    for one, two, three in zip(first, second, other, strict=True):
        assert one.rows.equals(two.rows)
        assert not one.rows.equals(three.rows)


@pytest.mark.parametrize("events", [20, 999, 20_000])
def test_there_are_as_many_as_were_asked_for(events: int) -> None:
    shop = open_shop(events, 1, START)
    assert shop.events == events
    assert [each.topic for each in shop] == [ORDERS, CLICKS]
    assert shop.broken == BROKEN_MIN


def test_broken_events_are_counted_and_of_every_kind() -> None:
    shop = open_shop(20_000, 3, START)
    found: Counter[bytes] = Counter()
    for events in shop:
        values = events.rows.column("value").to_pylist()
        broken = Counter(value for value in values if value in BROKEN_VALUES)
        assert broken.total() == events.broken
        found += broken
    assert shop.broken == found.total() == BROKEN_MIN
    assert found.keys() == set(BROKEN_VALUES)


def test_events_are_documents_in_the_order_of_their_times_within_the_hour() -> None:
    for events in open_shop(5000, 5, START):
        times = events.rows.column("at").to_pylist()
        assert times == sorted(times)
        documents = [
            (orjson.loads(value), at, key)
            for value, at, key in zip(
                events.rows.column("value").to_pylist(), times, events.rows.column("key"), strict=True
            )
            if value not in BROKEN_VALUES
        ]
        for document, at_ms, key in documents:
            at = datetime.fromisoformat(document["at"])
            assert at == datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)
            assert START <= at < START + timedelta(minutes=MINUTES)
            assert document["category"] in CATEGORIES
            assert key.as_py() == document["user"].encode()
        numbers = [document["order_id" if events.topic == ORDERS else "click_id"] for document, _, _ in documents]
        assert len(set(numbers)) == len(numbers)


def test_parts_make_up_the_whole() -> None:
    for events in open_shop(1003, 5, START):
        cuts = [0.0, 0.13, 0.5, 0.5, 0.77, 1.0]
        parts = [events.between(first, last) for first, last in itertools.pairwise(cuts)]
        joined = [value for part in parts for value in part.column("value").to_pylist()]
        assert joined == events.rows.column("value").to_pylist()


def test_the_last_whole_hour_is_over() -> None:
    assert last_whole_hour(datetime(2026, 3, 1, 10, 0, 0, tzinfo=UTC)) == START
    assert last_whole_hour(datetime(2026, 3, 1, 10, 59, 59, tzinfo=UTC)) == START
