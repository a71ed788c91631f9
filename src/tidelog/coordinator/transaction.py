"""What is known of one transactional id, and the steps from one state to the next.

What always holds: a Transaction never changes; a step gives another one, which is what is written. The epoch of a
producer id only grows, an epoch of EPOCH_MAX is never given to a producer, so that there is always one left to shut it
out with; a transaction that is prepared to commit or abort has no other way than to the end it was prepared for.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tidelog.coordinator.actions import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
EPOCH_MAX: Final = 2**15 - 1

TRANSACTION_VERSION_2: Final = 2
"""The version of the protocol in which every end of a transaction raises the producer's epoch (KIP-890)."""


class TransactionState(enum.IntEnum):
    """The numbers are those of the records. DEAD and PREPARE_EPOCH_FENCE are never written: Kafka lists them."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name that Kafka's tools show."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        """Whether the end is decided but not yet written everywhere."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    @property
    def is_commit(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


STATES_BY_TITLE: Final = {state.title: state for state in TransactionState}


class ProducerIdentity(NamedTuple):
    """A producer id and the epoch of one who uses it."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id and its last transaction, as one record says it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    last_update_ms: int
    start_ms: int = -1
    # The id before this one was given out, and the one that follows when the markers are written.
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    # The epoch that the same producer had before; it is not written down, so a new coordinator does not know it.
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    client_version: int = 0

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_exhausted(self) -> bool:
        """Whether the next epoch could not be given to a producer."""
        return is_epoch_exhausted(self.producer_epoch)

    # Producers come

    def initialize(self, timeout_ms: int, now_ms: int, *, is_same_producer: bool) -> Transaction:
        """Give the id to a producer, at the next epoch; one that had the epoch before may ask for it again."""
        return self._empty(
            timeout_ms,
            now_ms,
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=self.producer_epoch if is_same_producer else NO_PRODUCER_EPOCH,
        )

    def repeat_initialize(self, timeout_ms: int, now_ms: int) -> Transaction:
        """Give the epoch once more to a producer that never had the answer."""
        return self._empty(timeout_ms, now_ms)

    def rotate(self, producer_id: int, timeout_ms: int, now_ms: int, *, last_producer_epoch: int) -> Transaction:
        """Give another producer id, as the epochs of this one are used up."""
        return self._empty(
            timeout_ms,
            now_ms,
            producer_id=producer_id,
            previous_producer_id=self.producer_id,
            producer_epoch=0,
            last_producer_epoch=last_producer_epoch,
        )

    def _empty(self, timeout_ms: int, now_ms: int, **changes: int) -> Transaction:
        empty = replace(
            self,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            start_ms=-1,
            timeout_ms=timeout_ms,
            last_update_ms=now_ms,
            next_producer_id=NO_PRODUCER_ID,
            client_version=0,
        )
        return replace(empty, **changes)  # type: ignore[arg-type]  # all of them are the numbers named above

    # A transaction begins and ends

    def add(self, partitions: Iterable[TopicPartition], client_version: int, now_ms: int) -> Transaction:
        """Begin, or go on with these partitions too."""
        is_ongoing = self.state is TransactionState.ONGOING
        return replace(
            self,
            state=TransactionState.ONGOING,
            partitions=self.partitions.union(partitions),
            start_ms=self.start_ms if is_ongoing else now_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def prepare(self, *, committed: bool, client_version: int, next_producer_id: int, now_ms: int) -> Transaction:
        """Decide the end. In version 2 it takes the next epoch, so that requests for this transaction hit no other."""
        bumps = client_version >= TRANSACTION_VERSION_2
        return replace(
            self,
            state=TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
            # One that nothing was added to begins and ends at this moment.
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            last_update_ms=now_ms,
            producer_epoch=self.producer_epoch + 1 if bumps else self.producer_epoch,
            last_producer_epoch=self.producer_epoch if bumps else self.last_producer_epoch,
            next_producer_id=next_producer_id,
            client_version=client_version,
        )

    def fence(self, now_ms: int, *, last_producer_epoch: int = NO_PRODUCER_EPOCH) -> Transaction:
        """Decide to abort and shut out whoever runs the transaction.

        It is written as ended by no client of version 2: else its producer could take the new epoch for the answer to
        an abort of its own.
        """
        return replace(
            self,
            state=TransactionState.PREPARE_ABORT,
            last_update_ms=now_ms,
            producer_epoch=min(self.producer_epoch + 1, EPOCH_MAX),
            last_producer_epoch=last_producer_epoch,
            client_version=0,
        )

    def complete(self, now_ms: int) -> Transaction:
        """All markers are written."""
        completed = replace(
            self,
            state=TransactionState.COMPLETE_COMMIT if self.state.is_commit else TransactionState.COMPLETE_ABORT,
            partitions=frozenset(),
            last_update_ms=now_ms,
            next_producer_id=NO_PRODUCER_ID,
        )
        if self.next_producer_id == NO_PRODUCER_ID:
            return completed
        return replace(
            completed, producer_id=self.next_producer_id, previous_producer_id=self.producer_id, producer_epoch=0
        )

    # Requests that come twice

    def is_retry_of_end(self, producer: ProducerIdentity) -> bool:
        """Whether an EndTxn of this producer is the one that was carried out last; only version 2 can tell."""
        if self.client_version < TRANSACTION_VERSION_2 or not (self.state.is_prepared or self.state.is_complete):
            return False
        if producer.producer_id == self.producer_id:
            return producer.producer_epoch + 1 == self.producer_epoch
        return (
            self.state.is_complete
            and self.producer_epoch == 0
            and producer == (self.previous_producer_id, EPOCH_MAX - 1)
        )


def is_epoch_exhausted(producer_epoch: int) -> bool:
    return producer_epoch >= EPOCH_MAX - 1
