"""A watcher: looks up the committed offsets of groups, and notes what it is told; they must not go back."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from tidelog.client.admin import Admin
from tidelog.client.errors import ClientError, RetriableError
from tidelog.client.types import TopicPartition
from tidelog.torture.history import FAIL, OK
from tidelog.torture.workers.progress_page import Phase
from tidelog.torture.workers.worker import REQUEST_TIMEOUT_MS, Orders, Worker, run_worker

_INTERVAL_S: Final = 0.5


@dataclass(frozen=True)
class WatcherOrders(Orders):
    """The groups, each with the topic that it reads, and how many partitions that has."""

    topics: dict[str, str] = field(default_factory=dict)
    partitions: int = 1


class Watcher(Worker):
    """Looks until it is told to end."""

    orders_class: ClassVar[type[Orders]] = WatcherOrders

    def __init__(self, orders: WatcherOrders, **others: Any) -> None:
        super().__init__(orders, **others)
        self._orders = orders

    def run(self) -> None:
        orders = self._orders
        wanted = {
            group: [TopicPartition(topic, number) for number in range(orders.partitions)]
            for group, topic in orders.topics.items()
        }
        with Admin(
            bootstrap_servers=orders.bootstrap,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            default_api_timeout_ms=2 * REQUEST_TIMEOUT_MS,
        ) as admin:
            self.enter(Phase.WORKING)
            while not self.lead.is_over:
                start_ns = time.monotonic_ns()
                try:
                    self._look(admin, wanted, start_ns)
                except RetriableError as error:
                    self.note("lookup", FAIL, start_ns, [], error)
                self.lead.back_off(_INTERVAL_S)

    def _look(self, admin: Admin, wanted: dict[str, list[TopicPartition]], start_ns: int) -> None:
        found = admin.list_consumer_group_offsets(wanted, require_stable=True)
        end_ns = time.monotonic_ns()
        events: list[list[Any]] = []
        for group, partitions in wanted.items():
            try:
                stored = found[group]
            except RetriableError:
                continue
            except ClientError as error:
                self.note("lookup", FAIL, start_ns, [], error)
                continue
            events += [["committed", str(place), stored[place].offset] for place in partitions if place in stored]
        if events:
            self.note("lookup", OK, start_ns, events, end_ns=end_ns)
            self.page.moved()


if __name__ == "__main__":
    sys.exit(run_worker(Watcher))
