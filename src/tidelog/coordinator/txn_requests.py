"""What a producer asks for within its transactions: partitions added, verified, and the end.

What always holds: only the producer with the current id and epoch is served; an end that was decided is answered the
same however often it is asked for, and never carried out twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from tidelog.coordinator.actions import Action, Answer, Now, TopicPartition
from tidelog.coordinator.transaction import (
    NO_PRODUCER_ID,
    TRANSACTION_VERSION_2,
    ProducerIdentity,
    Transaction,
    TransactionState,
)
from tidelog.coordinator.txn_completion import TransactionCompletion
from tidelog.coordinator.txn_init import ProducerIdWaits
from tidelog.coordinator.txn_state import HeldTransaction, ProducerResult, TransactionShardState, refuse
from tidelog.protocol import ErrorCode


class AddPartitions(NamedTuple):
    """Partitions that a transaction is about to write to."""

    transactional_id: str
    producer: ProducerIdentity
    partitions: frozenset[TopicPartition]
    client_version: int = 0


class EndTxn(NamedTuple):
    """How a producer wants its transaction to end."""

    transactional_id: str
    producer: ProducerIdentity
    committed: bool
    client_version: int = 0


class TransactionRequests:
    """Transactions in one shard."""

    def __init__(self, state: TransactionShardState, completion: TransactionCompletion, ids: ProducerIdWaits) -> None:
        self._state = state
        self._completion = completion
        self._ids = ids

    # Partitions

    def add_partitions(self, ask: AddPartitions, exchange: int, now: Now) -> list[Action]:
        """Answer with an ErrorCode."""
        error = self._check(ask.transactional_id, ask.producer)
        if error:
            return [Answer(exchange, error)]
        held = self._state.held[ask.transactional_id]
        transaction = held.transaction
        assert transaction is not None  # as it was checked
        if transaction.state is TransactionState.ONGOING and ask.partitions <= transaction.partitions:
            return [Answer(exchange, ErrorCode.NONE)]
        added = transaction.add(ask.partitions, ask.client_version, now.wall_ms)
        return [
            self._state.write(
                held,
                added,
                lambda now: [Answer(exchange, ErrorCode.NONE), *self._state.watch(now)],
                lambda error, now: [Answer(exchange, error)],
            )
        ]

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether the producer may write to each of these partitions in its transaction (KIP-890)."""
        error = self._check(transactional_id, producer)
        if error:
            return dict.fromkeys(partitions, error)
        transaction = self._state.held[transactional_id].transaction
        assert transaction is not None  # as it was checked
        return {
            partition: ErrorCode.NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def _check(self, transactional_id: str, producer: ProducerIdentity) -> ErrorCode:
        held = self._state.held.get(transactional_id)
        if held is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        # Asked first: what is being written may be the very id that the producer has.
        if held.is_busy or held.transaction is None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if producer.producer_id != held.transaction.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer.producer_epoch != held.transaction.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if held.transaction.state.is_prepared else ErrorCode.NONE

    # The end

    def end(self, ask: EndTxn, exchange: int, now: Now, fresh_id: int | None = None) -> list[Action]:
        """Answer with a ProducerResult, once the end is decided. With a fresh id this is asked the second time."""
        held = self._state.held.get(ask.transactional_id)
        if held is None:
            return refuse(exchange, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        transaction = held.transaction
        if held.is_busy or transaction is None:
            return refuse(exchange, ErrorCode.CONCURRENT_TRANSACTIONS)
        if transaction.is_retry_of_end(ask.producer):
            return _answer_retry(ask, transaction, exchange)
        if ask.producer.producer_id != transaction.producer_id:
            return refuse(exchange, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if not _has_epoch(ask.producer, transaction):
            return refuse(exchange, ErrorCode.PRODUCER_FENCED)
        if transaction.state is not TransactionState.ONGOING:
            is_version_2 = transaction.client_version >= TRANSACTION_VERSION_2
            if not is_version_2 and (transaction.state.is_prepared or transaction.state.is_complete):
                return _answer_retry(ask, transaction, exchange)
            if ask.committed or ask.client_version < TRANSACTION_VERSION_2:
                return refuse(exchange, ErrorCode.INVALID_TXN_STATE)
            # A producer of version 2 does not know whether anything it sent was added before it failed.
        return self._decide(held, transaction, ask, exchange, now, fresh_id)

    def _decide(
        self,
        held: HeldTransaction,
        transaction: Transaction,
        ask: EndTxn,
        exchange: int,
        now: Now,
        fresh_id: int | None,
    ) -> list[Action]:
        next_producer_id = NO_PRODUCER_ID
        if ask.client_version >= TRANSACTION_VERSION_2 and transaction.is_exhausted:
            if fresh_id is None:
                return self._ids.start(partial(self.end, ask, exchange), exchange)
            next_producer_id = fresh_id
        prepared = transaction.prepare(
            committed=ask.committed,
            client_version=ask.client_version,
            next_producer_id=next_producer_id,
            now_ms=now.wall_ms,
        )
        # The producer goes on with the identity that the transaction has when it is complete.
        result = ProducerResult(ErrorCode.NONE, *prepared.complete(now.wall_ms).identity)
        return self._completion.decide(
            held,
            prepared,
            on_decided=lambda decided: [Answer(exchange, result)],
            on_refused=lambda error: refuse(exchange, error),
        )


def _has_epoch(producer: ProducerIdentity, transaction: Transaction) -> bool:
    is_version_2 = transaction.client_version >= TRANSACTION_VERSION_2
    if is_version_2 and transaction.state.is_prepared:
        # The epoch that is written already is that of the next transaction, of which nobody knows yet.
        return False
    return producer.producer_epoch == transaction.producer_epoch


def _answer_retry(ask: EndTxn, transaction: Transaction, exchange: int) -> list[Action]:
    """The end was decided before: say so if it is the one that is asked for."""
    if ask.committed != transaction.state.is_commit:
        return refuse(exchange, ErrorCode.INVALID_TXN_STATE)
    if transaction.state.is_prepared:
        return refuse(exchange, ErrorCode.CONCURRENT_TRANSACTIONS)
    return [Answer(exchange, ProducerResult(ErrorCode.NONE, *transaction.identity))]
