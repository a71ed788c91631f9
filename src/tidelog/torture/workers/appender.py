"""An appender: list-append transactions over a few keys, each key a partition and each list what is committed there.

All appenders have one transactional id and take turns: whoever begins, fences whoever is at it, so their transactions
never overlap, although nobody but the cluster sees to that. Otherwise Kafka would promise no order between the appends
of two transactions to two keys.

Keys with a long list are retired, and the topic gets more partitions when few are left.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tidelog.client.admin import Admin
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.errors import (
    BrokerError,
    ClientError,
    FatalError,
    OffsetOutOfRangeError,
    RequestTimeoutError,
    RetriableError,
)
from tidelog.client.producer.producer import Producer
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.torture.history import FAIL
from tidelog.torture.workers import bursts, ending
from tidelog.torture.workers.ending import TRANSACTION_TIMEOUT_MS, Ending
from tidelog.torture.workers.progress_page import Phase
from tidelog.torture.workers.worker import REQUEST_TIMEOUT_MS, Orders, Worker, run_worker, say

_KEYS: Final = 4  # in use at a time
_LIST_MAX: Final = 300
_MORE_KEYS: Final = 8
_METADATA_AGE_MS: Final = 2_000
_POLL_S: Final = 0.05
_LOOKUP_S: Final = 5.0
_DELIVERY_S: Final = 20.0
_READ_S: Final = 20.0
_READS_MAX = _APPENDS_MAX = 3
_ABORTED_SHARE: Final = 0.1
_READS_AFRESH_SHARE: Final = 0.05
_BACKOFF_S: Final = 0.5
_BETWEEN_TURNS_S: Final = (0.3, 2.0)
_PAUSE_S: Final = 0.4  # the mean, where no rate is asked for


@dataclass(frozen=True)
class AppenderOrders(Orders):
    """Where to append."""

    topic: str = ""
    transactional_id: str = ""
    rate: float = 0.0  # transactions a second


class Lists:
    """The lists as this appender has read them: it reads on from where it was."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic
        self._values: dict[TopicPartition, list[int]] = {}

    def keys(self) -> list[TopicPartition]:
        """The first keys whose lists are short; those that become known are read first."""
        keys: list[TopicPartition] = []
        for number in range(len(self._consumer.partitions_for(self._topic))):
            key = TopicPartition(self._topic, number)
            if len(self._values.get(key, ())) < _LIST_MAX:
                keys.append(key)
        return keys[:_KEYS]

    def forget(self, key: TopicPartition) -> None:
        """Read this list from its beginning the next time."""
        self._values.pop(key, None)

    def read(self, keys: list[TopicPartition]) -> dict[TopicPartition, list[int]]:
        """These lists, with everything committed when this was called; raises RetriableError."""
        consumer = self._consumer
        assigned = consumer.assignment()
        fresh = [key for key in keys if key not in assigned or key not in self._values]
        if assigned != set(keys):
            consumer.assign(keys)
        for key in fresh:
            consumer.seek(key, 0)
            self._values[key] = []
        ends = consumer.end_offsets(keys, _LOOKUP_S)
        deadline_s = time.monotonic() + _READ_S
        while any(consumer.position(key) < end for key, end in ends.items()):
            for record in consumer.poll(_POLL_S):
                self._values[TopicPartition(record.topic, record.partition)].append(int(record.value))
            if time.monotonic() > deadline_s:
                raise RequestTimeoutError(f"the lists {keys} were not read up to {ends} within {_READ_S:g} s")
        return {key: list(self._values[key]) for key in keys}


class Appender(Worker):
    """Makes transactions until it is told to be quiet."""

    orders_class: ClassVar[type[Orders]] = AppenderOrders

    def __init__(self, orders: AppenderOrders, **others: Any) -> None:
        super().__init__(orders, **others)
        self._orders = orders

    @property
    def _is_over(self) -> bool:
        return self.lead.is_over or self.lead.is_quiet

    def run(self) -> None:
        while not self._is_over:
            try:
                self._read_and_append()
            except (RetriableError, OffsetOutOfRangeError) as error:
                say(f"starts over with a new consumer: {error}")
                self.lead.back_off(_BACKOFF_S)

    def _read_and_append(self) -> None:
        with Consumer(
            bootstrap_servers=self._orders.bootstrap,
            client_id=self._orders.name,
            auto_offset_reset="none",
            isolation_level="read_committed",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            metadata_max_age_ms=_METADATA_AGE_MS,
            fetch_max_wait_ms=50,
            max_poll_records=10_000,
        ) as consumer:
            lists = Lists(consumer, self._orders.topic)
            self.enter(Phase.WORKING)
            while not self._is_over:
                try:
                    self._take_turns(lists)
                except (FatalError, RetriableError) as error:
                    # Somebody else has begun, most likely.
                    say(f"starts over with a new producer: {error}")
                # Whoever has its turn may make a few transactions before it is fenced.
                self.lead.pause(self.random.uniform(*_BETWEEN_TURNS_S))

    def _take_turns(self, lists: Lists) -> None:
        """Transactions one after another, until another appender fences this one."""
        with Producer(
            bootstrap_servers=self._orders.bootstrap,
            client_id=self._orders.name,
            transactional_id=self._orders.transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            delivery_timeout_ms=int(_DELIVERY_S * 1000),
            linger_ms=0,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        ) as producer:
            ending.call_again(lambda timeout_s: producer.init_transactions(timeout=timeout_s))
            while not self._is_over:
                keys = self._keys(lists)
                if not self._transact(producer, lists, keys):
                    return
                self._pause()

    def _pause(self) -> None:
        mean_s = 1 / self._orders.rate if self._orders.rate > 0 else _PAUSE_S
        self.lead.pause(self.random.uniform(0, 2 * mean_s))

    def _keys(self, lists: Lists) -> list[TopicPartition]:
        """Those in use. Nobody may have appended to keys whose list isn't known yet, so all are read first."""
        while True:
            keys = lists.keys()
            lists.read(keys)
            if lists.keys() == keys and len(keys) == _KEYS:
                return keys
            if len(lists.keys()) < _KEYS:
                self._add_keys()

    def _add_keys(self) -> None:
        with Admin(bootstrap_servers=self._orders.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as admin:
            topic = self._orders.topic
            count = len(admin.describe_topics(topic)[topic].partitions)
            wanted = count - count % _MORE_KEYS + _MORE_KEYS
            try:
                admin.create_partitions({topic: wanted}).raise_for_errors()
            except BrokerError as error:
                if error.code is not ErrorCode.INVALID_PARTITIONS:  # another appender was faster
                    raise
        self.lead.pause(_METADATA_AGE_MS / 1000)

    def _transact(self, producer: Producer, lists: Lists, keys: list[TopicPartition]) -> bool:
        """One transaction; returns whether the producer may make another one."""
        start_ns = time.monotonic_ns()
        producer.begin_transaction()
        read: list[list[Any]] = []
        failure: ClientError | None = None
        try:
            chosen = self.random.sample(keys, self.random.randint(0, min(_READS_MAX, len(keys))))
            if chosen:
                if self.random.random() < _READS_AFRESH_SHARE:
                    lists.forget(chosen[0])
                found = lists.read(keys)
                read = [["list", str(key), found[key]] for key in chosen]
        except RetriableError as error:
            failure = error
        burst: dict[int, list[int]] = {}
        if failure is None:
            for _ in range(self.random.randint(1, _APPENDS_MAX)):
                burst.setdefault(self.random.choice(keys).partition, []).append(self.new_value())

        def events(parts: Sequence[bursts.Part]) -> list[list[Any]]:
            return [
                *read,
                *(
                    ["append", part.key, value, offset]
                    for part in parts
                    for value, offset in zip(part.values, part.offsets, strict=True)
                ),
            ]

        end, parts = self._append_and_end(
            producer, burst, failure, lambda parts: self.announce("txn", start_ns, events(parts))
        )
        self.note("txn", end.outcome, start_ns, events(parts), end.error or "")
        self.count(end.outcome, sum(len(part.values) for part in parts))
        return end.is_usable

    def _append_and_end(
        self,
        producer: Producer,
        burst: dict[int, list[int]],
        failure: ClientError | None,
        announce: Callable[[Sequence[bursts.Part]], None],
    ) -> tuple[Ending, list[bursts.Part]]:
        topic = self._orders.topic
        sent = bursts.send(producer, topic, burst)
        parts = bursts.wait(topic, sent, _DELIVERY_S)
        failure = failure or next(bursts.failures(sent), None)
        if failure is None and self.random.random() >= _ABORTED_SHARE:
            announce(parts)
            return ending.commit(producer), parts
        if isinstance(failure, FatalError):
            return Ending(FAIL, failure, is_usable=False), parts
        end = ending.abort(producer)
        return Ending(FAIL, end.error or failure, end.is_usable), parts


if __name__ == "__main__":
    sys.exit(run_worker(Appender))
