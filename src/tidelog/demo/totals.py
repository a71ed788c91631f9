"""The expected results, computed by a plain loop over the events, without Spark and without a broker.

What always holds: it shares no code with the pipelines that it checks, and money is counted in whole cents, so that two
results are either equal or not. Events that can't be read are counted and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.demo.shop import ORDERS

if TYPE_CHECKING:
    import pyarrow as pa

DIFFERENCES_SHOWN = 3


class Slot(NamedTuple):
    """A minute, such as `2026-01-05T12:34:00Z`, and a category."""

    minute: str
    category: str


@dataclass(slots=True)
class Sums:
    revenue_cents: int = 0
    orders: int = 0
    clicks: int = 0

    def text(self) -> str:
        return f"{self.revenue_cents / 100:,.2f} from {self.orders:,} orders, {self.clicks:,} clicks"


@dataclass(slots=True)
class Totals:
    """The sums of every minute and category."""

    slots: dict[Slot, Sums] = field(default_factory=dict)
    broken: int = 0

    def add(self, topic: str, rows: pa.Table, *, count_cancelled: bool) -> None:
        """Add the events of a topic, whose documents are in the column `value`."""
        import orjson

        for batch in rows.column("value").chunks:
            for value in batch.to_pylist():
                try:
                    event = _checked(topic, orjson.loads(value))
                except (ValueError, KeyError, TypeError):
                    self.broken += 1
                else:
                    self._count(topic, event, count_cancelled)

    def _count(self, topic: str, event: Mapping[str, Any], count_cancelled: bool) -> None:
        if topic == ORDERS and event["status"] == "cancelled" and not count_cancelled:
            return
        slot = Slot(f"{event['at'][:16]}:00Z", event["category"])
        sums = self.slots.get(slot)
        if sums is None:
            sums = self.slots[slot] = Sums()
        if topic == ORDERS:
            sums.revenue_cents += event["amount_cents"]
            sums.orders += 1
        else:
            sums.clicks += 1

    @property
    def whole(self) -> Sums:
        return Sums(
            sum(sums.revenue_cents for sums in self.slots.values()),
            sum(sums.orders for sums in self.slots.values()),
            sum(sums.clicks for sums in self.slots.values()),
        )


def _checked(topic: str, event: Any) -> Mapping[str, Any]:
    """The event, if it is one; raises ValueError, KeyError or TypeError if a field is missing or of a wrong type."""
    number = event["order_id" if topic == ORDERS else "click_id"]
    if not isinstance(number, int) or (topic == ORDERS and not isinstance(event["amount_cents"], int)):
        raise TypeError("not a number")
    datetime.fromisoformat(event["at"])
    return event  # type: ignore[no-any-return]  # a document is a dict once a field was taken from it by name


def differences(found: Mapping[Slot, Sums], expected: Mapping[Slot, Sums]) -> list[str]:
    """The differences in words; empty if both are equal."""
    lines = []
    for slot in sorted(found.keys() | expected.keys()):
        if found.get(slot) != expected.get(slot):
            lines.append(f"{slot.minute} {slot.category}: {_words(found.get(slot))}, not {_words(expected.get(slot))}")
    return lines


def _words(sums: Sums | None) -> str:
    return "nothing" if sums is None else sums.text()


def shortened(lines: Iterable[str]) -> str:
    """The first few lines, and how many more there are."""
    every = list(lines)
    more = f" and {len(every) - DIFFERENCES_SHOWN} more" if len(every) > DIFFERENCES_SHOWN else ""
    return "; ".join(every[:DIFFERENCES_SHOWN]) + more
