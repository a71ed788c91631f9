"""Headers of batches: what is read, what is refused, and the edits that a broker makes in place."""

from __future__ import annotations

import struct

import pytest

from tidelog.records import (
    BATCH_HEADER_SIZE,
    LOG_OVERHEAD,
    Compression,
    CorruptBatchError,
    TimestampType,
    UnsupportedMagicError,
    assign_offsets,
    check_crc,
    decode_records,
    encode_batch,
    iter_headers,
    parse_header,
    set_log_append_time,
)


def batch(count: int = 3, **options: int) -> bytearray:
    return encode_batch([(b"k", b"v%d" % index, (), 1000 + index) for index in range(count)], **options)  # type: ignore[arg-type]  # all options given here are numbers


def test_header_says_what_was_encoded() -> None:
    data = batch(3, base_offset=40, leader_epoch=7, producer_id=9, producer_epoch=2, base_sequence=5)
    header = parse_header(data)
    assert header.size_bytes == len(data) == LOG_OVERHEAD + header.batch_length
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 42, 43)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1002)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (9, 2, 5, 7)
    assert (header.partition_leader_epoch, header.magic, header.records_count) == (7, 2, 3)
    assert header.has_producer
    assert not header.is_control
    assert not header.is_transactional
    assert not header.has_delete_horizon
    assert header.compression is Compression.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME


def test_header_is_read_at_a_position_of_any_buffer() -> None:
    data = b"junk" + batch()
    for buffer in (data, bytearray(data), memoryview(data)):
        assert parse_header(buffer, 4).records_count == 3
        check_crc(buffer, parse_header(buffer, 4), 4)


@pytest.mark.parametrize(
    ("base_sequence", "count", "last_sequence"),
    [(-1, 3, -1), (0, 1, 0), (0x7FFFFFFF, 1, 0x7FFFFFFF), (0x7FFFFFFF, 2, 0), (0x7FFFFFFE, 4, 1)],
)
def test_sequence_wraps(base_sequence: int, count: int, last_sequence: int) -> None:
    assert parse_header(batch(count, base_sequence=base_sequence)).last_sequence == last_sequence


@pytest.mark.parametrize("size", range(BATCH_HEADER_SIZE))
def test_cut_header_is_refused(size: int) -> None:
    with pytest.raises(CorruptBatchError, match="bytes are left"):
        parse_header(bytes(batch()[:size]))


def test_position_outside_of_the_buffer_is_refused() -> None:
    for position in (-1, -100, 10_000):
        with pytest.raises(CorruptBatchError):
            parse_header(batch(), position)


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_magic_is_refused_even_in_a_short_message(magic: int) -> None:
    data = batch()
    data[16] = magic
    for size in (26, len(data)):
        with pytest.raises(UnsupportedMagicError, match=f"magic {magic},"):
            parse_header(data[:size])


@pytest.mark.parametrize("length", [-1, 0, 48, 0x7FFFFFFF, -0x80000000])
def test_absurd_batch_length_is_refused(length: int) -> None:
    data = batch()
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(CorruptBatchError, match="batch length"):
        parse_header(data)


def test_header_without_its_records_is_read_when_asked_for() -> None:
    data = batch()
    with pytest.raises(CorruptBatchError, match="goes beyond"):
        parse_header(data[:BATCH_HEADER_SIZE])
    assert parse_header(data[:BATCH_HEADER_SIZE], whole_batch=False) == parse_header(data)


@pytest.mark.parametrize(("at", "what"), [(23, "last offset delta"), (57, "records count")])
def test_negative_counts_are_refused(at: int, what: str) -> None:
    data = batch()
    struct.pack_into(">i", data, at, -1)
    with pytest.raises(CorruptBatchError, match=what):
        parse_header(data)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_refused(codec: int) -> None:
    data = batch()
    data[22] = codec
    with pytest.raises(CorruptBatchError, match=f"codec {codec}"):
        _ = parse_header(data).compression


def test_crc_covers_everything_from_the_attributes_on() -> None:
    data = batch()
    for position in range(21, len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0x40
        with pytest.raises(CorruptBatchError, match="CRC"):
            check_crc(flipped, parse_header(data))


def test_offsets_are_assigned_in_place_and_the_crc_holds() -> None:
    data = bytearray(b"xx") + batch()
    with memoryview(data) as view:
        assign_offsets(view, 2**40, 12, 2)
        header = parse_header(view, 2)
        check_crc(view, header, 2)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 12)
    assert [record.offset for record in decode_records(data, 2)] == [2**40, 2**40 + 1, 2**40 + 2]
    assert data[:2] == b"xx"


@pytest.mark.parametrize("compression", list(Compression))
def test_log_append_time_is_set_in_place_and_the_crc_holds(compression: Compression) -> None:
    data = encode_batch([(None, b"v", (), 1), (None, b"w", (), 2)], compression=compression, is_transactional=True)
    set_log_append_time(data, 777)
    header = parse_header(data)
    check_crc(data, header)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.compression is compression
    assert header.is_transactional
    assert (header.base_timestamp, header.max_timestamp) == (1, 777)
    assert [record.timestamp for record in decode_records(data)] == [777, 777]


def test_headers_follow_one_another() -> None:
    data = bytes(batch(1) + batch(2) + batch(3))
    found = list(iter_headers(data))
    assert [header.records_count for _, header in found] == [1, 2, 3]
    assert [position for position, _ in found] == [0, len(batch(1)), len(batch(1) + batch(2))]
    assert list(iter_headers(b"")) == []


def test_partial_batch_at_the_end_is_dropped_only_when_allowed() -> None:
    whole, second = batch(2), batch(3)
    for cut in range(1, len(second)):
        data = bytes(whole + second[:cut])
        assert [header.records_count for _, header in iter_headers(data, allow_partial=True)] == [2]
        with pytest.raises(CorruptBatchError):
            list(iter_headers(data))


def test_allowing_a_partial_batch_does_not_hide_a_corrupt_one() -> None:
    data = batch(2)
    struct.pack_into(">i", data, 8, 20)
    with pytest.raises(CorruptBatchError):
        list(iter_headers(data + batch(1), allow_partial=True))


def test_codec_labels() -> None:
    assert [codec.label for codec in Compression] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert all(Compression.from_label(codec.label) is codec for codec in Compression)
    with pytest.raises(ValueError, match="expected one of none, gzip"):
        Compression.from_label("brotli")
