"""The loops over records, compiled because they run once per record; those to and from Arrow are in `kernel_arrow`.

This is plain typed Python; `kernel.pxd` beside it gives Cython the C types, and the two behave identically byte for
byte. What always holds: every length, count and varint is checked against the remaining bytes before it is used. Sums
that exceed 64 bits are rejected, and any error raises CorruptBatchError. Batch headers, CRC and compression are not
handled here: the input is the records part of a batch, already decompressed.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.records.errors import CorruptBatchError, TimestampRangeError

INT64_MAX = 0x7FFFFFFFFFFFFFFF
INT64_MIN = -INT64_MAX - 1
IS_COMPILED = not __file__.endswith(".py")

# length, attributes, timestamp delta, offset delta, key length, value length and headers count: one byte each
RECORD_SIZE_MIN = 7

Bytes = bytes | bytearray | memoryview
RecordHeaders = tuple[tuple[str, bytes | None], ...]
RecordTuple = tuple[bytes | None, bytes | None, Iterable[tuple[str, bytes | None]], int | None]


class Record:
    """A decoded record. Immutable by convention, and truly so in the compiled kernel."""

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders

    def __init__(
        self,
        offset: int,
        timestamp: int,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: RecordHeaders = (),
    ) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, "
            f"headers={self.headers!r})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (
            self.offset == other.offset
            and self.timestamp == other.timestamp
            and self.key == other.key
            and self.value == other.value
            and self.headers == other.headers
        )

    def __hash__(self) -> int:
        return hash((self.offset, self.timestamp, self.key, self.value, self.headers))

    def __reduce__(self) -> tuple[type[Record], tuple[int, int, bytes | None, bytes | None, RecordHeaders]]:
        return (Record, (self.offset, self.timestamp, self.key, self.value, self.headers))


class RecordReader:
    """A cursor over the records of one batch: `next_record` moves to a record and locates its parts."""

    __slots__ = (
        "base_offset",
        "base_timestamp",
        "data",
        "headers_count",
        "index",
        "is_stamped",
        "key_at",
        "key_length",
        "limit",
        "offset",
        "position",
        "size",
        "timestamp",
        "value_at",
        "value_length",
    )

    data: Bytes
    size: int
    base_offset: int
    base_timestamp: int
    is_stamped: bool  # whether all records have the log append time, ignoring their deltas
    position: int
    limit: int
    index: int
    offset: int
    timestamp: int
    key_at: int
    key_length: int
    value_at: int
    value_length: int
    headers_count: int

    def __init__(
        self, data: Bytes, count: int, base_offset: int, base_timestamp: int, log_append_time: int, is_stamped: bool
    ) -> None:
        self.data = data
        self.base_offset = base_offset
        self.base_timestamp = base_timestamp
        self.timestamp = log_append_time
        self.is_stamped = is_stamped
        self.size = len(data)
        self.position = 0
        self.limit = self.size
        self.index = 0
        if count > self.size // RECORD_SIZE_MIN:
            raise CorruptBatchError(f"{self.size} bytes can't hold the {count} records announced")

    def next_record(self) -> None:
        """Move to the next record and read everything up to its headers; `position` is then at the first header."""
        self.limit = self.size
        length = self.read_varint()
        if length < RECORD_SIZE_MIN - 1 or length > self.limit - self.position:
            raise self.problem(f"has length {length}, {self.limit - self.position} bytes are left")
        # From here on, nothing of this record may extend into the next one.
        self.limit = self.position + length
        self.position += 1  # a record's attributes, all of which are unused
        delta = self.read_varlong()
        if not self.is_stamped:
            if self.leaves_int64(self.base_timestamp, delta):
                raise TimestampRangeError(f"record {self.index} of the batch has a timestamp beyond 64 bits")
            self.timestamp = self.base_timestamp + delta
        delta = self.read_varint()
        if self.leaves_int64(self.base_offset, delta):
            raise self.problem(f"has offset delta {delta}, which with base offset {self.base_offset} leaves 64 bits")
        self.offset = self.base_offset + delta
        self.key_length = self.read_length("key")
        self.key_at = self.position
        if self.key_length > 0:
            self.position += self.key_length
        self.value_length = self.read_length("value")
        self.value_at = self.position
        if self.value_length > 0:
            self.position += self.value_length
        self.headers_count = self.read_varint()
        # A header has at least two bytes, the lengths of its key and value.
        if self.headers_count < 0 or self.headers_count > (self.limit - self.position) // 2:
            raise self.problem(f"announces {self.headers_count} headers, {self.limit - self.position} bytes are left")

    def end_record(self) -> None:
        """Finish the record after its headers were read."""
        if self.position != self.limit:
            raise self.problem(f"has {self.limit - self.position} bytes behind its last header")
        self.index += 1

    def end_records(self) -> None:
        """Make sure that the last record ended at the end of the data."""
        if self.position != self.size:
            raise CorruptBatchError(
                f"{self.size - self.position} bytes are left behind the last of {self.index} records"
            )

    def skip_headers(self) -> None:
        for _ in range(self.headers_count):
            length = self.read_header_key()
            self.position += length
            length = self.read_length("header value")
            if length > 0:
                self.position += length

    def copy_of(self, at: int, length: int) -> bytes:
        """Bytes of a part that `next_record` has located or `read_length` has checked."""
        if IS_COMPILED:
            return copy_bytes(self, at, length)  # type: ignore[name-defined,no-any-return]  # noqa: F821  # in the .pxd
        return bytes(self.data[at : at + length])

    def read_headers(self) -> RecordHeaders:
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(self.headers_count):
            length = self.read_header_key()
            # A key may be any bytes; like the Java client, show invalid UTF-8 as replacement characters.
            key = self.copy_of(self.position, length).decode("utf-8", "replace")
            self.position += length
            length = self.read_length("header value")
            if length < 0:
                headers.append((key, None))
            else:
                headers.append((key, self.copy_of(self.position, length)))
                self.position += length
        return tuple(headers)

    def read_length(self, part: str) -> int:
        """A length that may be -1 for null and otherwise fits in the rest of the record."""
        length = self.read_varint()
        if length < -1 or length > self.limit - self.position:
            raise self.problem(f"has a {part} of {length} bytes, {self.limit - self.position} bytes are left")
        return length

    def read_header_key(self) -> int:
        """The length of a header's key, which unlike its value may not be null."""
        length = self.read_length("header key")
        if length < 0:
            raise self.problem("has a header without a key")
        return length

    def read_varint(self) -> int:
        if self.position >= self.limit:
            raise self.problem("ends within a varint")
        byte = self.data[self.position]
        self.position += 1
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1)
        raw = self.read_varint_rest(byte & 0x7F, 5, 0x0F)
        return (raw >> 1) ^ -(raw & 1)

    def read_varlong(self) -> int:
        if self.position >= self.limit:
            raise self.problem("ends within a varint")
        byte = self.data[self.position]
        self.position += 1
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1)
        raw = self.read_varint_rest(byte & 0x7F, 10, 0x01)
        return (raw >> 1) ^ -(raw & 1)

    def read_varint_rest(self, raw: int, bytes_max: int, last_byte_max: int) -> int:
        """The unsigned value of a varint after its first byte; its last byte may only contain the bits that fit."""
        shift = 7
        last_shift = 7 * (bytes_max - 1)
        while self.position < self.limit:
            byte = self.data[self.position]
            self.position += 1
            if shift == last_shift and byte > last_byte_max:
                raise self.problem(f"has a varint that does not fit {bytes_max} bytes")
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return raw
            shift += 7
        raise self.problem("ends within a varint")

    def leaves_int64(self, base: int, delta: int) -> bool:
        return (delta > 0 and base > INT64_MAX - delta) or (delta < 0 and base < INT64_MIN - delta)

    def problem(self, what: str) -> CorruptBatchError:
        return CorruptBatchError(f"record {self.index} of the batch {what}")


def decode_objects(
    data: bytes, count: int, base_offset: int, base_timestamp: int, log_append_time: int, is_stamped: bool
) -> list[Record]:
    """The records as objects."""
    reader = RecordReader(data, count, base_offset, base_timestamp, log_append_time, is_stamped)
    records: list[Record] = []
    for _ in range(count):
        reader.next_record()
        # Through __new__, because a call with five arguments would cost more than the rest of the loop.
        record = Record.__new__(Record)
        record.offset = reader.offset
        record.timestamp = reader.timestamp
        record.key = None
        if reader.key_length >= 0:
            record.key = reader.copy_of(reader.key_at, reader.key_length)
        record.value = None
        if reader.value_length >= 0:
            record.value = reader.copy_of(reader.value_at, reader.value_length)
        record.headers = () if reader.headers_count == 0 else reader.read_headers()
        reader.end_record()
        records.append(record)
    reader.end_records()
    return records


def find_timestamp(
    data: Bytes,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int,
    is_stamped: bool,
    timestamp: int,
    first_offset: int,
) -> tuple[int, int] | None:
    """Timestamp and offset of the first record at or after both; records after it are not looked at."""
    reader = RecordReader(data, count, base_offset, base_timestamp, log_append_time, is_stamped)
    for _ in range(count):
        reader.next_record()
        if reader.timestamp >= timestamp and reader.offset >= first_offset:
            return reader.timestamp, reader.offset
        reader.skip_headers()
        reader.end_record()
    return None


class RecordWriter:
    """Writes consecutive records into a bytearray and collects the values for the batch header."""

    __slots__ = ("base_timestamp", "count", "max_timestamp", "out")

    out: bytearray
    count: int
    base_timestamp: int
    max_timestamp: int

    def __init__(self, out: bytearray) -> None:
        self.out = out
        self.count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1

    def write(self, key: bytes | None, value: bytes | None, headers: bytearray | None, timestamp: int) -> None:
        """Append a record; the first one's timestamp is the base for all."""
        if timestamp < -1 or timestamp > INT64_MAX:
            raise ValueError(f"a timestamp is -1 or a count of milliseconds, not {timestamp}")
        if self.count == 0:
            self.base_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if self.base_timestamp < 0 and timestamp > INT64_MAX + self.base_timestamp:
            raise ValueError(f"timestamp {timestamp} is too far from the batch's first, {self.base_timestamp}")
        delta = timestamp - self.base_timestamp
        size = 1 + varint_size(delta) + varint_size(self.count) + nullable_size(key) + nullable_size(value)
        size += 1 if headers is None else len(headers)
        append_varint(self.out, size)
        self.out.append(0)  # a record's attributes, all of which are unused
        append_varint(self.out, delta)
        append_varint(self.out, self.count)
        append_nullable(self.out, key)
        append_nullable(self.out, value)
        if headers is None:
            self.out.append(0)
        else:
            self.out += headers
        self.count += 1


def encode_objects(out: bytearray, records: Iterable[RecordTuple], now_ms: int | None) -> RecordWriter:
    """Append the records to `out`. A timestamp of None becomes `now_ms`."""
    writer = RecordWriter(out)
    for key, value, headers, timestamp_ms in records:
        stamp = now_ms if timestamp_ms is None else timestamp_ms
        if stamp is None:
            raise ValueError("a record without a timestamp needs now_ms")
        writer.write(key, value, encode_headers(headers) if headers else None, stamp)
    return writer


def encode_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytearray:
    """The headers of a record with their count before them."""
    pairs = list(headers)
    out = bytearray()
    append_varint(out, len(pairs))
    for key, value in pairs:
        append_nullable(out, key.encode("utf-8"))
        append_nullable(out, value)
    return out


def varint_size(value: int) -> int:
    """Bytes of a zigzag varint of up to 64 bits."""
    raw = value if value >= 0 else -(value + 1)
    raw >>= 6  # the first byte has six bits besides the sign
    size = 1
    while raw > 0:
        raw >>= 7
        size += 1
    return size


def append_varint(out: bytearray, value: int) -> None:
    raw = value if value >= 0 else -(value + 1)
    raw <<= 1
    if value < 0:
        raw |= 1
    while raw >= 0x80:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)


def nullable_size(part: bytes | None) -> int:
    if part is None:
        return 1
    if not isinstance(part, bytes):  # the compiled kernel accepts nothing else, so neither does this one
        raise TypeError(f"Expected bytes, got {type(part).__name__}")
    return varint_size(len(part)) + len(part)


def append_nullable(out: bytearray, part: bytes | None) -> None:
    if part is None:
        out.append(1)  # the varint of -1
    else:
        append_varint(out, len(part))
        out += part
