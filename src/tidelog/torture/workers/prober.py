"""A prober: one record at a time to one partition, acks=all, with so little patience that outages show."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tidelog.client.errors import ClientError
from tidelog.client.producer.producer import Producer
from tidelog.torture.history import FAIL, OK, UNKNOWN
from tidelog.torture.workers import bursts
from tidelog.torture.workers.progress_page import Phase
from tidelog.torture.workers.worker import PATIENCE_S, Orders, Pace, Worker, describe, run_worker

# A broker that doesn't answer for this long is asked no more; the leader may be another one by then.
_REQUEST_MS: Final = 1_000
_DELIVERY_MS: Final = 2_000
_RATE: Final = 20.0
_PAUSE_AFTER_REFUSAL_S: Final = 0.1


@dataclass(frozen=True)
class ProberOrders(Orders):
    """Where to send."""

    topic: str = ""
    partition: int = 0
    rate: float = 0.0  # records a second


class Prober(Worker):
    """Sends until it is told to be quiet."""

    orders_class: ClassVar[type[Orders]] = ProberOrders

    def __init__(self, orders: ProberOrders, **others: Any) -> None:
        super().__init__(orders, **others)
        self._orders = orders

    def run(self) -> None:
        orders = self._orders
        with Producer(
            bootstrap_servers=orders.bootstrap,
            client_id=orders.name,
            linger_ms=0,
            request_timeout_ms=_REQUEST_MS,
            delivery_timeout_ms=_DELIVERY_MS,
            max_block_ms=_DELIVERY_MS,
            socket_connection_setup_timeout_ms=_REQUEST_MS,
            reconnect_backoff_max_ms=200,
            retry_backoff_max_ms=200,
        ) as producer:
            pace = Pace(orders.rate or _RATE)
            self.enter(Phase.WORKING)
            while not (self.lead.is_over or self.lead.is_quiet):
                self._probe(producer)
                self.lead.pause(pace.spend(1))

    def _probe(self, producer: Producer) -> None:
        topic, partition = self._orders.topic, self._orders.partition
        value = self.new_value()
        start_ns = time.monotonic_ns()
        offset: int | None = None
        failure: ClientError | None = None
        try:
            future = producer.send(topic, bursts.VALUE % value, partition=partition)
        except ClientError as error:
            outcome, failure = FAIL, error
            self.lead.back_off(_PAUSE_AFTER_REFUSAL_S)
        else:
            offset, failure = bursts.outcome_of(future, _DELIVERY_MS / 1000 + PATIENCE_S)
            outcome = OK if failure is None else UNKNOWN
        event = ["send", f"{topic}-{partition}", [value], [offset]]
        self.note("probe", outcome, start_ns, [event], "" if failure is None else describe(failure))
        self.count(outcome, 1)


if __name__ == "__main__":
    sys.exit(run_worker(Prober))
