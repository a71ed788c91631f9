"""Record batches as Arrow: equal to the objects, both ways, on both kernels."""

from __future__ import annotations

import datetime
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog.common.recycled_memory import RecycledMemory
from tidelog.records import (
    Compression,
    ControlRecordType,
    CorruptBatchError,
    Record,
    check_crc,
    decode_records,
    encode_batch,
    encode_control_batch,
    parse_header,
    set_log_append_time,
)
from tidelog.records.arrow import SCHEMA, OpenBatch, batches_to_arrow, from_arrow, to_arrow
from tidelog.records.kernel import RecordTuple

RECORDS: list[RecordTuple] = [
    (b"key", b"value", [], 1_700_000_000_000),
    (None, b"longer than twelve bytes", [("a", b"1"), ("a", None), ("é" * 10, b"a value that is long")], 5),
    (b"", None, [], 0),
    (b"exactly 12 b", b"", [("", b"")], 1_700_000_500_000),
    (b"exactly 13 by", b"v" * 10_000, [], 1_700_000_500_001),
]


def rows_of(records: list[Record], timestamp_type: int = 0) -> list[tuple[object, ...]]:
    return [
        (r.key, r.value, "topic", 3, r.offset, r.timestamp * 1000, timestamp_type, list(r.headers)) for r in records
    ]


def rows(batch: pa.RecordBatch) -> list[tuple[object, ...]]:
    batch.validate(full=True)
    columns = [batch.column(number) for number in range(5)]
    columns.append(batch.column(5).cast(pa.int64()))
    columns.append(batch.column(6))
    headers = [[(header["key"], header["value"]) for header in row] for row in batch.column(7).to_pylist()]
    return list(zip(*(column.to_pylist() for column in columns), headers, strict=True))


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("compression", list(Compression))
def test_columns_equal_the_objects(compression: Compression) -> None:
    data = encode_batch(RECORDS, base_offset=100, compression=compression)
    batch = to_arrow(data, "topic", 3)
    assert batch.schema == SCHEMA
    assert rows(batch) == rows_of(decode_records(data))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("twin")
@given(
    records=st.lists(
        st.tuples(
            st.none() | st.binary(max_size=30),
            st.none() | st.binary(max_size=30),
            st.lists(st.tuples(st.text(max_size=15), st.none() | st.binary(max_size=15)), max_size=3),
            st.integers(-1, 2**53),
        ),
        min_size=1,
        max_size=60,
    ),
    compression=st.sampled_from(Compression),
)
def test_any_records_both_ways(records: list[RecordTuple], compression: Compression) -> None:
    data = encode_batch(records, base_offset=1)
    batch = to_arrow(data, "topic", 3)
    assert rows(batch) == rows_of(decode_records(data))
    assert from_arrow(batch, base_offset=1) == data
    half = len(records) // 2
    assert from_arrow(batch.slice(half), compression=compression) == encode_batch(
        records[half:], compression=compression
    )


@pytest.mark.usefixtures("twin")
def test_many_batches_in_many_buffers_become_one() -> None:
    first = encode_batch(RECORDS, base_offset=0, compression=Compression.LZ4)
    second = encode_batch(RECORDS, base_offset=10)
    third = encode_batch(RECORDS[:2], base_offset=20, compression=Compression.ZSTD)
    set_log_append_time(third, 999)
    marker = encode_control_batch(
        ControlRecordType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1, base_offset=15
    )
    batch = to_arrow([bytes(first + second), memoryview(marker), third], "topic", 3)
    objects = rows_of(decode_records(first) + decode_records(second))
    assert rows(batch) == objects + rows_of(decode_records(third), timestamp_type=1)


@pytest.mark.usefixtures("twin")
def test_rows_start_at_the_offset_that_was_asked_for() -> None:
    data = bytes(encode_batch(RECORDS, base_offset=0) + encode_batch(RECORDS, base_offset=5))
    for from_offset in range(11):
        batch = to_arrow(data, "topic", 3, from_offset=from_offset)
        assert batch.column("offset").to_pylist() == list(range(from_offset, 10))
        assert len(batch.column("headers").to_pylist()) == 10 - from_offset
        batch.validate(full=True)


@pytest.mark.usefixtures("twin")
def test_no_batches_give_no_rows() -> None:
    for buffers in (b"", [], [b"", b""]):
        batch = to_arrow(buffers, "topic", 3)
        assert batch.schema == SCHEMA
        assert batch.num_rows == 0


@pytest.mark.usefixtures("twin")
def test_partial_batch_is_dropped_only_when_allowed() -> None:
    data = bytes(encode_batch(RECORDS) + encode_batch(RECORDS)[:-1])
    assert to_arrow(data, "topic", 3, allow_partial=True).num_rows == len(RECORDS)
    with pytest.raises(CorruptBatchError):
        to_arrow(data, "topic", 3)


@pytest.mark.usefixtures("twin")
def test_crc_is_checked_unless_told_not_to() -> None:
    data = encode_batch(RECORDS)
    data[20] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC"):
        to_arrow(data, "topic", 3)
    assert to_arrow(data, "topic", 3, check_crc=False).num_rows == len(RECORDS)


def test_the_limit_counts_all_batches_together() -> None:
    data = encode_batch([(None, bytes(600_000), (), 0)], compression=Compression.GZIP)
    assert to_arrow(data, "topic", 3, max_bytes=1_000_000).num_rows == 1
    with pytest.raises(CorruptBatchError, match="more than"):
        to_arrow([data, data], "topic", 3, max_bytes=1_000_000)


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("timestamp", [2**63 - 1, 9223372036854776])
def test_timestamp_beyond_arrow_is_refused(timestamp: int) -> None:
    data = encode_batch([(None, None, (), timestamp)])
    with pytest.raises(CorruptBatchError, match="does not fit 64 bits in microseconds"):
        to_arrow(data, "topic", 3)


def test_timestamps_are_instants() -> None:
    batch = to_arrow(encode_batch([(None, None, (), 1_700_000_000_123)]), "topic", 3)
    assert batch.column("timestamp").to_pylist() == [
        datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=datetime.UTC)
    ]


@pytest.mark.usefixtures("twin")
def test_columns_of_other_types_are_encoded_too() -> None:
    data = encode_batch([(b"k", b"v", (), 7), (None, b"w", (), 8)])
    for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view(), pa.binary_view()):
        for timestamps in (
            pa.array([7, 8], pa.int64()),
            pa.array([7, 8], pa.timestamp("ms")),
            pa.array([7_000_999, 8_000_000], pa.timestamp("ns", tz="Europe/Berlin")),
        ):
            table = pa.record_batch(
                {
                    "value": pa.array(["v", "w"]).cast(kind),
                    "key": pa.array(["k", None]).cast(kind),
                    "timestamp": timestamps,
                }
            )
            assert from_arrow(table) == data


@pytest.mark.usefixtures("twin")
def test_missing_columns_are_null_and_now() -> None:
    only_values = pa.record_batch({"value": pa.array([b"a", None, b"c"])})
    assert from_arrow(only_values, now_ms=9) == encode_batch([(None, v, (), 9) for v in (b"a", None, b"c")])
    with pytest.raises(ValueError, match="needs now_ms"):
        from_arrow(only_values)
    nothing = pa.record_batch(
        {"key": pa.nulls(2), "headers": pa.nulls(2), "timestamp": pa.array([None, 4], pa.int64())}
    )
    assert from_arrow(nothing, now_ms=9) == encode_batch([(None, None, (), 9), (None, None, (), 4)])


@pytest.mark.usefixtures("twin")
def test_null_headers_and_slices_of_headers() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "x", "value": b"1"}], None, [{"key": "y", "value": None}], []], kind)
    batch = pa.record_batch({"headers": headers}).slice(1)
    assert from_arrow(batch, now_ms=9) == encode_batch(
        [(None, None, (), 9), (None, None, [("y", None)], 9), (None, None, (), 9)]
    )


@pytest.mark.usefixtures("twin")
def test_what_can_not_be_encoded_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        from_arrow(pa.record_batch({"value": pa.array([], pa.binary())}))
    with pytest.raises(ValueError, match="not -2"):
        from_arrow(pa.record_batch({"timestamp": pa.array([-2], pa.int64())}))
    with pytest.raises(ValueError, match="too far"):
        from_arrow(pa.record_batch({"timestamp": pa.array([-1, 2**63 - 1], pa.int64())}))
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    with pytest.raises(ValueError, match="needs a key"):
        from_arrow(pa.record_batch({"headers": pa.array([[{"key": None, "value": b""}]], kind)}), now_ms=0)


@pytest.mark.usefixtures("twin")
def test_buffers_that_lie_are_refused() -> None:
    """A batch may come from another library; its offsets are checked before bytes are read."""
    for offsets in ([0, 50, 3], [0, -5, 3], [0, 3, 1]):
        buffer = pa.array(offsets, pa.int32()).buffers()[1]
        lying = pa.Array.from_buffers(pa.binary(), 2, [None, buffer, pa.py_buffer(b"abc")])
        with pytest.raises(ValueError, match="lies outside of its 3 bytes"):
            from_arrow(pa.record_batch({"value": lying}), now_ms=0)


def test_options_reach_the_header() -> None:
    batch = to_arrow(encode_batch(RECORDS), "topic", 3)
    data = from_arrow(batch, base_offset=4, producer_id=9, producer_epoch=1, base_sequence=7, is_transactional=True)
    header = parse_header(data)
    check_crc(data, header)
    assert (header.base_offset, header.producer_id, header.base_sequence) == (4, 9, 7)
    assert header.is_transactional


def test_pyarrow_is_not_imported_with_the_records() -> None:
    code = "import sys, tidelog.records; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_batches_that_are_kept_stay_as_they_are() -> None:
    memory = RecycledMemory()
    kept = []
    for number in range(20):
        data = encode_batch([(None, b"%d" % number * 50, [], 1)] * 100)
        batch = OpenBatch("t", 0, 0, memoryview(data)[61:], 100, 0, 1, 1, False)
        table = batches_to_arrow([batch], memory)
        if number % 3:
            kept.append((number, table))
    for number, table in kept:
        assert table.column("value").to_pylist() == [b"%d" % number * 50] * 100
