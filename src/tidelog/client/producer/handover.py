"""A transactional producer that leaves its transactions open for others to end, one transactional id after another.

For engines whose workers write and whose driver decides: a worker delivers its records, hands the transaction over by
its id (`HandedOver`), and continues under another transactional id, over the same thread and connections. Anyone who
knows the id can end it, see `foreign_transactions`.

What always holds: when `hand_over` returns, every record is stored, and nothing more is written under that id and
epoch. The broker aborts a transaction that nobody ends after `transaction.timeout.ms`, unless two-phase commit is on.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tidelog.client.errors import BrokerError, NoSuchPartitionError, RetriableError
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.loop_thread import LoopThread
from tidelog.client.producer.producer import Producer
from tidelog.client.producer.transaction_calls import transactions_of
from tidelog.protocol import ErrorCode

_TOPIC_PAUSE_S = 0.1
_MAY_COME = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE})


class HandedOver(NamedTuple):
    """An open transaction whose records are all stored."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_id: int | None = None  # the node that coordinated it at the handover


class HandoverProducer(Producer):
    """Begin one with `start`, send, and `hand_over`; then `start` again. End a failed one with `give_up`."""

    def start(self, transactional_id: str) -> None:
        """Fence earlier users of the id, abort their open transaction, and begin a new one."""
        transactions = transactions_of(self._core)
        self._thread.run(transactions.rename(transactional_id))
        self.init_transactions()
        self.begin_transaction()

    def hand_over(self, timeout_s: float | None = None) -> HandedOver | None:
        """Deliver all records and leave the transaction open; None if nothing was written, so nothing is open."""
        transactions = transactions_of(self._core)
        producer = self._thread.run(transactions.leave_open(timeout_s=timeout_s))
        if producer is None:
            return None
        return HandedOver(transactions.transactional_id, *producer, transactions.coordinator_id)

    def give_up(self) -> None:
        """Abort the transaction that was begun."""
        self.abort_transaction()

    @property
    def cluster(self) -> Cluster:
        """Its connections, for other requests of the same process; use them only on `loop_thread`."""
        return self._core.cluster

    @property
    def loop_thread(self) -> LoopThread:
        return self._thread

    def check_topic(self, topic: str, timeout_s: float) -> None:
        """Wait for a topic's metadata for less than `max.block.ms`; raises NoSuchPartitionError."""
        check_topic(self, topic, timeout_s)


def check_topic(producer: Producer, topic: str, timeout_s: float) -> None:
    """Wait for a topic's metadata for less than `max.block.ms`; raises NoSuchPartitionError."""
    core = producer._core
    if core.known_queues(topic, None) is None:
        producer._thread.run(_wait_for_topic(producer, topic, timeout_s))


async def _wait_for_topic(producer: Producer, topic: str, timeout_s: float) -> None:
    core = producer._core
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    core.start()
    while True:
        try:
            # Brokers that create topics on demand do so for writers.
            told = await core.cluster.refresh([topic], allow_auto_topic_creation=True)
            if topic in told.topics and told.topics[topic].partitions:
                return
            code = told.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if code not in _MAY_COME:
                raise BrokerError(code, subject=f"topic {topic}")
        except RetriableError:
            if loop.time() >= deadline_s:
                raise
        if loop.time() >= deadline_s:
            raise NoSuchPartitionError(f"there is no topic {topic!r}; create it with 'tidelog topics create {topic}'")
        await asyncio.sleep(_TOPIC_PAUSE_S)
