"""A shop's orders and clicks, made up from a seed.

What always holds: the same numbers give the same events, byte for byte; events are in the order of their times, spread
over whole minutes; a known few of them are broken in ways that real producers break them. Nothing here knows what a
pipeline makes of the events. The values are put together as Arrow columns: no Python object is made for an event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

CATEGORIES = ("books", "games", "garden", "kitchen", "music", "toys")
ORDERS = "orders"
CLICKS = "clicks"

MINUTES = 60
ORDER_SHARE = 0.3
CANCELLED_SHARES = (0.04, 0.2, 0.05, 0.08, 0.04, 0.12)  # of each category: games are given back most
USERS = 20_000
EVENTS_PER_BROKEN_ONE = 50_000
BROKEN_MIN = 4  # so that a small demo shows each kind once

# What replaces an event: half a line, another protocol, nothing, and something that is not a number.
BROKEN_VALUES = (
    b'{"order_id":17,"user":"u1","category":"bo',
    b"GET /health HTTP/1.1",
    b"",
    b'{"order_id":"n/a","click_id":"n/a","category":"books","amount_cents":"12,50","at":"soon"}',
)


@dataclass(frozen=True)
class Events:
    """The events of one topic: columns `key`, `value` and `at` (milliseconds), ordered by time."""

    topic: str
    rows: pa.Table
    broken: int

    def between(self, first: float, last: float) -> pa.Table:
        """The rows of a part, given as shares of the whole from 0 to 1; neighbours neither overlap nor leave gaps."""
        start, end = round(self.rows.num_rows * first), round(self.rows.num_rows * last)
        return self.rows.slice(start, end - start)


@dataclass(frozen=True)
class Shop:
    seed: int
    start: datetime
    topics: tuple[Events, ...]

    @property
    def events(self) -> int:
        return sum(events.rows.num_rows for events in self.topics)

    @property
    def broken(self) -> int:
        return sum(events.broken for events in self.topics)

    def __iter__(self) -> Iterator[Events]:
        return iter(self.topics)


def last_whole_hour(now: datetime) -> datetime:
    """When the last hour began that is over: recent enough that no broker's retention touches the events."""
    return now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)


def open_shop(events: int, seed: int, start: datetime) -> Shop:
    """Make up this many events, orders and clicks together, in the hour from `start` on."""
    import numpy as np

    random = np.random.default_rng(seed)
    orders = round(events * ORDER_SHARE)
    clicks = events - orders
    broken = max(BROKEN_MIN, events // EVENTS_PER_BROKEN_ONE)
    broken_orders = min(orders, (broken + 1) // 2)
    return Shop(
        seed,
        start,
        (
            _orders(random, orders, broken_orders, start),
            _clicks(random, clicks, min(clicks, broken - broken_orders), start),
        ),
    )


# numpy's arrays and generators carry types that say more than is of use here.
Array = Any
Random = Any


def _orders(random: Random, count: int, broken: int, start: datetime) -> Events:
    import numpy as np
    import pyarrow as pa

    at_ms = _times(random, count, start)
    users = random.integers(0, USERS, count)
    categories = _categories(random, count)
    # Few things cost much: the logarithms of prices are spread evenly around what the category usually costs.
    amounts = np.exp(random.normal(7.2 + 0.15 * categories, 0.6, count)).astype(np.int64)
    statuses = (random.random(count) < np.array(CANCELLED_SHARES)[categories]).astype(np.int64)
    value = _joined(
        ('{"order_id":', _text(np.arange(1, count + 1))),
        (',"user":"u', _text(users)),
        ('","category":"', _choice(CATEGORIES, categories)),
        ('","amount_cents":', _text(amounts)),
        (',"status":"', _choice(("paid", "cancelled"), statuses)),
        ('","at":"', _iso(at_ms)),
    )
    rows = pa.table({"key": _keys(users), "value": _with_broken(random, value, broken, 0), "at": pa.array(at_ms)})
    return Events(ORDERS, rows, broken)


def _clicks(random: Random, count: int, broken: int, start: datetime) -> Events:
    import numpy as np
    import pyarrow as pa

    at_ms = _times(random, count, start)
    users = random.integers(0, USERS, count)
    value = _joined(
        ('{"click_id":', _text(np.arange(1, count + 1))),
        (',"user":"u', _text(users)),
        ('","category":"', _choice(CATEGORIES, _categories(random, count))),
        ('","page":"/item/', _text(random.integers(1, 500, count))),
        ('","at":"', _iso(at_ms)),
    )
    rows = pa.table({"key": _keys(users), "value": _with_broken(random, value, broken, 2), "at": pa.array(at_ms)})
    return Events(CLICKS, rows, broken)


def _times(random: Random, count: int, start: datetime) -> Array:
    """Milliseconds since 1970, more of them in the middle of the hour than at its ends."""
    import numpy as np

    share = (random.random(count) + random.random(count)) / 2
    return np.sort(round(start.timestamp() * 1000) + (share * MINUTES * 60_000).astype(np.int64))


def _categories(random: Random, count: int) -> Array:
    """Not all are liked alike."""
    weights = [1 / (place + 2) for place in range(len(CATEGORIES))]
    return random.choice(len(CATEGORIES), count, p=[weight / sum(weights) for weight in weights])


def _with_broken(random: Random, values: pa.Array, broken: int, first_kind: int) -> pa.Array:
    """Replace this many values, spread at random, with broken ones, each kind in turn."""
    import pyarrow as pa

    places = sorted(int(place) for place in random.choice(len(values), broken, replace=False))
    pieces, done = [], 0
    for number, place in enumerate(places):
        pieces += [
            values.slice(done, place - done),
            pa.array([BROKEN_VALUES[(first_kind + number) % len(BROKEN_VALUES)]]),
        ]
        done = place + 1
    return pa.concat_arrays([*pieces, values.slice(done)])


# Columns of text


def _text(numbers: Array) -> pa.Array:
    import pyarrow as pa

    return pa.array(numbers).cast(pa.string())


def _choice(names: tuple[str, ...], which: Array) -> pa.Array:
    import pyarrow as pa

    return pa.array(names).take(pa.array(which))


def _iso(at_ms: Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.strftime(pa.array(at_ms).cast(pa.timestamp("ms", "UTC")), format="%Y-%m-%dT%H:%M:%SZ")


def _keys(users: Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.binary_join_element_wise("u", _text(users), "").cast(pa.binary())


def _joined(*fields: tuple[str, pa.Array]) -> pa.Array:
    """A JSON document a row, from the text before each field and the field; the last one is text in quotes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [part for field in fields for part in field]
    return pc.binary_join_element_wise(*parts, '"}', "").cast(pa.binary())
