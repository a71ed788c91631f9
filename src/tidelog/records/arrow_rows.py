"""Writes any run of rows from Arrow columns as records into any buffer, without a Python object per record.

What always holds: the bytes are those that `from_arrow` writes for the same rows. The maximum size of a run is known
without looking at its rows. Importing this module imports pyarrow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.records.arrow import binary_source, header_columns, timestamps_of
from tidelog.records.batch import BATCH_HEADER_SIZE
from tidelog.records.kernel_arrow import ColumnsWriter, encode_columns
from tidelog.records.kernel_build import partitions_of_keys

# Length, attributes, timestamp delta, offset delta, lengths of key and value, headers count: with the longest varints.
RECORD_OVERHEAD_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 5
HEADER_OVERHEAD_MAX = 5 + 5
NO_PARTITION = -1


class WrittenRows(NamedTuple):
    """The values for a batch's header; the size includes the room for the header."""

    size: int
    base_timestamp: int
    max_timestamp: int


class ArrowRows:
    """The columns of one record batch; key, value and headers may be missing."""

    def __init__(
        self,
        rows: int,
        key: pa.Array | None,
        value: pa.Array | None,
        headers: pa.Array | None,
        timestamp: pa.Array | None,
        now_ms: int,
    ) -> None:
        self.rows = rows
        key, value = as_binary(key), as_binary(value)
        self._keys, _ = binary_source(key, rows)
        self._values, _ = binary_source(value, rows)
        self._key_ends = _ends_of(key, rows)
        self._value_ends = _ends_of(value, rows)
        self._timestamps = timestamps_of(timestamp, rows, now_ms)
        self._headers_offsets, (header_keys, header_values) = header_columns(headers, rows)
        headers_count = self._headers_offsets[rows]
        header_keys, header_values = as_binary(header_keys), as_binary(header_values)
        self._header_keys, _ = binary_source(header_keys, headers_count)
        self._header_values, _ = binary_source(header_values, headers_count)
        self._header_key_ends = _ends_of(header_keys, headers_count)
        self._header_value_ends = _ends_of(header_values, headers_count)

    def size_max(self, first: int, end: int) -> int:
        """The maximum size in bytes of the rows from `first` up to `end`, including the room for a header."""
        header_first, header_end = self._headers_offsets[first], self._headers_offsets[end]
        size = BATCH_HEADER_SIZE + (end - first) * RECORD_OVERHEAD_MAX
        size += (header_end - header_first) * HEADER_OVERHEAD_MAX
        size += self._key_ends[end] - self._key_ends[first] + self._value_ends[end] - self._value_ends[first]
        size += self._header_key_ends[header_end] - self._header_key_ends[header_first]
        size += self._header_value_ends[header_end] - self._header_value_ends[header_first]
        return size

    def runs(self, size_max: int) -> Iterator[tuple[int, int]]:
        """First row and end of runs that each fit this size; a larger row is a run of its own."""
        first = 0
        while first < self.rows:
            # By bisection: the bound grows with every row.
            fitting = bisect_right(range(first + 1, self.rows + 1), size_max, key=partial(self.size_max, first))
            end = first + max(fitting, 1)
            yield first, end
            first = end

    def write(self, buffer: bytearray, first: int, end: int) -> WrittenRows:
        """Write the rows into the buffer, after room for the header."""
        writer = ColumnsWriter(memoryview(buffer)[BATCH_HEADER_SIZE:])
        encode_columns(
            writer,
            end - first,
            self._keys.moved(first),
            self._values.moved(first),
            self._timestamps[first:end],
            self._headers_offsets[first : end + 1],
            self._header_keys,
            self._header_values,
        )
        return WrittenRows(BATCH_HEADER_SIZE + writer.position, writer.base_timestamp, writer.max_timestamp)


def _ends_of(array: pa.Array | None, rows: int) -> memoryview:
    """Where the bytes of each row begin in their column, plus the end of the last one."""
    if array is None or not rows:
        return memoryview(bytes(4 * (rows + 1))).cast("i")
    offsets = memoryview(array.buffers()[1]).cast("B").cast("i")
    return offsets[array.offset : array.offset + rows + 1]


def as_binary(array: pa.Array | None) -> pa.Array | None:
    """The column as binary or string; None for one without any value."""
    if array is None or pa.types.is_null(array.type):
        return None
    if pa.types.is_binary(array.type) or pa.types.is_string(array.type):
        return array
    return array.cast(pa.binary())


def choose_partitions(key: pa.Array | None, rows: int, partitions: int) -> pa.Array:
    """The partition of each row by its key; NO_PARTITION for a row without one."""
    out = bytearray(4 * rows)
    keys, _ = binary_source(key, rows)
    with memoryview(out) as view, view.cast("i") as numbers:
        partitions_of_keys(keys, rows, partitions, numbers)
    return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(out)])


def by_partition(batch: pa.RecordBatch, numbers: pa.Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each partition, in their order."""
    order = pc.array_sort_indices(numbers)  # the sort is stable
    runs = pc.run_end_encode(numbers.take(order))
    sorted_rows = batch.take(order)
    first = 0
    for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield number, sorted_rows.slice(first, end - first)
        first = end
