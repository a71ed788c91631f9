"""What the parts of a transaction shard share: its transactional ids, and writing one of them down.

What always holds: of one transactional id one write is under way at most, and what it says takes effect when it is
committed; while it is under way the id is busy and every request for it is told to come again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.coordinator.actions import Action, Answer, Append, Now, SetTimer, TimerKey, TopicPartition
from tidelog.coordinator.appends import Appends, coordinator_error
from tidelog.coordinator.transaction import (
    NO_IDENTITY,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerIdentity,
    Transaction,
)
from tidelog.coordinator.txn_records import encode_transaction
from tidelog.protocol import ErrorCode

TIME_OUTS: Final[TimerKey] = ("", "time-outs")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """The settings of transactions; names are the settings' own with '.' turned to '_', the defaults are Kafka's."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_two_phase_commit_enable: bool = False


class ProducerResult(NamedTuple):
    """What InitProducerId and EndTxn are answered with; `ongoing` is the transaction that was kept for the producer."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    ongoing: ProducerIdentity = NO_IDENTITY


class HeldTransaction:
    """A transactional id of this shard."""

    __slots__ = ("is_busy", "is_sending", "retry_ms", "transaction", "unmarked")

    def __init__(self, transaction: Transaction | None = None) -> None:
        # None until the first record of the id is committed.
        self.transaction = transaction
        self.is_busy = False
        # Of a transaction that is prepared: the partitions that have no marker yet, and whether any is on its way.
        self.unmarked: frozenset[TopicPartition] = frozenset()
        self.is_sending = False
        self.retry_ms = 0.0


class TransactionShardState:
    """What `txn_shard` and the parts it is made of read and change."""

    def __init__(self, partition: int, coordinator_epoch: int, config: TransactionConfig) -> None:
        self.partition = partition
        self.coordinator_epoch = coordinator_epoch
        self.config = config
        self.held: dict[str, HeldTransaction] = {}
        self.appends = Appends()
        # Whether the timer of time-outs is set: it is while a transaction is open that has one.
        self.is_watching = False

    def watch(self, transaction: Transaction, now: Now) -> list[Action]:
        """A transaction is open: see to it that its time is looked at, if it has one."""
        if self.is_watching or transaction.is_two_phase:
            return []
        self.is_watching = True
        interval_ms = self.config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        return [SetTimer(TIME_OUTS, now.monotonic_ms + interval_ms)]

    def write(
        self,
        held: HeldTransaction,
        transaction: Transaction,
        on_written: Callable[[Now], list[Action]],
        on_refused: Callable[[ErrorCode, Now], list[Action]],
    ) -> Append:
        """Write a transaction down, which then is the one that is held."""
        held.is_busy = True

        def finish(error: ErrorCode, now: Now) -> list[Action]:
            held.is_busy = False
            if not error:
                held.transaction = transaction
                return on_written(now)
            if held.transaction is None:
                del self.held[transaction.transactional_id]
            return on_refused(coordinator_error(error), now)

        return self.appends.start((encode_transaction(transaction),), finish)


def refuse(exchange: int, error: ErrorCode) -> list[Action]:
    """The answer to an InitProducerId or EndTxn that is not carried out."""
    return [Answer(exchange, ProducerResult(error))]
