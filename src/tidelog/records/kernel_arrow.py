"""The loops between record batches and Arrow buffers, compiled like `kernel` and with its rules.

What always holds: no Python object is created per record. Buffers are written only within their size, and those from
outside are read only within their size. This module knows buffers, not pyarrow; `arrow` converts between the two.
"""

from __future__ import annotations

from tidelog.records.kernel import Bytes, RecordReader

INT64_MAX = 0x7FFFFFFFFFFFFFFF
IS_COMPILED = not __file__.endswith(".py")

VIEW_WORDS = 4
WORD_SIZE = 4
VIEW_PREFIX_SIZE = 4
VIEW_INLINE_MAX = 12


class ViewColumn:
    """An Arrow column of binary views being filled: it points to each row's bytes instead of copying them.

    A view has 16 bytes: the length, then the bytes themselves if there are at most 12, or else their first 4, the
    number of the buffer that holds them and their position in it.
    """

    __slots__ = ("nulls", "rows", "validity", "views", "words")

    views: memoryview  # bytes
    words: memoryview  # the same memory as int32
    validity: memoryview  # bits, all ones at first
    rows: int
    nulls: int

    def __init__(self, views: memoryview, words: memoryview, validity: memoryview) -> None:
        self.views = views
        self.words = words
        self.validity = validity
        self.rows = 0
        self.nulls = 0

    def append(self, reader: RecordReader, start: int, length: int, buffer_number: int) -> None:
        """The next row: `length` bytes of the data being read, from `start`, or null if the length is -1."""
        word = self.rows * VIEW_WORDS
        at = word * WORD_SIZE + WORD_SIZE
        if length > VIEW_INLINE_MAX:
            self.words[word] = length
            for index in range(VIEW_PREFIX_SIZE):
                self.views[at + index] = reader.data[start + index]
            self.words[word + 2] = buffer_number
            self.words[word + 3] = start
        else:
            self.words[word] = 0
            self.words[word + 1] = 0
            self.words[word + 2] = 0
            self.words[word + 3] = 0
            if length < 0:
                self.validity[self.rows >> 3] &= 0xFF ^ (1 << (self.rows & 7))
                self.nulls += 1
            else:
                self.words[word] = length
                for index in range(length):
                    self.views[at + index] = reader.data[start + index]
        self.rows += 1


def fill_headers(
    keys: ViewColumn, values: ViewColumn, reader: RecordReader, count: int, from_offset: int, buffer_number: int
) -> None:
    """Append the headers of the batch's records, except those before `from_offset`, to their columns."""
    for _ in range(count):
        reader.next_record()
        if reader.offset < from_offset:
            reader.skip_headers()
        else:
            for _ in range(reader.headers_count):
                length = reader.read_header_key()
                keys.append(reader, reader.position, length, buffer_number)
                reader.position += length
                length = reader.read_length("header value")
                values.append(reader, reader.position, length, buffer_number)
                if length > 0:
                    reader.position += length
        reader.end_record()


class BinarySource:
    """A column of binary or string to be read; `first` is the row where it starts in its buffers."""

    __slots__ = ("data", "first", "offsets", "validity")

    data: Bytes
    offsets: memoryview  # int32
    validity: Bytes  # empty if nothing is null
    first: int

    def __init__(self, data: Bytes, offsets: memoryview, validity: Bytes, first: int) -> None:
        self.data = data
        self.offsets = offsets
        self.validity = validity
        self.first = first

    def moved(self, rows: int) -> BinarySource:
        """The same column without its first rows."""
        return BinarySource(self.data, self.offsets, self.validity, self.first + rows)

    def length(self, row: int) -> int:
        """The bytes of a row, -1 if it is null."""
        row += self.first
        if len(self.validity) > 0 and not (self.validity[row >> 3] >> (row & 7)) & 1:
            return -1
        start = self.offsets[row]
        length = self.offsets[row + 1] - start
        if start < 0 or length < 0 or start + length > len(self.data):
            raise ValueError(f"row {row} of an Arrow column lies outside of its {len(self.data)} bytes")
        return length

    def start(self, row: int) -> int:
        return self.offsets[row + self.first]


class ColumnsWriter:
    """Writes records from columns into a buffer that is large enough for the longest varints."""

    __slots__ = ("base_timestamp", "max_timestamp", "out", "position")

    out: memoryview
    position: int
    base_timestamp: int
    max_timestamp: int

    def __init__(self, out: memoryview) -> None:
        self.out = out
        self.position = 0
        self.base_timestamp = -1
        self.max_timestamp = -1

    def write_varint(self, value: int) -> None:
        if IS_COMPILED:
            put_varint(self, value)  # type: ignore[name-defined]  # noqa: F821  # the .pxd file has it
        else:
            raw = value << 1 if value >= 0 else (-(value + 1) << 1) | 1
            while raw >= 0x80:
                self.out[self.position] = (raw & 0x7F) | 0x80
                self.position += 1
                raw >>= 7
            self.out[self.position] = raw
            self.position += 1

    def write_part(self, source: BinarySource, row: int, length: int) -> None:
        """A key or value, with its length before it (-1 for null)."""
        self.write_varint(length)
        if length > 0:
            if IS_COMPILED:
                # The .pxd file has it.
                copy_part(self, source, source.start(row), length)  # type: ignore[name-defined]  # noqa: F821
            else:
                self.write_slice(source, source.start(row), length)

    def write_slice(self, source: BinarySource, start: int, length: int) -> None:
        self.out[self.position : self.position + length] = source.data[start : start + length]
        self.position += length

    def write_headers(self, keys: BinarySource, values: BinarySource, first: int, end: int) -> None:
        self.write_varint(end - first)
        for row in range(first, end):
            length = keys.length(row)
            if length < 0:
                raise ValueError("a record header needs a key")
            self.write_part(keys, row, length)
            self.write_part(values, row, values.length(row))


def size_of_varint(value: int) -> int:
    raw = value if value >= 0 else -(value + 1)
    raw >>= 6  # the first byte has six bits besides the sign
    size = 1
    while raw > 0:
        raw >>= 7
        size += 1
    return size


def size_of_part(length: int) -> int:
    return size_of_varint(length) + (length if length > 0 else 0)


def size_of_headers(keys: BinarySource, values: BinarySource, first: int, end: int) -> int:
    size = size_of_varint(end - first)
    for row in range(first, end):
        size += size_of_part(keys.length(row)) + size_of_part(values.length(row))
    return size


def encode_columns(
    writer: ColumnsWriter,
    rows: int,
    keys: BinarySource,
    values: BinarySource,
    timestamps: memoryview,
    headers_offsets: memoryview,
    header_keys: BinarySource,
    header_values: BinarySource,
) -> None:
    """Write all rows. `timestamps` are int64 milliseconds; `headers_offsets` map headers to rows."""
    for row in range(rows):
        timestamp = timestamps[row]
        if timestamp < -1:
            raise ValueError(f"a timestamp is -1 or a count of milliseconds, not {timestamp}")
        if row == 0:
            writer.base_timestamp = timestamp
        if timestamp > writer.max_timestamp:
            writer.max_timestamp = timestamp
        if writer.base_timestamp < 0 and timestamp > INT64_MAX + writer.base_timestamp:
            raise ValueError(f"timestamp {timestamp} is too far from the batch's first, {writer.base_timestamp}")
        delta = timestamp - writer.base_timestamp
        key_length = keys.length(row)
        value_length = values.length(row)
        first = headers_offsets[row]
        end = headers_offsets[row + 1]
        if first < 0 or end < first:
            raise ValueError(f"the headers of row {row} run from {first} to {end}")
        size = 1 + size_of_varint(delta) + size_of_varint(row) + size_of_part(key_length) + size_of_part(value_length)
        size += size_of_headers(header_keys, header_values, first, end)
        writer.write_varint(size)
        writer.out[writer.position] = 0  # a record's attributes, all of which are unused
        writer.position += 1
        writer.write_varint(delta)
        writer.write_varint(row)
        writer.write_part(keys, row, key_length)
        writer.write_part(values, row, value_length)
        writer.write_headers(header_keys, header_values, first, end)
