"""A last reader: everything in a workload's topics, from the beginning to the end, after all else has ended.

It reads up to the high watermarks also where it reads committed records only: an open transaction must come to its end,
so that whatever was unknown is decided afterwards.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tidelog.client.admin import Admin, OffsetSpec
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.errors import ClientError, RetriableError
from tidelog.client.types import TopicPartition
from tidelog.torture.history import FAIL, OK
from tidelog.torture.workers import errands
from tidelog.torture.workers.progress_page import Phase
from tidelog.torture.workers.reading import has_reached, poll_events
from tidelog.torture.workers.worker import REQUEST_TIMEOUT_MS, Orders, Worker, run_worker

_POLL_S: Final = 0.2


@dataclass(frozen=True)
class FinalReaderOrders(Orders):
    """What to read, and how."""

    topics: tuple[str, ...] = ()
    isolation: str = "read_committed"


class FinalReader(Worker):
    """Ends when it is at the end."""

    orders_class: ClassVar[type[Orders]] = FinalReaderOrders

    def __init__(self, orders: FinalReaderOrders, **others: Any) -> None:
        super().__init__(orders, **others)
        self._orders = orders
        self._f = "final" if orders.isolation == "read_committed" else "final-uncommitted"

    def run(self) -> None:
        orders = self._orders
        self.enter(Phase.WORKING)
        with Admin(bootstrap_servers=orders.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as admin:
            partitions = errands.partitions_of(admin, orders.topics)
            ends = errands.offsets_of(admin, partitions, OffsetSpec.LATEST)
            starts = errands.offsets_of(admin, partitions, OffsetSpec.EARLIEST)
        with Consumer(
            bootstrap_servers=orders.bootstrap,
            client_id=orders.name,
            auto_offset_reset="none",
            isolation_level=orders.isolation,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            max_poll_records=5_000,
        ) as consumer:
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, starts[str(partition)])
            self._read(consumer, partitions, ends)

    def _read(self, consumer: Consumer, partitions: list[TopicPartition], ends: Mapping[str, int]) -> None:
        shown: object = None
        while not self.lead.is_over:
            positions = consumer.positions()
            if positions != shown:
                shown = positions
                self.page.moved()
            if has_reached(positions, ends, partitions):
                return
            start_ns = time.monotonic_ns()
            try:
                records = consumer.poll(_POLL_S)
            except RetriableError:
                continue
            except ClientError as error:
                self.note(self._f, FAIL, start_ns, [], error)
                raise
            if records:
                self.note(self._f, OK, start_ns, poll_events(records))
                self.page.read += len(records)


if __name__ == "__main__":
    sys.exit(run_worker(FinalReader))
