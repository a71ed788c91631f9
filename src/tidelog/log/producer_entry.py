"""One producer of a partition: its epoch, its latest batches, its open transaction; as an object or packed into bytes.

What always holds: packing loses nothing, and a packed producer starts with its entry in Kafka's snapshot file, so a
snapshot of any number of producers is one join. Packed, a producer with one batch takes 80 bytes instead of several
hundred.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.records import BatchHeader

BATCHES_KEPT: Final = 5  # as many requests as an idempotent producer may have in flight
SEQUENCE_MAX: Final = 2**31 - 1
NO_SEQUENCE: Final = -1
NO_OFFSET: Final = -1
NO_COORDINATOR_EPOCH: Final = -1

SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
"""Producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, transaction's start."""

_BATCH = struct.Struct(">iqiq")
_PARTIAL, _COMPLETE = b"\x01", b"\x00"
_TIMESTAMP = struct.Struct(">q")
_TIMESTAMP_AT = 26
_TXN_AT = 38
_NO_TXN = _TIMESTAMP.pack(NO_OFFSET)


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
        self.batches = tuple(batches)  # oldest first
        # A snapshot has room for the last batch only; a retry of an earlier one is looked up in the log.
        self.history_is_partial = False

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    @property
    def has_open_transaction(self) -> bool:
        return self.current_txn_first_offset != NO_OFFSET

    def is_next(self, sequence: int) -> bool:
        last = self.last_sequence
        return sequence == last + 1 or (sequence == 0 and last == SEQUENCE_MAX)

    def add_batches(self, *batches: BatchMetadata) -> None:
        """Add later batches; the earliest ones are forgotten."""
        self.batches = (*self.batches, *batches)[-BATCHES_KEPT:]

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """The batch in the log that this one repeats."""
        if header.producer_epoch != self.producer_epoch:
            return None
        for batch in self.batches:
            if batch.last_sequence == header.last_sequence and batch.first_sequence == header.base_sequence:
                return batch
        return None

    def pack(self) -> bytes:
        last = self.batches[-1] if self.batches else None
        packed = SNAPSHOT_ENTRY.pack(
            self.producer_id,
            self.producer_epoch,
            NO_SEQUENCE if last is None else last.last_sequence,
            NO_OFFSET if last is None else last.last_offset,
            0 if last is None else last.offset_delta,
            self.last_timestamp,
            self.coordinator_epoch,
            self.current_txn_first_offset,
        )
        packed += _PARTIAL if self.history_is_partial else _COMPLETE
        if last is not None and (len(self.batches) > 1 or last.timestamp != self.last_timestamp):
            packed += b"".join(_BATCH.pack(*batch) for batch in self.batches)
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> ProducerEntry:
        (
            producer_id,
            producer_epoch,
            last_sequence,
            last_offset,
            offset_delta,
            last_timestamp,
            coordinator_epoch,
            txn_first_offset,
        ) = SNAPSHOT_ENTRY.unpack_from(packed)
        batches: list[BatchMetadata] = []
        if len(packed) > SNAPSHOT_ENTRY.size + 1:
            batches = [BatchMetadata(*fields) for fields in _BATCH.iter_unpack(packed[SNAPSHOT_ENTRY.size + 1 :])]
        elif last_sequence != NO_SEQUENCE:
            batches = [BatchMetadata(last_sequence, last_offset, offset_delta, last_timestamp)]
        entry = cls(producer_id, producer_epoch, coordinator_epoch, last_timestamp, txn_first_offset, batches)
        entry.history_is_partial = packed[SNAPSHOT_ENTRY.size :][:1] != _COMPLETE
        return entry


def packed_from_snapshot(entry: bytes) -> bytes:
    """A snapshot's entry in the format of `pack`; its earlier batches are unknown."""
    return entry + _PARTIAL


def packed_producer_id(packed: bytes) -> int:
    return int.from_bytes(packed[:8], "big", signed=True)


def packed_last_timestamp(packed: bytes) -> int:
    return int(_TIMESTAMP.unpack_from(packed, _TIMESTAMP_AT)[0])


def packed_txn_first_offset(packed: bytes) -> int:
    """Where the producer's open transaction started, or NO_OFFSET."""
    first_offset = packed[_TXN_AT : _TXN_AT + _TIMESTAMP.size]
    return NO_OFFSET if first_offset == _NO_TXN else int.from_bytes(first_offset, "big", signed=True)
