"""What a clean leaves of a log: the last record of each key, tombstones and markers for their time, sequences."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.log import LogConfig, PartitionLog
from tidelog.log.inspect import verify
from tidelog.log.producer_snapshot import snapshot_offsets
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import (
    BatchDraft,
    Compression,
    ControlRecordType,
    Record,
    draft_marker,
    iter_headers,
)

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store

ReadLog = Callable[..., list[Record]]
COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, file_delete_delay_ms=0)
DAY_MS = 86_400_000


@pytest.fixture
def log(store: Store) -> PartitionLog:
    return store.create(COMPACTED)


class Writer:
    """Appends keyed records and rolls, so that what was written can be cleaned."""

    def __init__(self, store: Store, make_batch: MakeBatch) -> None:
        self._store = store
        self._make_batch = make_batch

    def put(self, *pairs: tuple[bytes | None, bytes | None], **kwargs: object) -> int:
        keys, values = zip(*pairs, strict=True)
        batch = self._make_batch(values, keys=keys, **kwargs)
        return self._store.log.append_as_leader(batch, leader_epoch=0).first_offset

    def own(self, draft: BatchDraft) -> int:
        return self._store.log.append_as_leader(draft, leader_epoch=0).first_offset

    def close_segment(self) -> None:
        """Roll and flush, and let everything be committed."""
        log = self._store.log
        log.roll()
        log.flush()
        log.advance_high_watermark(log.log_end_offset)

    def clean(self) -> None:
        asyncio.run(self._store.manager.cleaner.run())


@pytest.fixture
def writer(store: Store, log: PartitionLog, make_batch: MakeBatch) -> Writer:
    return Writer(store, make_batch)


def kept(records: Sequence[Record]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records]


def headers_of(log: PartitionLog) -> list[tuple[int, int, int, int]]:
    """Base offset, last offset, records and attributes of every batch."""
    return [
        (header.base_offset, header.last_offset, header.records_count, header.attributes)
        for segment in log.segments
        for _, header in segment.headers()
    ]


def test_the_last_record_of_each_key_stays_with_its_offset(
    writer: Writer, log: PartitionLog, read_log: ReadLog
) -> None:
    writer.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    writer.close_segment()
    writer.put((b"c", b"1"), (b"a", b"3"))
    writer.close_segment()
    writer.put((b"b", b"active"))
    writer.clean()
    assert kept(read_log(log)) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"a", b"3"), (5, b"b", b"active")]
    assert log.first_dirty_offset == 5
    assert log.log_end_offset == 6
    assert [segment.base_offset for segment in log.segments] == [0, 5]
    assert list(verify(log.directory)) == []


def test_a_reader_of_a_replaced_segment_goes_on(writer: Writer, log: PartitionLog) -> None:
    writer.put((b"a", b"1"))
    writer.put((b"a", b"2"))
    writer.close_segment()
    before = log.read(0, 1_000_000, limit_offset=2, min_one_batch=True)
    writer.clean()
    data = b"".join(part.read() for part in before.slices)
    assert [header.base_offset for _, header in iter_headers(data)] == [0, 1]
    assert log.take_removed_paths(2**62)


def test_a_clean_of_a_clean_log_changes_no_file(writer: Writer, store: Store, clock: VirtualClock) -> None:
    writer.put((b"a", b"1"), (b"b", b"1"))
    writer.close_segment()
    writer.clean()
    (first, _) = store.log.segments
    inode = first.path.stat().st_ino
    writer.put((b"c", b"1"))
    writer.close_segment()
    store.log.update_config(
        LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, segment_bytes=80)
    )
    writer.clean()
    assert first.path.stat().st_ino == inode
    assert store.log.first_dirty_offset == 3
    assert not list(store.directory.glob("*.cleaned")) + list(store.directory.glob("*.swap"))


@pytest.mark.parametrize("codec", list(Compression))
def test_batches_keep_their_codec(writer: Writer, log: PartitionLog, read_log: ReadLog, codec: Compression) -> None:
    writer.put(*((b"%d" % (number % 3), b"value-%d" % number) for number in range(30)), compression=codec)
    writer.put((b"other", b"1"), compression=codec)
    writer.close_segment()
    writer.clean()
    assert kept(read_log(log))[:3] == [(27, b"0", b"value-27"), (28, b"1", b"value-28"), (29, b"2", b"value-29")]
    assert [header.compression for segment in log.segments for _, header in segment.headers()] == [codec, codec]
    assert headers_of(log)[0][:3] == (0, 29, 3)


def test_what_is_left_of_many_small_batches_is_found_by_offset_and_by_time(
    writer: Writer, log: PartitionLog, clock: VirtualClock, read_log: ReadLog, caplog: pytest.LogCaptureFixture
) -> None:
    generator = random.Random(3)
    for number in range(1_500):
        key = b"%d" % generator.randrange(900)
        stamp_ms = clock.now_ms() - generator.randrange(100_000) + 50 * number
        writer.put((key, b"%d" % number), timestamps=[stamp_ms])
        if number == 700:
            # One that is no small batch, between those that are.
            writer.put((b"large", bytes(5_000)), timestamps=[stamp_ms])
    writer.close_segment()
    writer.clean()
    left = read_log(log)
    assert 600 < len(left) < 1_000
    segment = log.segments[0]
    starts = {header.last_offset: position for position, header in segment.headers()}
    entries = [(offset, segment.offset_index.lookup(offset)) for offset in starts]
    indexed = {position for _, position in entries}
    # About every index.interval.bytes has its entry, which is the place of a batch that is not behind the offset.
    assert len(indexed) > segment.size_bytes // 2 // log.config.index_interval_bytes
    assert indexed <= {0, *starts.values()}
    assert all(position <= starts[offset] for offset, position in entries)
    for record in left:
        found = log.offset_for_timestamp(record.timestamp)
        expected = next(each.offset for each in left if each.timestamp >= record.timestamp)
        assert found is not None
        assert found.offset == expected
    newest = log.offset_of_max_timestamp()
    assert newest is not None
    assert newest.timestamp == max(record.timestamp for record in left)
    assert "rebuilt" not in caplog.text
    assert list(verify(log.directory)) == []


def test_tombstones_stay_for_delete_retention_and_then_go(
    writer: Writer, log: PartitionLog, read_log: ReadLog, clock: VirtualClock
) -> None:
    writer.put((b"a", b"1"), (b"b", b"1"))
    writer.put((b"a", None))
    writer.close_segment()
    clock.advance(days=30)  # before the first clean no time counts: a reader may not have seen the tombstone yet
    writer.clean()
    assert kept(read_log(log)) == [(1, b"b", b"1"), (2, b"a", None)]
    horizon_ms = clock.now_ms() + DAY_MS
    (tombstone,) = [header for segment in log.segments for _, header in segment.headers() if header.has_delete_horizon]
    assert (tombstone.base_offset, tombstone.base_timestamp) == (2, horizon_ms)
    clock.advance(ms=DAY_MS - 1)
    writer.put((b"c", b"1"))
    writer.close_segment()
    writer.clean()
    assert kept(read_log(log)) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    clock.advance(ms=1)
    writer.put((b"d", b"1"))
    writer.close_segment()
    writer.clean()
    assert kept(read_log(log)) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"d", b"1")]


def test_a_tombstone_keeps_its_timestamp_and_headers(
    writer: Writer, log: PartitionLog, read_log: ReadLog, clock: VirtualClock
) -> None:
    written_ms = clock.now_ms()
    writer.put((b"a", None), (b"b", None))
    writer.close_segment()
    clock.advance(hours=5)
    writer.clean()
    assert [record.timestamp for record in read_log(log)] == [written_ms, written_ms]
    found = log.offset_for_timestamp(written_ms)
    assert found is not None
    assert found.offset == 0


def test_the_state_of_producers_survives(writer: Writer, store: Store, clock: VirtualClock) -> None:
    for sequence in range(3):
        writer.put((b"a", b"%d" % sequence), producer_id=7, producer_epoch=0, base_sequence=sequence)
    writer.put((b"a", b"last"))
    writer.put((b"z", b"1"))
    writer.close_segment()
    writer.clean()
    # The last batch of the producer has no record left and is there all the same.
    assert headers_of(store.log)[0][:3] == (2, 2, 0)
    for path in store.directory.glob("*.snapshot"):
        path.unlink()
    store.reopen(clean=False)
    with pytest.raises(KafkaError) as refused:
        writer.put((b"a", b"gap"), producer_id=7, producer_epoch=0, base_sequence=4)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert writer.put((b"a", b"next"), producer_id=7, producer_epoch=0, base_sequence=3) == 5


def test_a_silent_producer_leaves_nothing(writer: Writer, store: Store, clock: VirtualClock) -> None:
    writer.put((b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0)
    writer.put((b"a", b"last"))
    writer.close_segment()
    clock.advance(days=2)
    assert store.log.remove_expired_producers(clock.now_ms(), DAY_MS) == 1
    writer.clean()
    assert [row[:3] for row in headers_of(store.log)] == [(1, 1, 1)]


def test_what_ends_a_run_of_segments_stays_as_an_empty_batch(writer: Writer, store: Store, read_log: ReadLog) -> None:
    """So that a gap between two segments is always a loss, and the end of what was swapped can be read from it."""
    writer.put((b"a", b"1"))
    writer.close_segment()
    writer.put((b"a", b"2"))
    writer.close_segment()
    store.log.update_config(
        LogConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, segment_bytes=80)
    )
    writer.clean()
    assert [row[:3] for row in headers_of(store.log)] == [(0, 0, 0), (1, 1, 1)]
    assert kept(read_log(store.log)) == [(1, b"a", b"2")]
    store.config = LogConfig()  # a topic that is compacted no more is as whole as any other
    assert kept(read_log(store.reopen(clean=False))) == [(1, b"a", b"2")]


def test_records_without_a_key_go(store: Store, writer: Writer, read_log: ReadLog) -> None:
    """A topic that was altered from delete to compact may hold some."""
    store.log.update_config(LogConfig())
    writer.put((None, b"1"), (b"a", b"1"))
    store.log.update_config(COMPACTED)
    writer.close_segment()
    writer.clean()
    assert kept(read_log(store.log)) == [(1, b"a", b"1")]


def test_a_full_map_ends_a_clean_early_and_the_next_goes_on(store: Store, writer: Writer, read_log: ReadLog) -> None:
    for round_number in range(2):
        writer.put(*((b"%d" % number, b"%d" % round_number) for number in range(100)))
    writer.close_segment()
    cleaner = store.manager.cleaner
    cleaner.config = dataclasses.replace(cleaner.config, dedupe_buffer_size=24 * 50)
    writer.clean()
    assert cleaner.totals.cleans_count == 5  # 45 of 50 slots at a time
    assert store.log.first_dirty_offset == 200
    assert kept(read_log(store.log)) == [(100 + number, b"%d" % number, b"1") for number in range(100)]
    assert 0 < cleaner.totals.last_map_utilization <= 1


def test_the_horizon_of_the_clean_is_not_passed(writer: Writer, store: Store, read_log: ReadLog) -> None:
    """Neither the active segment, nor what is above the high watermark, nor what is not flushed is touched."""
    log = store.log
    writer.put((b"a", b"1"))
    log.roll()
    writer.put((b"a", b"2"))
    log.roll()
    writer.clean()
    assert len(log.segments) == 3
    log.advance_high_watermark(2)
    writer.clean()
    assert len(log.segments) == 3
    log.flush()
    writer.clean()
    assert kept(read_log(log)) == [(1, b"a", b"2")]
    assert [segment.base_offset for segment in log.segments] == [0, 2]


# Transactions


def transactional(writer: Writer, *pairs: tuple[bytes, bytes | None], producer_id: int = 9, sequence: int = 0) -> int:
    return writer.put(*pairs, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True)


def marker(writer: Writer, kind: ControlRecordType, clock: VirtualClock, producer_id: int = 9) -> int:
    batch = draft_marker(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=clock.now_ms()
    )
    return writer.own(batch)


def forget_producers(log: PartitionLog, clock: VirtualClock) -> None:
    clock.advance(days=8)
    log.remove_expired_producers(clock.now_ms(), DAY_MS)


def test_records_of_aborted_transactions_go_and_their_keys_do_not_count(
    store: Store, writer: Writer, read_log: ReadLog, clock: VirtualClock
) -> None:
    writer.put((b"a", b"committed"))
    transactional(writer, (b"a", b"aborted"))
    marker(writer, ControlRecordType.ABORT, clock)
    writer.put((b"z", b"1"))
    forget_producers(store.log, clock)
    writer.close_segment()
    writer.clean()
    # The marker marked records until now, so its time begins with the next clean.
    assert [row[:3] for row in headers_of(store.log)] == [(0, 0, 1), (2, 2, 1), (3, 3, 1)]
    assert kept(read_log(store.log))[0] == (0, b"a", b"committed")


def test_a_marker_goes_after_its_records_and_its_own_horizon(store: Store, writer: Writer, clock: VirtualClock) -> None:
    transactional(writer, (b"a", b"1"))
    marker(writer, ControlRecordType.COMMIT, clock)
    writer.put((b"a", b"2"))
    forget_producers(store.log, clock)

    def next_clean() -> list[int]:
        writer.put((b"other", b"%d" % store.log.log_end_offset))
        writer.close_segment()
        writer.clean()
        return [header.base_offset for segment in store.log.segments for _, header in segment.headers()]

    assert 1 in next_clean()
    assert 1 in next_clean()  # now without records, so it gets its horizon
    clock.advance(ms=DAY_MS - 1)
    assert 1 in next_clean()
    clock.advance(ms=1)
    assert 1 not in next_clean()


def test_the_index_of_aborted_transactions_goes_with_their_markers(
    store: Store, writer: Writer, read_log: ReadLog, clock: VirtualClock
) -> None:
    """An entry without its marker would hide what the producer commits later, and a marker needs no entry."""
    transactional(writer, (b"a", b"aborted"))
    writer.close_segment()
    marker(writer, ControlRecordType.ABORT, clock)
    transactional(writer, (b"b", b"committed"), sequence=1)
    marker(writer, ControlRecordType.COMMIT, clock)
    transactional(writer, (b"c", b"aborted"), producer_id=10)
    marker(writer, ControlRecordType.ABORT, clock, producer_id=10)
    forget_producers(store.log, clock)

    def next_clean() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Aborted transactions, by the index and by the markers that are there."""
        writer.put((b"other", b"%d" % store.log.log_end_offset))
        writer.close_segment()
        writer.clean()
        log = store.reopen(clean=True)
        log.advance_high_watermark(log.log_end_offset)
        entries = [(entry.producer_id, entry.last_offset) for entry in log.aborted_transactions(0, log.log_end_offset)]
        markers = [
            (header.producer_id, header.base_offset)
            for segment in log.segments
            for _, header in segment.headers()
            if header.is_control and header.records_count and header.base_offset != 3
        ]
        return entries, markers

    both = [(9, 1), (10, 5)]
    assert next_clean() == (both, both)
    assert [record.value for record in read_log(store.log)].count(b"aborted") == 0
    assert next_clean() == (both, both)
    clock.advance(ms=DAY_MS)
    assert next_clean() == ([], [])
    assert list(store.directory.glob("*.swap")) == list(store.directory.glob("*.cleaned")) == []


def test_the_last_marker_of_an_active_producer_stays_for_its_epoch(
    store: Store, writer: Writer, clock: VirtualClock
) -> None:
    transactional(writer, (b"a", b"1"))
    marker(writer, ControlRecordType.COMMIT, clock)
    batch = draft_marker(
        ControlRecordType.ABORT, producer_id=9, producer_epoch=3, coordinator_epoch=0, timestamp_ms=clock.now_ms()
    )
    last = writer.own(batch)
    writer.put((b"a", b"2"))
    for _ in range(3):
        writer.put((b"other", b"%d" % store.log.log_end_offset))
        writer.close_segment()
        clock.advance(days=2)
        writer.clean()
    rows = {row[0]: row[2] for row in headers_of(store.log)}
    assert rows[last] == 0  # emptied, and its header says the epoch
    assert 1 not in rows


def test_what_is_in_an_open_transaction_is_not_cleaned(store: Store, writer: Writer, clock: VirtualClock) -> None:
    writer.put((b"a", b"1"))
    writer.close_segment()
    transactional(writer, (b"a", b"2"))
    writer.close_segment()
    writer.put((b"a", b"3"))
    writer.close_segment()
    writer.clean()
    assert store.log.first_dirty_offset == 1
    assert [row[0] for row in headers_of(store.log)] == [0, 1, 2]


def test_snapshots_of_replaced_segments_go_and_the_first_stays(writer: Writer, store: Store, tmp_path: Path) -> None:
    for number in range(4):
        writer.put((b"a", b"%d" % number), producer_id=3, producer_epoch=0, base_sequence=number)
        writer.close_segment()
    assert snapshot_offsets(store.directory) == [1, 2, 3, 4]
    writer.clean()
    assert snapshot_offsets(store.directory) == [4]
    assert [segment.base_offset for segment in store.log.segments] == [0, 4]
