"""Record batches to Arrow record batches and back, without a Python object per record.

What always holds: the columns have the names and types of Spark's `kafka` source, with `headers` as a list of key and
value. Both directions give the same result as `decode_records` and `encode_batch` for the same records. Importing this
module imports pyarrow, so nothing on a broker's path imports it. Decoding never builds an Arrow array or scalar from
Python objects: pyarrow would import pandas for that, which takes a Spark process a fifth of a second.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypedDict, Unpack

import pyarrow as pa

from tidelog.common.recycled_memory import RecycledMemory
from tidelog.records.batch import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    Buffer,
    Compression,
    TimestampType,
    iter_headers,
)
from tidelog.records.batch import check_crc as check_batch_crc
from tidelog.records.codec import open_records, seal_batch
from tidelog.records.compression import DECOMPRESSED_BYTES_MAX
from tidelog.records.kernel import RecordReader
from tidelog.records.kernel_arrow import (
    BinarySource,
    ColumnsWriter,
    ViewColumn,
    encode_columns,
    fill_headers,
)
from tidelog.records.kernel_fill import BytesColumn, RecordTable, fill_table

HEADER_TYPE = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
HEADERS_TYPE = pa.list_(pa.field("element", HEADER_TYPE, nullable=False))
_NO_HEADERS = pa.nulls(0, HEADER_TYPE)
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("timestampType", pa.int32(), nullable=False),
        pa.field("headers", HEADERS_TYPE),
    ]
)
# Arrow's binary columns have int32 offsets; large_binary would allow more but few readers expect it.
COLUMN_BYTES_MAX = 0x7FFFFFFF
# Length, attributes, timestamp delta, offset delta, lengths of key and value, headers count: with the longest varints.
_RECORD_OVERHEAD_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 5
_HEADER_OVERHEAD_MAX = 5 + 5


class BatchOptions(TypedDict, total=False):
    """The header fields that `from_arrow` passes on, named as in `encode_batch`."""

    base_offset: int
    compression: Compression
    compression_level: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    leader_epoch: int
    is_transactional: bool
    timestamp_type: TimestampType
    now_ms: int | None


class OpenBatch(NamedTuple):
    """A decompressed batch, with the relevant header fields; rows begin at `from_offset`."""

    topic: str
    partition: int
    from_offset: int
    records: Buffer
    records_count: int
    base_offset: int
    base_timestamp: int
    max_timestamp: int
    is_stamped: bool

    def reader(self) -> RecordReader:
        """Rejects a count that the bytes can't hold."""
        return RecordReader(
            self.records,
            self.records_count,
            self.base_offset,
            self.base_timestamp,
            self.max_timestamp,
            self.is_stamped,
        )


def to_arrow(
    buffers: Buffer | Iterable[Buffer],
    topic: str,
    partition: int,
    *,
    from_offset: int = 0,
    check_crc: bool = True,
    allow_partial: bool = False,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> pa.RecordBatch:
    """All records of the buffers, each of which holds consecutive batches, as one Arrow record batch.

    Control batches produce no rows, and neither do records before `from_offset`: a fetch returns whole batches. With
    `allow_partial`, each buffer may end in the middle of a batch. `max_bytes` bounds the total of all decompressed
    records.
    """
    if isinstance(buffers, bytes | bytearray | memoryview):
        buffers = (buffers,)
    batches: list[OpenBatch] = []
    size_max = 0
    for buffer in buffers:
        for position, header in iter_headers(buffer, allow_partial=allow_partial):
            if check_crc:
                check_batch_crc(buffer, header, position)
            if header.is_control or header.last_offset < from_offset:
                continue
            records = _records_of(buffer, header, position, max_bytes - size_max)
            batches.append(
                OpenBatch(
                    topic,
                    partition,
                    from_offset,
                    records,
                    header.records_count,
                    header.base_offset,
                    header.base_timestamp,
                    header.max_timestamp,
                    header.timestamp_type is TimestampType.LOG_APPEND_TIME,
                )
            )
            size_max += len(records)
    return batches_to_arrow(batches)


def _records_of(buffer: Buffer, header: BatchHeader, position: int, max_bytes: int) -> Buffer:
    if header.compression is Compression.NONE:
        return memoryview(buffer)[position + BATCH_HEADER_SIZE : position + header.size_bytes]
    return open_records(buffer, header, position, max_bytes)


def batches_to_arrow(batches: Sequence[OpenBatch], memory: RecycledMemory | None = None) -> pa.RecordBatch:
    """The records of all batches, in order, as one Arrow record batch."""
    for batch in batches:
        batch.reader()  # rejects a count that the bytes can't hold, before anything is allocated for it
    rows_max = sum(batch.records_count for batch in batches)
    size_max = sum(len(batch.records) for batch in batches)
    if size_max > COLUMN_BYTES_MAX:
        raise ValueError(f"{size_max} bytes of records are too many for one Arrow batch, pass fewer buffers")
    key, value = _BytesBuffers(rows_max, size_max), _BytesBuffers(rows_max, size_max, memory)
    offset, timestamp, headers_offsets = _allocate(8 * rows_max), _allocate(8 * rows_max), _allocate(4 * (rows_max + 1))
    table = RecordTable(
        key.column, value.column, _view(offset, "q"), _view(timestamp, "q"), _view(headers_offsets, "i")
    )
    runs = _Runs()
    for batch in batches:
        fill_table(
            table,
            batch.records,
            batch.records_count,
            batch.base_offset,
            batch.base_timestamp,
            batch.max_timestamp,
            batch.is_stamped,
            batch.from_offset,
        )
        runs.extend_to(table.rows, batch)
    rows, headers = table.rows, table.headers
    del table
    return pa.RecordBatch.from_arrays(
        [
            key.array(rows),
            value.array(rows),
            runs.topics(),
            runs.partitions(),
            pa.Array.from_buffers(pa.int64(), rows, [None, offset]),
            pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), rows, [None, timestamp]),
            runs.timestamp_types(),
            pa.Array.from_buffers(
                HEADERS_TYPE, rows, [None, headers_offsets], children=[_header_elements(batches, headers)]
            ),
        ],
        schema=SCHEMA,
    )


def _allocate(size: int, *, resizable: bool = False) -> pa.Buffer:
    """Memory from malloc: it can be reused at once, whereas Arrow's own pool returns it and gets it zeroed again."""
    return pa.allocate_buffer(size, memory_pool=pa.system_memory_pool(), resizable=resizable)


class _BytesBuffers:
    """The buffers of a column of bytes, and the kernel's view of them."""

    def __init__(self, rows_max: int, size_max: int, memory: RecycledMemory | None = None) -> None:
        self._offsets = _allocate(4 * (rows_max + 1))
        self._data: pa.Buffer = (
            _allocate(max(size_max, 1), resizable=True)
            if memory is None
            else pa.py_buffer(memory.take(max(size_max, 1)))
        )
        self._validity = bytearray((rows_max + 7) // 8)
        self.column = BytesColumn(_view(self._offsets, "i"), _view(self._data, "B"), memoryview(self._validity))

    def array(self, rows: int) -> pa.Array:
        """The column; it must not be filled any further."""
        end, nulls = self.column.end, self.column.nulls
        del self.column
        # It had room for all bytes of the records. Keys are usually small, so the unused part is returned.
        if end < self._data.size // 2 and isinstance(self._data, pa.ResizableBuffer):
            self._data.resize(end, shrink_to_fit=True)
        validity = pa.py_buffer(self._validity) if nulls else None
        return pa.Array.from_buffers(pa.binary(), rows, [validity, self._offsets, self._data], nulls)


class _Runs:
    """Consecutive rows of one topic and partition: columns that need no loop over rows."""

    def __init__(self) -> None:
        self._runs: list[tuple[str, int, bool, int]] = []  # topic, partition, whether stamped, rows
        self._rows = 0

    def extend_to(self, rows: int, batch: OpenBatch) -> None:
        added, self._rows = rows - self._rows, rows
        kind = (batch.topic, batch.partition, batch.is_stamped)
        if self._runs and self._runs[-1][:3] == kind:
            added += self._runs.pop()[3]
        self._runs.append((*kind, added))

    def topics(self) -> pa.Array:
        return _joined([_repeated_text(run[0], run[3]) for run in self._runs], pa.string())

    def partitions(self) -> pa.Array:
        return _joined([_repeated_number(run[1], run[3]) for run in self._runs], pa.int32())

    def timestamp_types(self) -> pa.Array:
        return _joined([_repeated_number(int(run[2]), run[3]) for run in self._runs], pa.int32())


def _repeated_number(number: int, count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(_int32(number) * count)])


def _repeated_text(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    ends = pa.py_buffer(_int32(0) + _int32(len(encoded)))
    return pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(encoded)]).take(_repeated_number(0, count))


def _int32(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder, signed=True)


def _joined(arrays: list[pa.Array], kind: pa.DataType) -> pa.Array:
    if not arrays:
        return pa.nulls(0, kind)
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _header_elements(batches: Sequence[OpenBatch], headers: int) -> pa.Array:
    """All headers, one after another. Most topics have none, so they are read in a separate pass, if at all."""
    if not headers:
        return _NO_HEADERS
    key, value = _ViewBuffers(headers), _ViewBuffers(headers)
    data: list[pa.Buffer] = []
    for number, batch in enumerate(batches):
        data.append(pa.py_buffer(batch.records))
        fill_headers(key.column, value.column, batch.reader(), batch.records_count, batch.from_offset, number)
    try:
        keys = key.array(data, pa.string())
    except pa.ArrowInvalid:
        # Some key is not UTF-8; such bytes become replacement characters, as in records decoded to objects.
        raw = key.array(data, pa.binary()).to_pylist()
        keys = pa.array([name.decode("utf-8", "replace") for name in raw], pa.string())
    return pa.StructArray.from_arrays([keys, value.array(data, pa.binary())], fields=list(HEADER_TYPE))


class _ViewBuffers:
    """The buffers of a column of binary views, and the kernel's view of them."""

    def __init__(self, rows_max: int) -> None:
        self.views = pa.allocate_buffer(16 * rows_max)
        self.validity = bytearray(b"\xff") * ((rows_max + 7) // 8)
        self.column = ViewColumn(_view(self.views, "B"), _view(self.views, "i"), memoryview(self.validity))

    def array(self, data: list[pa.Buffer], kind: pa.DataType) -> pa.Array:
        """The column with its bytes copied together, which Arrow does faster than any loop with bounds checks could."""
        validity = pa.py_buffer(self.validity) if self.column.nulls else None
        buffers = [validity, self.views, *data]
        views = pa.Array.from_buffers(pa.binary_view(), self.column.rows, buffers, self.column.nulls)
        return views.cast(kind)


def _view(buffer: pa.Buffer, item: Literal["B", "i", "q"]) -> memoryview:
    view = memoryview(buffer).cast("B")
    return view if item == "B" else view.cast(item)


def from_arrow(batch: pa.RecordBatch, **options: Unpack[BatchOptions]) -> bytearray:
    """One record batch with a record for each row.

    The columns `key` and `value` are binary or string, `timestamp` is of any unit or an int64 of milliseconds, and
    `headers` is a list of key and value, as `to_arrow` returns it. Each may be missing; other columns are ignored. A
    row without a timestamp gets `now_ms`.
    """
    rows = batch.num_rows
    columns = {name: batch.column(number) for number, name in enumerate(batch.schema.names)}
    keys, keys_size = binary_source(columns.get("key"), rows)
    values, values_size = binary_source(columns.get("value"), rows)
    timestamps = timestamps_of(columns.get("timestamp"), rows, options.get("now_ms"))
    headers_offsets, elements = header_columns(columns.get("headers"), rows)
    headers = headers_offsets[rows]
    header_keys, header_keys_size = binary_source(elements[0], headers)
    header_values, header_values_size = binary_source(elements[1], headers)
    size_max = rows * _RECORD_OVERHEAD_MAX + headers * _HEADER_OVERHEAD_MAX
    size_max += keys_size + values_size + header_keys_size + header_values_size
    out = bytearray(BATCH_HEADER_SIZE + size_max)
    writer = ColumnsWriter(memoryview(out)[BATCH_HEADER_SIZE:])
    encode_columns(writer, rows, keys, values, timestamps, headers_offsets, header_keys, header_values)
    base_timestamp, max_timestamp, size = writer.base_timestamp, writer.max_timestamp, writer.position
    del writer  # the encoder holds the view, and a bytearray can't shrink while it is viewed
    del out[BATCH_HEADER_SIZE + size :]
    seal_batch(out, rows, base_timestamp, max_timestamp, **options)
    return out


def binary_source(array: pa.Array | None, rows: int) -> tuple[BinarySource, int]:
    """The kernel's view of a column, and the maximum size of its rows in bytes."""
    if array is None or pa.types.is_null(array.type):
        all_null = bytes((rows + 7) // 8)
        return BinarySource(b"", memoryview(b"").cast("i"), all_null, 0), 0
    if not (pa.types.is_binary(array.type) or pa.types.is_string(array.type)):
        array = array.cast(pa.binary())
    validity, offsets_buffer, data = array.buffers()
    if not rows:
        return BinarySource(b"", memoryview(b"").cast("i"), b"", 0), 0
    offsets = _view(offsets_buffer, "i")
    source = BinarySource(
        _view(data, "B") if data is not None else b"",
        offsets,
        _view(validity, "B") if validity is not None and array.null_count else b"",
        array.offset,
    )
    return source, offsets[array.offset + rows] - offsets[array.offset]


def timestamps_of(array: pa.Array | None, rows: int, now_ms: int | None) -> memoryview:
    """Milliseconds as int64, one per row."""
    if array is None:
        array = pa.nulls(rows, pa.int64())
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", tz=array.type.tz), safe=False)
    array = array.cast(pa.int64())
    if array.null_count:
        if now_ms is None:
            raise ValueError("a row without a timestamp needs now_ms")
        array = array.fill_null(now_ms)
    return _numbers(array, "q")


def header_columns(array: pa.Array | None, rows: int) -> tuple[memoryview, tuple[pa.Array | None, pa.Array | None]]:
    """Which headers belong to each row, and the keys and values of all headers."""
    if array is None or pa.types.is_null(array.type):
        return memoryview(bytes(4 * (rows + 1))).cast("i"), (None, None)
    import pyarrow.compute as pc

    lengths = pc.list_value_length(array).fill_null(0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    keys, values = array.flatten().flatten()
    return _numbers(offsets, "i"), (keys, values)


def _numbers(array: pa.Array, item: Literal["i", "q"]) -> memoryview:
    view = _view(array.buffers()[1], item)
    return view[array.offset : array.offset + len(array)]
