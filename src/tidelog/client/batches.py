"""Records waiting to be acknowledged, a queue a partition: the order they keep and what an answer does to them.

What always holds: batches of a partition reach the broker in the order they were filled; once one has failed, nothing
of that partition is sent before all its batches under way are answered, and then they go out again in order, one by
one; a batch's sequence numbers never change unless `renumber` is called. No sockets and no clock live here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.client.cluster import TopicPartition
from tidelog.protocol import ErrorCode

SEQUENCE_COUNT = 2**31  # sequence numbers wrap from 2^31 - 1 to 0
_RECORD_OVERHEAD_BYTES = 12  # a safe guess of a record's varints

Headers = Sequence[tuple[str, bytes | None]]
QueuedRecord = tuple[bytes | None, bytes | None, Headers, int | None]


def record_size_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """About what the record takes in a batch before compression; never less."""
    size = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += 2 * _RECORD_OVERHEAD_BYTES + len(name.encode()) + len(content or b"")
    return size


@dataclass(slots=True, eq=False)
class Batch:
    """Records of one partition that are sent together."""

    topic_partition: TopicPartition
    created_s: float
    records: list[QueuedRecord] = field(default_factory=list)
    size_bytes: int = 0
    base_sequence: int = -1
    in_flight: bool = False
    attempts: int = 0

    def add(self, record: QueuedRecord, size_bytes: int) -> None:
        self.records.append(record)
        self.size_bytes += size_bytes

    @property
    def payload_bytes(self) -> int:
        """The keys and values in it."""
        return sum(len(key or b"") + len(value or b"") for key, value, _, _ in self.records)


class PartitionQueue:
    """The batches of one partition, oldest first; the last one may still be filled."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.batches: deque[Batch] = deque()
        self.open_batch: Batch | None = None
        self.retry_at_s = 0.0
        self._next_sequence = 0
        self._recovering = False
        self._is_established = False

    @property
    def in_flight(self) -> int:
        return sum(batch.in_flight for batch in self.batches)

    @property
    def is_empty(self) -> bool:
        return not self.batches and self.open_batch is None

    def add(self, record: QueuedRecord, size_bytes: int, batch_bytes: int, now_s: float) -> bool:
        """Queue a record; says whether that closed a batch, because it is full or has no room for this one."""
        closed = False
        if self.open_batch is not None and self.open_batch.size_bytes + size_bytes > batch_bytes:
            closed = self.close_batch()
        if self.open_batch is None:
            self.open_batch = Batch(self.topic_partition, now_s)
        self.open_batch.add(record, size_bytes)
        if self.open_batch.size_bytes >= batch_bytes:
            closed = self.close_batch()
        return closed

    def close_batch(self) -> bool:
        """Nothing more goes into the open batch; from now on it can be sent."""
        if self.open_batch is None:
            return False
        self._number(self.open_batch)
        self.batches.append(self.open_batch)
        self.open_batch = None
        return True

    def next_to_send(self, in_flight_max: int, now_s: float) -> Batch | None:
        """The oldest batch not under way, when order and the pause after a failure allow it to go."""
        in_flight = self.in_flight
        if not self._is_established or (self.batches and self.batches[0].attempts):
            # A broker that doesn't know the producer yet takes any sequence number for its first, so nothing may
            # overtake the first batch. It knows only the last five batches again, so nothing may overtake one that
            # was sent before and may have been stored: it would be taken for a gap once five others had passed it.
            in_flight_max = 1
        if in_flight >= in_flight_max or now_s < self.retry_at_s or (self._recovering and in_flight):
            return None
        self._recovering = False
        return next((batch for batch in self.batches if not batch.in_flight), None)

    def acknowledged(self, batch: Batch) -> None:
        self.batches.remove(batch)
        self._is_established = True

    def failed_for_now(self, batch: Batch, retry_at_s: float) -> None:
        """It will be sent again, and all after it, once everything under way is answered."""
        batch.in_flight = False
        self._recovering = True
        self.retry_at_s = max(self.retry_at_s, retry_at_s)

    def given_up(self, batch: Batch) -> None:
        self.batches.remove(batch)
        self._recovering = True

    def split(self, batch: Batch) -> None:
        """Replace a batch that is too large for the broker by its halves, which keep its sequence numbers."""
        position = self.batches.index(batch)
        middle = len(batch.records) // 2
        halves = []
        for first, records in ((0, batch.records[:middle]), (middle, batch.records[middle:])):
            half = Batch(batch.topic_partition, batch.created_s, attempts=batch.attempts)
            for record in records:
                half.add(record, record_size_bytes(*record[:3]))
            half.base_sequence = (batch.base_sequence + first) % SEQUENCE_COUNT if batch.base_sequence >= 0 else -1
            halves.append(half)
        del self.batches[position]
        self.batches.insert(position, halves[1])
        self.batches.insert(position, halves[0])
        self._recovering = True

    def is_out_of_turn(self, batch: Batch, code: ErrorCode) -> bool:
        """Whether the broker refused it only because an earlier batch of the partition did not arrive."""
        return code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and bool(self.batches) and self.batches[0] is not batch

    def renumber(self) -> None:
        """Number from 0 for a new producer id."""
        self._next_sequence = 0
        self._is_established = False
        for batch in self.batches:
            self._number(batch)

    def _number(self, batch: Batch) -> None:
        batch.base_sequence = self._next_sequence
        self._next_sequence = (self._next_sequence + len(batch.records)) % SEQUENCE_COUNT
