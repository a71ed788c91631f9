"""A scanner of a compacted table: it reads the whole topic from its beginning, again and again.

A scan counts only if it was done well within `delete.retention.ms`: whoever takes longer may miss the tombstone of a
row that it has seen, as Kafka's documentation says. One that took too long is noted as failed.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tidelog.client.consumer.consumer import Consumer
from tidelog.client.errors import OffsetOutOfRangeError, RetriableError
from tidelog.client.types import TopicPartition
from tidelog.torture.history import FAIL, OK
from tidelog.torture.workers.progress_page import Phase
from tidelog.torture.workers.worker import REQUEST_TIMEOUT_MS, Orders, Worker, run_worker

_POLL_S: Final = 0.2
_LOOKUP_S: Final = 10.0


@dataclass(frozen=True)
class TableScannerOrders(Orders):
    """Which table."""

    topic: str = ""
    partitions: int = 1
    interval_s: float = 5.0
    delete_retention_s: float = 60.0
    is_last: bool = False  # one scan, after all is written; it is repeated until it counts


class TableScanner(Worker):
    """Scans until it is told to be quiet; or until one scan has counted, if that is the last one."""

    orders_class: ClassVar[type[Orders]] = TableScannerOrders

    def __init__(self, orders: TableScannerOrders, **others: Any) -> None:
        super().__init__(orders, **others)
        self._orders = orders
        self._partitions = [TopicPartition(orders.topic, number) for number in range(orders.partitions)]

    def run(self) -> None:
        with Consumer(
            bootstrap_servers=self._orders.bootstrap,
            client_id=self._orders.name,
            auto_offset_reset="none",
            isolation_level="read_committed",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            max_poll_records=5_000,
        ) as consumer:
            consumer.assign(self._partitions)
            self.enter(Phase.WORKING)
            while not (self.lead.is_over or self.lead.is_quiet):
                if self._scan(consumer) and self._orders.is_last:
                    return
                self.lead.pause(self.random.uniform(0.5, 1.5) * self._orders.interval_s)

    def _scan(self, consumer: Consumer) -> bool:
        """One scan; returns whether it counts."""
        start_ns = time.monotonic_ns()
        limit_ns = start_ns + int(self._orders.delete_retention_s / 2 * 1e9)
        events: list[list[Any]] = []
        try:
            ends = consumer.end_offsets(self._partitions, _LOOKUP_S)
            # The beginning may be beyond 0, if an older table was deleted: the log start counts.
            for partition, first in consumer.beginning_offsets(self._partitions, _LOOKUP_S).items():
                consumer.seek(partition, first)
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                for record in consumer.poll(_POLL_S):
                    value = None if record.value is None else int(record.value)
                    key = f"{record.topic}-{record.partition}"
                    events.append(["row", key, record.offset, record.key.decode(), value])
                    self.page.read += 1
                if time.monotonic_ns() > limit_ns:
                    self.note("table", FAIL, start_ns, [], "took so long that tombstones may have gone meanwhile")
                    return False
                if self.lead.is_over:
                    return False
                self.page.moved()
        except (RetriableError, OffsetOutOfRangeError) as error:
            self.note("table", FAIL, start_ns, [], error)
            return False
        self.note("table", OK, start_ns, events)
        self.page.moved()
        return True


if __name__ == "__main__":
    sys.exit(run_worker(TableScanner))
