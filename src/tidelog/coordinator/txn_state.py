"""What the parts of a transaction shard share: its transactional ids, and writing one of them.

What always holds: a transactional id has at most one write in flight, which takes effect when it is committed; until
then the id is busy, and every request for it has to be retried.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof
from typing import Final, NamedTuple

from tidelog.common.light_dataclass import dataclass
from tidelog.coordinator.actions import Action, Answer, Append, Now, SetTimer, TimerKey, TopicPartition
from tidelog.coordinator.appends import Appends, coordinator_error
from tidelog.coordinator.memory import PARTITION_BYTES, TRANSACTION_BYTES, MemoryBudget, ShardMemory
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
MAKE_ROOM: Final[TimerKey] = ("", "make-room")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """The settings of transactions; fields are named after them, with '_' for '.', and have Kafka's defaults."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_two_phase_commit_enable: bool = False
    tidelog_transaction_coordinator_max_bytes: int = 128 * 1024 * 1024


class ProducerResult(NamedTuple):
    """The answer to InitProducerId and EndTxn; `ongoing` is the transaction that was kept for the producer."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    ongoing: ProducerIdentity = NO_IDENTITY


class HeldTransaction:
    """A transactional id of this shard."""

    __slots__ = ("is_busy", "is_sending", "retry_ms", "size_bytes", "transaction", "unmarked")

    def __init__(self, transaction: Transaction | None = None) -> None:
        # None until the first record of the id is committed.
        self.transaction = transaction
        self.is_busy = False
        # For a prepared transaction: the partitions without a marker, and whether any marker is in flight.
        self.unmarked: frozenset[TopicPartition] = frozenset()
        self.is_sending = False
        self.retry_ms = 0.0
        # What it is charged for by the shard.
        self.size_bytes = 0


class TransactionShardState:
    """What `txn_shard` and the parts it is made of read and change."""

    def __init__(
        self, partition: int, coordinator_epoch: int, config: TransactionConfig, memory: MemoryBudget | None = None
    ) -> None:
        self.partition = partition
        self.coordinator_epoch = coordinator_epoch
        self.config = config
        self.held: dict[str, HeldTransaction] = {}
        self.appends = Appends()
        # Whether the timer for timeouts is set, which it is while a transaction with a timeout is open.
        self.is_watching = False
        # When to look again for ids that were never used, to make room for others.
        self.make_room_from_ms = 0.0
        self.memory = ShardMemory(memory or MemoryBudget(config.tidelog_transaction_coordinator_max_bytes))

    def put(self, transactional_id: str, held: HeldTransaction) -> None:
        """The shard knows this id from now on."""
        self.drop(transactional_id)
        self.held[transactional_id] = held
        self.charge(transactional_id, held)

    def drop(self, transactional_id: str) -> None:
        """Forget an id, if it is known."""
        held = self.held.pop(transactional_id, None)
        if held is not None:
            self.memory.add(-held.size_bytes)

    def charge(self, transactional_id: str, held: HeldTransaction) -> None:
        partitions = 0 if held.transaction is None else len(held.transaction.partitions)
        size_bytes = transaction_bytes(transactional_id) + partitions * PARTITION_BYTES
        self.memory.add(size_bytes - held.size_bytes)
        held.size_bytes = size_bytes

    def watch(self, transaction: Transaction, now: Now) -> list[Action]:
        """A transaction is open: make sure that its timeout is checked, if it has one."""
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
        """Write a transaction, which then becomes the current one."""
        held.is_busy = True

        def finish(error: ErrorCode, now: Now) -> list[Action]:
            held.is_busy = False
            if not error:
                held.transaction = transaction
                self.charge(transaction.transactional_id, held)
                return on_written(now)
            if held.transaction is None:
                self.drop(transaction.transactional_id)
            return on_refused(coordinator_error(error), now)

        return self.appends.start((encode_transaction(transaction),), finish)


def transaction_bytes(transactional_id: str) -> int:
    """Roughly how much memory an id takes while it has no partitions."""
    return TRANSACTION_BYTES + getsizeof(transactional_id)


def refuse(exchange: int, error: ErrorCode) -> list[Action]:
    """The answer to an InitProducerId or EndTxn that is not carried out."""
    return [Answer(exchange, ProducerResult(error))]
