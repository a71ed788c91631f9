"""Batches before and after compaction, compiled and interpreted, against a model of a few lines."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.records import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    Compression,
    ControlRecordType,
    CorruptBatchError,
    OversizedBatchError,
    Record,
    TimestampType,
    check_crc,
    decode_records,
    encode_batch,
    encode_control_batch,
    parse_header,
)
from tidelog.records.batch import DELETE_HORIZON_BIT, write_header
from tidelog.records.kernel import RecordTuple

NOW_MS = 1_700_000_000_000
RETENTION_MS = 86_400_000
ENDLESS = 2**63 - 1


class Twin(Protocol):
    compaction: ModuleType


def records_of(data: bytes | bytearray) -> list[Record]:
    check_crc(data, parse_header(data))
    return decode_records(data)


def new_map(twin: Twin, offsets: dict[bytes, int], latest_offset: int) -> Any:
    offset_map = twin.compaction.OffsetMap(100_000)
    for key, offset in offsets.items():
        assert offset_map.put(key, offset)
    offset_map.update_latest_offset(latest_offset)
    return offset_map


def filtered(twin: Twin, data: bytes | bytearray, offset_map: Any, **options: Any) -> Any:
    options = {"now_ms": NOW_MS, "delete_retention_ms": RETENTION_MS, **options}
    return twin.compaction.filter_batch(data, parse_header(data), 0, offset_map, **options)


def mapped(twin: Twin, data: bytes | bytearray, offset_map: Any, start: int = 0, end: int = ENDLESS) -> bool:
    is_done: bool = twin.compaction.map_batch(offset_map, data, parse_header(data), start_offset=start, end_offset=end)
    return is_done


# The model: lists of records and dicts instead of bytes and hashes.


def model_keeps(record: Record, offsets: dict[bytes, int], latest_offset: int, keeps_tombstones: bool) -> bool:
    if record.offset > latest_offset:
        return True
    if record.key is None or record.offset < offsets.get(record.key, -1):
        return False
    return record.value is not None or keeps_tombstones


def model_header(header: BatchHeader, kept: list[Record], has_horizon: bool) -> BatchHeader:
    """What the header must say afterwards, apart from length, CRC and the base of timestamps."""
    attributes = header.attributes | (DELETE_HORIZON_BIT if has_horizon else 0)
    max_timestamp = max(record.timestamp for record in kept)
    return header._replace(
        attributes=attributes, records_count=len(kept), max_timestamp=max_timestamp, batch_length=0, crc=0
    )


KEYS = st.none() | st.sampled_from([b"", b"a", b"bb", b"a key of some length"]) | st.binary(max_size=2)
RECORDS = st.lists(
    st.tuples(
        KEYS,
        st.none() | st.binary(max_size=40),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
        st.integers(-1, 2**40),
    ),
    min_size=1,
    max_size=60,
)


@settings(deadline=None, max_examples=300)
@given(
    records=RECORDS,
    compression=st.sampled_from(list(Compression)),
    base_offset=st.integers(0, 10_000),
    before=st.integers(0, 30),
    behind=st.integers(0, 30),
    stamp=st.sampled_from(list(TimestampType)),
    producer=st.booleans(),
    transactional=st.booleans(),
)
def test_a_batch_is_mapped_and_filtered_like_in_the_model(
    compiled: Twin,
    interpreted: Twin,
    records: list[RecordTuple],
    compression: Compression,
    base_offset: int,
    before: int,
    behind: int,
    stamp: TimestampType,
    producer: bool,
    transactional: bool,
) -> None:
    data = encode_batch(
        records,
        base_offset=base_offset,
        compression=compression,
        timestamp_type=stamp,
        now_ms=NOW_MS,
        leader_epoch=3,
        is_transactional=transactional,
        producer_id=9 if producer else -1,
        producer_epoch=1 if producer else -1,
        base_sequence=70 if producer else -1,
    )
    original = records_of(data)
    start, end = base_offset + before, base_offset + max(len(records) - behind, 0)
    offsets: dict[bytes, int] = {}
    for record in original:
        if record.key is not None and start <= record.offset < end:
            offsets[record.key] = record.offset
    latest_offset = min(base_offset + len(records), end) - 1
    kept = [record for record in original if model_keeps(record, offsets, latest_offset, True)]
    results = []
    for twin in (compiled, interpreted):
        offset_map = twin.compaction.OffsetMap(100_000)
        assert mapped(twin, data, offset_map, start, end)
        assert offset_map.size == len(offsets)
        assert offset_map.latest_offset == latest_offset
        assert all(offset_map.get(key) == offset for key, offset in offsets.items())
        result = filtered(twin, data, offset_map)
        results.append((result.outcome.name, result.header, result.data, result.keyless_records))
        check_filtered(result, data, original, kept, latest_offset)
    assert results[0] == results[1]


def check_filtered(
    result: Any, data: bytearray, original: list[Record], kept: list[Record], latest_offset: int
) -> None:
    has_horizon = any(record.value is None for record in kept)
    assert (result.records_read, result.records_kept) == (len(original), len(kept))
    assert result.keyless_records == sum(r.key is None and r.offset <= latest_offset for r in original)
    header = parse_header(data)
    if not kept:
        assert (result.outcome.name, result.data, result.header) == ("EMPTY", None, header)
    elif len(kept) == len(original) and not has_horizon:
        assert (result.outcome.name, result.data, result.header) == ("UNCHANGED", None, header)
    else:
        assert result.outcome.name == "REWRITTEN"
        assert records_of(result.data) == kept
        assert result.header == parse_header(result.data)
        expected = model_header(header, kept, has_horizon)
        assert result.header._replace(batch_length=0, crc=0, base_timestamp=header.base_timestamp) == expected
        assert result.header.base_timestamp == (NOW_MS + RETENTION_MS if has_horizon else header.base_timestamp)


@settings(deadline=None, max_examples=100)
@given(
    batches=st.lists(RECORDS, min_size=1, max_size=6),
    compression=st.sampled_from(list(Compression)),
    capacity=st.integers(1, 20),
)
def test_a_log_is_compacted_by_cleans_that_end_where_the_map_is_full(
    compiled: Twin, batches: list[list[RecordTuple]], compression: Compression, capacity: int
) -> None:
    """However small the map, every clean gets further, and in the end the last record of every key is there."""
    log: list[bytearray] = []
    end = 0
    for records in batches:
        log.append(encode_batch(records, base_offset=end, compression=compression))
        end = parse_header(log[-1]).next_offset
    original = [record for data in log for record in records_of(data)]
    offset_map = compiled.compaction.OffsetMap((capacity + 1) * 24, 1.0)
    first_dirty = 0
    while first_dirty < end:
        offset_map.clear()
        for data in log:
            if parse_header(data).last_offset >= first_dirty and not mapped(
                compiled, data, offset_map, first_dirty, end
            ):
                break
        assert offset_map.latest_offset >= first_dirty
        first_dirty = offset_map.latest_offset + 1
        results = [(data, filtered(compiled, data, offset_map)) for data in log]
        log = [result.data or data for data, result in results if result.outcome.name != "EMPTY"]
    last = {record.key: record for record in original if record.key is not None}
    assert [record for data in log for record in records_of(data)] == sorted(last.values(), key=lambda r: r.offset)


@pytest.mark.parametrize("compression", list(Compression))
def test_tombstones_go_when_their_horizon_has_passed(twin: Twin, compression: Compression) -> None:
    records: list[RecordTuple] = [
        (b"a", b"old", [], 1000),
        (b"b", b"", [("h", b"x")], 5000),
        (b"a", None, [], 1002),
        (b"c", b"new", [], 999),
    ]
    data = encode_batch(records, base_offset=100, compression=compression)
    offset_map = new_map(twin, {b"a": 102, b"b": 101, b"c": 103}, 103)
    first = filtered(twin, data, offset_map)
    assert [record.offset for record in records_of(first.data)] == [101, 102, 103]
    assert [record.timestamp for record in records_of(first.data)] == [5000, 1002, 999]
    assert first.header.has_delete_horizon
    horizon_ms = NOW_MS + RETENTION_MS
    assert first.header.base_timestamp == horizon_ms
    # Until then nothing changes, and later cleans do not move the horizon.
    assert filtered(twin, first.data, offset_map, now_ms=horizon_ms - 1).outcome.name == "UNCHANGED"
    later = filtered(twin, first.data, offset_map, now_ms=horizon_ms)
    assert [(record.offset, record.timestamp) for record in records_of(later.data)] == [(101, 5000), (103, 999)]
    assert later.header.has_delete_horizon
    assert later.header.base_timestamp == horizon_ms
    assert filtered(twin, later.data, offset_map, now_ms=horizon_ms + 1).outcome.name == "UNCHANGED"
    # A tombstone behind the cleaned part stays, whatever the horizon.
    assert filtered(twin, first.data, new_map(twin, {}, 50), now_ms=horizon_ms).outcome.name == "UNCHANGED"


def test_a_horizon_is_at_most_the_end_of_time(twin: Twin) -> None:
    data = encode_batch([(b"a", None, [], 5), (b"b", b"", [], -1)])
    result = filtered(twin, data, new_map(twin, {}, 10), delete_retention_ms=ENDLESS)
    assert result.header.base_timestamp == ENDLESS
    assert [record.timestamp for record in records_of(result.data)] == [5, -1]


def test_a_horizon_out_of_reach_of_a_timestamp_is_refused(twin: Twin) -> None:
    data = encode_batch([(b"a", None, [], 0)])
    header = parse_header(data)._replace(base_timestamp=-(2**63), max_timestamp=-(2**63))
    write_header(data, header)
    with pytest.raises(CorruptBatchError, match="64 bits away"):
        filtered(twin, data, new_map(twin, {}, 10))


@pytest.mark.parametrize("count", [1, 7, 8, 9, 3_000])
@pytest.mark.parametrize("kept_every", [1, 2, 3, 100])
def test_large_batches_run_without_the_lock_and_do_the_same(twin: Twin, count: int, kept_every: int) -> None:
    records: list[RecordTuple] = [(b"%d" % index, b"v" * 30, [], NOW_MS + index) for index in range(count)]
    data = encode_batch(records, base_offset=5)
    removed = {b"%d" % index: 10_000 for index in range(count) if index % kept_every}
    result = filtered(twin, data, new_map(twin, removed, 10_000))
    assert [record.offset - 5 for record in records_of(result.data or data)] == list(range(0, count, kept_every))


def test_the_batch_may_lie_anywhere_in_the_buffer(twin: Twin) -> None:
    batch = encode_batch([(b"a", b"1", [], 5), (b"a", b"2", [], 6)], base_offset=7)
    buffer = memoryview(b"before" + bytes(batch) + b"behind")
    header = parse_header(buffer, 6)
    offset_map = twin.compaction.OffsetMap(1_000)
    assert twin.compaction.map_batch(offset_map, buffer, header, 6, start_offset=0, end_offset=100)
    assert offset_map.get(b"a") == 8
    result = twin.compaction.filter_batch(
        buffer, header, 6, offset_map, now_ms=NOW_MS, delete_retention_ms=RETENTION_MS
    )
    assert [record.value for record in records_of(result.data)] == [b"2"]


def test_a_full_map_says_how_far_it_came(twin: Twin) -> None:
    data = encode_batch([(key, b"", [], 0) for key in (b"a", b"b", b"a", b"c", b"a")], base_offset=10)
    offset_map = twin.compaction.OffsetMap(3 * 24, 1.0)
    assert offset_map.capacity == 2
    assert not mapped(twin, data, offset_map)
    assert (offset_map.latest_offset, offset_map.get(b"a"), offset_map.get(b"b")) == (12, 12, 11)
    result = filtered(twin, data, offset_map)
    assert [record.offset for record in records_of(result.data)] == [11, 12, 13, 14]
    # The next clean begins right there, within the batch.
    offset_map.clear()
    assert mapped(twin, data, offset_map, start=13)
    assert (offset_map.latest_offset, offset_map.get(b"a"), offset_map.get(b"b")) == (14, 14, -1)


def test_compression_level_is_passed_on(twin: Twin) -> None:
    records: list[RecordTuple] = [(b"%d" % (index % 400), b"value %d" % index * 5, [], index) for index in range(2_000)]
    data = encode_batch(records, compression=Compression.ZSTD)
    offset_map = new_map(twin, {b"7": 1_999}, 1_999)
    fast, small = (filtered(twin, data, offset_map, compression_level=level) for level in (-50, 19))
    assert len(small.data) < len(fast.data)
    assert records_of(small.data) == records_of(fast.data)


def test_an_empty_batch_keeps_what_is_known_by_its_header(twin: Twin) -> None:
    data = encode_batch(
        [(b"a", b"1", [], 5), (b"b", b"2", [], 6)],
        base_offset=40,
        compression=Compression.LZ4,
        producer_id=7,
        producer_epoch=2,
        base_sequence=30,
        leader_epoch=4,
        is_transactional=True,
    )
    header = parse_header(data)
    result = filtered(twin, data, new_map(twin, {b"a": 50, b"b": 51}, 60))
    assert (result.outcome.name, result.data) == ("EMPTY", None)
    empty = twin.compaction.empty_batch(result.header)
    assert len(empty) == BATCH_HEADER_SIZE
    assert records_of(empty) == []
    left = parse_header(empty)
    assert left == header._replace(
        batch_length=left.batch_length,
        crc=left.crc,
        attributes=0x10,
        base_timestamp=-1,
        records_count=0,
    )
    assert left.last_sequence == header.last_sequence == 31
    # Once empty it stays so, and a map has nothing to note of it but its offsets.
    assert filtered(twin, empty, new_map(twin, {}, 60)).outcome.name == "EMPTY"
    offset_map = twin.compaction.OffsetMap(1_000)
    assert mapped(twin, empty, offset_map)
    assert (offset_map.size, offset_map.latest_offset) == (0, 41)


def test_a_marker_gets_a_horizon_and_stays_whole(twin: Twin) -> None:
    marker = encode_control_batch(
        ControlRecordType.COMMIT,
        producer_id=7,
        producer_epoch=2,
        coordinator_epoch=3,
        timestamp_ms=NOW_MS,
        base_offset=9,
        leader_epoch=1,
    )
    header = parse_header(marker)
    dated = twin.compaction.set_delete_horizon(marker, header, now_ms=NOW_MS + 10, delete_retention_ms=RETENTION_MS)
    assert records_of(dated) == records_of(marker)
    changed = parse_header(dated)
    assert changed._replace(batch_length=0, crc=0) == header._replace(
        batch_length=0,
        crc=0,
        attributes=header.attributes | DELETE_HORIZON_BIT,
        base_timestamp=NOW_MS + 10 + RETENTION_MS,
    )
    with pytest.raises(ValueError, match="already"):
        twin.compaction.set_delete_horizon(dated, changed, now_ms=NOW_MS, delete_retention_ms=RETENTION_MS)
    with pytest.raises(ValueError, match="as a whole"):
        filtered(twin, marker, new_map(twin, {}, 10))


def test_damage_is_found_before_anything_is_written_anew(twin: Twin) -> None:
    data = encode_batch([(b"a", b"1" * 50, [], 5), (b"a", b"2", [], 6)])
    data[BATCH_HEADER_SIZE + 20] ^= 1
    offset_map = new_map(twin, {b"a": 9}, 10)
    calls: list[Callable[[], object]] = [
        lambda: mapped(twin, data, offset_map),
        lambda: filtered(twin, data, offset_map),
        lambda: twin.compaction.set_delete_horizon(data, parse_header(data), now_ms=1, delete_retention_ms=1),
    ]
    for call in calls:
        with pytest.raises(CorruptBatchError, match="CRC"):
            call()


def test_a_batch_that_opens_to_too_much_is_refused(twin: Twin) -> None:
    data = encode_batch([(b"a", bytes(1_000_000), [], 5)], compression=Compression.ZSTD)
    with pytest.raises(OversizedBatchError):
        filtered(twin, data, new_map(twin, {}, 10), max_bytes=100_000)
    with pytest.raises(OversizedBatchError):
        twin.compaction.map_batch(
            new_map(twin, {}, 10), data, parse_header(data), start_offset=0, end_offset=9, max_bytes=100_000
        )
