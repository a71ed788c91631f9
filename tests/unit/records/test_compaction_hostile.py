"""Stored batches that lie about themselves, with a CRC that fits: refused with a reason by both kernels, or cleaned."""

from __future__ import annotations

import random
import struct
from types import ModuleType
from typing import Any, Protocol

import pytest

from tidelog.records import (
    BATCH_HEADER_SIZE,
    Compression,
    CorruptBatchError,
    Record,
    check_crc,
    decode_records,
    encode_batch,
    parse_header,
)
from tidelog.records.batch import write_header
from tidelog.records.kernel import RecordTuple

NOW_MS = 1_700_000_000_000
RECORDS: list[RecordTuple] = [
    (b"key", b"value", [("header", b"x"), ("other", None)], NOW_MS),
    (b"a longer key of 27 bytes ...", b"v" * 130, [], NOW_MS + 5),
    (b"", None, [("", b"")], NOW_MS - 900),
    (None, b"no key", [], 5),
    (b"key", b"last", [], NOW_MS),
]
COUNT_AT = BATCH_HEADER_SIZE - 4
LAST_OFFSET_DELTA_AT = 23


class Twin(Protocol):
    compaction: ModuleType


def sealed(data: bytes | bytearray) -> bytearray:
    """With the batch length and CRC that fit the bytes."""
    result = bytearray(data)
    write_header(result, parse_header(data, whole_batch=False))
    return result


def clean(twin: Twin, data: bytearray) -> object:
    """Map and filter the batch: what was refused and why, or what came out."""
    try:
        header = parse_header(data)
        offset_map = twin.compaction.OffsetMap(2_400)
        is_done = twin.compaction.map_batch(offset_map, data, header, start_offset=0, end_offset=2**62)
        result = twin.compaction.filter_batch(
            data, header, 0, offset_map, now_ms=NOW_MS, delete_retention_ms=9, max_bytes=100_000
        )
        return is_done, offset_map.size, offset_map.latest_offset, result.outcome.name, result.header, result.data
    except CorruptBatchError as error:
        return f"refused: {error.reason}"


def expected_refusal(data: bytearray) -> bool | None:
    """Whether the ordinary reader refuses the batch, or its offsets are not in order; None when that is not known."""
    try:
        header = parse_header(data)
        records = decode_records(data, max_bytes=100_000)
    except CorruptBatchError as error:
        # The cleaner does not look at keys of headers, and what the reader would have found behind one is open.
        return None if "UTF-8" in error.reason else True
    deltas = [record.offset - header.base_offset for record in records]
    return deltas != sorted(set(deltas)) or any(not 0 <= delta <= header.last_offset_delta for delta in deltas)


def check_clean(compiled: Twin, interpreted: Twin, data: bytearray) -> bool:
    """Clean by both; whether it was refused."""
    outcome: Any = clean(compiled, data)
    assert outcome == clean(interpreted, data)
    expected = expected_refusal(data)
    if isinstance(outcome, str):
        # Only a timestamp too far from the new horizon is refused beyond what the reader refuses.
        assert expected is not False or "64 bits away" in outcome or "offsets from" in outcome
        return True
    assert expected is not True
    name, rewritten = outcome[3], outcome[5]
    if name == "REWRITTEN" and expected is not None:
        check_crc(rewritten, parse_header(rewritten))
        kept = decode_records(rewritten)
        assert kept == [record for record in decode_records(data) if is_among(record, kept)]
    return False


def is_among(record: Record, kept: list[Record]) -> bool:
    return any(record.offset == other.offset for other in kept)


@pytest.mark.parametrize("compression", list(Compression))
def test_cut_at_every_byte_of_the_records(compiled: Twin, interpreted: Twin, compression: Compression) -> None:
    data = encode_batch(RECORDS, compression=compression)
    for size in range(BATCH_HEADER_SIZE, len(data)):
        assert check_clean(compiled, interpreted, sealed(data[:size]))


@pytest.mark.parametrize("compression", list(Compression))
def test_mutated_bytes(compiled: Twin, interpreted: Twin, compression: Compression) -> None:
    generator = random.Random(int(compression))
    data = encode_batch(RECORDS * 3, compression=compression, base_offset=70)
    refused = 0
    rounds = 1_500 if compression is Compression.NONE else 300
    for _ in range(rounds):
        mutated = bytearray(data)
        for _ in range(generator.randint(1, 3)):
            at = generator.randrange(BATCH_HEADER_SIZE, len(data))
            mutated[at] = generator.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFF, generator.randrange(256)))
        refused += check_clean(compiled, interpreted, sealed(mutated))
    assert 0 < refused < rounds or compression is not Compression.NONE


@pytest.mark.parametrize("count", [0, 1, 14, 16, 2**31 - 1])
def test_a_count_that_is_a_lie(compiled: Twin, interpreted: Twin, count: int) -> None:
    data = encode_batch(RECORDS * 3)
    struct.pack_into(">i", data, COUNT_AT, count)
    assert check_clean(compiled, interpreted, sealed(data))


def test_a_last_offset_below_that_of_the_records(compiled: Twin, interpreted: Twin) -> None:
    data = encode_batch(RECORDS)
    struct.pack_into(">i", data, LAST_OFFSET_DELTA_AT, len(RECORDS) - 2)
    assert "has offset 4 behind 3" in str(clean(compiled, sealed(data)))
    assert check_clean(compiled, interpreted, sealed(data))


def test_offsets_that_do_not_rise(compiled: Twin, interpreted: Twin) -> None:
    data = encode_batch([(b"a", b"1", [], 5), (b"b", b"2", [], 5)])
    at = data.rindex(b"\x02\x02b")  # offset delta 1, then the length of the key
    for delta in (0x00, 0x01, 0x04):
        data[at] = delta
        assert check_clean(compiled, interpreted, sealed(data))


@pytest.mark.parametrize("base_offset", [-1, -(2**63), 2**63 - 3])
def test_offsets_that_can_not_be(compiled: Twin, interpreted: Twin, base_offset: int) -> None:
    data = encode_batch(RECORDS, base_offset=base_offset)
    assert "offsets from" in str(clean(compiled, data))
    assert check_clean(compiled, interpreted, data)


def test_timestamps_that_leave_64_bits(compiled: Twin, interpreted: Twin) -> None:
    for timestamp in (2**63 - 1, -(2**63), 2**63 - 5):
        data = encode_batch(RECORDS)
        write_header(data, parse_header(data)._replace(base_timestamp=timestamp))
        assert check_clean(compiled, interpreted, data)


def test_the_largest_offset_there_is(compiled: Twin, interpreted: Twin) -> None:
    data = encode_batch(RECORDS, base_offset=2**63 - len(RECORDS))
    assert not check_clean(compiled, interpreted, data)


def test_a_large_batch_with_damage_near_its_end(compiled: Twin, interpreted: Twin) -> None:
    """The loop that runs without the interpreter's lock finds it, and the reason is found out afterwards."""
    data = encode_batch(RECORDS * 1_000)
    data[-10] = 0xFF
    assert check_clean(compiled, interpreted, sealed(data))
    assert "record 4999 of the batch" in str(clean(compiled, sealed(data)))
