"""The header of a magic 2 record batch: parsing it, checking the CRC, and the broker's changes in place.

What always holds: a header that `parse_header` returned has magic 2, lies in its buffer, and its length, offsets and
count are plausible, so `position + size_bytes` always moves forward. Nothing here opens the records; that is `codec`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.common.checksum import crc32c
from tidelog.records.errors import CorruptBatchError, UnsupportedMagicError

Buffer = bytes | bytearray | memoryview

MAGIC = 2
LOG_OVERHEAD = 12  # base offset and batch length, which the batch length itself does not include
BATCH_HEADER_SIZE = 61
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_PARTITION_LEADER_EPOCH = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BEFORE_COVERED = struct.Struct(">qiibI")
_COVERED = struct.Struct(">hiqqqhii")  # by the CRC
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_LEADER_EPOCH_AT = 12
_MAGIC_AT = 16
_CRC_AT = 17
_ATTRIBUTES_AT = 21  # the CRC covers everything from here on, so offset and leader epoch can change without touching it
_MAX_TIMESTAMP_AT = 35
_BATCH_LENGTH_MIN = BATCH_HEADER_SIZE - LOG_OVERHEAD

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
_SEQUENCE_MASK = 0x7FFFFFFF  # sequences count 0 .. 2^31-1 and start over at 0


class Compression(enum.IntEnum):
    """Codecs by their number in the attributes; `label` is the name used by `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def from_label(cls, text: str) -> Compression:
        for codec in cls:
            if codec.label == text:
                return codec
        raise ValueError(
            f"{text!r} is not a compression codec; expected one of {', '.join(codec.label for codec in cls)}"
        )


class TimestampType(enum.IntEnum):
    """Who sets the timestamps: the producer, or the broker on append."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


# A lookup instead of a call: the enum's constructor costs more than parsing the whole header.
_COMPRESSIONS = tuple(Compression)


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, as numbers."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        codec = self.attributes & COMPRESSION_MASK
        if codec >= len(_COMPRESSIONS):
            raise CorruptBatchError(f"the attributes name compression codec {codec}; known are 0 to 4")
        return _COMPRESSIONS[codec]

    @property
    def timestamp_type(self) -> TimestampType:
        if self.attributes & TIMESTAMP_TYPE_BIT:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp is really the delete horizon of this batch's tombstones (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def has_producer(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, wrapping after 2^31-1; -1 if the batch has no sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & _SEQUENCE_MASK


class BatchSpan(NamedTuple):
    """Consecutive batches in a file, with the details that an index needs."""

    size_bytes: int
    first_end_offset: int  # the last offset of the first batch
    max_timestamp: int
    offset_of_max_timestamp: int  # the last offset of the first batch that has it
    last_offset: int


def parse_header(buffer: Buffer, position: int = 0, *, whole_batch: bool = True) -> BatchHeader:
    """The header at `position`. Without `whole_batch`, the buffer may end after the header, as in a file scan."""
    remaining = len(buffer) - position
    if position < 0 or remaining <= _MAGIC_AT:
        raise CorruptBatchError(f"{max(remaining, 0)} bytes are left, a record batch header has {BATCH_HEADER_SIZE}")
    magic = buffer[position + _MAGIC_AT]
    if magic != MAGIC:
        raise UnsupportedMagicError(f"the batch has magic {magic}, only {MAGIC} is supported")
    if remaining < BATCH_HEADER_SIZE:
        raise CorruptBatchError(f"{remaining} bytes are left, a record batch header has {BATCH_HEADER_SIZE}")
    header = BatchHeader._make(_HEADER.unpack_from(buffer, position))
    if header.batch_length < _BATCH_LENGTH_MIN:
        raise CorruptBatchError(f"batch length {header.batch_length} is below the minimum of {_BATCH_LENGTH_MIN}")
    if whole_batch and header.batch_length > remaining - LOG_OVERHEAD:
        raise CorruptBatchError(
            f"batch length {header.batch_length} goes beyond the {remaining - LOG_OVERHEAD} bytes that are left"
        )
    if header.last_offset_delta < 0:
        raise CorruptBatchError(f"last offset delta {header.last_offset_delta} is negative")
    if header.records_count < 0:
        raise CorruptBatchError(f"records count {header.records_count} is negative")
    return header


def compute_crc(buffer: Buffer, header: BatchHeader, position: int = 0) -> int:
    with memoryview(buffer) as view, view[position + _ATTRIBUTES_AT : position + header.size_bytes] as covered:
        return crc32c(covered)


def check_crc(buffer: Buffer, header: BatchHeader, position: int = 0) -> None:
    """Raise CorruptBatchError unless the CRC-32C of everything after it matches the one in the header."""
    computed = compute_crc(buffer, header, position)
    if computed != header.crc:
        raise CorruptBatchError(f"the CRC is {header.crc:#010x} in the header but {computed:#010x} over the bytes")


def iter_headers(
    buffer: Buffer, position: int = 0, *, allow_partial: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of the consecutive batches in the buffer.

    With `allow_partial`, an incomplete batch at the end just ends the iteration: a fetch may truncate the last one.
    """
    end = len(buffer)
    while position < end:
        if allow_partial and _is_cut_off(buffer, position, end):
            return
        header = parse_header(buffer, position)
        yield position, header
        position += header.size_bytes


def _is_cut_off(buffer: Buffer, position: int, end: int) -> bool:
    if end - position < LOG_OVERHEAD:
        return True
    batch_length = int.from_bytes(buffer[position + 8 : position + LOG_OVERHEAD], "big", signed=True)
    return batch_length >= _BATCH_LENGTH_MIN and batch_length > end - position - LOG_OVERHEAD


def assign_offsets(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Write base offset and leader epoch in place. The CRC covers neither, so it stays valid."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + _LEADER_EPOCH_AT, leader_epoch)


def set_log_append_time(buffer: bytearray | memoryview, timestamp_ms: int, position: int = 0) -> None:
    """Make `timestamp_ms` the time of every record, in place: the attribute bit, the max timestamp and the CRC.

    The records keep their deltas; readers ignore them once the bit is set.
    """
    header = parse_header(buffer, position)
    struct.pack_into(">h", buffer, position + _ATTRIBUTES_AT, header.attributes | TIMESTAMP_TYPE_BIT)
    struct.pack_into(">q", buffer, position + _MAX_TIMESTAMP_AT, timestamp_ms)
    struct.pack_into(">I", buffer, position + _CRC_AT, compute_crc(buffer, header, position))


def set_max_timestamp(buffer: bytearray | memoryview, timestamp_ms: int, position: int = 0) -> None:
    """Write another largest timestamp in place, and update the CRC."""
    header = parse_header(buffer, position)
    struct.pack_into(">q", buffer, position + _MAX_TIMESTAMP_AT, timestamp_ms)
    struct.pack_into(">I", buffer, position + _CRC_AT, compute_crc(buffer, header, position))


def write_header(buffer: bytearray, header: BatchHeader, position: int = 0) -> None:
    """Write the header over the first 61 bytes, with the batch length and the CRC of the bytes after it.

    The batch must extend to the end of the buffer.
    """
    base_offset, _, leader_epoch, magic, _, *rest = header
    _HEADER.pack_into(
        buffer, position, base_offset, len(buffer) - position - LOG_OVERHEAD, leader_epoch, magic, 0, *rest
    )
    with memoryview(buffer) as view, view[position + _ATTRIBUTES_AT :] as covered:
        _CRC.pack_into(buffer, position + _CRC_AT, crc32c(covered))


def write_new_header(
    buffer: bytearray,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> BatchHeader:
    """Write the header of a batch that fills the buffer and has as many offsets as records; returns it."""
    last_offset_delta = count - 1
    _COVERED.pack_into(
        buffer,
        _ATTRIBUTES_AT,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    crc = crc32c(memoryview(buffer)[_ATTRIBUTES_AT:])
    batch_length = len(buffer) - LOG_OVERHEAD
    _BEFORE_COVERED.pack_into(buffer, 0, base_offset, batch_length, leader_epoch, MAGIC, crc)
    return BatchHeader(
        base_offset,
        batch_length,
        leader_epoch,
        MAGIC,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
