"""A producer's batch: the records of one partition that are sent together, from the first record to the outcome.

What always holds: a batch ends once, delivered or failed, and everyone who waits for it is told, with callbacks on the
event loop's thread. Its buffer belongs to it until `take_buffer`. The compiled builder writes the records. `seal`
writes the header over them each time the batch is sent, because producer epoch and sequence may change in between.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.client.errors import BrokerError, ClientError
from tidelog.client.types import RecordMetadata, TopicPartition
from tidelog.common.checksum import crc32c
from tidelog.protocol import ErrorCode
from tidelog.records.batch import BATCH_HEADER_SIZE, LOG_OVERHEAD, MAGIC, TRANSACTIONAL_BIT, Compression
from tidelog.records.compression import compress
from tidelog.records.kernel import decode_objects
from tidelog.records.kernel_build import BatchBuilder, RecordReceipt, encode_header_list, record_size_max

if TYPE_CHECKING:
    from tidelog.client.producer.futures import DeliveryFuture

logger = logging.getLogger(__name__)

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC = struct.Struct(">I")
_CRC_AT = 17
_ATTRIBUTES_AT = 21
NO_SEQUENCE = -1
SEQUENCE_MASK = 0x7FFFFFFF  # sequences count 0 .. 2^31-1 and start over at 0
_NO_LOG_APPEND_TIME = -1

# Guards the moment when batches end against threads that start waiting just then. It is held for a few steps only.
_ending = threading.Lock()


class ProducerBatch(BatchBuilder):
    """The records of one partition that are sent together."""

    __slots__ = (
        "_ended",
        "_watchers",
        "attempts",
        "base_offset",
        "base_sequence",
        "created_ms",
        "drained_ms",
        "error",
        "in_flight",
        "is_done",
        "is_pooled",
        "is_wanted",
        "last_attempt_ms",
        "leader_epoch",
        "log_append_time",
        "parts",
        "payload",
        "producer_epoch",
        "producer_id",
        "record_errors",
        "send_now",
        "sequence_was_reset",
        "topic_partition",
        "wake_sender",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        buffer: bytearray,
        capacity: int,
        created_ms: float,
        wake_sender: Callable[[], None],
        *,
        is_pooled: bool = True,
        send_now: Callable[[ProducerBatch, float | None], bool] | None = None,
    ) -> None:
        """`send_now` lets the thread that waits for the batch send it, if it can; it returns whether it has ended."""
        super().__init__(buffer, capacity)
        self.topic_partition = topic_partition
        self.created_ms = created_ms
        self.wake_sender = wake_sender
        self.send_now = send_now
        self.is_pooled = is_pooled  # whether the pool lent its buffer
        self.is_wanted = False  # whether someone waits for it, so that it need not linger for more records
        self.in_flight = False
        self.attempts = 0
        self.last_attempt_ms = created_ms
        self.drained_ms = 0.0
        self.leader_epoch = -1  # of the leader it was last sent to
        self.payload: bytes | None = None  # the compressed records
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = NO_SEQUENCE
        self.sequence_was_reset = False
        self.is_done = False
        self.base_offset = -1
        self.log_append_time = _NO_LOG_APPEND_TIME
        self.error: ClientError | None = None
        self.record_errors: Mapping[int, str] | None = None
        self.parts: Sequence[ProducerBatch] | None = None  # the batches it was split into
        self._ended: threading.Event | None = None
        self._watchers: list[Callable[[], object]] | None = None

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence != NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.count - 1) & SEQUENCE_MASK

    def set_producer(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self.sequence_was_reset = self.has_sequence
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence

    def seal(self, compression: Compression, level: int | None, *, is_transactional: bool) -> bytes | memoryview:
        """The bytes to send, with an up-to-date header. The records are compressed the first time."""
        buffer = self.buffer
        assert buffer is not None  # it is given away only when the batch has ended
        attributes = int(compression) | (TRANSACTIONAL_BIT if is_transactional else 0)
        if compression is not Compression.NONE and self.payload is None:
            with memoryview(buffer) as view, view[BATCH_HEADER_SIZE : self.size] as records:
                self.payload = compress(compression, records, level)
        size = self.size if self.payload is None else BATCH_HEADER_SIZE + len(self.payload)
        _HEADER.pack_into(
            buffer,
            0,
            0,  # the broker fills in the offset
            size - LOG_OVERHEAD,
            -1,
            MAGIC,
            0,
            attributes,
            self.count - 1,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        )
        view = memoryview(buffer)
        if self.payload is None:
            sealed: bytes | memoryview = view[: self.size]
            _CRC.pack_into(buffer, _CRC_AT, crc32c(view[_ATTRIBUTES_AT : self.size]))
        else:
            crc = crc32c(self.payload, crc32c(view[_ATTRIBUTES_AT:BATCH_HEADER_SIZE]))
            _CRC.pack_into(buffer, _CRC_AT, crc)
            sealed = bytes(view[:BATCH_HEADER_SIZE]) + self.payload
        return sealed

    # Its end

    def deliver(self, base_offset: int, log_append_time: int = _NO_LOG_APPEND_TIME) -> bool:
        """The broker has stored it. Returns whether that was news."""
        return self._end(None, None, base_offset, log_append_time)

    def fail(self, error: ClientError, record_errors: Mapping[int, str] | None = None) -> bool:
        """The batch failed; `record_errors` has the errors of single records. Returns whether that was news."""
        return self._end(error, record_errors, -1, _NO_LOG_APPEND_TIME)

    def _end(
        self, error: ClientError | None, record_errors: Mapping[int, str] | None, base_offset: int, append_time: int
    ) -> bool:
        if self.is_done:
            return False
        self.error = error
        self.record_errors = record_errors
        self.base_offset = base_offset
        self.log_append_time = append_time
        self._tell()
        return True

    def _tell(self) -> None:
        with _ending:
            self.is_done = True
            watchers, self._watchers = self._watchers, None
            ended = self._ended
        if ended is not None:
            ended.set()
        for receipt in self.take_callbacks():
            tell_sender(self, receipt)
        for watcher in watchers or ():
            try:
                watcher()
            except Exception:  # application code may raise anything
                logger.exception("a callback of a future failed for a record to %s", self.topic_partition)

    def hand_over_watchers(self) -> list[Callable[[], object]]:
        """Another batch takes its place: wake the threads that wait for this one and give up its watchers."""
        with _ending:
            self.is_done = True
            watchers, self._watchers = self._watchers or [], None
            ended = self._ended
        if ended is not None:
            ended.set()
        return watchers

    def split_into(self, parts: Sequence[ProducerBatch]) -> None:
        """Its records were moved to other batches; it ends when the last of those does."""
        self.parts = parts
        for receipt in self.take_callbacks():
            part, index = self.place_of(receipt.index)
            receipt.fill_in(part, index, receipt.timestamp, receipt.key_size, receipt.value_size, receipt.on_delivery)
        for part in parts:
            part.watch(self._part_ended)

    def _part_ended(self) -> None:
        assert self.parts is not None  # only parts call this
        if not self.is_done and all(part.is_done for part in self.parts):
            self.error = next((part.error for part in self.parts if part.error is not None), None)
            self._tell()

    def place_of(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that holds a record, and its index there."""
        for part in self.parts or ():
            if index < part.count:
                return part.place_of(index)
            index -= part.count
        return self, index

    def all_parts(self) -> list[ProducerBatch]:
        """The batches that carried its records: itself, or its parts."""
        if self.parts is None:
            return [self]
        return [smaller for part in self.parts for smaller in part.all_parts()]

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for its end in another thread; returns whether it has ended."""
        if self.is_done:
            return True
        if self.send_now is not None and not self.is_wanted:
            started_s = time.monotonic()
            if self.send_now(self, timeout_s):
                return True
            if timeout_s is not None:
                timeout_s = max(timeout_s - (time.monotonic() - started_s), 0.0)
        with _ending:
            if self.is_done:
                return True
            if self._ended is None:
                self._ended = threading.Event()
            ended = self._ended
        self.want()
        return ended.wait(timeout_s)

    def want(self) -> None:
        """Someone waits for it, so it is sent without lingering."""
        if not self.is_wanted and not self.is_done:
            self.is_wanted = True
            self.wake_sender()

    def watch(self, watcher: Callable[[], object]) -> bool:
        """Have it called on the loop's thread when the batch ends; False if it has already ended."""
        with _ending:
            if self.is_done:
                return False
            if self._watchers is None:
                self._watchers = []
            self._watchers.append(watcher)
            return True

    @property
    def has_watchers(self) -> bool:
        return self._watchers is not None

    def metadata_of(self, receipt: RecordReceipt) -> RecordMetadata:
        """Where a record was stored."""
        part, index = self.place_of(receipt.index)
        return RecordMetadata(
            self.topic_partition.topic,
            self.topic_partition.partition,
            part.base_offset + index if part.base_offset >= 0 else -1,
            receipt.timestamp if part.log_append_time < 0 else part.log_append_time,
            receipt.key_size,
            receipt.value_size,
        )

    def error_of(self, receipt: RecordReceipt) -> ClientError | None:
        """Why a record failed; None if it was stored."""
        part, index = self.place_of(receipt.index)
        error = part.error
        if error is None or not part.record_errors:
            return error
        subject = f"partition {self.topic_partition}"
        own = part.record_errors.get(index)
        code = error.code if isinstance(error, BrokerError) else ErrorCode.INVALID_RECORD
        if own is not None:
            return BrokerError(code, own, subject=subject)
        return BrokerError(
            code,
            f"{len(part.record_errors)} other records of its batch were refused, and so the batch",
            subject=subject,
        )


def tell_sender(batch: ProducerBatch, receipt: RecordReceipt) -> None:
    """Call a record's `on_delivery`; exceptions are logged, because nobody could catch them."""
    error = batch.error_of(receipt)
    metadata = batch.metadata_of(receipt) if error is None else None
    try:
        receipt.on_delivery(metadata, error)  # type: ignore[operator]  # the callback the user passed
    except Exception:  # application code may raise anything
        logger.exception("a delivery callback failed for a record to %s", batch.topic_partition)


def future_batch(future: DeliveryFuture) -> ProducerBatch:
    """The batch of a future; for a producer's futures it is always of this class."""
    batch = future.batch
    assert isinstance(batch, ProducerBatch)
    return batch


def split_records(batch: ProducerBatch, size_max: int) -> list[ProducerBatch]:
    """The records of a batch as smaller batches of about this size, each with at least one record."""
    buffer = batch.buffer
    assert buffer is not None
    records = decode_objects(
        bytes(buffer[BATCH_HEADER_SIZE : batch.size]), batch.count, 0, batch.base_timestamp, 0, False
    )
    parts: list[ProducerBatch] = []
    for record in records:
        headers = encode_header_list(record.headers) if record.headers else None
        # A large record leaves room to spare in its part; adding a small one there would recreate the same batch.
        is_full = not parts or parts[-1].size >= size_max
        if is_full or parts[-1].append(record.key, record.value, headers, record.timestamp) < 0:
            if parts:
                parts[-1].close()
            capacity = max(size_max, BATCH_HEADER_SIZE + record_size_max(record.key, record.value, headers))
            part = ProducerBatch(
                batch.topic_partition,
                bytearray(capacity),
                capacity,
                batch.created_ms,
                batch.wake_sender,
                is_pooled=False,
            )
            part.attempts = batch.attempts
            part.append(record.key, record.value, headers, record.timestamp)
            parts.append(part)
    parts[-1].close()
    return parts
