"""Idempotence: producer id and epoch, the sequence of each batch, and how to react to a refused sequence.

What always holds: the batches of a partition have consecutive sequences in the order they were filled. A batch that may
have been stored keeps its id, epoch and sequence, so that a repeat is recognized, unless the broker itself has said
that it doesn't know them. If a gap can't be closed any more, the epoch is bumped and sequences restart at 0 (KIP-360);
a producer without transactions needs no broker for that. Nothing follows a partition's first batch of an epoch until
that is acknowledged: a broker that doesn't know a producer accepts any sequence as its first.

Pure: no clock, no network. Transactions use the same object; `is_transactional` decides what they may do.
"""

from __future__ import annotations

from tidelog.client.producer.batch import SEQUENCE_MASK, ProducerBatch
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
EPOCH_MAX = 0x7FFF
_NO_SEQUENCE = -1


class PartitionSequences:
    """The state of one partition."""

    __slots__ = (
        "in_flight",
        "is_established",
        "last_acked_offset",
        "last_acked_sequence",
        "next_sequence",
        "producer_epoch",
        "producer_id",
    )

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.next_sequence = 0
        self.last_acked_sequence = _NO_SEQUENCE
        self.last_acked_offset = -1
        self.is_established = False  # whether the broker has acknowledged a batch of this id and epoch
        self.in_flight: list[ProducerBatch] = []  # numbered batches that have not ended, in sequence order

    def start_over(self, producer_id: int, producer_epoch: int) -> None:
        """Renumber from 0 under this id and epoch, including batches that wait for their retry."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.next_sequence = 0
        self.last_acked_sequence = _NO_SEQUENCE
        self.is_established = False
        for batch in self.in_flight:
            batch.set_producer(producer_id, producer_epoch, self.next_sequence)
            self.next_sequence = (self.next_sequence + batch.count) & SEQUENCE_MASK

    def is_next(self, sequence: int) -> bool:
        return sequence == (self.last_acked_sequence + 1) & SEQUENCE_MASK


class Idempotence:
    """Producer id, epoch and sequences of one producer."""

    def __init__(self, *, is_transactional: bool = False) -> None:
        self.is_transactional = is_transactional
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.needs_epoch_bump = False  # for a transactional producer, to be settled when the transaction ends
        self._partitions: dict[TopicPartition, PartitionSequences] = {}
        self._unresolved: set[TopicPartition] = set()  # a batch in flight was given up: was it stored?
        self._to_start_over: set[TopicPartition] = set()

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """A broker has assigned these. A partition adopts them once nothing of it is in flight."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        for topic_partition in self._to_start_over:
            self._entry(topic_partition).start_over(producer_id, producer_epoch)
        self._unresolved -= self._to_start_over
        self._to_start_over.clear()
        self.needs_epoch_bump = False

    def reset_sequences(self) -> None:
        """Forget all partitions; nothing may be in flight. A transactional producer does so after a new epoch."""
        self._partitions.clear()
        self._unresolved.clear()
        self._to_start_over.clear()

    def _entry(self, topic_partition: TopicPartition) -> PartitionSequences:
        entry = self._partitions.get(topic_partition)
        if entry is None:
            entry = PartitionSequences(self.producer_id, self.producer_epoch)
            self._partitions[topic_partition] = entry
        return entry

    # Before a batch is sent

    def may_send(self, batch: ProducerBatch) -> bool:
        """Whether the partition's first waiting batch may go now."""
        if batch.topic_partition in self._to_start_over:
            return False
        entry = self._entry(batch.topic_partition)
        if batch.has_sequence:
            # A batch that is resent must be the oldest unacknowledged one.
            return entry.in_flight[0] is batch
        if not entry.in_flight:
            return batch.topic_partition not in self._unresolved
        is_stale = (entry.producer_id, entry.producer_epoch) != (self.producer_id, self.producer_epoch)
        return entry.is_established and not is_stale and batch.topic_partition not in self._unresolved

    def number(self, batch: ProducerBatch) -> None:
        """Assign a sequence to a batch that is sent for the first time."""
        if batch.has_sequence:
            return
        entry = self._entry(batch.topic_partition)
        if (entry.producer_id, entry.producer_epoch) != (self.producer_id, self.producer_epoch):
            entry.start_over(self.producer_id, self.producer_epoch)
        batch.set_producer(self.producer_id, self.producer_epoch, entry.next_sequence)
        entry.next_sequence = (entry.next_sequence + batch.count) & SEQUENCE_MASK
        entry.in_flight.append(batch)

    def order_of(self, batch: ProducerBatch) -> int:
        """Its place among the numbered batches of its partition."""
        return self._entry(batch.topic_partition).in_flight.index(batch)

    def replace(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """The batch was split: its parts share its sequences."""
        in_flight = self._entry(batch.topic_partition).in_flight
        at = in_flight.index(batch)
        sequence = batch.base_sequence
        for part in parts:
            part.set_producer(batch.producer_id, batch.producer_epoch, sequence)
            sequence = (sequence + part.count) & SEQUENCE_MASK
        in_flight[at : at + 1] = parts

    # After the response

    def on_delivered(self, batch: ProducerBatch, base_offset: int) -> None:
        entry = self._entry(batch.topic_partition)
        if batch in entry.in_flight:
            entry.in_flight.remove(batch)
        if (batch.producer_id, batch.producer_epoch) == (entry.producer_id, entry.producer_epoch):
            entry.is_established = True
            if (batch.last_sequence - entry.last_acked_sequence) & SEQUENCE_MASK < SEQUENCE_MASK // 2:
                entry.last_acked_sequence = batch.last_sequence
        if base_offset >= 0:
            entry.last_acked_offset = max(entry.last_acked_offset, base_offset + batch.count - 1)

    def may_retry(self, batch: ProducerBatch, code: ErrorCode, log_start_offset: int) -> bool:
        """Whether to resend a batch whose sequence was refused, perhaps under another epoch."""
        topic_partition = batch.topic_partition
        entry = self._entry(topic_partition)
        if code is ErrorCode.UNKNOWN_PRODUCER_ID:
            if log_start_offset == -1 or batch.sequence_was_reset:
                return True
            if entry.last_acked_offset < log_start_offset:
                # Retention deleted everything it had sent, and with it the broker's memory of the producer.
                entry.start_over(entry.producer_id, entry.producer_epoch)
                return True
            if not self.is_transactional:
                self.request_epoch_bump(topic_partition)
                return True
        elif code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            is_unresolved = topic_partition in self._unresolved
            if not is_unresolved and (batch.sequence_was_reset or not entry.is_next(batch.base_sequence)):
                return True  # an earlier batch has failed and goes first
            if not self.is_transactional:
                self.request_epoch_bump(topic_partition)
                return True
        return code.retriable

    def on_failed(self, batch: ProducerBatch, *, may_be_stored: bool) -> None:
        """The batch was given up. Those after it would leave a gap, so the partition needs a new epoch.

        A batch without a sequence was never sent, and leaves none.
        """
        entry = self._entry(batch.topic_partition)
        if batch in entry.in_flight:
            entry.in_flight.remove(batch)
        if not batch.has_sequence:
            return
        if may_be_stored:
            self._unresolved.add(batch.topic_partition)
        elif not self.is_transactional:
            self.request_epoch_bump(batch.topic_partition)
        else:
            self._close_gap(entry, batch)

    def _close_gap(self, entry: PartitionSequences, failed: ProducerBatch) -> None:
        """A batch that was definitely not stored is gone: the sequences of those after it move up."""
        entry.next_sequence = (entry.next_sequence - failed.count) & SEQUENCE_MASK
        for batch in entry.in_flight:
            if (batch.base_sequence - failed.base_sequence) & SEQUENCE_MASK < SEQUENCE_MASK // 2:
                moved = (batch.base_sequence - failed.count) & SEQUENCE_MASK
                batch.set_producer(batch.producer_id, batch.producer_epoch, moved)

    def has_in_flight(self, topic_partition: TopicPartition) -> bool:
        entry = self._partitions.get(topic_partition)
        return entry is not None and bool(entry.in_flight)

    # Epochs

    def request_epoch_bump(self, topic_partition: TopicPartition) -> None:
        self.needs_epoch_bump = True
        self._to_start_over.add(topic_partition)

    def resolve(self) -> list[TopicPartition]:
        """Check partitions with a given-up batch once nothing of them is in flight.

        Returns those that may still have a gap. A transaction that wrote to one of them can't be committed; without
        transactions they start over with the next epoch.
        """
        gaps = []
        for topic_partition in list(self._unresolved):
            entry = self._entry(topic_partition)
            if entry.in_flight:
                continue
            self._unresolved.discard(topic_partition)
            if not entry.is_next(entry.next_sequence):
                gaps.append(topic_partition)
                if self.is_transactional:
                    self.needs_epoch_bump = True
                else:
                    self.request_epoch_bump(topic_partition)
        return gaps

    @property
    def can_bump_epoch(self) -> bool:
        """Whether nothing that would be renumbered is in flight."""
        return not any(
            batch.in_flight
            for topic_partition in self._to_start_over
            for batch in self._entry(topic_partition).in_flight
        )

    def bump_epoch(self) -> None:
        """Take the next epoch without asking a broker; after the last one, the producer id is replaced."""
        if self.producer_epoch >= EPOCH_MAX:
            # The partitions start over when the new id arrives.
            self.producer_id, self.producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
            self.needs_epoch_bump = False
            return
        self.set_producer_id(self.producer_id, self.producer_epoch + 1)
