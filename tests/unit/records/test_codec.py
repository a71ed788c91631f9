"""Batches as objects: round trips, validation, recompression, and what the encoder refuses."""

from __future__ import annotations

import pickle
import struct
from typing import TYPE_CHECKING

import pytest

from tidelog.records import (
    BATCH_HEADER_SIZE,
    Compression,
    CorruptBatchError,
    NewRecord,
    Record,
    TimestampType,
    check_crc,
    decode_records,
    encode_batch,
    parse_header,
    recompress,
)
from tidelog.records.batch import write_header

if TYPE_CHECKING:
    from tests.unit.records.conftest import Twin

RECORDS = [
    NewRecord(b"key", b"value", (), 1_700_000_000_000),
    NewRecord(None, b"no key", [("a", b"1"), ("a", None), ("é", b"")], 1_700_000_000_123),
    NewRecord(b"", None, (), 1_699_999_999_000),
    NewRecord(b"k" * 300, b"", [("x" * 200, b"y" * 70_000)], 1_700_000_500_000),
]
FIELDS = [
    (7, 1_700_000_000_000, b"key", b"value", ()),
    (8, 1_700_000_000_123, None, b"no key", (("a", b"1"), ("a", None), ("é", b""))),
    (9, 1_699_999_999_000, b"", None, ()),
    (10, 1_700_000_500_000, b"k" * 300, b"", (("x" * 200, b"y" * 70_000),)),
]


def fields(records: list[Record]) -> list[tuple[object, ...]]:
    return [(record.offset, record.timestamp, record.key, record.value, record.headers) for record in records]


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("compression", list(Compression))
def test_round_trip(compression: Compression) -> None:
    data = encode_batch(RECORDS, base_offset=7, compression=compression)
    header = parse_header(data)
    assert header.compression is compression
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_500_000)
    check_crc(data, header)
    for buffer in (bytes(data), data, memoryview(data), memoryview(b"xyz" + data)[3:]):
        assert fields(decode_records(buffer)) == FIELDS
    assert fields(decode_records(b"xyz" + data, 3)) == FIELDS


@pytest.mark.usefixtures("twin")
def test_plain_tuples_and_generators_are_records_too() -> None:
    data = encode_batch(((key, value, headers, time) for key, value, headers, time in RECORDS), base_offset=7)
    assert data == encode_batch(RECORDS, base_offset=7)


@pytest.mark.usefixtures("twin")
def test_missing_timestamps_are_now() -> None:
    data = encode_batch([NewRecord(None, b"a"), NewRecord(None, b"b", (), 5)], now_ms=50)
    assert [record.timestamp for record in decode_records(data)] == [50, 5]
    assert parse_header(data).max_timestamp == 50
    with pytest.raises(ValueError, match="needs now_ms"):
        encode_batch([NewRecord(None, b"a")])


@pytest.mark.usefixtures("twin")
def test_records_without_timestamps() -> None:
    data = encode_batch([(None, b"a", (), -1), (None, b"b", (), -1)])
    header = parse_header(data)
    assert (header.base_timestamp, header.max_timestamp) == (-1, -1)
    assert [record.timestamp for record in decode_records(data)] == [-1, -1]


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("timestamps", [(0, 2**63 - 1), (2**63 - 1, 0), (-1, 2**63 - 2), (2**63 - 1, -1)])
def test_timestamps_from_end_to_end(timestamps: tuple[int, int]) -> None:
    data = encode_batch([(None, None, (), timestamp) for timestamp in timestamps])
    assert [record.timestamp for record in decode_records(data)] == list(timestamps)


@pytest.mark.usefixtures("twin")
def test_timestamp_delta_beyond_64_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="too far"):
        encode_batch([(None, None, (), -1), (None, None, (), 2**63 - 1)])


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("timestamp", [-2, -(2**62)])
def test_negative_timestamp_is_refused(timestamp: int) -> None:
    with pytest.raises(ValueError, match="not -"):
        encode_batch([(None, None, (), timestamp)])


@pytest.mark.usefixtures("twin")
def test_only_bytes_are_keys_and_values() -> None:
    for wrong in ("text", bytearray(b"x"), 5):
        with pytest.raises(TypeError, match="bytes"):
            encode_batch([(None, wrong, (), 0)])  # type: ignore[list-item]  # what is refused here


@pytest.mark.usefixtures("twin")
def test_log_append_time_when_encoding() -> None:
    data = encode_batch([(None, b"a", (), 5)], timestamp_type=TimestampType.LOG_APPEND_TIME, now_ms=99)
    assert decode_records(data)[0].timestamp == 99
    with pytest.raises(ValueError, match="LogAppendTime needs now_ms"):
        encode_batch([(None, b"a", (), 5)], timestamp_type=TimestampType.LOG_APPEND_TIME)


def test_batch_without_records_is_not_written() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([])


def emptied(compression: Compression) -> bytearray:
    """A batch as the cleaner leaves it when no record is left: only the header, which keeps the last offset."""
    header = parse_header(encode_batch(RECORDS, base_offset=7, producer_id=3, base_sequence=0))
    data = bytearray(BATCH_HEADER_SIZE)
    write_header(data, header._replace(records_count=0, attributes=compression))
    return data


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("compression", list(Compression))
def test_emptied_batch_is_legal(compression: Compression) -> None:
    data = emptied(compression)
    assert decode_records(data) == []
    header = parse_header(data)
    assert (header.last_offset, header.last_sequence) == (10, 3)


def test_batch_with_gaps_keeps_its_offsets(twin: Twin) -> None:
    """What the cleaner leaves has deltas that do not count up; reading takes them as they are."""
    data = encode_batch([(None, b"a", (), 5), (None, b"b", (), 5)], base_offset=100)
    position = data.index(b"b") - 3  # the offset delta before null key and value length
    assert data[position] == 2
    data[position] = 2 * 40
    assert [record.offset for record in decode_records(data, check_crc=False)] == [100, 140]
    with pytest.raises(CorruptBatchError, match="record 1 of the batch has offset delta 40 instead of 1"):
        twin.scan(data)


@pytest.mark.parametrize("compression", list(Compression))
def test_a_scan_sums_up(compression: Compression, twin: Twin) -> None:
    scan = twin.scan(encode_batch(RECORDS, base_offset=0, compression=compression))
    assert (scan.max_timestamp, scan.index_of_max_timestamp) == (1_700_000_500_000, 3)
    assert scan.keyless_indexes == [1]


def test_a_scan_names_the_first_keyless_records_and_the_first_of_equal_timestamps(twin: Twin) -> None:
    data = encode_batch([(None, b"", (), 5) for _ in range(100)])
    scan = twin.scan(data)
    assert scan.keyless_indexes == list(range(10))
    assert scan.index_of_max_timestamp == 0


@pytest.mark.parametrize("count", [0, 3, 5, 11_000, 0x7FFFFFFF])
def test_wrong_count_is_refused(count: int, twin: Twin) -> None:
    data = encode_batch(RECORDS)
    struct.pack_into(">i", data, 57, count)
    reason = "bytes are left|ends within a varint|can't hold"
    with pytest.raises(CorruptBatchError, match=reason):
        decode_records(data, check_crc=False)
    with pytest.raises(CorruptBatchError, match=reason):
        twin.scan(data)


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("target", list(Compression))
@pytest.mark.parametrize("source", list(Compression))
def test_recompression_changes_nothing_else(source: Compression, target: Compression) -> None:
    data = encode_batch(
        RECORDS,
        base_offset=7,
        compression=source,
        producer_id=5,
        producer_epoch=1,
        base_sequence=4,
        is_transactional=True,
    )
    result = recompress(data, target)
    header = parse_header(result)
    check_crc(result, header)
    assert header.compression is target
    assert fields(decode_records(result)) == FIELDS
    before = parse_header(data)
    assert header._replace(batch_length=0, crc=0, attributes=0) == before._replace(batch_length=0, crc=0, attributes=0)
    assert recompress(result, source) == data


def test_bomb_in_a_batch_is_refused(compiled: Twin) -> None:
    data = encode_batch([(None, bytes(8_000_000), (), 0)], compression=Compression.ZSTD)
    assert len(data) < 10_000
    for read in (
        lambda: decode_records(data, max_bytes=1_000_000),
        lambda: compiled.scan(data, max_bytes=1_000_000),
        lambda: recompress(data, Compression.LZ4, max_bytes=1_000_000),
    ):
        with pytest.raises(CorruptBatchError, match="more than 1000000 bytes"):
            read()


def test_record_is_a_value() -> None:
    record = Record(1, 2, b"k", b"v", (("h", None),))
    assert record == Record(1, 2, b"k", b"v", (("h", None),))
    assert record != Record(1, 2, b"k", b"v")
    assert record != (1, 2, b"k", b"v", (("h", None),))
    assert len({record, Record(1, 2, b"k", b"v", (("h", None),))}) == 1
    assert pickle.loads(pickle.dumps(record)) == record
    assert repr(record) == "Record(offset=1, timestamp=2, key=b'k', value=b'v', headers=(('h', None),))"
