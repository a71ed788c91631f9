"""What is known about each producer that wrote to a partition: its epoch, its latest batches, its open transaction.

What always holds: the five latest batches of a producer are known, so that a retry of any of them is answered with
its first offset and not written again; a gap in the sequence or an older epoch is refused before anything is written;
the first offsets of transactions without an end are known, so that the last stable offset is right. State changes only
by `update`, with a batch that is in the log, and by forgetting producers (`producer_limits`). Producers that wrote
lately are objects, all others are packed. Files are in `producer_snapshot`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

from tidelog.log.producer_entry import (
    NO_OFFSET,
    ProducerEntry,
    batch_metadata,
    packed_last_timestamp,
    packed_producer_id,
    packed_txn_first_offset,
)
from tidelog.log.producer_limits import ProducerLimits
from tidelog.log.txn_guard import TransactionGuard, TransactionGuards
from tidelog.log.txn_index import AbortedTransaction
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import BatchHeader, ControlRecord, ControlRecordType

_UNPACKED_MAX: Final = 64
"""How many producers of a partition are kept as objects: more than write to one at a time, save for few."""


class ProducerState:
    """All producers of one partition."""

    __slots__ = ("__weakref__", "_ongoing", "_packed", "_unpacked", "_unreplicated", "guards", "limits")

    def __init__(self, limits: ProducerLimits | None = None) -> None:
        self.limits = limits or ProducerLimits()
        self._unpacked: dict[int, ProducerEntry] = {}  # those used lately
        self._packed: dict[int, bytes] = {}  # all others, the one that was used last comes last
        self._ongoing: dict[int, int] = {}  # first offset of a transaction: its producer; lowest first
        self._unreplicated: dict[int, int] = {}  # first offset of an ended transaction: the offset of its marker
        self.guards = TransactionGuards(self.limits.per_partition_max)

    def __len__(self) -> int:
        return len(self._unpacked) + len(self._packed)

    def load(self, packed: Iterable[bytes]) -> None:
        """Replace everything with the contents of a snapshot, as far as the limit allows."""
        before = len(self)
        self._unpacked = {}
        self._packed = {packed_producer_id(each): each for each in packed}
        self._unreplicated = {}
        ongoing = [(packed_txn_first_offset(each), producer_id) for producer_id, each in self._packed.items()]
        self._ongoing = dict(sorted(item for item in ongoing if item[0] != NO_OFFSET))
        self.limits.note(self, len(self) - before)
        self._keep_to_limit()

    def packed(self) -> list[bytes]:
        """All producers at this moment, in packed form: for another thread, and cheap for many of them."""
        return [*self._packed.values(), *(entry.pack() for entry in self._unpacked.values())]

    def entries(self) -> list[ProducerEntry]:
        return [*map(ProducerEntry.unpack, self._packed.values()), *self._unpacked.values()]

    def entry(self, producer_id: int) -> ProducerEntry | None:
        entry = self._unpacked.get(producer_id)
        if entry is None and producer_id in self._packed:
            entry = ProducerEntry.unpack(self._packed.pop(producer_id))
            self._keep_unpacked(entry)
        return entry

    def _keep_unpacked(self, entry: ProducerEntry) -> None:
        unpacked = self._unpacked
        if len(unpacked) >= _UNPACKED_MAX:
            producer_id = next(iter(unpacked))
            self._packed[producer_id] = unpacked.pop(producer_id).pack()
        unpacked[entry.producer_id] = entry

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a batch with this epoch continues a transaction that the partition knows."""
        entry = self.entry(producer_id)
        return (
            entry is not None and entry.current_txn_first_offset != NO_OFFSET and entry.producer_epoch == producer_epoch
        )

    def check(self, header: BatchHeader, *, check_sequence: bool, guard: TransactionGuard | None = None) -> None:
        """Raise KafkaError unless the batch may follow what the producer wrote before; markers have `check_marker`."""
        if header.is_transactional and not self.has_open_transaction(header.producer_id, header.producer_epoch):
            self.guards.check(header, guard, check_sequence=check_sequence)
        entry = self.entry(header.producer_id)
        if entry is None:
            if len(self._ongoing) >= self.limits.per_partition_max:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"{len(self._ongoing)} producers have open transactions in the partition: none of them can be "
                    "forgotten for another one (tidelog.max.producer.ids.per.partition)",
                )
            # Its state may have expired with its records; it may start at any sequence (KIP-360).
            return
        if header.producer_epoch < entry.producer_epoch:
            raise _old_epoch(entry, header.producer_epoch)
        if check_sequence:
            _check_sequence(entry, header)
        if entry.current_txn_first_offset != NO_OFFSET and not header.is_transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction and sent a batch outside it",
            )

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, epoch_is_bumped: bool
    ) -> None:
        """Raise KafkaError unless this marker may end the producer's transaction.

        `epoch_is_bumped`: the end of a transaction raises the epoch (KIP-890), so that a marker in the epoch of the
        open transaction is one that comes late, for an earlier one (KIP-1228).
        """
        entry = self.entry(producer_id)
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
        """Apply a batch that is in the log, with its final offsets; returns the transaction that it aborts, if any.

        `marker` is what a control batch says, None for other batches and for those that compaction has emptied.
        """
        entry = self.entry(header.producer_id)
        if entry is None:
            entry = self._add(header)
        if header.producer_epoch != entry.producer_epoch:
            entry.batches = ()
            entry.producer_epoch = header.producer_epoch
        entry.last_timestamp = header.max_timestamp
        if header.is_control:
            return self._end_transaction(entry, header.last_offset, marker)
        entry.add_batches(batch_metadata(header))
        if header.is_transactional and entry.current_txn_first_offset == NO_OFFSET:
            entry.current_txn_first_offset = header.base_offset
            self._ongoing[header.base_offset] = header.producer_id
            self.guards.end(header.producer_id)
        return None

    def _add(self, header: BatchHeader) -> ProducerEntry:
        entry = ProducerEntry(header.producer_id, header.producer_epoch)
        self._keep_unpacked(entry)
        self.limits.note(self, 1)
        self._keep_to_limit()
        return entry

    def _keep_to_limit(self) -> None:
        excess = len(self) - self.limits.per_partition_max
        if excess > 0:
            self.forget_oldest(excess)

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
        """Forget producers that have been silent for this long; returns how many there were."""
        until_ms = now_ms - expiration_ms
        expired = [
            producer_id
            for producer_id, packed in self._packed.items()
            if packed_last_timestamp(packed) <= until_ms and packed_txn_first_offset(packed) == NO_OFFSET
        ]
        expired += [
            entry.producer_id
            for entry in self._unpacked.values()
            if entry.last_timestamp <= until_ms and not entry.has_open_transaction
        ]
        self._forget(expired)
        self.guards.remove_expired(now_ms, expiration_ms)
        return len(expired)

    def forget_oldest(self, count: int) -> int:
        """Forget producers that were silent for longest, without an open transaction; how many there were.

        Of those that are not packed the last one stays: it is the one that is being added.
        """
        quiet = chain(
            (
                producer_id
                for producer_id, packed in self._packed.items()
                if packed_txn_first_offset(packed) == NO_OFFSET
            ),
            (entry.producer_id for entry in list(self._unpacked.values())[:-1] if not entry.has_open_transaction),
        )
        oldest = [producer_id for producer_id, _ in zip(quiet, range(count), strict=False)]
        self._forget(oldest)
        return len(oldest)

    def _forget(self, producer_ids: list[int]) -> None:
        for producer_id in producer_ids:
            if self._packed.pop(producer_id, None) is None:
                del self._unpacked[producer_id]
        if producer_ids:
            self.limits.note(self, -len(producer_ids))

    def clear(self) -> None:
        """Forget everything, and stop counting towards the limits."""
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
