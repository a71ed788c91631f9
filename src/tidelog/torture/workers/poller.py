"""A poller that assigns itself partitions, seeks, and assigns itself others, at random.

It remembers the furthest position in each partition. A seek back is a detour: after some records, or with the next
move, it goes on from where it was. So what it reads at most is what is written, and a bit.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tidelog.client.consumer.consumer import Consumer
from tidelog.client.errors import ClientError, OffsetOutOfRangeError, RetriableError
from tidelog.client.types import TopicPartition
from tidelog.torture.history import FAIL, OK, UNKNOWN
from tidelog.torture.workers.progress_page import Phase
from tidelog.torture.workers.reading import has_reached, keys_of, poll_events
from tidelog.torture.workers.worker import REQUEST_TIMEOUT_MS, Orders, Worker, run_worker

_POLL_S: Final = 0.2
_MOVES_S: Final = (0.5, 3.0)
_LOOKUP_S: Final = 1.0
_LOOKUP_TIMEOUT_S: Final = 5.0
_DETOUR_RECORDS: Final = 2_000


@dataclass(frozen=True)
class PollerOrders(Orders):
    """What to read."""

    topic: str = ""
    partitions: int = 1
    isolation: str = "read_uncommitted"
    looks_up: bool = False  # the high watermarks, now and then


class Poller(Worker):
    """Reads until it is told to end, or has drained the partitions."""

    orders_class: ClassVar[type[Orders]] = PollerOrders

    def __init__(self, orders: PollerOrders, **others: Any) -> None:
        super().__init__(orders, **others)
        self._orders = orders
        self._all = [TopicPartition(orders.topic, number) for number in range(orders.partitions)]
        self._furthest = dict.fromkeys(self._all, 0)
        self._detours: dict[TopicPartition, int] = {}  # to how many records that may still be

    def run(self) -> None:
        orders = self._orders
        with Consumer(
            bootstrap_servers=orders.bootstrap,
            client_id=orders.name,
            auto_offset_reset="none",
            isolation_level=orders.isolation,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            max_poll_records=1_000,
        ) as consumer:
            self._assign(consumer, self._all)
            self.enter(Phase.WORKING)
            next_move_s = next_lookup_s = time.monotonic()
            while not self.lead.is_over:
                now_s = time.monotonic()
                if self.lead.ends is not None:
                    if self._has_drained(consumer, self.lead.ends):
                        return
                elif now_s >= next_move_s:
                    next_move_s = now_s + self.random.uniform(*_MOVES_S)
                    self._move(consumer)
                if orders.looks_up and now_s >= next_lookup_s:
                    next_lookup_s = now_s + _LOOKUP_S
                    self._look_up(consumer)
                if self.lead.is_quiet:
                    self.enter(Phase.QUIET)
                self._poll(consumer)

    # Reading

    def _poll(self, consumer: Consumer) -> None:
        start_ns = time.monotonic_ns()
        try:
            records = consumer.poll(_POLL_S)
        except OffsetOutOfRangeError as error:
            # What it has read is gone, or the place it was told of is. The final reads show which.
            self.note("poll", FAIL, start_ns, [], error)
            self._furthest = dict.fromkeys(self._all, 0)
            self._detours.clear()
            for partition in consumer.assignment():
                self._seek(consumer, partition, 0, error)
            return
        except RetriableError as error:
            self.note("poll", UNKNOWN, start_ns, [], error)
            return
        except ClientError as error:
            self.note("poll", FAIL, start_ns, [], error)
            raise
        if not records:
            return
        events = poll_events(records)
        self.note("poll", OK, start_ns, events)
        self.page.read += len(records)
        self.page.moved()
        positions = consumer.positions()
        for partition in {TopicPartition(record.topic, record.partition) for record in records}:
            self._furthest[partition] = max(self._furthest[partition], positions[partition].offset)
        for event in events:
            self._count_detour(consumer, event)

    def _count_detour(self, consumer: Consumer, event: list[Any]) -> None:
        for partition, left in list(self._detours.items()):
            if event[1] == str(partition):
                self._detours[partition] = left - len(event[2])
                if self._detours[partition] <= 0:
                    self._return(consumer, partition)

    def _look_up(self, consumer: Consumer) -> None:
        start_ns = time.monotonic_ns()
        try:
            found = consumer.end_offsets(self._all, _LOOKUP_TIMEOUT_S)
        except RetriableError as error:
            self.note("lookup", FAIL, start_ns, [], error)
            return
        self.note("lookup", OK, start_ns, [["high_watermark", str(key), offset] for key, offset in found.items()])

    def _has_drained(self, consumer: Consumer, ends: dict[str, int]) -> bool:
        if self._detours or consumer.assignment() != set(self._all):
            self._assign(consumer, self._all)
        return has_reached(consumer.positions(), ends, self._all)

    # Moving

    def _move(self, consumer: Consumer) -> None:
        for partition in list(self._detours):
            self._return(consumer, partition)
        if self.random.random() < 0.4:
            count = self.random.randint(1, len(self._all))
            self._assign(consumer, sorted(self.random.sample(self._all, count)))
        else:
            partition = self.random.choice(sorted(consumer.assignment()))
            back = self.random.choice((10, 1_000, self._furthest[partition]))
            self._detours[partition] = _DETOUR_RECORDS
            self._seek(consumer, partition, max(self._furthest[partition] - self.random.randint(0, back), 0))

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Read these; those that it already reads go on where they are, without a word."""
        start_ns = time.monotonic_ns()
        kept = consumer.assignment() - self._detours.keys()
        consumer.assign(partitions)
        events: list[list[Any]] = [["assign", keys_of(partitions)]]
        for partition in partitions:
            if partition not in kept:
                consumer.seek(partition, self._furthest[partition])
                events.append(["seek", str(partition), self._furthest[partition]])
        self._detours.clear()
        self.note("assign", OK, start_ns, events)

    def _return(self, consumer: Consumer, partition: TopicPartition) -> None:
        del self._detours[partition]
        self._seek(consumer, partition, self._furthest[partition])

    def _seek(self, consumer: Consumer, partition: TopicPartition, offset: int, error: object = "") -> None:
        start_ns = time.monotonic_ns()
        consumer.seek(partition, offset)
        self.note("seek", OK, start_ns, [["seek", str(partition), offset]], error)


if __name__ == "__main__":
    sys.exit(run_worker(Poller))
