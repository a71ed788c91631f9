"""A sender: an idempotent producer with acks=all that sends bursts to all partitions of a topic.

Senders differ in their settings, by number: compression, linger, requests in flight, and how soon they give a record
up, so that some go on in a new epoch after a batch that may or may not be stored.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tidelog.client.producer.producer import Producer
from tidelog.torture.workers import bursts
from tidelog.torture.workers.progress_page import Phase
from tidelog.torture.workers.worker import REQUEST_TIMEOUT_MS, Orders, Pace, Worker, run_worker

_KINDS: Final[tuple[dict[str, Any], ...]] = (
    {"linger_ms": 2, "delivery_timeout_ms": 60_000},
    {"linger_ms": 0, "delivery_timeout_ms": 10_000, "compression_type": "lz4"},
    {"linger_ms": 5, "delivery_timeout_ms": 20_000, "batch_size": 1_000, "batch_growth_max_bytes": 0},
    {"linger_ms": 1, "delivery_timeout_ms": 30_000, "max_in_flight_requests_per_connection": 1},
)
# A burst takes about this long to send at the rate asked for: enough records together to be cheap.
_BURST_S: Final = 0.1
_BURST_MAX: Final = 1_000
# Without a rate, the records of a burst that are in flight at once.
_BURST_UNPACED: Final = 400


@dataclass(frozen=True)
class SenderOrders(Orders):
    """Where to send, and how much."""

    topic: str = ""
    partitions: int = 1
    rate: float = 0.0  # records a second; 0: the next burst as soon as the last one has ended
    announces: bool = False  # note what is sent before its outcome is known, too


class Sender(Worker):
    """Sends until it is told to be quiet."""

    orders_class: ClassVar[type[Orders]] = SenderOrders

    def __init__(self, orders: SenderOrders, **others: Any) -> None:
        super().__init__(orders, **others)
        self._orders = orders
        self._settings = _KINDS[orders.number % len(_KINDS)]

    def run(self) -> None:
        orders = self._orders
        with Producer(
            bootstrap_servers=orders.bootstrap,
            client_id=orders.name,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            max_block_ms=30_000,
            **self._settings,
        ) as producer:
            pace = Pace(orders.rate)
            self.enter(Phase.WORKING)
            while not (self.lead.is_over or self.lead.is_quiet):
                burst = self._burst()
                start_ns = time.monotonic_ns()
                sent = bursts.send(producer, orders.topic, burst)
                if orders.announces:
                    self.announce("send", start_ns, bursts.announcement(orders.topic, burst))
                parts = bursts.wait(orders.topic, sent, self._settings["delivery_timeout_ms"] / 1000)
                bursts.note_parts(self, start_ns, parts)
                self.lead.pause(pace.spend(sum(map(len, burst.values()))))

    def _burst(self) -> dict[int, list[int]]:
        """Values for a few partitions, of a random number around what the rate asks for."""
        mean = min(self._orders.rate * _BURST_S, _BURST_MAX) if self._orders.rate > 0 else _BURST_UNPACED
        total = self.random.randint(1, max(int(mean * 2), 1))
        count = self.random.randint(1, min(self._orders.partitions, total))
        chosen = self.random.sample(range(self._orders.partitions), count)
        # Each gets at least one; random cuts divide the rest.
        cuts = sorted(self.random.randint(0, total - count) for _ in range(count - 1))
        sizes = [1 + end - begin for begin, end in zip([0, *cuts], [*cuts, total - count], strict=True)]
        return {
            partition: [self.new_value() for _ in range(size)] for partition, size in zip(chosen, sizes, strict=True)
        }


if __name__ == "__main__":
    sys.exit(run_worker(Sender))
