"""Control batches: the markers that end a transaction in a partition.

What always holds: a control batch has one record, whose key holds version and type and whose value holds the
coordinator's epoch. Clients never return these records; they skip control batches and use the markers to drop aborted
records.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from tidelog.records.batch import NO_PARTITION_LEADER_EPOCH, NO_SEQUENCE
from tidelog.records.codec import NewRecord, encode_batch
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
    """The batch with one marker that ends the producer's transaction."""
    key = _KEY.pack(CONTROL_RECORD_VERSION, control_type)
    value = _VALUE.pack(CONTROL_RECORD_VERSION, coordinator_epoch)
    return encode_batch(
        [NewRecord(key, value, (), timestamp_ms)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        leader_epoch=leader_epoch,
        is_transactional=True,
        is_control=True,
    )


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
