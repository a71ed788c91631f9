"""Record batches as Python objects: encode, decode, validate and recompress one batch.

What always holds: bytes from outside are checked before use and raise CorruptBatchError if they are wrong. Uncompressed
batches from `encode_batch` are byte for byte what the Java client writes for the same records. Reading and changing
only the header is in `batch`; control records are in `control`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidelog.records import kernel
from tidelog.records.batch import (
    BATCH_HEADER_SIZE,
    COMPRESSION_MASK,
    CONTROL_BIT,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    Compression,
    TimestampType,
    parse_header,
    write_header,
    write_new_header,
)
from tidelog.records.batch import check_crc as check_batch_crc
from tidelog.records.compression import DECOMPRESSED_BYTES_MAX, compress, decompress, decompress_strictly
from tidelog.records.kernel import Record

if TYPE_CHECKING:
    from tidelog.records.control import ControlRecord

# A producer is told the indexes of at most this many keyless records; naming more would help nobody.
KEYLESS_INDEXES_MAX = 10
BATCH_SIZE_MAX = 0x7FFFFFFF


class NewRecord(NamedTuple):
    """A record to be written. A plain tuple in the same order works as well. Without a timestamp it gets `now_ms`."""

    key: bytes | None
    value: bytes | None
    headers: Iterable[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


def decode_records(
    buffer: Buffer, position: int = 0, *, check_crc: bool = True, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> list[Record]:
    """The records of the batch at `position`; for a control batch, its raw control records."""
    header = parse_header(buffer, position)
    if check_crc:
        check_batch_crc(buffer, header, position)
    data = open_records(buffer, header, position, max_bytes)
    return kernel.decode_objects(
        data,
        header.records_count,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp,
        header.timestamp_type is TimestampType.LOG_APPEND_TIME,
    )


def open_records(
    buffer: Buffer, header: BatchHeader, position: int = 0, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """The records part of the batch, decompressed."""
    codec = header.compression
    with memoryview(buffer) as view, view[position + BATCH_HEADER_SIZE : position + header.size_bytes] as records:
        # The cleaner may empty a batch and keep its header for the producer state; an empty part is not compressed.
        if codec is Compression.NONE or (header.records_count == 0 and not len(records)):
            return bytes(records)
        return decompress(codec, records, max_bytes)


def view_records(
    buffer: Buffer, header: BatchHeader, position: int = 0, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> memoryview:
    """The records part of a producer's batch, decompressed; if it is not compressed, a view of the buffer.

    It rejects more than `open_records`: everything that some client could not decompress.
    """
    records = memoryview(buffer)[position + BATCH_HEADER_SIZE : position + header.size_bytes]
    if header.compression is Compression.NONE:
        return records
    return decompress_strictly(header.compression, records, max_bytes)


def encode_batch(
    records: Iterable[NewRecord | kernel.RecordTuple],
    *,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    is_transactional: bool = False,
    is_control: bool = False,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    now_ms: int | None = None,
) -> bytearray:
    """One batch with the records, whose offsets follow `base_offset` without gaps.

    `now_ms` is the timestamp of records without one, and of all records under LOG_APPEND_TIME.
    """
    buffer = bytearray(BATCH_HEADER_SIZE)
    written = kernel.encode_objects(buffer, records, now_ms)
    seal_batch(
        buffer,
        written.count,
        written.base_timestamp,
        written.max_timestamp,
        base_offset=base_offset,
        compression=compression,
        compression_level=compression_level,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        leader_epoch=leader_epoch,
        is_transactional=is_transactional,
        is_control=is_control,
        timestamp_type=timestamp_type,
        now_ms=now_ms,
    )
    return buffer


def seal_batch(
    buffer: bytearray,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    *,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    is_transactional: bool = False,
    is_control: bool = False,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    now_ms: int | None = None,
) -> None:
    """Compress the records that lie in `buffer` after room for the header, in place, and write the header."""
    if not count:
        raise ValueError("a record batch needs at least one record")
    attributes = int(compression)
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        if now_ms is None:
            raise ValueError("a batch with LogAppendTime needs now_ms")
        attributes |= TIMESTAMP_TYPE_BIT
        max_timestamp = now_ms
    if is_transactional:
        attributes |= TRANSACTIONAL_BIT
    if is_control:
        attributes |= CONTROL_BIT
    if compression is not Compression.NONE:
        with memoryview(buffer) as view, view[BATCH_HEADER_SIZE:] as records:
            compressed = compress(compression, records, compression_level)
        buffer[BATCH_HEADER_SIZE:] = compressed
    if len(buffer) > BATCH_SIZE_MAX:
        raise ValueError(f"the batch would have {len(buffer)} bytes, its length field allows {BATCH_SIZE_MAX}")
    write_new_header(
        buffer,
        base_offset,
        leader_epoch,
        attributes,
        count,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
    )


class BatchDraft:
    """A batch that a broker makes itself. `seal` writes its header once the log knows its place.

    Nobody has to read that header again, or check what it says.
    """

    __slots__ = (
        "attributes",
        "base_timestamp",
        "buffer",
        "compression",
        "count",
        "marker",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(
        self,
        records: Iterable[kernel.RecordTuple],
        compression: Compression = Compression.NONE,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        attributes: int = 0,
    ) -> None:
        """There must be a record, and every record must have its timestamp; `attributes` name no compression."""
        self.buffer = bytearray(BATCH_HEADER_SIZE)
        written = kernel.encode_objects(self.buffer, records, None)
        if not written.count:
            raise ValueError("a record batch needs at least one record")
        self.count: int = written.count
        self.base_timestamp: int = written.base_timestamp
        self.max_timestamp: int = written.max_timestamp
        self.compression = compression
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.attributes = attributes
        # What a control batch says.
        self.marker: ControlRecord | None = None

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    def compress(self, level: int | None = None) -> None:
        """Compress the records as `compression` says."""
        with memoryview(self.buffer) as view, view[BATCH_HEADER_SIZE:] as records:
            compressed = compress(self.compression, records, level)
        self.buffer[BATCH_HEADER_SIZE:] = compressed
        self.attributes |= self.compression

    def stamp(self, timestamp_ms: int) -> None:
        """Make this the time of every record; readers then ignore those that the records have."""
        self.attributes |= TIMESTAMP_TYPE_BIT
        self.max_timestamp = timestamp_ms

    def seal(self, base_offset: int = 0, leader_epoch: int = NO_PARTITION_LEADER_EPOCH) -> BatchHeader:
        """Write the header, and return it."""
        return write_new_header(
            self.buffer,
            base_offset,
            leader_epoch,
            self.attributes,
            self.count,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            NO_SEQUENCE,
        )


def find_timestamp(
    buffer: Buffer, header: BatchHeader, timestamp: int, first_offset: int, *, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> tuple[int, int] | None:
    """Timestamp and offset of the batch's first record that is at or after both; the CRC is not checked.

    No objects are created: a batch may hold a million records, or one record a million headers.
    """
    return kernel.find_timestamp(
        open_records(buffer, header, max_bytes=max_bytes),
        header.records_count,
        header.base_offset,
        header.base_timestamp,
        header.max_timestamp,
        header.timestamp_type is TimestampType.LOG_APPEND_TIME,
        timestamp,
        first_offset,
    )


def recompress(
    buffer: Buffer,
    target: Compression,
    level: int | None = None,
    *,
    position: int = 0,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> bytearray:
    """The batch at `position` with its records compressed with `target`; everything else stays as it is."""
    header = parse_header(buffer, position)
    return close_records(open_records(buffer, header, position, max_bytes), header, target, level)


def close_records(data: Buffer, header: BatchHeader, target: Compression, level: int | None = None) -> bytearray:
    """The batch of that header, with records already opened, compressed with `target`."""
    result = bytearray(BATCH_HEADER_SIZE)
    result += compress(target, data, level)
    write_header(result, header._replace(attributes=(header.attributes & ~COMPRESSION_MASK) | target))
    return result
