"""The loop from records to Arrow's columns: one pass over the bytes, copying keys and values to where they belong.

What always holds: no Python object is created per record. Buffers are written only within their size. Invalid bytes
raise what `kernel.RecordReader` raises. The compiled loop is in the .pxd file and runs without the interpreter's lock.
If it finds anything invalid it gives up, and `fill_slowly` goes through the batch again to report it.
"""

from __future__ import annotations

from tidelog.records.kernel import Bytes, RecordReader

MICROSECONDS_PER_MILLISECOND = 1000
TIMESTAMP_MS_MAX = 9223372036854775  # the largest that fits 64 bits as microseconds

IS_COMPILED = not __file__.endswith(".py")


class BytesColumn:
    """A column of bytes being filled: where each row ends, the bytes of all rows, and which rows are null."""

    __slots__ = ("data", "end", "nulls", "offsets", "validity")

    offsets: memoryview  # int32, one more than there are rows
    data: memoryview
    validity: memoryview  # bits
    end: int
    nulls: int

    def __init__(self, offsets: memoryview, data: memoryview, validity: memoryview) -> None:
        self.offsets = offsets
        self.data = data
        self.validity = validity
        self.end = 0
        self.nulls = 0
        self.offsets[0] = 0

    def put(self, row: int, source: Bytes, start: int, length: int) -> None:
        """The bytes of a row, or null if the length is -1."""
        if length < 0:
            self.validity[row >> 3] &= 0xFF ^ (1 << (row & 7))
            self.nulls += 1
        else:
            self.validity[row >> 3] |= 1 << (row & 7)
            if length > 0:
                self.data[self.end : self.end + length] = source[start : start + length]
                self.end += length
        self.offsets[row + 1] = self.end


class RecordTable:
    """The columns that differ from record to record. Header columns are filled separately, once their size is known."""

    __slots__ = ("headers", "headers_offsets", "keys", "offsets", "rows", "timestamps", "values")

    keys: BytesColumn
    values: BytesColumn
    offsets: memoryview  # int64
    timestamps: memoryview  # int64, in microseconds as Spark has them
    headers_offsets: memoryview  # int32, one more than there are rows
    rows: int
    headers: int

    def __init__(
        self,
        keys: BytesColumn,
        values: BytesColumn,
        offsets: memoryview,
        timestamps: memoryview,
        headers_offsets: memoryview,
    ) -> None:
        self.keys = keys
        self.values = values
        self.offsets = offsets
        self.timestamps = timestamps
        self.headers_offsets = headers_offsets
        self.rows = 0
        self.headers = 0
        self.headers_offsets[0] = 0


def fill_table(
    table: RecordTable,
    data: Bytes,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int,
    is_stamped: bool,
    from_offset: int,
) -> None:
    """Append the batch's records, except those before `from_offset`, to the columns."""
    is_filled = False
    if IS_COMPILED:
        is_filled = fill_fast(  # type: ignore[name-defined]  # noqa: F821  # the .pxd file has it
            table, data, count, base_offset, base_timestamp, log_append_time, is_stamped, from_offset
        )
    if not is_filled:
        reader = RecordReader(data, count, base_offset, base_timestamp, log_append_time, is_stamped)
        fill_slowly(table, data, reader, count, from_offset)


def fill_slowly(table: RecordTable, data: Bytes, reader: RecordReader, count: int, from_offset: int) -> None:
    row = table.rows
    for _ in range(count):
        reader.next_record()
        if reader.headers_count > 0:
            reader.skip_headers()
        reader.end_record()
        if reader.offset < from_offset:
            continue
        if reader.timestamp > TIMESTAMP_MS_MAX or reader.timestamp < -TIMESTAMP_MS_MAX:
            raise reader.problem(f"has timestamp {reader.timestamp}, which does not fit 64 bits in microseconds")
        table.keys.put(row, data, reader.key_at, reader.key_length)
        table.values.put(row, data, reader.value_at, reader.value_length)
        table.offsets[row] = reader.offset
        table.timestamps[row] = reader.timestamp * MICROSECONDS_PER_MILLISECOND
        table.headers += reader.headers_count
        row += 1
        table.headers_offsets[row] = table.headers
    table.rows = row
    reader.end_records()
