"""A follower's log: what it takes from a leader, what it refuses, and truncations in a thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tidelog.log import BelowStartError, LogConfig, LogStorageError, PartitionLog
from tidelog.log.checkpoints import RECOVERY_POINT_FILE, read_offsets
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import assign_offsets

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store


def batches(make_batch: MakeBatch, *placed: tuple[int, int], records: int = 1) -> memoryview:
    """Batches at these offsets, written in these epochs."""
    data = bytearray()
    for base_offset, epoch in placed:
        batch = make_batch([b"value %d" % base_offset] * records)
        assign_offsets(batch, base_offset, epoch)
        data += batch
    return memoryview(data)


def epochs(log: PartitionLog) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in log.epochs]


def test_epochs_come_with_the_batches(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    log.append_as_follower(batches(make_batch, (0, 1), (1, 1), (2, 3)), leader_epoch=5)
    log.append_as_follower(batches(make_batch, (3, 3), (4, 5)), leader_epoch=5)
    assert epochs(log) == [(1, 0), (3, 2), (5, 4)]
    assert (log.log_end_offset, log.last_record_epoch) == (5, 5)


def test_an_epoch_after_a_gap_starts_where_the_log_ended(store: Store, make_batch: MakeBatch) -> None:
    """Its first batches may be compacted away: if it seemed to start later, stale records of others would pass."""
    log = store.create()
    log.append_as_follower(batches(make_batch, (0, 1), (10, 1), (20, 2)), leader_epoch=2)
    assert epochs(log) == [(1, 0), (2, 11)]
    assert log.end_offset_for_epoch(1) == (1, 11)


def test_what_a_later_leader_wrote_into_the_file_is_left_out(store: Store, make_batch: MakeBatch) -> None:
    """KAFKA-18723: a leader that lost its role while it was sending may send what its successor wrote."""
    log = store.create()
    log.append_as_follower(batches(make_batch, (0, 1), (1, 2), (2, 1)), leader_epoch=1)
    assert (log.log_end_offset, epochs(log)) == (1, [(1, 0)])


def test_an_epoch_never_goes_back(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    log.append_as_follower(batches(make_batch, (0, 2)), leader_epoch=3)
    for data in (batches(make_batch, (1, 1)), batches(make_batch, (1, 3), (2, 2))):
        with pytest.raises(KafkaError) as refused:
            log.append_as_follower(data, leader_epoch=3)
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 1


def test_an_epoch_led_without_a_record_does_not_count(store: Store, make_batch: MakeBatch) -> None:
    """Another leader may go on in an older epoch, which this replica had not fetched to its end."""
    log = store.create()
    log.append_as_follower(batches(make_batch, (0, 4)), leader_epoch=4)
    log.assign_epoch(5, 1)
    assert (log.latest_epoch, log.last_record_epoch) == (5, 4)
    log.append_as_follower(batches(make_batch, (1, 4), (2, 6)), leader_epoch=6)
    assert epochs(log) == [(4, 0), (6, 2)]
    log.assign_epoch(7, 3)
    assert not log.truncate_to(3)
    assert epochs(log) == [(4, 0), (6, 2)]


def test_a_damaged_batch_is_refused_with_all_around_it(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    data = batches(make_batch, (0, 0), (1, 0))
    data[-1] ^= 1
    with pytest.raises(KafkaError) as refused:
        log.append_as_follower(data, leader_epoch=0)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(KafkaError):
        log.append_as_follower(memoryview(bytearray(200)), leader_epoch=0)
    assert (log.log_end_offset, log.size_bytes) == (0, 0)


def test_a_log_that_starts_within_a_batch(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    log.truncate_fully_and_start_at(7)
    data = batches(make_batch, (5, 0), (9, 0), records=4)
    with pytest.raises(BelowStartError) as refused:
        log.append_as_follower(data, leader_epoch=0)
    log.truncate_fully_and_start_at(refused.value.base_offset)
    log.append_as_follower(data, leader_epoch=0)
    log.advance_high_watermark(13)
    log.set_log_start_offset(7)
    assert (log.log_start_offset, log.log_end_offset) == (7, 13)
    log = store.reopen(clean=False)
    assert (log.segments[0].base_offset, log.log_end_offset) == (5, 13)
    # Only an empty log may begin earlier.
    with pytest.raises(KafkaError) as out_of_order:
        log.append_as_follower(batches(make_batch, (12, 0), records=4), leader_epoch=0)
    assert out_of_order.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("clean", [False, True])
def test_gaps_lie_within_segments(store: Store, make_batch: MakeBatch, clean: bool) -> None:
    """Even when the topic is no longer compacted, a crash does not make the gap look like a lost file."""
    log = store.create(LogConfig(segment_bytes=200))
    for offset in range(0, 1000, 100):
        log.append_as_follower(batches(make_batch, (offset, 0), (offset + 1, 0)), leader_epoch=0)
    assert [segment.base_offset for segment in log.segments] == [0, *range(2, 902, 100)]
    log = store.reopen(clean=clean)
    assert log.log_end_offset == 902


def test_a_log_that_is_being_truncated_is_left_alone(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(LogConfig(segment_ms=1, retention_ms=1))
    log.append_as_follower(batches(make_batch, (0, 0)), leader_epoch=0)
    log.advance_high_watermark(1)
    store.clock.advance(hours=1)
    now_ms = store.clock.now_ms()
    cleaning = log.start_cleaning()
    log.begin_truncation()
    assert cleaning.is_aborted
    assert not log.maybe_roll(now_ms)
    assert not log.delete_expired(now_ms)
    assert log.remove_expired_producers(now_ms, 1) == 0
    log.end_truncation()
    log.end_cleaning()
    assert log.maybe_roll(now_ms)
    assert log.delete_expired(now_ms)


def test_a_deleted_log_is_not_truncated_any_more(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    log.append_as_follower(batches(make_batch, (0, 0), (1, 0)), leader_epoch=0)
    store.manager.delete("topic", 0)
    with pytest.raises(LogStorageError):
        log.truncate_to(1)


def test_a_deletion_waits_for_the_thread_that_truncates(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    log.append_as_follower(batches(make_batch, (0, 0), (1, 0)), leader_epoch=0)
    with log._lock:
        deleting = threading.Thread(target=store.manager.delete, args=("topic", 0))
        deleting.start()
        deleting.join(0.05)
        assert deleting.is_alive()
        assert log.directory == store.directory
    deleting.join()
    assert log.directory != store.directory


def test_the_recovery_point_on_the_disk_goes_back_with_the_end(store: Store, make_batch: MakeBatch) -> None:
    """What is appended instead is not flushed, and its loss in a power cut no damage."""
    log = store.create()
    log.append_as_follower(batches(make_batch, (0, 1), (1, 1), (2, 1)), leader_epoch=1)
    log.flush()
    store.manager.checkpoint()
    checkpoint = store.path / RECOVERY_POINT_FILE
    assert read_offsets(checkpoint) == {("topic", 0): 3}
    log.truncate_to(1)
    assert read_offsets(checkpoint) == {("topic", 0): log.recovery_point}
    assert log.recovery_point <= 1
    log.flush()
    store.manager.checkpoint()
    log.truncate_fully_and_start_at(0)
    assert read_offsets(checkpoint) == {("topic", 0): 0}
