"""A partition's log through its whole life: appends, reads, rolls, timestamps, deletions, truncations."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c

from tidelog.log import FileSlice, LogConfig, PartitionLog
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import (
    Compression,
    ControlRecordType,
    Record,
    draft_marker,
    encode_batch,
    iter_headers,
    parse_header,
)

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store

ReadLog = Callable[..., list[Record]]
SMALL_SEGMENTS = LogConfig(segment_bytes=2000, index_interval_bytes=200, file_delete_delay_ms=0)


def fill(log: PartitionLog, make_batch: MakeBatch, count: int, records: int = 3, **fields: Any) -> None:
    for index in range(count):
        values = [b"%d-%d" % (index, number) + bytes(30) for number in range(records)]
        log.append_as_leader(make_batch(values, **fields), leader_epoch=0)
    log.advance_high_watermark(log.log_end_offset)


def test_offsets_are_given_in_place(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    first, second = make_batch([b"a", b"b"]), make_batch([b"c"])
    assert log.append_as_leader(first, leader_epoch=4).last_offset == 1
    result = log.append_as_leader(second, leader_epoch=4)
    assert (result.first_offset, result.last_offset, result.log_append_time_ms, result.is_duplicate) == (
        2,
        2,
        -1,
        False,
    )
    assert (parse_header(second).base_offset, parse_header(second).partition_leader_epoch) == (2, 4)
    assert store.files(".log")[0].read_bytes() == bytes(first) + bytes(second)
    assert (log.log_end_offset, log.high_watermark, log.latest_epoch) == (3, 0, 4)


def test_an_append_is_one_system_call(store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    log = store.create()
    log.append_as_leader(make_batch(), leader_epoch=0)
    calls: list[str] = []

    def count(name: str) -> None:
        original = getattr(os, name)

        def counted(*arguments: object) -> object:
            calls.append(name)
            return original(*arguments)

        monkeypatch.setattr(os, name, counted)

    for name in ("pwrite", "write", "pread", "open", "fsync", "ftruncate", "stat"):
        count(name)
    log.append_as_leader(make_batch(), leader_epoch=0)
    assert calls == ["pwrite"]


def test_reading_back_over_segments(store: Store, make_batch: MakeBatch, read_log: ReadLog) -> None:
    log = store.create(SMALL_SEGMENTS)
    fill(log, make_batch, 60)
    assert len(log.segments) > 4
    assert [record.offset for record in read_log(log)] == list(range(180))
    for max_bytes in (1, 150, 500, 10_000):
        assert [record.offset for record in read_log(log, 100, max_bytes)] == list(range(100, 180))


def test_a_read_gives_the_enclosing_batch(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(SMALL_SEGMENTS)
    fill(log, make_batch, 60)
    for offset in range(180):
        found = log.read(offset, 1, limit_offset=180, min_one_batch=True)
        (header,) = [header for _, header in iter_headers(found.slices[0].read())]
        assert header.base_offset == offset - offset % 3


def test_a_first_batch_that_is_too_large(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    fill(log, make_batch, 3)
    size = log.size_bytes // 3
    read = log.read(0, size - 1, limit_offset=9, min_one_batch=False)
    assert (read.records, read.size_bytes) == (b"", 0)
    assert log.read(0, size - 1, limit_offset=9, min_one_batch=True).size_bytes == size
    assert log.read(0, size + 5, limit_offset=9, min_one_batch=False).size_bytes == size + 5
    assert log.read(0, 0, limit_offset=9, min_one_batch=False).size_bytes == 0


@pytest.mark.parametrize("is_reopened", [False, True])
def test_nothing_above_the_limit_is_read(store: Store, make_batch: MakeBatch, is_reopened: bool) -> None:
    log = store.create(SMALL_SEGMENTS)
    fill(log, make_batch, 60)
    if is_reopened:
        log = store.reopen(clean=True)
    for limit in range(1, 181):
        offset = 0
        while True:
            read = log.read(offset, 100_000, limit_offset=limit, min_one_batch=True)
            if not read.size_bytes:
                break
            offset = [header for _, header in iter_headers(read.slices[0].read())][-1].next_offset
        assert offset == limit - limit % 3
    assert log.read(180, 1000, limit_offset=180, min_one_batch=True).size_bytes == 0


def test_offsets_outside_of_the_log(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    fill(log, make_batch, 2)
    log.set_log_start_offset(2)
    for offset in (1, 7, -1):
        with pytest.raises(KafkaError) as refused:
            log.read(offset, 100, limit_offset=6, min_one_batch=True)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_tail_reads_cost_no_system_call(store: Store, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    log = store.create()
    fill(log, make_batch, 50)
    monkeypatch.setattr(os, "pread", None)
    monkeypatch.setattr(os, "open", None)
    assert log.read(149, 1000, limit_offset=150, min_one_batch=True).size_bytes


def test_many_batches_beyond_the_remembered_tail(store: Store, make_batch: MakeBatch, read_log: ReadLog) -> None:
    log = store.create(LogConfig(index_interval_bytes=300))
    for _ in range(1500):
        log.append_as_leader(make_batch([b"x"]), leader_epoch=0)
    assert [record.offset for record in read_log(log, max_bytes=20_000)] == list(range(1500))


def test_rolling_by_size_and_index(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(LogConfig(segment_bytes=1000))
    fill(log, make_batch, 30)
    assert all(segment.size_bytes <= 1000 for segment in log.segments)
    log.update_config(LogConfig(segment_index_bytes=24, index_interval_bytes=0))
    log.roll()
    count = len(log.segments)
    fill(log, make_batch, 9)
    assert len(log.segments) > count + 1


def test_rolling_by_time_of_the_records(store: Store, make_batch: MakeBatch) -> None:
    now_ms = store.clock.now_ms()
    log = store.create(LogConfig(segment_ms=1000))
    for timestamp in (now_ms, now_ms + 1000, now_ms + 1001):
        log.append_as_leader(make_batch(timestamps=[timestamp]), leader_epoch=0)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_rolling_by_the_clock(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(LogConfig(segment_ms=1000))
    store.clock.advance(ms=5000)
    assert not log.maybe_roll(store.clock.now_ms()), "an empty segment stays"
    log.append_as_leader(make_batch(), leader_epoch=0)
    assert log.maybe_roll(store.clock.now_ms())
    assert not log.maybe_roll(store.clock.now_ms())


def test_offsets_that_no_longer_fit_the_index_roll(store: Store, make_batch: MakeBatch, read_log: ReadLog) -> None:
    log = store.create()
    for base_offset in (5, 2**31 + 10, 2**33):
        batch = make_batch([b"x"])
        batch[:8] = base_offset.to_bytes(8, "big")
        log.append_as_follower(batch, leader_epoch=0)
    assert [segment.base_offset for segment in log.segments] == [0, 2**31 + 10, 2**33]
    assert [record.offset for record in read_log(log)] == [5, 2**31 + 10, 2**33]


def test_a_follower_takes_what_the_leader_wrote(store: Store, make_batch: MakeBatch, read_log: ReadLog) -> None:
    log = store.create(SMALL_SEGMENTS)
    fill(log, make_batch, 40)
    data = b"".join(path.read_bytes() for path in store.files(".log"))
    store.manager.delete("topic", 0)
    follower = store.create(SMALL_SEGMENTS)
    follower.append_as_follower(memoryview(bytearray(data)), leader_epoch=0)
    assert [record.value for record in read_log(follower)] == [
        b"%d-%d" % divmod(offset, 3) + bytes(30) for offset in range(120)
    ]
    assert follower.log_end_offset == 120
    assert [(entry.epoch, entry.start_offset) for entry in follower.epochs] == [(0, 0)]
    assert len(follower.segments) > 2


def test_offsets_by_timestamp(store: Store, make_batch: MakeBatch) -> None:
    now_ms = store.clock.now_ms()
    log = store.create(LogConfig(segment_bytes=700, index_interval_bytes=0))
    # Out of order within batches and between them.
    times = [(5, 3), (9, 1), (4, 4), (20, 11), (2, 8), (30, 25)]
    for pair in times:
        log.append_as_leader(make_batch([bytes(90)] * 2, timestamps=[now_ms + time for time in pair]), leader_epoch=3)
    flat = [time for pair in times for time in pair]
    assert len(log.segments) > 1
    for is_reopened in (False, True):
        if is_reopened:
            log = store.reopen(clean=True)
        for target in range(32):
            expected = next((offset for offset, time in enumerate(flat) if time >= target), None)
            found = log.offset_for_timestamp(now_ms + target)
            assert (found and found.offset) == expected, target
            if found is not None:
                assert (found.timestamp, found.leader_epoch) == (now_ms + flat[found.offset], 3)
        latest = log.offset_of_max_timestamp()
        assert latest is not None
        assert (latest.timestamp, latest.offset) == (now_ms + 30, 10)


def test_a_time_in_a_batch_that_is_not_opened_leads_to_its_start(store: Store, make_batch: MakeBatch) -> None:
    """Where records are not checked, there may be some that are no records, and some that open to very much."""
    now_ms = store.clock.now_ms()
    log = store.create(LogConfig(tidelog_records_check="none"))
    log.append_as_leader(make_batch([b"before"], timestamps=[now_ms]), leader_epoch=0)
    no_records = make_batch([b"a", b"b"], timestamps=[now_ms + 1, now_ms + 2])
    no_records[61:] = b"\xff" * (len(no_records) - 61)
    no_records[17:21] = crc32c(no_records[21:]).to_bytes(4, "big")
    bomb = encode_batch(
        [(None, b"", (), now_ms + 3), (None, bytes(20 << 20), (), now_ms + 4)], compression=Compression.ZSTD
    )
    for batch in (no_records, memoryview(bomb)):
        log.append_as_leader(batch, leader_epoch=0)
    for target, offset in ((0, 0), (1, 1), (2, 1), (3, 3), (4, 3)):
        found = log.offset_for_timestamp(now_ms + target)
        assert found is not None
        assert found.offset == offset, target
    latest = log.offset_of_max_timestamp()
    assert latest is not None
    assert (latest.timestamp, latest.offset) == (now_ms + 4, 3)


def test_no_timestamps_in_an_empty_log(store: Store) -> None:
    log = store.create()
    assert log.offset_for_timestamp(0) is None
    assert log.offset_of_max_timestamp() is None


def test_the_high_watermark_only_grows(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    fill(log, make_batch, 2)
    log.advance_high_watermark(2)
    assert log.high_watermark == 6
    log.advance_high_watermark(99)
    assert log.high_watermark == 6


def test_delete_records(store: Store, make_batch: MakeBatch, read_log: ReadLog) -> None:
    log = store.create(SMALL_SEGMENTS)
    fill(log, make_batch, 60)
    log.set_log_start_offset(100)
    log.set_log_start_offset(50)
    assert log.log_start_offset == 100
    assert log.segments[0].base_offset <= 100 < log.segments[1].base_offset
    assert [record.offset for record in read_log(log)] == list(range(100, 180))
    assert log.epochs[0].start_offset == 100
    with pytest.raises(KafkaError) as refused:
        log.set_log_start_offset(181)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    for path in log.take_removed_paths(store.clock.now_ms()):
        path.unlink()
    assert not store.files(".deleted")
    log = store.reopen(clean=True)
    assert (log.log_start_offset, log.log_end_offset) == (100, 180)


def test_readers_outlive_the_segment(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(SMALL_SEGMENTS)
    fill(log, make_batch, 60)
    read = log.read(0, 500, limit_offset=180, min_one_batch=True)
    (part,) = read.slices
    before = part.read()
    log.set_log_start_offset(180)
    for path in log.take_removed_paths(store.clock.now_ms()):
        path.unlink()
    store.manager.delete("topic", 0)
    assert isinstance(part, FileSlice)
    assert part.read() == before
    fd = part.fd
    os.fstat(fd)
    part.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(ValueError, match="released"):
        part.read()


@pytest.mark.parametrize("offset", [0, 1, 3, 59, 60, 100, 178, 179])
def test_truncation_drops_whole_batches(store: Store, make_batch: MakeBatch, read_log: ReadLog, offset: int) -> None:
    log = store.create(SMALL_SEGMENTS)
    fill(log, make_batch, 60)
    log.flush()
    assert log.truncate_to(offset)
    end = offset - offset % 3
    assert (log.log_end_offset, log.high_watermark) == (end, end)
    # The cut itself is not on disk yet: after a crash the segment is looked through.
    assert log.flushed_offset == log.segments[-1].base_offset or log.flushed_offset == end
    log.flush()
    assert log.flushed_offset == end
    assert [record.offset for record in read_log(log)] == list(range(end))
    assert not log.truncate_to(end)
    log.append_as_leader(make_batch([b"new"]), leader_epoch=1)
    assert read_log(log)[-1].value == b"new"
    log = store.reopen(clean=False)
    assert [record.offset for record in read_log(log)] == list(range(end + 1))


def test_starting_over(store: Store, make_batch: MakeBatch, read_log: ReadLog) -> None:
    log = store.create(SMALL_SEGMENTS)
    fill(log, make_batch, 60, producer_id=-1)
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1000, 1000, 1000)
    log.append_as_leader(make_batch([b"new"]), leader_epoch=1)
    assert [record.offset for record in read_log(log)] == [1000]


def test_epochs_of_a_log(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    log.assign_epoch(1, 0)
    log.append_as_leader(make_batch([b"a"] * 4), leader_epoch=1)
    log.append_as_leader(make_batch([b"a"] * 4), leader_epoch=3)
    expected = [(1, 4), (1, 4), (3, 8)]
    assert [log.end_offset_for_epoch(epoch) for epoch in (1, 2, 3)] == expected
    log = store.reopen(clean=True)
    assert [log.end_offset_for_epoch(epoch) for epoch in (1, 2, 3)] == expected
    assert log.epoch_for_offset(3) == 1


def test_duplicates_and_gaps(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()

    def send(sequence: int, epoch: int = 0) -> tuple[int, bool]:
        batch = make_batch([b"a", b"b"], producer_id=5, producer_epoch=epoch, base_sequence=sequence)
        result = log.append_as_leader(batch, leader_epoch=0)
        return result.first_offset, result.is_duplicate

    assert [send(sequence) for sequence in (0, 2, 4)] == [(0, False), (2, False), (4, False)]
    assert send(2) == (2, True)
    with pytest.raises(KafkaError) as refused:
        send(8)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 6
    assert send(6) == (6, False)
    assert send(0, epoch=1) == (8, False)
    with pytest.raises(KafkaError) as refused:
        send(2)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("clean", [True, False])
def test_duplicates_across_a_restart(store: Store, make_batch: MakeBatch, clean: bool) -> None:
    log = store.create(SMALL_SEGMENTS)

    def send(sequence: int) -> tuple[int, bool]:
        batch = make_batch([b"a" * 50, b"b"], producer_id=5, producer_epoch=0, base_sequence=sequence)
        result = log.append_as_leader(batch, leader_epoch=0)
        return result.first_offset, result.is_duplicate

    for sequence in range(0, 100, 2):
        send(sequence)
    log.append_as_leader(make_batch([b"other"] * 2), leader_epoch=0)
    log = store.reopen(clean=clean)
    # A producer has up to five batches in flight, so any of them may come again, the oldest first.
    assert [send(sequence) for sequence in range(94, 100, 2)] == [(94, True), (96, True), (98, True)]
    assert send(98) == (98, True)
    assert send(100) == (102, False)
    with pytest.raises(KafkaError) as refused:
        send(10)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("clean", [True, False])
def test_the_last_stable_offset(store: Store, make_batch: MakeBatch, clean: bool) -> None:
    log = store.create()
    log.append_as_leader(make_batch(), leader_epoch=0)
    fields = {"producer_id": 5, "producer_epoch": 0, "is_transactional": True}
    log.append_as_leader(make_batch([b"a", b"b"], base_sequence=0, **fields), leader_epoch=0)
    log.append_as_leader(make_batch(), leader_epoch=0)
    log.advance_high_watermark(4)
    assert log.last_stable_offset == 1
    log = store.reopen(clean=clean)
    log.advance_high_watermark(4)
    assert log.last_stable_offset == 1
    marker = draft_marker(
        ControlRecordType.COMMIT,
        producer_id=5,
        producer_epoch=0,
        coordinator_epoch=9,
        timestamp_ms=store.clock.now_ms(),
    )
    log.append_as_leader(marker, leader_epoch=0)
    assert log.last_stable_offset == 1
    log.advance_high_watermark(5)
    assert log.last_stable_offset == 5
    log = store.reopen(clean=clean)
    assert log.active_producers()[0].coordinator_epoch == 9
    log.advance_high_watermark(5)
    assert log.last_stable_offset == 5


def test_flushing(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(LogConfig(flush_messages=6))
    fill(log, make_batch, 1)
    assert not log.flush_is_due
    fill(log, make_batch, 1)
    assert log.flush_is_due
    log.flush()
    assert (log.flushed_offset, log.recovery_point, log.flush_is_due) == (6, 6, False)


def test_log_append_time_is_answered(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(LogConfig(message_timestamp_type="LogAppendTime"))
    result = log.append_as_leader(make_batch(timestamps=[5]), leader_epoch=0)
    assert result.log_append_time_ms == store.clock.now_ms()
    found = log.offset_for_timestamp(store.clock.now_ms())
    assert found is not None
    assert found.offset == 0
