"""All transactional ids of one partition of __transaction_state: requests, timers and outcomes in, actions out.

What always holds: durable changes are written first and take effect when they are committed; only what is committed is
answered. Replaying the records gives the same transactional ids, and completes decided transactions.

    shard = TransactionShard(partition, coordinator_epoch, config)
    shard.replay(record, offset)            for every record of the partition, then
    shard.on_loaded(now)                    after which requests may be handed in

`txn_init` handles new producers, `txn_requests` their requests, `txn_completion` the way from a decision to the end;
this module handles timers and queries about transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Final

from tidelog.coordinator.actions import (
    Action,
    ActionSteps,
    GroupRecord,
    Now,
    SetTimer,
    TimerKey,
    TopicPartition,
    Work,
)
from tidelog.coordinator.group_records import UnknownRecords
from tidelog.coordinator.memory import MemoryBudget
from tidelog.coordinator.transaction import NO_PRODUCER_ID, ProducerIdentity, Transaction, TransactionState
from tidelog.coordinator.txn_completion import TransactionCompletion
from tidelog.coordinator.txn_init import InitProducerId, ProducerIdWaits, TransactionInit
from tidelog.coordinator.txn_records import decode_transaction, encode_tombstone
from tidelog.coordinator.txn_requests import AddPartitions, EndTxn, TransactionRequests
from tidelog.coordinator.txn_state import (
    MAKE_ROOM,
    TIME_OUTS,
    HeldTransaction,
    TransactionConfig,
    TransactionShardState,
)
from tidelog.protocol import ErrorCode, ProtocolError
from tidelog.protocol.messages.k65_describe_transactions import TopicData
from tidelog.protocol.messages.k65_describe_transactions import TransactionState as DescribedTransaction

logger = logging.getLogger(__name__)

_EXPIRATION: Final[TimerKey] = ("", "expiration")

_UNUSED_MS_MAX: Final = 600_000
"""How long an id that had no transaction yet is kept when memory is short."""

_FORGOTTEN_AT_ONCE_MAX: Final = 64
_FORGOTTEN_CHARACTERS_MAX: Final = 64 * 1024
"""How many expired ids are forgotten by one write, and how long they may be together."""


class TransactionShard:
    """The coordinator of one partition's transactional ids."""

    def __init__(
        self, partition: int, coordinator_epoch: int, config: TransactionConfig, memory: MemoryBudget | None = None
    ) -> None:
        """`memory` is the budget that all shards of a broker share."""
        self.state = TransactionShardState(partition, coordinator_epoch, config, memory)
        self._ids = ProducerIdWaits()
        self._completion = TransactionCompletion(self.state)
        self._init = TransactionInit(self.state, self._completion, self._ids)
        self._requests = TransactionRequests(self.state, self._completion, self._ids)
        self._unknown_records = UnknownRecords(f"__transaction_state-{self.state.partition}")

    # Loading and unloading

    def replay(self, record: GroupRecord, offset: int, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply one record of the partition; raises ProtocolError if it can't be read."""
        if producer_id != NO_PRODUCER_ID:
            raise ProtocolError("a record of __transaction_state is itself part of a transaction")
        decoded = decode_transaction(record)
        if decoded is None:
            self._unknown_records.warn(record.key, offset)
        elif decoded.transaction is None:
            self.state.drop(decoded.transactional_id)
        else:
            self.state.put(decoded.transaction.transactional_id, HeldTransaction(decoded.transaction))

    def replay_transaction_end(self, producer_id: int, *, committed: bool) -> None:
        raise ProtocolError(f"__transaction_state-{self.state.partition} holds a marker of producer {producer_id}")

    def on_loaded(self, now: Now) -> ActionSteps:
        """All records have been replayed: complete decided transactions, and start the timers."""
        self.state.memory.count()
        yield [self._next_expiration(now)]
        for held, transaction in self._written():
            actions: list[Action] = []
            if transaction.state.is_prepared:
                actions += self._completion.start(held, now)
            elif transaction.state is TransactionState.ONGOING:
                actions += self.state.watch(transaction, now)
            yield actions

    def on_unloaded(self, error: ErrorCode) -> list[Action]:
        """This broker is no longer the coordinator: answer all waiting requests; nothing may be called after this."""
        self.state.memory.release()
        return self._ids.cancel_all(error)

    def on_abandoned(self, transactional_id: str, exchange: int, now: Now) -> list[Action]:
        """The connection of a waiting request is gone; the request is carried out all the same."""
        return []

    # What happens

    def on_appended(self, token: int, error: ErrorCode, now: Now) -> list[Action]:
        """A write is committed (NONE), or refused, in which case none of it is in the log, or the shard is reloaded."""
        return self.state.appends.finish(token, error, now)

    def on_markers_written(self, token: int, errors: Mapping[TopicPartition, ErrorCode], now: Now) -> list[Action]:
        """The outcome of one SendMarkers; markers of partitions that are not named are sent again."""
        return self._completion.on_markers_written(token, errors, now)

    def on_producer_id(self, token: int, producer_id: int, error: ErrorCode, now: Now) -> list[Action]:
        """A producer id was allocated (NONE), or could not be."""
        return self._ids.finish(token, producer_id, error, now)

    def on_timer(self, key: TimerKey, now: Now) -> list[Action]:
        """A timer is due; the first part of its key is the transactional id."""
        if key == _EXPIRATION:
            return [Work(self._expire(now)), self._next_expiration(now)]
        if key == MAKE_ROOM:
            return [Work(self._expire(now, unused_for_ms=_UNUSED_MS_MAX))]
        if key == TIME_OUTS:
            self.state.is_watching = False
            return [Work(self._abort_timed_out(now))]
        held = self.state.held.get(str(key[0]))
        return [] if held is None else self._completion.on_timer(held, now)

    # Requests

    def init_producer_id(self, ask: InitProducerId, now: Now, exchange: int) -> list[Action]:
        """Answers with a ProducerResult."""
        return self._init.init(ask, exchange, now)

    def add_partitions(self, ask: AddPartitions, now: Now, exchange: int) -> list[Action]:
        """Answers with an ErrorCode."""
        return self._requests.add_partitions(ask, exchange, now)

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """TRANSACTION_ABORTABLE for each partition that the producer may not write to."""
        return self._requests.verify_partitions(transactional_id, producer, partitions)

    def end_txn(self, ask: EndTxn, now: Now, exchange: int) -> list[Action]:
        """Answers with a ProducerResult."""
        return self._requests.end(ask, exchange, now)

    def transactions(self) -> Iterator[Transaction]:
        """All transactional ids, in no particular order."""
        return (transaction for _, transaction in self._written())

    def describe(self, transactional_id: str) -> DescribedTransaction:
        held = self.state.held.get(transactional_id)
        if held is None or held.transaction is None:
            return DescribedTransaction(
                error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=transactional_id
            )
        transaction = held.transaction
        return DescribedTransaction(
            transactional_id=transactional_id,
            transaction_state=transaction.state.title,
            transaction_timeout_ms=transaction.timeout_ms,
            transaction_start_time_ms=transaction.start_ms,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            topics=[
                TopicData(topic=topic, partitions=[partition for _, partition in partitions])
                for topic, partitions in groupby(sorted(transaction.partitions), itemgetter(0))
            ],
        )

    # Timers

    def _abort_timed_out(self, now: Now) -> ActionSteps:
        for held, _ in self._written():
            transaction = held.transaction
            if transaction is None or transaction.state is not TransactionState.ONGOING or transaction.is_two_phase:
                yield []
                continue
            # Also for one that is aborted now: that may fail, and is retried then.
            actions = self.state.watch(transaction, now)
            if not held.is_busy and transaction.start_ms + transaction.timeout_ms < now.wall_ms:
                logger.info(
                    "aborting transaction %s of producer %d, which exceeded its timeout of %d ms",
                    transaction.transactional_id,
                    transaction.producer_id,
                    transaction.timeout_ms,
                )
                actions += self._completion.decide(
                    held, transaction.fence(now.wall_ms), on_decided=lambda decided: [], on_refused=lambda error: []
                )
            yield actions

    def _expire(self, now: Now, unused_for_ms: float = inf) -> ActionSteps:
        """Forget ids that have been unused for long, and those without a transaction within the given time."""
        last_use_ms = now.wall_ms - self.state.config.transactional_id_expiration_ms
        last_init_ms = now.wall_ms - unused_for_ms
        expired: list[str] = []
        characters = 0
        for held, transaction in self._written():
            # It may have been used, or be gone, since the first step.
            if held.transaction is transaction and self._is_expired(held, transaction, last_use_ms, last_init_ms):
                held.is_busy = True
                expired.append(transaction.transactional_id)
                characters += len(transaction.transactional_id)
            if len(expired) == _FORGOTTEN_AT_ONCE_MAX or characters > _FORGOTTEN_CHARACTERS_MAX:
                yield [self._forget(expired)]
                expired, characters = [], 0
            else:
                yield []
        if expired:
            yield [self._forget(expired)]

    def _is_expired(
        self, held: HeldTransaction, transaction: Transaction, last_use_ms: float, last_init_ms: float
    ) -> bool:
        is_idle = transaction.state is TransactionState.EMPTY or transaction.state.is_complete
        is_past = transaction.last_update_ms <= last_use_ms or (
            # An id at its first epoch fences nobody: there was no producer before it.
            transaction.state is TransactionState.EMPTY
            and transaction.producer_epoch == 0
            and transaction.previous_producer_id == NO_PRODUCER_ID
            and transaction.last_update_ms <= last_init_ms
        )
        is_known = self.state.held.get(transaction.transactional_id) is held
        return is_idle and not held.is_busy and is_past and is_known

    def _forget(self, transactional_ids: list[str]) -> Action:
        def finish(error: ErrorCode, now: Now) -> list[Action]:
            for transactional_id in transactional_ids:
                if error:
                    self.state.held[transactional_id].is_busy = False
                else:
                    self.state.drop(transactional_id)
            return []

        return self.state.appends.start(map(encode_tombstone, transactional_ids), finish)

    def _next_expiration(self, now: Now) -> SetTimer:
        interval_ms = self.state.config.transaction_remove_expired_transaction_cleanup_interval_ms
        return SetTimer(_EXPIRATION, now.monotonic_ms + interval_ms)

    def _written(self) -> list[tuple[HeldTransaction, Transaction]]:
        return [(held, held.transaction) for held in self.state.held.values() if held.transaction is not None]
