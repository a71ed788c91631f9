"""Runs of small batches against the same batches one by one: equal maps, equal results, equal refusals."""

from __future__ import annotations

import random
from array import array
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.records import (
    BatchSpan,
    Compression,
    ControlRecordType,
    CorruptBatchError,
    TimestampType,
    encode_batch,
    encode_control_batch,
    iter_headers,
    parse_header,
)
from tidelog.records.batch import DELETE_HORIZON_BIT, compute_crc, write_header

NOW_MS = 1_700_000_000_000
RETENTION_MS = 1_000
ENDLESS = 2**62
SPAN_BYTES = 300


class Twin(Protocol):
    compaction: ModuleType


class Cleaned(NamedTuple):
    """All that came of a clean of some batches."""

    is_full: bool
    offsets: dict[bytes, int]
    size: int
    latest_offset: int
    log: bytes
    records_kept: int
    in_runs: int  # bytes that were filtered as parts of runs


BATCHES = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.none() | st.binary(max_size=1) | st.sampled_from([b"some key", b"x" * 300]),
                st.none() | st.binary(max_size=30) | st.just(b"v" * 700),
                st.just(()) | st.just((("header", b"x"),)),
                st.integers(-1, 2**40),
            ),
            min_size=1,
            max_size=4,
        ),
        st.sampled_from([Compression.NONE] * 6 + [Compression.LZ4]),
        st.sampled_from(["plain"] * 6 + ["transactional", "control", "stamped", "horizon", "old horizon", "empty"]),
        st.sampled_from([-1, -1, 5, 6]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=30,
)


def make_log(twin: Twin, batches: list[Any]) -> bytes:
    log = bytearray()
    offset = 0
    for records, compression, kind, producer_id, gap in batches:
        batch = encode_batch(
            records,
            base_offset=offset + gap,
            compression=compression,
            is_transactional=kind == "transactional",
            timestamp_type=TimestampType(kind == "stamped"),
            now_ms=NOW_MS,
            producer_id=producer_id,
        )
        header = parse_header(batch)
        if kind == "control":
            batch = encode_control_batch(
                ControlRecordType.COMMIT,
                producer_id=5,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=NOW_MS,
                base_offset=offset + gap,
            )
        elif kind == "empty":
            batch = twin.compaction.empty_batch(header)
        elif kind.endswith("horizon"):
            base_timestamp = NOW_MS if kind == "old horizon" else NOW_MS + 1
            write_header(
                batch,
                header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=base_timestamp),
            )
        log += batch
        offset = parse_header(batch).next_offset
    return bytes(log)


def map_log(twin: Twin, log: bytes, offset_map: Any, start: int, end: int, *, by_runs: bool) -> bool:
    compaction = twin.compaction
    position, next_offset = 0, 0
    while position < len(log):
        header = parse_header(log, position)
        if by_runs and compaction.is_small(header):
            run = compaction.map_small_batches(
                offset_map, log, position, next_offset, start_offset=start, end_offset=end
            )
            assert run.kept == []
            if run.position > position:
                position, next_offset = run.position, run.next_offset
                continue
        if header.is_control:
            offset_map.update_latest_offset(header.last_offset)
        elif not compaction.map_batch(offset_map, log, header, position, start_offset=start, end_offset=end):
            return False
        position, next_offset = position + header.size_bytes, header.next_offset
    return True


def filter_log(twin: Twin, log: bytes, offset_map: Any, needed: array[int], *, by_runs: bool) -> tuple[bytes, int, int]:
    compaction = twin.compaction
    memory = compaction.KeptBatches(SPAN_BYTES)
    out = bytearray()
    position, next_offset, kept, in_runs = 0, 0, 0, 0
    while position < len(log):
        header = parse_header(log, position)
        if by_runs and compaction.is_small(header):
            run = compaction.filter_small_batches(
                log, position, next_offset, offset_map, now_ms=NOW_MS, needed_offsets=needed, kept=memory
            )
            out += run.data
            assert run.kept == spans_of(bytes(run.data))
            if run.last_dropped is not None:
                assert parse_header(log, run.last_dropped).next_offset == run.next_offset
            elif run.kept:
                assert run.kept[-1].last_offset + 1 == run.next_offset
            if run.position > position:
                kept += run.records_kept
                in_runs += run.position - position
                position, next_offset = run.position, run.next_offset
                continue
        if header.is_control:
            out += log[position : position + header.size_bytes]
        else:
            result = compaction.filter_batch(
                log, header, position, offset_map, now_ms=NOW_MS, delete_retention_ms=RETENTION_MS
            )
            kept += result.records_kept
            if result.outcome.name == "EMPTY" and header.last_offset in needed:
                out += compaction.empty_batch(header)
            elif result.outcome.name == "UNCHANGED":
                out += log[position : position + header.size_bytes]
            else:
                out += result.data or b""
        position, next_offset = position + header.size_bytes, header.next_offset
    return bytes(out), kept, in_runs


def spans_of(data: bytes) -> list[BatchSpan]:
    """Batches in spans, as an index is to know them."""
    spans: list[BatchSpan] = []
    for _, header in iter_headers(data):
        size_bytes, last_offset, max_timestamp = header.size_bytes, header.last_offset, header.max_timestamp
        if not spans or spans[-1].size_bytes > SPAN_BYTES:
            spans.append(BatchSpan(size_bytes, last_offset, max_timestamp, last_offset, last_offset))
            continue
        span = spans[-1]._replace(size_bytes=spans[-1].size_bytes + size_bytes, last_offset=last_offset)
        if max_timestamp > span.max_timestamp:
            span = span._replace(max_timestamp=max_timestamp, offset_of_max_timestamp=last_offset)
        spans[-1] = span
    return spans


def clean(
    twin: Twin, log: bytes, *, by_runs: bool, capacity: int = 1_000, start: int = 0, end: int = ENDLESS
) -> Cleaned | str:
    offset_map = twin.compaction.OffsetMap((capacity + 1) * 24, 1.0)
    try:
        needed = array("q", sorted(header.last_offset for _, header in iter_headers(log))[::7])
        is_full = not map_log(twin, log, offset_map, start, end, by_runs=by_runs)
        out, kept, in_runs = filter_log(twin, log, offset_map, needed, by_runs=by_runs)
    except CorruptBatchError as error:
        return error.reason
    keys = [b"%c" % byte for byte in range(256)] + [b"", b"some key", b"x" * 300]
    offsets = {key: offset_map.get(key) for key in keys}
    return Cleaned(is_full, offsets, offset_map.size, offset_map.latest_offset, out, kept, in_runs)


def without_in_runs(cleaned: Cleaned | str) -> Cleaned | str:
    return cleaned if isinstance(cleaned, str) else cleaned._replace(in_runs=0)


@settings(deadline=None, max_examples=200)
@given(
    batches=BATCHES, capacity=st.integers(1, 12) | st.just(1_000), start=st.integers(0, 30), behind=st.integers(0, 30)
)
def test_runs_do_what_single_batches_do(
    compiled: Twin, interpreted: Twin, batches: list[Any], capacity: int, start: int, behind: int
) -> None:
    log = make_log(compiled, batches)
    end = max(0, max(header.next_offset for _, header in iter_headers(log)) - behind)
    options = {"capacity": capacity, "start": start, "end": end}
    expected = clean(compiled, log, by_runs=False, **options)
    assert isinstance(expected, Cleaned)
    by_runs = clean(compiled, log, by_runs=True, **options)
    assert without_in_runs(by_runs) == expected
    assert clean(interpreted, log, by_runs=True, **options) == by_runs


@pytest.mark.parametrize("count", [300, 6_000])
def test_small_batches_go_in_runs(twin: Twin, count: int) -> None:
    """Long runs end where many spans were kept, and go on from there; of all batches only the needed ones do not."""
    batches = [([(b"%c" % (index % 250), b"v", (), index)], Compression.NONE, "plain", -1, 0) for index in range(count)]
    log = make_log(twin, batches)
    cleaned = clean(twin, log, by_runs=True)
    assert isinstance(cleaned, Cleaned)
    assert cleaned.records_kept == 250
    assert cleaned.in_runs > 0.8 * len(log)
    assert without_in_runs(cleaned) == clean(twin, log, by_runs=False)
    unknown = clean(twin, log, by_runs=True, end=0)
    assert isinstance(unknown, Cleaned)
    assert unknown.in_runs == len(log)
    assert unknown.log == log


def test_damage_ends_a_run_and_is_named(compiled: Twin, interpreted: Twin) -> None:
    generator = random.Random(5)
    batches = [([(b"%c" % (index % 5), b"value", (), index)], Compression.NONE, "plain", -1, 0) for index in range(20)]
    log = make_log(compiled, batches)
    positions = [position for position, _ in iter_headers(log)]
    refused = 0
    for round_number in range(300):
        mutated = bytearray(log)
        position = generator.choice(positions)
        size = parse_header(log, position).size_bytes
        at = position + generator.randrange(21, size)
        mutated[at] ^= 1 << generator.randrange(8)
        header = parse_header(log, position)
        if round_number % 2:  # the CRC fits, so that something else has to be found
            mutated[position + 17 : position + 21] = compute_crc(mutated, header, position).to_bytes(4, "big")
        data = bytes(mutated)
        expected = clean(compiled, data, by_runs=False)
        assert without_in_runs(clean(compiled, data, by_runs=True)) == expected
        assert without_in_runs(clean(interpreted, data, by_runs=True)) == expected
        refused += isinstance(expected, str)
    assert 150 < refused < 300


def test_a_run_ends_where_the_chunk_does(twin: Twin) -> None:
    batches = [([(b"%c" % index, b"value", (), index)], Compression.NONE, "plain", -1, 0) for index in range(5)]
    log = make_log(twin, batches)
    second = [position for position, _ in iter_headers(log)][1]
    for size in (second + 1, second + 60, second + 61, second + parse_header(log, second).size_bytes - 1):
        offset_map = twin.compaction.OffsetMap(10_000)
        run = twin.compaction.map_small_batches(offset_map, log[:size], 0, 0, start_offset=0, end_offset=ENDLESS)
        assert (run.position, run.next_offset, offset_map.latest_offset) == (second, 1, 0)
    offset_map = twin.compaction.OffsetMap(10_000)
    run = twin.compaction.map_small_batches(offset_map, log[:40], 0, 0, start_offset=0, end_offset=ENDLESS)
    assert (run.position, run.next_offset, offset_map.latest_offset) == (0, 0, -1)


def test_offsets_before_the_next_one_are_not_taken_up(twin: Twin) -> None:
    log = bytes(encode_batch([(b"a", b"1", (), 0)], base_offset=4))
    offset_map = twin.compaction.OffsetMap(10_000)
    run = twin.compaction.map_small_batches(offset_map, log, 0, 5, start_offset=0, end_offset=ENDLESS)
    assert (run.position, run.next_offset, offset_map.size) == (0, 5, 0)


def test_a_run_takes_batches_of_every_length_and_none_with_a_wrong_checksum(twin: Twin) -> None:
    """The checksum is computed eight bytes at a time, with what is left over at the end."""
    compaction = twin.compaction
    for size in range(40):
        batch = bytes(encode_batch([(b"key", bytes(range(size)), (), NOW_MS)]))
        run = compaction.map_small_batches(compaction.OffsetMap(1024), batch, 0, 0, start_offset=0, end_offset=ENDLESS)
        assert run.position == len(batch)
        for at in (21, len(batch) // 2, len(batch) - 1):
            damaged = batch[:at] + bytes([batch[at] ^ 0x10]) + batch[at + 1 :]
            offset_map = compaction.OffsetMap(1024)
            assert (
                compaction.map_small_batches(offset_map, damaged, 0, 0, start_offset=0, end_offset=ENDLESS).position
                == 0
            )
