"""The state of one transactional id, and the steps from one state to the next.

What always holds: a Transaction is immutable; each step returns a new one, which is what gets written. The epoch of a
producer id only rises, and EPOCH_MAX is never given to a producer, so there is always one left to fence it with. A
transaction that is prepared to commit or abort can only reach that end.

A transaction's identity is the one its records carry. Normally its producer has the same one; a transaction that was
kept for another producer (KIP-939) is ended by that producer, which has its own identity until then.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, NamedTuple

from tidelog.common.light_dataclass import dataclass
from tidelog.coordinator.actions import TopicPartition

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
EPOCH_MAX: Final = 2**15 - 1

TRANSACTION_VERSION_2: Final = 2
"""The version of the protocol in which every end of a transaction raises the producer's epoch (KIP-890)."""

NO_TIMEOUT_MS: Final = 2**31 - 1
"""The time-out of transactions that take part in a two-phase commit: as in Kafka, these never end by time."""


class TransactionState(enum.IntEnum):
    """The numbers used in records. DEAD and PREPARE_EPOCH_FENCE are never written; Kafka lists them."""

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
        return self in _PREPARED

    @property
    def is_complete(self) -> bool:
        return self in _COMPLETE

    @property
    def is_commit(self) -> bool:
        return self in _COMMITS


# Made once: to find a member by its name takes longer than to look it up here.
_PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
_COMPLETE: Final = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
_COMMITS: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
STATES_BY_TITLE: Final = {state.title: state for state in TransactionState}


class ProducerIdentity(NamedTuple):
    """A producer id and an epoch."""

    producer_id: int
    producer_epoch: int


NO_IDENTITY: Final = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id and its last transaction, as stored in one record."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    last_update_ms: int
    start_ms: int = -1
    # The id that producers had before the one of `client`.
    previous_producer_id: int = NO_PRODUCER_ID
    # The identity after the markers are written. If it has an epoch, the producer that the transaction is kept for
    # already uses it; otherwise it is a fresh id.
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    # The epoch that the same producer had before; it is not stored, so a new coordinator does not know it.
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    client_version: int = 0

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def client(self) -> ProducerIdentity:
        """The producer whose requests are accepted."""
        if self.is_kept:
            return ProducerIdentity(self.next_producer_id, self.next_producer_epoch)
        if self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdentity(self.next_producer_id, 0)
        return self.identity

    @property
    def is_kept(self) -> bool:
        """Whether a later producer than the one that wrote the transaction has to end it."""
        return self.next_producer_epoch != NO_PRODUCER_EPOCH

    @property
    def is_two_phase(self) -> bool:
        """Whether an external coordinator decides how it ends, however long that takes."""
        return self.timeout_ms == NO_TIMEOUT_MS

    @property
    def is_exhausted(self) -> bool:
        """Whether no producer could get the next epoch."""
        return is_epoch_exhausted(self.client.producer_epoch)

    # Producers come

    def initialize(self, timeout_ms: int, now_ms: int, *, is_same_producer: bool) -> Transaction:
        """Give a producer the id with the next epoch; one that had the previous epoch may ask for it again."""
        return self._empty(
            timeout_ms,
            now_ms,
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=self.producer_epoch if is_same_producer else NO_PRODUCER_EPOCH,
        )

    def repeat_initialize(self, timeout_ms: int, now_ms: int) -> Transaction:
        """Give the same epoch again to a producer whose response was lost."""
        return self._empty(timeout_ms, now_ms)

    def rotate(self, producer_id: int, timeout_ms: int, now_ms: int, *, last_producer_epoch: int) -> Transaction:
        """Give a new producer id, because the epochs of this one are exhausted."""
        return self._empty(
            timeout_ms,
            now_ms,
            producer_id=producer_id,
            previous_producer_id=self.producer_id,
            producer_epoch=0,
            last_producer_epoch=last_producer_epoch,
        )

    def keep(self, client: ProducerIdentity, timeout_ms: int, now_ms: int) -> Transaction:
        """Keep the transaction open for another producer, which gets its own identity and has to end it.

        The longer timeout applies: a transaction that may be prepared elsewhere must not expire because of who ends it.
        """
        is_rotated = client.producer_id != self.client.producer_id
        return _changed(
            self,
            previous_producer_id=self.client.producer_id if is_rotated else self.previous_producer_id,
            next_producer_id=client.producer_id,
            next_producer_epoch=client.producer_epoch,
            last_producer_epoch=NO_PRODUCER_EPOCH,
            timeout_ms=max(self.timeout_ms, timeout_ms),
            last_update_ms=now_ms,
        )

    def _empty(self, timeout_ms: int, now_ms: int, **changes: int) -> Transaction:
        empty = _changed(
            self,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            start_ms=-1,
            timeout_ms=timeout_ms,
            last_update_ms=now_ms,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_PRODUCER_EPOCH,
            client_version=0,
        )
        return _changed(empty, **changes)

    # A transaction begins and ends

    def add(self, partitions: Iterable[TopicPartition], client_version: int, now_ms: int) -> Transaction:
        """Start the transaction, or add these partitions to it."""
        is_ongoing = self.state is TransactionState.ONGOING
        return _changed(
            self,
            state=TransactionState.ONGOING,
            partitions=self.partitions.union(partitions),
            start_ms=self.start_ms if is_ongoing else now_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def prepare(self, *, committed: bool, client_version: int, fresh_id: int | None, now_ms: int) -> Transaction:
        """Decide the end. In version 2 it takes the next epoch, so late requests can't affect the next transaction.

        Markers of a kept transaction have the next epoch in every version: this fences the producer that wrote it.
        """
        client, bumps = self.client, client_version >= TRANSACTION_VERSION_2
        prepared = _changed(
            self,
            state=TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
            # A transaction without partitions starts and ends at this moment.
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            last_update_ms=now_ms,
            producer_epoch=self.producer_epoch + 1 if bumps or self.is_kept else self.producer_epoch,
            last_producer_epoch=client.producer_epoch if bumps else self.last_producer_epoch,
            client_version=client_version,
        )
        if fresh_id is not None:
            return _changed(
                prepared,
                previous_producer_id=client.producer_id,
                next_producer_id=fresh_id,
                next_producer_epoch=0 if self.is_kept else NO_PRODUCER_EPOCH,
            )
        if self.is_kept and bumps:
            return _changed(prepared, next_producer_epoch=client.producer_epoch + 1)
        return prepared

    def fence(self, now_ms: int, *, last_producer_epoch: int = NO_PRODUCER_EPOCH) -> Transaction:
        """Decide to abort, and fence the transaction's producer.

        It is not marked as ended by a version 2 client; otherwise its producer could mistake the new epoch for the
        response to its own abort.
        """
        return _changed(
            self,
            state=TransactionState.PREPARE_ABORT,
            last_update_ms=now_ms,
            producer_epoch=min(self.producer_epoch + 1, EPOCH_MAX),
            next_producer_epoch=min(self.next_producer_epoch + 1, EPOCH_MAX) if self.is_kept else NO_PRODUCER_EPOCH,
            last_producer_epoch=last_producer_epoch,
            client_version=0,
        )

    def complete(self, now_ms: int) -> Transaction:
        """All markers are written: the transaction and its producer have one identity again."""
        client = self.client
        return _changed(
            self,
            state=TransactionState.COMPLETE_COMMIT if self.state.is_commit else TransactionState.COMPLETE_ABORT,
            partitions=frozenset(),
            last_update_ms=now_ms,
            producer_id=client.producer_id,
            producer_epoch=client.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_PRODUCER_EPOCH,
        )

    # Requests that come twice

    def is_retry_of_end(self, producer: ProducerIdentity) -> bool:
        """Whether this producer's EndTxn repeats the last one carried out; only version 2 makes that visible."""
        if self.client_version < TRANSACTION_VERSION_2 or not (self.state.is_prepared or self.state.is_complete):
            return False
        client = self.client
        if client.producer_epoch == 0:
            return producer == (self.previous_producer_id, EPOCH_MAX - 1)
        return producer == (client.producer_id, client.producer_epoch - 1)


_FIELDS: Final = tuple(field.name for field in fields(Transaction))
_values: Final = attrgetter(*_FIELDS)


def _changed(transaction: Transaction, **changes: Any) -> Transaction:
    """As `dataclasses.replace`, in a third of the time: each transaction takes four steps."""
    return Transaction(**dict(zip(_FIELDS, _values(transaction), strict=True)) | changes)


def is_epoch_exhausted(producer_epoch: int) -> bool:
    return producer_epoch >= EPOCH_MAX - 1
