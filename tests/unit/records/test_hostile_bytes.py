"""Bytes that someone cut, flipped or made up: each gives records or a CorruptBatchError, never anything else.

Nearly all of it would be caught by the CRC, so most tests skip that check or make it right again.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.records import (
    BATCH_HEADER_SIZE,
    Compression,
    CorruptBatchError,
    decode_records,
    encode_batch,
    iter_headers,
    parse_header,
)
from tidelog.records.arrow import to_arrow
from tidelog.records.batch import write_header
from tidelog.records.kernel import RecordTuple

if TYPE_CHECKING:
    from tests.unit.records.conftest import Twin

RECORDS: list[RecordTuple] = [
    (b"key", b"value", [("header", b"x"), ("other", None)], 1000),
    (None, b"v" * 130, [], 1005),
    (b"", None, [("", b"")], 900),
]


def problem(read: Callable[[], object]) -> str | None:
    """Why these bytes were refused, or None when they were read."""
    try:
        read()
    except CorruptBatchError as error:
        return error.reason
    return None


def read_all(data: bytes | bytearray, twin: Twin) -> None:
    """Read in every way: objects and Arrow refuse the same bytes."""
    objects = problem(lambda: decode_records(data, check_crc=False, max_bytes=100_000))
    arrow = problem(lambda: to_arrow(data, "t", 0, from_offset=-(2**63), check_crc=False, max_bytes=100_000))
    validation = problem(lambda: twin.scan(data, max_bytes=100_000))
    if objects is not None and "UTF-8" not in objects:
        assert validation is not None
    if arrow is None:
        assert objects is None or data[22] & 0x20  # control batches have no rows, so Arrow does not look into them
    else:
        assert objects is not None or "microseconds" in arrow  # Arrow's timestamps reach less far


def sealed(data: bytes | bytearray) -> bytearray:
    """With the batch length and CRC that fit the bytes."""
    result = bytearray(data)
    write_header(result, parse_header(data, whole_batch=False))
    return result


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("compression", list(Compression))
def test_cut_at_every_byte(compression: Compression) -> None:
    data = encode_batch(RECORDS, compression=compression)
    for size in range(len(data)):
        with pytest.raises(CorruptBatchError):
            decode_records(data[:size])


@pytest.mark.parametrize("compression", list(Compression))
def test_cut_at_every_byte_of_the_records_with_a_header_that_fits(compression: Compression, twin: Twin) -> None:
    data = encode_batch(RECORDS, compression=compression)
    for size in range(BATCH_HEADER_SIZE, len(data)):
        cut = sealed(data[:size])
        for read in (lambda cut=cut: decode_records(cut), lambda cut=cut: twin.scan(cut)):
            with pytest.raises(CorruptBatchError):
                read()
        with pytest.raises(CorruptBatchError):
            to_arrow(cut, "t", 0)


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize("compression", list(Compression))
def test_every_bit_flipped(compression: Compression) -> None:
    data = encode_batch(RECORDS, compression=compression, base_offset=3)
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            if position < 8 or 12 <= position < 16:
                # Base offset and leader epoch are the broker's to write and so not covered by the CRC.
                if not 0 <= parse_header(flipped).base_offset < 2**62:
                    continue
                assert len(decode_records(flipped)) == 3
            else:
                with pytest.raises(CorruptBatchError):
                    decode_records(flipped)


def test_every_bit_of_the_records_flipped_without_the_crc(twin: Twin) -> None:
    data = encode_batch(RECORDS)
    for position in range(BATCH_HEADER_SIZE, len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            read_all(flipped, twin)


def mutated(data: bytes, generator: random.Random) -> bytearray:
    result = bytearray(data)
    for _ in range(generator.randint(1, 3)):
        position = generator.randrange(BATCH_HEADER_SIZE, len(result)) if len(result) > BATCH_HEADER_SIZE else 60
        match generator.randrange(5):
            case 0:
                result[position] = generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))
            case 1:
                del result[position : position + generator.randint(1, 8)]
            case 2:
                result[position:position] = generator.randbytes(generator.randint(1, 8))
            case 3:
                result[generator.randrange(17, BATCH_HEADER_SIZE)] = generator.randrange(256)
            case _:
                result[position:position] = b"\xff" * generator.randint(1, 11)
    return result


def test_twenty_thousand_mutated_batches(compiled: Twin) -> None:
    generator = random.Random(20_000)
    plain = [encode_batch(RECORDS, base_offset=9), encode_batch([(None, b"x", (), 5)] * 20)]
    packed = [encode_batch(RECORDS, compression=compression) for compression in Compression]
    refused = 0
    for number in range(20_000):
        data = mutated(bytes(generator.choice(packed if number % 4 == 0 else plain)), generator)
        struct.pack_into(">i", data, 8, len(data) - 12)
        try:
            decode_records(data, check_crc=False, max_bytes=100_000)
        except CorruptBatchError:
            refused += 1
        if number % 20 == 0:
            read_all(data, compiled)
    assert 5_000 < refused < 20_000


def test_random_bytes_are_no_batches() -> None:
    generator = random.Random(1)
    for _ in range(2_000):
        data = bytearray(generator.randbytes(generator.randint(0, 200)))
        if len(data) > 16:
            data[16] = 2
        with pytest.raises(CorruptBatchError):
            list(iter_headers(data) if data else [parse_header(data)])


def records_of(payload: bytes, count: int) -> bytearray:
    """A batch whose records part is `payload`."""
    header = parse_header(encode_batch([(None, None, (), 0)]))
    data = bytearray(BATCH_HEADER_SIZE) + payload
    write_header(data, header._replace(records_count=count, last_offset_delta=max(count - 1, 0)))
    return data


@pytest.mark.usefixtures("twin")
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xff" * 20, "does not fit 5 bytes"),
        (b"\x80\x80\x80\x80\x10" + bytes(9), "does not fit 5 bytes"),
        (b"\x80" * 4 + b"\x80" + bytes(9), "does not fit 5 bytes"),
        (b"\x0f" + bytes(20), "has length -8"),
        (b"\x0a" + bytes(20), "has length 5"),
        (b"\xfe\x01" + bytes(20), "has length 127"),
        (b"\xfe\xff\xff\xff\x0f" + bytes(20), "has length 2147483647"),
        (b"\x20\x00" + b"\xff" * 10 + bytes(10), "does not fit 10 bytes"),
        (b"\x20\x00" + b"\x80" * 9 + b"\x02" + bytes(10), "does not fit 10 bytes"),
        (b"\x0c\x00\x80\x80\x80\x80\x80", "ends within a varint"),
        (b"\x0c\x00\x00\x00\x03\x00\x00", "key of -2 bytes"),
        (b"\x0c\x00\x00\x00\x06\x00\x00", "key of 3 bytes, 2 bytes are left"),
        (b"\x0c\x00\x00\x00\x00\x03\x00", "value of -2 bytes"),
        (b"\x0c\x00\x00\x00\x00\x04\x00", "value of 2 bytes, 1 bytes are left"),
        (b"\x0c\x00\x00\x00\x00\x00\x01", "announces -1 headers"),
        (b"\x0c\x00\x00\x00\x00\x00\x02", "announces 1 headers"),
        (b"\x10\x00\x00\x00\x00\x00\x02\x01\x00", "a header without a key"),
        (b"\x10\x00\x00\x00\x00\x00\x02\x04\x00", "header key of 2 bytes"),
        (b"\x10\x00\x00\x00\x00\x00\x02\x00\x04", "header value of 2 bytes"),
        (b"\x0e\x00\x00\x00\x00\x00\x00\x00", "1 bytes behind its last header"),
        (b"\x0c\x00\x00\x00\x00\x00\x00\x00", "1 bytes are left behind the last of 1 records"),
    ],
)
def test_made_up_records(payload: bytes, reason: str) -> None:
    data = records_of(payload, 1)
    with pytest.raises(CorruptBatchError, match=reason):
        decode_records(data)
    with pytest.raises(CorruptBatchError, match=reason):
        to_arrow(data, "t", 0)


@pytest.mark.usefixtures("twin")
def test_a_header_key_that_is_not_utf8_is_shown_with_replacement_characters() -> None:
    data = records_of(b"\x12\x00\x00\x00\x00\x00\x02\x02\xff\x00", 1)
    assert decode_records(data)[0].headers == (("\ufffd", b""),)
    assert to_arrow(data, "t", 0).column("headers").to_pylist() == [[{"key": "\ufffd", "value": b""}]]


@pytest.mark.usefixtures("twin")
def test_sums_beyond_64_bits_are_refused() -> None:
    data = encode_batch([(None, b"a", (), 5), (None, b"b", (), 6)])
    for at, reason in ((0, "has offset delta 1, which with base offset"), (27, "has a timestamp beyond 64 bits")):
        changed = bytearray(data)
        struct.pack_into(">q", changed, at, 2**63 - 1)
        with pytest.raises(CorruptBatchError, match=f"record 1 of the batch {reason}"):
            decode_records(sealed(changed))


@pytest.mark.usefixtures("twin")
def test_announced_count_allocates_nothing() -> None:
    for count in (2, 1_000_000, 0x7FFFFFFF):
        data = records_of(b"\x0c\x00\x00\x00\x01\x01\x00", count)
        with pytest.raises(CorruptBatchError, match=f"can't hold the {count} records"):
            decode_records(data)
        with pytest.raises(CorruptBatchError, match=f"can't hold the {count} records"):
            to_arrow(data, "t", 0)
