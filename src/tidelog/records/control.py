"""Control batches: the markers that end a transaction in a partition.

What always holds: a control batch has one record, whose key holds version and type and whose value holds the
coordinator's epoch. Clients never return these records; they skip control batches and use the markers to drop aborted
records.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from tidelog.records.batch import CONTROL_BIT, NO_PARTITION_LEADER_EPOCH, TRANSACTIONAL_BIT, Compression
from tidelog.records.codec import BatchDraft
from tidelog.records.errors import CorruptBatchError
from tidelog.records.kernel import Record

CONTROL_RECORD_VERSION = 0
_KEY = struct.Struct(">hh")  # version, type
_VALUE = struct.Struct(">hi")  # version, coordinator epoch


class ControlRecordType(enum.IntEnum):
    """The control records that end transactions; a reader skips other types, which Kafka adds from time to time."""

    ABORT = 0
    COMMIT = 1


class ControlRecord(NamedTuple):
    """A decoded marker; `type` is None for one that ends no transaction."""

    type: ControlRecordType | None
    coordinator_epoch: int
    version: int


def draft_marker(
    control_type: ControlRecordType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
) -> BatchDraft:
    """The batch with one marker that ends the producer's transaction."""
    key = _KEY.pack(CONTROL_RECORD_VERSION, control_type)
    value = _VALUE.pack(CONTROL_RECORD_VERSION, coordinator_epoch)
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    draft = BatchDraft(((key, value, (), timestamp_ms),), Compression.NONE, producer_id, producer_epoch, attributes)
    draft.marker = ControlRecord(control_type, coordinator_epoch, CONTROL_RECORD_VERSION)
    return draft


def encode_control_batch(
    control_type: ControlRecordType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
) -> bytearray:
    """The same with its place in a log."""
    draft = draft_marker(
        control_type,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=timestamp_ms,
    )
    draft.seal(base_offset, leader_epoch)
    return draft.buffer


def parse_control_record(record: Record) -> ControlRecord:
    """Decodes the record of a control batch. Keys and values of later versions are read as far as they are known."""
    if record.key is None or len(record.key) < _KEY.size:
        raise CorruptBatchError(f"a control record's key has at least {_KEY.size} bytes, not {record.key!r}")
    version, number = _KEY.unpack_from(record.key)
    if version < 0:
        raise CorruptBatchError(f"a control record's key has version {version}")
    if number not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        return ControlRecord(None, -1, version)
    if record.value is None or len(record.value) < _VALUE.size:
        raise CorruptBatchError(f"a marker's value has at least {_VALUE.size} bytes, not {record.value!r}")
    return ControlRecord(ControlRecordType(number), _VALUE.unpack_from(record.value)[1], version)
