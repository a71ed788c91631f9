"""A transactor: in each transaction it polls as a member of a group, sends records, and commits the offsets it read.

The records it sends are new ones, or copies of those it polled, partition by partition, in another topic. Some
transactions are aborted on purpose, after their records were stored. Sends and offsets of a transaction count together
or not at all. After a transaction that does not count, it goes back to the group's committed offsets.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tidelog.client.consumer.consumer import Consumer
from tidelog.client.errors import ClientError, FatalError, RetriableError
from tidelog.client.producer.producer import Producer
from tidelog.client.types import OffsetAndMetadata, TopicPartition
from tidelog.records.kernel_consume import ConsumerRecord
from tidelog.torture.history import FAIL, OK, UNKNOWN
from tidelog.torture.workers import bursts, ending
from tidelog.torture.workers.ending import TRANSACTION_TIMEOUT_MS, Ending
from tidelog.torture.workers.progress_page import Phase
from tidelog.torture.workers.reading import NotedRebalances, poll_events
from tidelog.torture.workers.worker import PATIENCE_S, REQUEST_TIMEOUT_MS, Orders, Pace, Worker, run_worker, say

_POLL_S: Final = 0.1
_DELIVERY_S: Final = 30.0
_SESSION_MS: Final = 10_000
_ABORTED_SHARE: Final = 0.15
_ARREARS_S: Final = 1.0  # what was missed while nothing could be sent is not made up for, beyond this
_RECORDS_UNPACED: Final = 200
_BACKOFF_S: Final = 0.5


@dataclass(frozen=True)
class TransactorOrders(Orders):
    """Where it sends and polls."""

    topic: str = ""
    partitions: int = 1
    copy_to: str = ""  # a topic; without one, new records go to the same topic
    group: str = ""
    protocol: str = "classic"
    transactional_id: str = ""
    rate: float = 0.0


class Transactor(Worker):
    """Works until it is told to end; told to be quiet, it polls on without sending."""

    orders_class: ClassVar[type[Orders]] = TransactorOrders

    def __init__(self, orders: TransactorOrders, **others: Any) -> None:
        super().__init__(orders, **others)
        self._orders = orders
        self._pace = Pace(orders.rate)
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._filled_s = time.monotonic()  # when it last chose what to send

    def run(self) -> None:
        while not self.lead.is_over:
            try:
                self._work()
            except (FatalError, RetriableError) as error:
                # As applications do: another producer aborts what this one left open, and everything is read again
                # from what the group has committed.
                say(f"starts over with new clients: {error}")
                self.lead.back_off(_BACKOFF_S)

    def _work(self) -> None:
        orders = self._orders
        with ExitStack() as clients:
            producer = clients.enter_context(
                Producer(
                    bootstrap_servers=orders.bootstrap,
                    client_id=orders.name,
                    transactional_id=orders.transactional_id,
                    transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                    delivery_timeout_ms=int(_DELIVERY_S * 1000),
                    linger_ms=2,
                    request_timeout_ms=REQUEST_TIMEOUT_MS,
                )
            )
            ending.call_again(lambda timeout_s: producer.init_transactions(timeout=timeout_s))
            # The session of the consumer protocol is the broker's to set.
            session: dict[str, Any] = {"session_timeout_ms": _SESSION_MS} if orders.protocol == "classic" else {}
            consumer = clients.enter_context(
                Consumer(
                    bootstrap_servers=orders.bootstrap,
                    client_id=orders.name,
                    group_id=orders.group,
                    group_protocol=orders.protocol,
                    enable_auto_commit=False,
                    auto_offset_reset="earliest",
                    isolation_level="read_committed",
                    request_timeout_ms=REQUEST_TIMEOUT_MS,
                    max_poll_records=1_000,
                    **session,
                )
            )
            consumer.subscribe([orders.topic], listener=NotedRebalances(self))
            self.enter(Phase.WORKING)
            while not self.lead.is_over:
                if self.lead.is_quiet:
                    self.enter(Phase.QUIET)
                self._transact(producer, consumer)

    def _transact(self, producer: Producer, consumer: Consumer) -> None:
        start_ns = time.monotonic_ns()
        records = self._poll(consumer, start_ns)
        burst = self._burst(records)
        offsets = self._offsets(consumer, records)
        if not (burst or offsets):
            return
        polled = poll_events(records)
        committed = [["commit", str(place), position.offset] for place, position in sorted(offsets.items())]

        def events(parts: Sequence[bursts.Part], outcome: str) -> list[list[Any]]:
            return [*polled, *self._sent_events(parts, outcome), *committed]

        producer.begin_transaction()
        end, parts = self._fill_and_end(
            producer,
            consumer,
            burst,
            offsets,
            # The group goes on behind these records, even if this process is killed before it knows.
            lambda parts: self.announce("txn", start_ns, events(parts, UNKNOWN)),
        )
        self.note("txn", end.outcome, start_ns, events(parts, end.outcome), end.error or "")
        self.count(end.outcome, sum(map(len, burst.values())))
        if not end.is_usable:
            assert end.error is not None  # or it would be
            raise _StartOverError(str(end.error)) from end.error
        if end.outcome == OK:
            self._committed.update(offsets)
        elif records:
            self._go_back(consumer)
        self.lead.pause(self._pace.spend(sum(map(len, burst.values()))))

    def _offsets(
        self, consumer: Consumer, records: Sequence[ConsumerRecord]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit: where it is in the partitions that it has read from.

        At the end, where it is in all of them: behind the last record there may be markers of transactions.
        """
        positions = consumer.positions()
        if self.lead.ends is not None:
            return {place: at for place, at in positions.items() if self._committed.get(place) != at}
        read = {TopicPartition(record.topic, record.partition) for record in records}
        return {place: positions[place] for place in read}

    def _sent_events(self, parts: Sequence[bursts.Part], outcome: str) -> list[list[Any]]:
        """What was sent, as the history has it.

        A copy that does not count is made again, with the same values. So values of an abort are left out, and offsets
        are noted only where the copy counts for certain.
        """
        if not self._orders.copy_to or outcome == OK:
            return [part.event() for part in parts]
        return [] if outcome == FAIL else [part.event_of_attempt() for part in parts]

    def _poll(self, consumer: Consumer, start_ns: int) -> list[ConsumerRecord]:
        try:
            records = consumer.poll(_POLL_S)
        except RetriableError as error:
            self.note("poll", UNKNOWN, start_ns, [], error)
            return []
        self.page.read += len(records)
        return records

    def _fill_and_end(
        self,
        producer: Producer,
        consumer: Consumer,
        burst: dict[int, list[int]],
        offsets: dict[TopicPartition, OffsetAndMetadata],
        announce: Callable[[Sequence[bursts.Part]], None],
    ) -> tuple[Ending, list[bursts.Part]]:
        """Everything within the transaction, up to its end."""
        topic = self._orders.copy_to or self._orders.topic
        sent = bursts.send(producer, topic, burst)
        failure: ClientError | None = None
        try:
            if offsets:
                group = consumer.group_metadata()
                ending.call_again(
                    lambda timeout_s: producer.send_offsets_to_transaction(offsets, group, timeout=timeout_s)
                )
        except ClientError as error:
            failure = error
        is_wanted = self.random.random() >= _ABORTED_SHARE
        if failure is None:
            parts = bursts.wait(topic, sent, _DELIVERY_S)
            failure = next(bursts.failures(sent), None)
            if failure is None and is_wanted:
                announce(parts)
                return ending.commit(producer), parts
        # Nobody has asked for a commit, so it can't be committed.
        end = Ending(FAIL, failure, is_usable=False) if isinstance(failure, FatalError) else ending.abort(producer)
        parts = bursts.wait(topic, sent, _DELIVERY_S)
        return Ending(FAIL, end.error or failure, end.is_usable), parts

    def _go_back(self, consumer: Consumer) -> None:
        """Read again what a transaction that does not count has read."""
        partitions = sorted(consumer.assignment())
        start_ns = time.monotonic_ns()
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                committed = consumer.committed(partitions)
                break
            except RetriableError:
                if time.monotonic() > deadline_s:
                    raise
        events = []
        for partition in partitions:
            stored = committed[partition]
            consumer.seek(partition, stored if stored is not None else 0)
            events.append(["seek", str(partition), stored.offset if stored is not None else 0])
        self.note("seek", OK, start_ns, events)

    def _burst(self, records: Sequence[ConsumerRecord]) -> dict[int, list[int]]:
        """What to send in this transaction, by partition."""
        orders = self._orders
        if orders.copy_to:
            copied: dict[int, list[int]] = {}
            for record in records:
                copied.setdefault(record.partition, []).append(int(record.value))
            return copied
        if self.lead.is_quiet:
            return {}
        now_s = time.monotonic()
        mean = orders.rate * min(now_s - self._filled_s, _ARREARS_S) if orders.rate > 0 else _RECORDS_UNPACED
        self._filled_s = now_s
        burst: dict[int, list[int]] = {}
        for _ in range(self.random.randint(1, max(int(mean * 2), 1))):
            burst.setdefault(self.random.randrange(orders.partitions), []).append(self.new_value())
        return burst


class _StartOverError(RetriableError):
    """The producer is of no use any more."""


if __name__ == "__main__":
    sys.exit(run_worker(Transactor))
