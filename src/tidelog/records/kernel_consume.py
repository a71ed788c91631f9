"""The loop that turns fetched batches into the records a consumer returns; compiled like `kernel` and with its rules.

What always holds: records come in offset order, from `next_offset` on. `next_offset` is after the last record taken,
and after a batch once that is finished, so it also passes control batches, aborted transactions and what compaction
removed. After an error the cursor must not be used again; `next_offset` is still before the unreadable part. The
function passed to the cursor does CRC and decompression, without the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.records.batch import TimestampType
from tidelog.records.errors import CorruptBatchError, UnsupportedMagicError
from tidelog.records.kernel import Bytes, RecordHeaders, RecordReader

BATCH_HEADER_SIZE = 61
LOG_OVERHEAD = 12  # base offset and batch length, which the batch length itself does not include
BATCH_LENGTH_MIN = 49
MAGIC = 2

LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
RECORDS_COUNT_AT = 57

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20

INT64_MAX = 0x7FFFFFFFFFFFFFFF

CONTROL_KEY_SIZE = 4  # version and type
ABORT_MARKER = 0

CREATE_TIME = TimestampType.CREATE_TIME
LOG_APPEND_TIME = TimestampType.LOG_APPEND_TIME

# Return the CRC-32C of a view, and the compressed records of a batch, decompressed with the codec of that number.
Checksum = Callable[[memoryview], int]
OpenRecords = Callable[[memoryview, int], bytes]
Deserialize = Callable[[str, bytes, RecordHeaders], Any]
RecordState = tuple[str, int, int, int, TimestampType, Any, Any, RecordHeaders, int]


class ConsumerRecord:
    """A record as returned by a consumer. Immutable by convention, and truly so in the compiled kernel."""

    __slots__ = (
        "headers",
        "key",
        "leader_epoch",
        "offset",
        "partition",
        "timestamp",
        "timestamp_type",
        "topic",
        "value",
    )

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: Any  # bytes or None, or the result of the consumer's deserializer
    value: Any
    headers: RecordHeaders
    leader_epoch: int

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int = -1,
        timestamp_type: TimestampType = CREATE_TIME,
        key: Any = None,
        value: Any = None,
        headers: RecordHeaders = (),
        leader_epoch: int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.key = key
        self.value = value
        self.headers = headers
        self.leader_epoch = leader_epoch

    def __repr__(self) -> str:
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return self.__getstate__() == other.__getstate__()

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __getstate__(self) -> RecordState:
        return (
            self.topic,
            self.partition,
            self.offset,
            self.timestamp,
            self.timestamp_type,
            self.key,
            self.value,
            self.headers,
            self.leader_epoch,
        )

    def __reduce__(self) -> tuple[type[ConsumerRecord], RecordState]:
        return (ConsumerRecord, self.__getstate__())


class BatchCursor:
    """Goes through the batches that one fetch returned for one partition; the last one may be truncated."""

    __slots__ = (
        "aborted",
        "aborted_ids",
        "aborted_next",
        "attributes",
        "base_offset",
        "base_timestamp",
        "batch_at",
        "batch_end",
        "batch_epoch",
        "batch_next_offset",
        "checksum",
        "data",
        "left",
        "max_timestamp",
        "next_offset",
        "open_records",
        "partition",
        "position",
        "reader",
        "records_count",
        "size",
        "taken_epoch",
        "topic",
        "view",
    )

    view: memoryview
    data: Bytes
    size: int
    topic: str
    partition: int
    next_offset: int
    taken_epoch: int  # the leader epoch of the last batch that was started
    checksum: Checksum | None
    open_records: OpenRecords
    aborted: list[tuple[int, int]]  # first offset and producer id, by first offset
    aborted_next: int
    aborted_ids: set[int]
    position: int  # where the next batch begins
    # The batch being read
    batch_at: int
    batch_end: int
    batch_epoch: int
    batch_next_offset: int
    attributes: int
    base_offset: int
    base_timestamp: int
    max_timestamp: int
    records_count: int
    reader: RecordReader | None
    left: int  # how many of its records were not read yet

    def __init__(
        self,
        view: memoryview,
        topic: str,
        partition: int,
        next_offset: int,
        checksum: Checksum | None,
        open_records: OpenRecords,
        aborted: list[tuple[int, int]],
    ) -> None:
        self.view = view
        self.data = view
        self.size = len(view)
        self.topic = topic
        self.partition = partition
        self.next_offset = next_offset
        self.checksum = checksum
        self.open_records = open_records
        self.aborted = aborted
        self.aborted_ids = set()
        self.aborted_next = 0
        self.taken_epoch = -1
        self.position = 0
        self.left = 0
        self.reader = None
        self.batch_at = 0
        self.batch_end = 0
        self.batch_epoch = -1
        self.batch_next_offset = -1
        self.attributes = 0
        self.base_offset = -1
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.records_count = 0

    def take(self, out: list[ConsumerRecord], count: int) -> int:
        """Append up to `count` records to `out`; returns how many. Fewer only if there are no more."""
        taken = 0
        while taken < count:
            if self.reader is None and not self.begin_batch():
                break
            taken += self.take_of_batch(out, count - taken)
        return taken

    def take_of_batch(self, out: list[ConsumerRecord], count: int) -> int:
        reader = self.reader
        assert reader is not None
        stamp = LOG_APPEND_TIME if reader.is_stamped else CREATE_TIME
        taken = 0
        while self.left > 0 and taken < count:
            reader.next_record()
            headers: RecordHeaders = ()
            if reader.headers_count > 0:
                headers = reader.read_headers()
            reader.end_record()
            self.left -= 1
            if reader.offset < self.next_offset:
                continue
            if reader.offset >= self.batch_next_offset:
                raise reader.problem(f"has offset {reader.offset}, behind the batch's last")
            # Through __new__, because a call with nine arguments would cost more than the rest of the loop.
            record = ConsumerRecord.__new__(ConsumerRecord)
            record.topic = self.topic
            record.partition = self.partition
            record.offset = reader.offset
            record.timestamp = reader.timestamp
            record.timestamp_type = stamp
            record.key = None
            if reader.key_length >= 0:
                record.key = reader.copy_of(reader.key_at, reader.key_length)
            record.value = None
            if reader.value_length >= 0:
                record.value = reader.copy_of(reader.value_at, reader.value_length)
            record.headers = headers
            record.leader_epoch = self.batch_epoch
            self.next_offset = reader.offset + 1
            out.append(record)
            taken += 1
        if self.left == 0:
            reader.end_records()
            self.end_batch()
        return taken

    def begin_batch(self) -> bool:
        """Open the next batch with records to return; False if there is none."""
        if not self.next_batch():
            return False
        self.left = self.records_count
        self.reader = RecordReader(
            # Compaction may empty a batch and keep its header for the producer state.
            self.plain_records() if self.records_count > 0 else b"",
            self.records_count,
            self.base_offset,
            self.base_timestamp,
            self.max_timestamp,
            (self.attributes & TIMESTAMP_TYPE_BIT) != 0,
        )
        return True

    def plain_records(self) -> Bytes:
        """The records of the batch, where they were received unless they are compressed."""
        records = self.view[self.batch_at + BATCH_HEADER_SIZE : self.batch_end]
        codec = self.attributes & COMPRESSION_MASK
        return records if codec == 0 else self.open_records(records, codec)

    def end_batch(self) -> None:
        """Everything in the batch was returned, or is to be skipped."""
        self.reader = None
        self.left = 0
        self.position = self.batch_end
        if self.batch_next_offset > self.next_offset:
            self.next_offset = self.batch_next_offset

    def move_to(self, offset: int) -> None:
        """Continue from an offset of the batch that was read last, or from after it."""
        self.reader = None
        self.left = 0
        self.position = self.batch_at
        self.next_offset = offset

    def next_batch(self) -> bool:
        """Move to the next batch with records to return and read its header; `end_batch` moves past it."""
        self.reader = None
        while self.size - self.position >= LOG_OVERHEAD:
            length = read_number(self.data, self.position + 8, 4)
            if length >= BATCH_LENGTH_MIN and length > self.size - self.position - LOG_OVERHEAD:
                return False  # a fetch may truncate the last batch
            self.read_header(length)
            if self.batch_next_offset <= self.next_offset:
                self.note_skipped()
                self.position = self.batch_end
                continue
            self.check_crc()
            self.taken_epoch = self.batch_epoch
            self.note_aborted()
            if self.attributes & CONTROL_BIT:
                self.note_marker()
            elif not (self.attributes & TRANSACTIONAL_BIT and self.producer_id() in self.aborted_ids):
                return True
            self.end_batch()
        return False

    def read_header(self, length: int) -> None:
        at = self.position
        if self.size - at <= MAGIC_AT or (self.data[at + MAGIC_AT] == MAGIC and length < BATCH_LENGTH_MIN):
            raise CorruptBatchError(f"batch length {length} is below the minimum of {BATCH_LENGTH_MIN}")
        if self.data[at + MAGIC_AT] != MAGIC:
            raise UnsupportedMagicError(f"the batch has magic {self.data[at + MAGIC_AT]}, only {MAGIC} is supported")
        self.batch_at = at
        self.batch_end = at + LOG_OVERHEAD + length
        self.base_offset = read_number(self.data, at, 8)
        self.batch_epoch = read_number(self.data, at + LEADER_EPOCH_AT, 4)
        self.attributes = read_number(self.data, at + ATTRIBUTES_AT, 2)
        delta = read_number(self.data, at + LAST_OFFSET_DELTA_AT, 4)
        self.records_count = read_number(self.data, at + RECORDS_COUNT_AT, 4)
        if self.base_offset < 0 or delta < 0 or self.base_offset > INT64_MAX - delta - 1:
            raise CorruptBatchError(f"the batch runs from offset {self.base_offset} for {delta} more")
        if self.records_count < 0:
            raise CorruptBatchError(f"records count {self.records_count} is negative")
        self.batch_next_offset = self.base_offset + delta + 1
        self.base_timestamp = read_number(self.data, at + BASE_TIMESTAMP_AT, 8)
        self.max_timestamp = read_number(self.data, at + MAX_TIMESTAMP_AT, 8)

    def check_crc(self) -> None:
        if self.checksum is not None:
            computed = self.checksum(self.view[self.batch_at + ATTRIBUTES_AT : self.batch_end])
            crc = read_number(self.data, self.batch_at + CRC_AT, 4) & 0xFFFFFFFF
            if computed != crc:
                raise CorruptBatchError(f"the CRC is {crc:#010x} in the header but {computed:#010x} over the bytes")

    def producer_id(self) -> int:
        return read_number(self.data, self.batch_at + PRODUCER_ID_AT, 8)

    def note_aborted(self) -> None:
        """From the first offset of an aborted transaction on, its producer's batches are skipped."""
        while self.aborted_next < len(self.aborted):
            first_offset, producer_id = self.aborted[self.aborted_next]
            if first_offset >= self.batch_next_offset:
                break
            self.aborted_ids.add(producer_id)
            self.aborted_next += 1

    def note_skipped(self) -> None:
        """A batch before the requested offset may still begin or end an aborted transaction."""
        if len(self.aborted) > 0:
            self.note_aborted()
            if self.attributes & CONTROL_BIT:
                self.check_crc()
                self.note_marker()

    def note_marker(self) -> None:
        """After the abort marker, the producer's next batches belong to another transaction."""
        if len(self.aborted_ids) > 0 and self.records_count > 0:
            records = self.plain_records()
            reader = RecordReader(records, self.records_count, self.base_offset, 0, 0, False)
            reader.next_record()
            if reader.key_length < CONTROL_KEY_SIZE:
                raise reader.problem(f"is a control record with a key of {reader.key_length} bytes")
            if records[reader.key_at + 2] == 0 and records[reader.key_at + 3] == ABORT_MARKER:
                self.aborted_ids.discard(self.producer_id())


class BatchesEnd:
    """The extent of the whole batches in a fetch: in offsets, in bytes, and the leader epoch of the last."""

    __slots__ = ("leader_epoch", "next_offset", "size")

    next_offset: int
    size: int
    leader_epoch: int

    def __init__(self) -> None:
        self.next_offset = -1
        self.size = 0
        self.leader_epoch = -1


def find_end(data: Bytes) -> BatchesEnd:
    """Finds where the batches end, from their headers alone: it stops before one that is truncated or invalid."""
    end = BatchesEnd()
    size = len(data)
    while size - end.size >= BATCH_HEADER_SIZE:
        length = read_number(data, end.size + 8, 4)
        base_offset = read_number(data, end.size, 8)
        delta = read_number(data, end.size + LAST_OFFSET_DELTA_AT, 4)
        if length < BATCH_LENGTH_MIN or length > size - end.size - LOG_OVERHEAD or data[end.size + MAGIC_AT] != MAGIC:
            break
        if base_offset < 0 or delta < 0 or base_offset > INT64_MAX - delta - 1:
            break
        end.leader_epoch = read_number(data, end.size + LEADER_EPOCH_AT, 4)
        end.next_offset = base_offset + delta + 1
        end.size += LOG_OVERHEAD + length
    return end


def read_number(data: Bytes, at: int, size: int) -> int:
    """A signed number in big-endian order."""
    number = data[at]
    if number >= 0x80:
        number -= 0x100
    for index in range(at + 1, at + size):
        number = number * 0x100 + data[index]
    return number


def deserialize(records: list[ConsumerRecord], first: int, key: Deserialize | None, value: Deserialize | None) -> int:
    """Replace keys and values, from record `first` on, with the deserializers' results.

    Null stays None. Returns the number of records; an exception of a deserializer is raised as DeserializeError with
    the record's index.
    """
    index = first
    try:
        for index in range(first, len(records)):
            record = records[index]
            if key is not None and record.key is not None:
                record.key = key(record.topic, record.key, record.headers)
            if value is not None and record.value is not None:
                record.value = value(record.topic, record.value, record.headers)
    except Exception as error:
        raise DeserializeError(index, error) from error
    return len(records)


class DeserializeError(Exception):
    """A deserializer raised `cause` for the record of that index."""

    def __init__(self, index: int, cause: Exception) -> None:
        super().__init__(index, cause)
        self.index = index
        self.cause = cause
