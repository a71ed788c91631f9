"""A cursor over the records of a stored batch, for loops without the interpreter's lock; compiled like `kernel`.

What always holds: every length and varint is checked against the remaining bytes before it is used, and no Python
object is created while the lock is released. The input is the records part of a batch, decompressed.
"""

from __future__ import annotations

from tidelog.records.errors import CorruptBatchError
from tidelog.records.kernel import Bytes, RecordReader

INT64_MAX = 0x7FFFFFFFFFFFFFFF
INT64_MIN = -INT64_MAX - 1
RECORD_SIZE_MIN = 7  # as in `kernel`


class RecordWalk:
    """A cursor over the records of a stored batch, for loops without the interpreter's lock.

    It rejects what `kernel.RecordReader` rejects, and offsets that do not increase, but raises no exception:
    `next_record` returns false, and `explain` finds out why. A stored batch may have gaps between its offsets, where
    records were removed.
    """

    __slots__ = (
        "count",
        "data",
        "end",
        "first",
        "is_sound",
        "is_stamped",
        "key_at",
        "key_length",
        "last_offset_delta",
        "limit",
        "offset_delta",
        "position",
        "rest_at",
        "size",
        "start",
        "timestamp",
        "timestamp_base",
        "value_length",
    )

    data: Bytes
    first: int  # where the records of the batch begin in the data
    size: int  # where they end
    count: int
    last_offset_delta: int
    timestamp_base: int
    is_stamped: bool  # whether all records have the log append time, ignoring their deltas
    is_sound: bool
    position: int
    limit: int  # the current element must end here
    start: int  # where the record begins, including its length
    rest_at: int  # where it continues after its timestamp delta
    end: int
    offset_delta: int
    timestamp: int
    key_at: int
    key_length: int
    value_length: int

    def __init__(
        self,
        data: Bytes,
        count: int,
        last_offset_delta: int,
        base_timestamp: int,
        log_append_time: int,
        is_stamped: bool,
    ) -> None:
        self.data = data
        if not self.enter(0, len(data), count, last_offset_delta):
            raise CorruptBatchError(f"{len(data)} bytes can't hold the {count} records announced")
        self.set_times(base_timestamp, log_append_time, is_stamped)

    def enter(self, first: int, size: int, count: int, last_offset_delta: int) -> bool:
        """Enter the batch whose records lie from `first` to `size`; False if there can't be that many."""
        self.first = first
        self.size = size
        self.count = count
        self.last_offset_delta = last_offset_delta
        self.rewind()
        return 0 <= count <= (size - first) // RECORD_SIZE_MIN

    def set_times(self, base_timestamp: int, log_append_time: int, is_stamped: bool) -> None:
        self.timestamp_base = base_timestamp
        self.timestamp = log_append_time
        self.is_stamped = is_stamped

    def rewind(self) -> None:
        self.is_sound = True
        self.position = self.first
        self.limit = self.size
        self.end = self.first
        self.offset_delta = -1

    def next_record(self) -> bool:
        """Move to the next record and read all of it; False if it is invalid."""
        self.start = self.position
        self.limit = self.size
        length = self.read_varint()
        if length < RECORD_SIZE_MIN - 1 or length > self.limit - self.position:
            self.is_sound = False
            return False
        # From here on, nothing of this record may extend into the next one.
        self.limit = self.position + length
        self.end = self.limit
        self.position += 1  # a record's attributes, all of which are unused
        timestamp_delta = self.read_varlong()
        if not self.is_stamped:
            self.timestamp = self.add_to_base(timestamp_delta)
        self.rest_at = self.position
        offset_delta = self.read_varint()
        if offset_delta <= self.offset_delta or offset_delta > self.last_offset_delta:
            self.is_sound = False
        self.offset_delta = offset_delta
        self.key_length = self.read_length()
        self.key_at = self.position
        self.skip(self.key_length)
        self.value_length = self.read_length()
        self.skip(self.value_length)
        self.skip_headers()
        if self.position != self.limit:
            self.is_sound = False
        return self.is_sound

    def has_ended(self) -> bool:
        """Whether the last record ended at the end of the data."""
        return self.is_sound and self.position == self.size

    def next_range(self) -> None:
        """Move to the next record of a batch that was walked before, and only find `start`, `rest_at` and `end`."""
        self.start = self.position
        self.limit = self.size
        length = self.read_varint()
        self.limit = self.position + length
        self.end = self.limit
        self.position += 1
        timestamp_delta = self.read_varlong()
        if not self.is_stamped:
            self.timestamp = self.add_to_base(timestamp_delta)
        self.rest_at = self.position
        self.position = self.limit

    def skip(self, length: int) -> None:
        if length > 0:
            self.position += length

    def skip_headers(self) -> None:
        headers_count = self.read_varint()
        # A header has at least two bytes, the lengths of its key and value.
        if headers_count < 0 or headers_count > (self.limit - self.position) // 2:
            self.is_sound = False
            headers_count = 0
        for _ in range(headers_count):
            key_length = self.read_length()
            if key_length < 0:
                self.is_sound = False
                break
            self.skip(key_length)
            self.skip(self.read_length())

    def read_length(self) -> int:
        """A length that may be -1 for null and otherwise fits in the rest of the record."""
        length = self.read_varint()
        if length < -1 or length > self.limit - self.position:
            self.is_sound = False
            return -1
        return length

    def read_varint(self) -> int:
        if self.position < self.limit:
            byte = self.data[self.position]
            if byte < 0x80:
                self.position += 1
                return (byte >> 1) ^ -(byte & 1)
        raw = self.read_raw(5, 0x0F)
        return (raw >> 1) ^ -(raw & 1)

    def read_varlong(self) -> int:
        raw = self.read_raw(10, 0x01)
        return (raw >> 1) ^ -(raw & 1)

    def read_raw(self, bytes_max: int, last_byte_max: int) -> int:
        """The unsigned value of a varint; its last byte may only contain the bits that fit."""
        raw = 0
        for index in range(bytes_max):
            if self.position >= self.limit:
                break
            byte = self.data[self.position]
            self.position += 1
            if index == bytes_max - 1 and byte > last_byte_max:
                break
            raw |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return raw
        self.is_sound = False
        return 0

    def add_to_base(self, delta: int) -> int:
        base = self.timestamp_base
        if (delta > 0 and base > INT64_MAX - delta) or (delta < 0 and base < INT64_MIN - delta):
            self.is_sound = False
            return 0
        return base + delta


def explain(walk: RecordWalk, base_offset: int) -> CorruptBatchError:
    """Why the walk failed, in the words of the reader that raises exceptions."""
    reader = RecordReader(walk.data, walk.count, base_offset, walk.timestamp_base, 0, walk.is_stamped)
    last_offset = base_offset - 1
    for _ in range(walk.count):
        reader.next_record()
        if reader.offset <= last_offset or reader.offset > base_offset + walk.last_offset_delta:
            return reader.problem(f"has offset {reader.offset} behind {last_offset}")
        last_offset = reader.offset
        reader.skip_headers()
        reader.end_record()
    reader.end_records()
    return CorruptBatchError("the records of the batch are not sound")
