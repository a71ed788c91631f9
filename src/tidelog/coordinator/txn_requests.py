"""What a producer requests within its transactions: adding and verifying partitions, and the end.

What always holds: only the producer with the current id and epoch is served, and if a transaction was kept for it
(KIP-939), all it can do is end it. Once an end is decided, repeating the request gets the same response, and the end
is never carried out twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from tidelog.coordinator.actions import Action, Answer, Now, TopicPartition
from tidelog.coordinator.transaction import (
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
                lambda now: [Answer(exchange, ErrorCode.NONE), *self._state.watch(added, now)],
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
        # This comes first: the id being written may be the one the producer has.
        if held.is_busy or held.transaction is None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if producer != held.transaction.client:
            return _stranger_error(producer, held.transaction)
        if held.transaction.state.is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        # A kept transaction may be prepared elsewhere, so it can only be ended as it is.
        return ErrorCode.INVALID_TXN_STATE if held.transaction.is_kept else ErrorCode.NONE

    # The end

    def end(self, ask: EndTxn, exchange: int, now: Now, fresh_id: int | None = None) -> list[Action]:
        """Answer with a ProducerResult once the end is decided. With a fresh id, this is the second call."""
        held = self._state.held.get(ask.transactional_id)
        if held is None:
            return refuse(exchange, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        transaction = held.transaction
        if held.is_busy or transaction is None:
            return refuse(exchange, ErrorCode.CONCURRENT_TRANSACTIONS)
        if transaction.is_retry_of_end(ask.producer):
            return _answer_retry(ask, transaction, exchange)
        if ask.producer != transaction.client:
            return refuse(exchange, _stranger_error(ask.producer, transaction))
        if transaction.state is not TransactionState.ONGOING:
            is_version_2 = transaction.client_version >= TRANSACTION_VERSION_2
            if not is_version_2 and (transaction.state.is_prepared or transaction.state.is_complete):
                return _answer_retry(ask, transaction, exchange)
            if transaction.state.is_prepared:
                # The producer already knows its next epoch, and is ahead of the markers of the previous end.
                return refuse(exchange, ErrorCode.CONCURRENT_TRANSACTIONS)
            if ask.committed or ask.client_version < TRANSACTION_VERSION_2:
                return refuse(exchange, ErrorCode.INVALID_TXN_STATE)
            # A version 2 producer does not know whether anything was added before its request failed.
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
        needs_id = ask.client_version >= TRANSACTION_VERSION_2 and transaction.is_exhausted
        if needs_id and fresh_id is None:
            return self._ids.start(partial(self.end, ask, exchange), exchange)
        prepared = transaction.prepare(
            committed=ask.committed,
            client_version=ask.client_version,
            fresh_id=fresh_id if needs_id else None,
            now_ms=now.wall_ms,
        )
        result = ProducerResult(ErrorCode.NONE, *prepared.client)
        return self._completion.decide(
            held,
            prepared,
            on_decided=lambda decided: [Answer(exchange, result)],
            on_refused=lambda error: refuse(exchange, error),
        )


def _stranger_error(producer: ProducerIdentity, transaction: Transaction) -> ErrorCode:
    """The error for a producer whose requests are not accepted."""
    if producer.producer_id in (transaction.client.producer_id, transaction.producer_id):
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.INVALID_PRODUCER_ID_MAPPING


def _answer_retry(ask: EndTxn, transaction: Transaction, exchange: int) -> list[Action]:
    """The end is already decided: confirm it if the request asks for the same one."""
    if ask.committed != transaction.state.is_commit:
        return refuse(exchange, ErrorCode.INVALID_TXN_STATE)
    if transaction.state.is_prepared:
        return refuse(exchange, ErrorCode.CONCURRENT_TRANSACTIONS)
    return [Answer(exchange, ProducerResult(ErrorCode.NONE, *transaction.client))]
