"""A copier from one topic to another in transactions, on confluent-kafka, as its documentation has it.

librdkafka says of each error what to do: call again, abort the transaction, or make a new producer. In the last case
the process ends and is started again: `close` may wait for ever when a rebalance has begun that the application was not
yet told of (confluentinc/librdkafka#4884). For the same reason it leaves its group before it closes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tidelog.client.errors import FatalError
from tidelog.torture.history import FAIL, OK, UNKNOWN
from tidelog.torture.workers.ending import TRANSACTION_TIMEOUT_MS
from tidelog.torture.workers.progress_page import Phase
from tidelog.torture.workers.worker import PATIENCE_S, Orders, Worker, run_worker

T = TypeVar("T")

_POLL_S: Final = 0.2
_POLL_RECORDS: Final = 500
_CALL_S: Final = 10.0
_SESSION_MS: Final = 10_000
_LEAVE_S: Final = 20.0
_ABORTED_SHARE: Final = 0.15


@dataclass(frozen=True)
class ConfluentCopierOrders(Orders):
    """What to copy."""

    topic: str = ""
    copy_to: str = ""
    group: str = ""
    transactional_id: str = ""


class UnusableError(FatalError):
    """The clients can't go on; the process is to be started again."""


@dataclass(slots=True)
class _Records:
    """The records of one partition within a transaction; `stored` are their offsets in the copy."""

    offsets: list[int]
    values: list[int]
    stored: list[int | None]


class ConfluentCopier(Worker):
    """Copies until it is told to end."""

    orders_class: ClassVar[type[Orders]] = ConfluentCopierOrders

    def __init__(self, orders: ConfluentCopierOrders, **others: Any) -> None:
        super().__init__(orders, **others)
        self._orders = orders
        self._rebalances = 0
        common = {"bootstrap.servers": orders.bootstrap, "client.id": orders.name, "socket.timeout.ms": 10_000}
        self._producer = Producer(
            {
                **common,
                "transactional.id": orders.transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 2,
            }
        )
        self._consumer = Consumer(
            {
                **common,
                "group.id": orders.group,
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": 1_000,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )

    def run(self) -> None:
        self._again(lambda: self._producer.init_transactions(_CALL_S))
        self._consumer.subscribe(
            [self._orders.topic],
            on_assign=lambda _, partitions: self._rebalanced("assigned", partitions),
            on_revoke=lambda _, partitions: self._rebalanced("revoked", partitions),
            on_lost=lambda _, partitions: self._rebalanced("lost", partitions),
        )
        self.enter(Phase.WORKING)
        while not self.lead.is_over:
            self._copy_some()
        self._leave()

    def _leave(self) -> None:
        self._consumer.unsubscribe()
        deadline_s = time.monotonic() + _LEAVE_S
        while self._consumer.consume(1, timeout=0.1) or self._consumer.assignment():
            if time.monotonic() > deadline_s:
                return  # the end of the process closes it as well
        self._consumer.close()

    def _rebalanced(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        self._rebalances += 1
        now_ns = time.monotonic_ns()
        keys = sorted(f"{each.topic}-{each.partition}" for each in partitions)
        self.note("rebalance", OK, now_ns, [[what, keys]], end_ns=now_ns)
        self.page.moved()

    # Copying

    def _copy_some(self) -> None:
        start_ns = time.monotonic_ns()
        before = self._rebalances
        messages = self._consume()
        if not messages:
            return
        if self._rebalances != before:
            # What came before a rebalance may come again after it, even in the same list.
            self._go_back()
            return
        by_partition: dict[int, _Records] = {}
        for message in messages:
            partition, offset = message.partition(), message.offset()
            assert partition is not None  # they are those of a record
            assert offset is not None
            records = by_partition.setdefault(partition, _Records([], [], []))
            records.offsets.append(offset)
            records.values.append(int(message.value() or b""))
            records.stored.append(None)
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise UnusableError(str(error)) from error
        outcome, failure, is_usable = self._fill_and_end(start_ns, by_partition)
        self._note(start_ns, by_partition, outcome, failure)
        if not is_usable:
            raise UnusableError(str(failure)) from failure
        if outcome != OK:
            self._go_back()

    def _consume(self) -> list[Message]:
        messages = []
        for message in self._consumer.consume(_POLL_RECORDS, timeout=_POLL_S):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.fatal():
                raise UnusableError(error.str())
        self.page.read += len(messages)
        return messages

    def _fill_and_end(
        self, start_ns: int, by_partition: dict[int, _Records]
    ) -> tuple[str, KafkaException | None, bool]:
        """The outcome, why, and whether the producer is still of use."""
        orders = self._orders
        behind = [
            TopicPartition(orders.topic, partition, records.offsets[-1] + 1)
            for partition, records in by_partition.items()
        ]
        try:
            for partition, records in by_partition.items():
                self._produce(partition, records)
            metadata = self._consumer.consumer_group_metadata()
            self._again(lambda: self._producer.send_offsets_to_transaction(behind, metadata, _CALL_S))
        except KafkaException as error:
            # Nobody has asked for a commit, so it can't be committed.
            return FAIL, error, _requires_abort(error) and self._abort()
        if self.random.random() < _ABORTED_SHARE:
            self._producer.flush(_CALL_S)  # an abort throws away what is not sent yet
            return FAIL, None, self._abort()
        # The group goes on behind these records, even if this process is killed before it knows.
        self.announce("txn", start_ns, self._events(by_partition, UNKNOWN))
        try:
            self._again(lambda: self._producer.commit_transaction(_CALL_S))
        except KafkaException as error:
            # An abort may be just another epoch here, which says nothing of a commit whose response was lost.
            return UNKNOWN, error, _requires_abort(error) and self._abort()
        return OK, None, True

    def _produce(self, partition: int, records: _Records) -> None:
        for at, value in enumerate(records.values):

            def delivered(error: KafkaError | None, message: Message, at: int = at) -> None:
                if error is None:
                    records.stored[at] = message.offset()

            while True:
                try:
                    self._producer.produce(
                        self._orders.copy_to, b"%d" % value, partition=partition, on_delivery=delivered
                    )
                    break
                except BufferError:
                    self._producer.poll(_POLL_S)

    def _abort(self) -> bool:
        """Abort; returns whether the producer is still of use."""
        try:
            self._again(lambda: self._producer.abort_transaction(_CALL_S))
        except KafkaException:
            return False
        return True

    def _go_back(self) -> None:
        """Read again from what the group has committed."""
        places = self._consumer.assignment()
        if not places:
            return
        start_ns = time.monotonic_ns()
        try:
            committed = self._again(lambda: self._consumer.committed(places, _CALL_S))
            events: list[list[Any]] = []
            for place in committed:
                known = place.offset >= 0
                self._consumer.seek(
                    TopicPartition(place.topic, place.partition, place.offset if known else OFFSET_BEGINNING)
                )
                events.append(["seek", f"{place.topic}-{place.partition}", place.offset if known else 0])
        except KafkaException as error:
            raise UnusableError(f"can't go back to the committed offsets: {error}") from error
        self.note("seek", OK, start_ns, events)

    def _note(
        self, start_ns: int, by_partition: dict[int, _Records], outcome: str, failure: KafkaException | None
    ) -> None:
        self.note("txn", outcome, start_ns, self._events(by_partition, outcome), failure or "")
        self.count(outcome, sum(len(records.values) for records in by_partition.values()))

    def _events(self, by_partition: dict[int, _Records], outcome: str) -> list[list[Any]]:
        """What a transaction consisted of; what does not count is sent again, so it is left out or without offsets."""
        source, target = self._orders.topic, self._orders.copy_to
        events: list[list[Any]] = []
        for partition, records in by_partition.items():
            events.append(["poll", f"{source}-{partition}", records.offsets, records.values])
            if outcome != FAIL:
                stored = records.stored if outcome == OK else [None] * len(records.values)
                events.append(["send", f"{target}-{partition}", records.values, stored])
            events.append(["commit", f"{source}-{partition}", records.offsets[-1] + 1])
        return events

    def _again(self, call: Callable[[], T]) -> T:
        """Call again as long as librdkafka says that this may help."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call()
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise


def _requires_abort(error: KafkaException) -> bool:
    return bool(error.args[0].txn_requires_abort())


if __name__ == "__main__":
    sys.exit(run_worker(ConfluentCopier))
