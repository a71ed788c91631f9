"""The plain computation: right by hand on a few events, and each kind of broken event is left out."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from tidelog.demo.shop import BROKEN_VALUES, CLICKS, ORDERS, open_shop
from tidelog.demo.totals import Slot, Sums, Totals, differences, shortened

_ORDERS = [
    b'{"order_id":1,"user":"u1","category":"toys","amount_cents":250,"status":"paid","at":"2026-03-01T09:00:59.999Z"}',
    b'{"order_id":2,"user":"u1","category":"toys","amount_cents":100,"status":"cancelled","at":"2026-03-01T09:00:00.000Z"}',
    b'{"order_id":3,"user":"u2","category":"toys","amount_cents":70,"status":"paid","at":"2026-03-01T09:01:00.000Z"}',
    b'{"order_id":4,"user":"u2","category":"books","amount_cents":5,"status":"paid","at":"2026-03-01T09:01:00.000Z"}',
]
_CLICKS = [b'{"click_id":1,"user":"u1","category":"toys","page":"/item/1","at":"2026-03-01T09:00:10.000Z"}']


def table(*values: bytes) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.binary())})


@pytest.mark.parametrize(("count_cancelled", "first"), [(True, Sums(350, 2, 1)), (False, Sums(250, 1, 1))])
def test_sums_of_minutes_and_categories(count_cancelled: bool, first: Sums) -> None:
    totals = Totals()
    totals.add(ORDERS, table(*_ORDERS), count_cancelled=count_cancelled)
    totals.add(CLICKS, table(*_CLICKS), count_cancelled=count_cancelled)
    assert totals.slots == {
        Slot("2026-03-01T09:00:00Z", "toys"): first,
        Slot("2026-03-01T09:01:00Z", "toys"): Sums(70, 1, 0),
        Slot("2026-03-01T09:01:00Z", "books"): Sums(5, 1, 0),
    }
    assert totals.broken == 0
    assert totals.whole == Sums(first.revenue_cents + 75, first.orders + 2, 1)


@pytest.mark.parametrize("topic", [ORDERS, CLICKS])
@pytest.mark.parametrize("value", BROKEN_VALUES)
def test_each_kind_of_broken_event_is_left_out(topic: str, value: bytes) -> None:
    totals = Totals()
    totals.add(topic, table(value), count_cancelled=True)
    assert (totals.slots, totals.broken) == ({}, 1)


def test_a_whole_shop_is_counted() -> None:
    shop = open_shop(20_000, 11, datetime(2026, 3, 1, 9, tzinfo=UTC))
    with_cancelled, without = Totals(), Totals()
    for events in shop:
        with_cancelled.add(events.topic, events.rows, count_cancelled=True)
        without.add(events.topic, events.rows, count_cancelled=False)
    assert with_cancelled.broken == without.broken == shop.broken
    whole = with_cancelled.whole
    assert whole.orders + whole.clicks + shop.broken == shop.events
    assert 0.85 < without.whole.orders / whole.orders < 0.97
    assert without.whole.clicks == whole.clicks


def test_differences_in_words() -> None:
    toys, books = Slot("2026-03-01T09:00:00Z", "toys"), Slot("2026-03-01T09:00:00Z", "books")
    assert differences({toys: Sums(1, 1, 1)}, {toys: Sums(1, 1, 1)}) == []
    assert differences({toys: Sums(250, 2, 1)}, {toys: Sums(150, 1, 1), books: Sums(1000, 1, 0)}) == [
        "2026-03-01T09:00:00Z books: nothing, not 10.00 from 1 orders, 0 clicks",
        "2026-03-01T09:00:00Z toys: 2.50 from 2 orders, 1 clicks, not 1.50 from 1 orders, 1 clicks",
    ]
    assert shortened(["a", "b", "c", "d", "e"]) == "a; b; c and 2 more"
    assert shortened(["a"]) == "a"
