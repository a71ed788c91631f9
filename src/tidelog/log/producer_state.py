"""What is known of each producer that wrote to a partition: its epoch, its last batches, its open transaction.

What always holds: the five latest batches of a producer are known, so that a retry of any of them is answered with
its first offset and not written again; a gap in the sequence or an older epoch is refused before anything is written;
offsets of transactions without an end are known, so that the last stable offset is right. State changes only by
`update`, with a batch that is in the log. Files are in `producer_snapshot`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.log.txn_guard import TransactionGuard, TransactionGuards
from tidelog.log.txn_index import AbortedTransaction
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import BatchHeader, ControlRecord, ControlRecordType

BATCHES_KEPT = 5  # as many requests as an idempotent producer may have in flight
SEQUENCE_MAX = 2**31 - 1
NO_SEQUENCE = -1
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1


class BatchMetadata(NamedTuple):
    """One batch of a producer in the log."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


def batch_metadata(header: BatchHeader) -> BatchMetadata:
    return BatchMetadata(header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp)


class ProducerEntry:
    """One producer."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "history_is_partial",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int = NO_COORDINATOR_EPOCH,
        last_timestamp: int = -1,
        current_txn_first_offset: int = NO_OFFSET,
        batches: Iterable[BatchMetadata] = (),
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.current_txn_first_offset = current_txn_first_offset
        self.batches = deque(batches, maxlen=BATCHES_KEPT)
        # A snapshot has room for the last batch only; those before it are looked up in the log when a retry asks.
        self.history_is_partial = False

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def is_next(self, sequence: int) -> bool:
        last = self.last_sequence
        return sequence == last + 1 or (sequence == 0 and last == SEQUENCE_MAX)

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """The batch in the log that this one repeats."""
        if header.producer_epoch != self.producer_epoch:
            return None
        for batch in self.batches:
            if batch.last_sequence == header.last_sequence and batch.first_sequence == header.base_sequence:
                return batch
        return None


class ProducerState:
    """All producers of one partition."""

    __slots__ = ("_ongoing", "_producers", "_unreplicated", "guards")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, int] = {}  # first offset of a transaction: its producer; lowest first
        self._unreplicated: dict[int, int] = {}  # first offset of an ended transaction: the offset of its marker
        self.guards = TransactionGuards()

    def load(self, entries: Iterable[ProducerEntry]) -> None:
        """Replace everything by what a snapshot holds."""
        self._producers = {entry.producer_id: entry for entry in entries}
        self._unreplicated = {}
        self._ongoing = {
            entry.current_txn_first_offset: entry.producer_id
            for entry in sorted(self._producers.values(), key=lambda entry: entry.current_txn_first_offset)
            if entry.current_txn_first_offset != NO_OFFSET
        }

    def entries(self) -> list[ProducerEntry]:
        return list(self._producers.values())

    def entry(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a batch of that epoch goes on with a transaction that the partition knows."""
        entry = self._producers.get(producer_id)
        return (
            entry is not None and entry.current_txn_first_offset != NO_OFFSET and entry.producer_epoch == producer_epoch
        )

    def check(self, header: BatchHeader, *, check_sequence: bool, guard: TransactionGuard | None = None) -> None:
        """Raise KafkaError unless the batch may follow what the producer wrote before; markers have `check_marker`."""
        if header.is_transactional and not self.has_open_transaction(header.producer_id, header.producer_epoch):
            self.guards.check(header, guard, check_sequence=check_sequence)
        entry = self._producers.get(header.producer_id)
        if entry is None:
            # Its state may have expired with its records; any sequence may begin (KIP-360).
            return
        if header.producer_epoch < entry.producer_epoch:
            raise _old_epoch(entry, header.producer_epoch)
        if check_sequence:
            _check_sequence(entry, header)
        if entry.current_txn_first_offset != NO_OFFSET and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction and sent a batch outside of it",
            )

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, epoch_is_bumped: bool
    ) -> None:
        """Raise KafkaError unless this marker may end the producer's transaction.

        `epoch_is_bumped`: the end of a transaction raises the epoch (KIP-890), so that a marker in the epoch of the
        open transaction is one that comes late, for an earlier one (KIP-1228).
        """
        entry = self._producers.get(producer_id)
        if entry is None:
            return
        is_open = entry.current_txn_first_offset != NO_OFFSET
        if producer_epoch < entry.producer_epoch or (
            epoch_is_bumped and is_open and producer_epoch == entry.producer_epoch
        ):
            raise _old_epoch(entry, producer_epoch)
        if coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch} is older than the last seen, {entry.coordinator_epoch}",
            )

    def update(self, header: BatchHeader, marker: ControlRecord | None = None) -> AbortedTransaction | None:
        """Take in a batch that is in the log, with its final offsets; the transaction that it aborts, if it does.

        `marker` is what a control batch says, None for other batches and for those that compaction has emptied.
        """
        entry = self._producers.get(header.producer_id)
        if entry is None:
            entry = self._producers[header.producer_id] = ProducerEntry(header.producer_id, header.producer_epoch)
        if header.producer_epoch != entry.producer_epoch:
            entry.batches.clear()
            entry.producer_epoch = header.producer_epoch
        entry.last_timestamp = header.max_timestamp
        if header.is_control:
            return self._end_transaction(entry, header.last_offset, marker)
        entry.batches.append(batch_metadata(header))
        if header.is_transactional and entry.current_txn_first_offset == NO_OFFSET:
            entry.current_txn_first_offset = header.base_offset
            self._ongoing[header.base_offset] = header.producer_id
            self.guards.end(header.producer_id)
        return None

    def _end_transaction(
        self, entry: ProducerEntry, marker_offset: int, marker: ControlRecord | None
    ) -> AbortedTransaction | None:
        self.guards.end(entry.producer_id)
        if marker is not None:
            entry.coordinator_epoch = max(entry.coordinator_epoch, marker.coordinator_epoch)
        first_offset = entry.current_txn_first_offset
        if first_offset == NO_OFFSET:
            return None
        entry.current_txn_first_offset = NO_OFFSET
        self._ongoing.pop(first_offset, None)
        # Until the marker itself is below the high watermark, the outcome could still be lost with the leader.
        self._unreplicated[first_offset] = marker_offset
        if marker is None or marker.type is not ControlRecordType.ABORT:
            return None
        last_stable_offset = next(iter(self._ongoing), marker_offset + 1)
        return AbortedTransaction(entry.producer_id, first_offset, marker_offset, last_stable_offset)

    def first_unstable_offset(self) -> int | None:
        """The first offset whose transaction is undecided, or decided by a marker that may still be lost."""
        ongoing = next(iter(self._ongoing), None)
        if not self._unreplicated:
            return ongoing
        unreplicated = min(self._unreplicated)
        return unreplicated if ongoing is None else min(ongoing, unreplicated)

    def on_high_watermark(self, high_watermark: int) -> None:
        if self._unreplicated:
            self._unreplicated = {
                first: marker for first, marker in self._unreplicated.items() if marker >= high_watermark
            }

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that were silent for so long; how many there were."""
        expired = [
            entry.producer_id
            for entry in self._producers.values()
            if entry.current_txn_first_offset == NO_OFFSET and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        self.guards.remove_expired(now_ms, expiration_ms)
        return len(expired)

    def clear(self) -> None:
        self.load(())


def _old_epoch(entry: ProducerEntry, producer_epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"epoch {producer_epoch} of producer {entry.producer_id} is older than its last seen, {entry.producer_epoch}",
    )


def _check_sequence(entry: ProducerEntry, header: BatchHeader) -> None:
    sequence = header.base_sequence
    if header.producer_epoch != entry.producer_epoch:
        if sequence != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {entry.producer_id} starts epoch {header.producer_epoch} with sequence {sequence}, not 0",
            )
        return
    if not entry.is_next(sequence):
        last = entry.last_sequence
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {entry.producer_id} sent sequence {sequence} after {last}",
        )
