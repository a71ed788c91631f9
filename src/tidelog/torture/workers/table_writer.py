"""A writer of a compacted table: bursts of upserts and deletes of a limited number of rows."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from tidelog.client.errors import ClientError
from tidelog.client.producer.futures import DeliveryFuture
from tidelog.client.producer.producer import Producer
from tidelog.torture.history import FAIL, OK, UNKNOWN
from tidelog.torture.workers import bursts
from tidelog.torture.workers.progress_page import Phase
from tidelog.torture.workers.worker import (
    PATIENCE_S,
    REQUEST_TIMEOUT_MS,
    Orders,
    Pace,
    Worker,
    describe,
    run_worker,
)

_DELIVERY_S: Final = 20.0
_DELETED_SHARE: Final = 0.15
_BURST_S: Final = 0.2
_BURST_UNPACED: Final = 100


@dataclass(frozen=True)
class TableWriterOrders(Orders):
    """Which table."""

    topic: str = ""
    partitions: int = 1
    rows: int = 200
    rate: float = 0.0


@dataclass(slots=True)
class _Put:
    partition: int
    row: str
    value: int | None
    future: DeliveryFuture | None = None
    error: ClientError | None = None


@dataclass(slots=True)
class _Part:
    events: list[list[Any]] = field(default_factory=list)
    errors: dict[str, None] = field(default_factory=dict)


class TableWriter(Worker):
    """Writes until it is told to be quiet."""

    orders_class: ClassVar[type[Orders]] = TableWriterOrders

    def __init__(self, orders: TableWriterOrders, **others: Any) -> None:
        super().__init__(orders, **others)
        self._orders = orders

    def run(self) -> None:
        orders = self._orders
        with Producer(
            bootstrap_servers=orders.bootstrap,
            client_id=orders.name,
            linger_ms=2,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=int(_DELIVERY_S * 1000),
        ) as producer:
            pace = Pace(orders.rate)
            self.enter(Phase.WORKING)
            while not (self.lead.is_over or self.lead.is_quiet):
                start_ns = time.monotonic_ns()
                puts = self._send(producer)
                # A tombstone that nobody had noted would be gone without a trace after compaction.
                self.announce("put", start_ns, [self._event(put, None) for put in puts])
                self._note(start_ns, puts)
                self.lead.pause(pace.spend(len(puts)))

    def _send(self, producer: Producer) -> list[_Put]:
        orders = self._orders
        mean = orders.rate * _BURST_S if orders.rate > 0 else _BURST_UNPACED
        puts = []
        for _ in range(self.random.randint(1, max(int(mean * 2), 1))):
            number = self.random.randrange(orders.rows)
            value = None if self.random.random() < _DELETED_SHARE else self.new_value()
            put = _Put(number % orders.partitions, f"r{number}", value)
            puts.append(put)
            try:
                put.future = producer.send(
                    orders.topic,
                    None if value is None else bursts.VALUE % value,
                    key=put.row.encode(),
                    partition=put.partition,
                )
            except ClientError as error:
                put.error = error
                break
        return puts

    def _event(self, put: _Put, offset: int | None) -> list[Any]:
        return ["put", f"{self._orders.topic}-{put.partition}", put.row, put.value, offset]

    def _note(self, start_ns: int, puts: list[_Put]) -> None:
        parts = {outcome: _Part() for outcome in (OK, UNKNOWN, FAIL)}
        for put in puts:
            offset, error = None, put.error
            outcome = FAIL
            if put.future is not None:
                offset, error = bursts.outcome_of(put.future, _DELIVERY_S + PATIENCE_S)
                outcome = OK if error is None else UNKNOWN
            parts[outcome].events.append(self._event(put, offset))
            if error is not None:
                parts[outcome].errors[describe(error)] = None
        end_ns = time.monotonic_ns()
        for outcome, part in parts.items():
            if part.events:
                self.note("put", outcome, start_ns, part.events, "; ".join(part.errors), end_ns)
                self.count(outcome, len(part.events))


if __name__ == "__main__":
    sys.exit(run_worker(TableWriter))
