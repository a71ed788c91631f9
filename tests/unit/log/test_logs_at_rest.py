"""Logs that a clean start leaves unopened: what they answer, what opens them, and what happens when files changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
from tests.unit.log.conftest import MakeBatch, Store

from tidelog.common.clock import VirtualClock
from tidelog.log import LogConfig, LogStorageError, NotInMemoryError
from tidelog.log.retention import delete_expired
from tidelog.records import Record

ReadLog = Callable[..., list[Record]]

DAY_MS = 86_400_000
SEGMENTED = LogConfig(segment_bytes=400)


@pytest.fixture
def rested(store: Store, make_batch: MakeBatch) -> Store:
    """Five records in several segments, two epochs, an open transaction from offset 3 on; closed and started again."""
    log = store.create(SEGMENTED)
    for index in range(5):
        batch = make_batch(
            [bytes(200)], producer_id=index, producer_epoch=0, base_sequence=0, is_transactional=index == 3
        )
        log.append_as_leader(batch, leader_epoch=2 + index // 3)
    log.advance_high_watermark(5)
    log.set_log_start_offset(1)
    assert len(log.segments) > 2
    # The first start opens it, to remove the files of what was deleted.
    store.reopen(clean=True)
    store.reopen(clean=True)
    return store


def test_questions_do_not_open_it(rested: Store) -> None:
    log = rested.log
    assert not log.is_open
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1, 5, 5)
    assert (log.recovery_point, log.flushed_offset) == (5, 5)
    assert log.last_stable_offset == 3
    assert (log.latest_epoch, log.epoch_for_offset(1), log.end_offset_for_epoch(3)) == (3, 2, (3, 5))
    assert [log.has_unflushed, log.has_unflushed_segments, log.has_work_behind, log.flush_is_due] == [False] * 4
    assert not log.maybe_roll(rested.clock.now_ms() + 100 * DAY_MS)
    assert log.remove_expired_producers(rested.clock.now_ms() + 100 * DAY_MS, DAY_MS) == 0
    size_bytes, segments_count = log.size_bytes, log.segments_count
    log.flush()
    assert not log.is_open
    log.open()
    assert log.is_open
    assert (log.size_bytes, log.segments_count, log.last_stable_offset) == (size_bytes, segments_count, 3)
    assert (log.latest_epoch, log.epoch_for_offset(1), log.end_offset_for_epoch(3)) == (3, 2, (3, 5))
    assert size_bytes == sum(path.stat().st_size for path in rested.files(".log"))
    assert len(log.active_producers()) == 5


def test_an_append_goes_on_where_it_ended(rested: Store, make_batch: MakeBatch, read_log: ReadLog) -> None:
    log = rested.log
    repeated = make_batch([bytes(200)], producer_id=4, producer_epoch=0, base_sequence=0)
    assert log.append_as_leader(repeated, leader_epoch=4).is_duplicate
    assert log.append_as_leader(make_batch([b"new"]), leader_epoch=4).first_offset == 5
    assert [record.offset for record in read_log(log)] == [1, 2, 3, 4, 5]


def test_a_reader_on_the_event_loop_has_a_thread_open_it(rested: Store) -> None:
    log = rested.log
    with pytest.raises(NotInMemoryError) as cold:
        log.read(2, 1000, limit_offset=5, min_one_batch=True, in_memory=True)
    assert not log.is_open
    cold.value.bring_in()
    assert log.read(2, 1000, limit_offset=5, min_one_batch=True, in_memory=True).size_bytes


def test_it_stays_at_rest_over_many_restarts(rested: Store) -> None:
    for _ in range(3):
        log = rested.reopen(clean=True)
        assert not log.is_open
    assert (log.log_start_offset, log.last_stable_offset, log.log_end_offset) == (1, 3, 5)
    assert len(log.open().producers) == 5


def test_after_a_crash_every_log_is_opened(rested: Store) -> None:
    assert rested.reopen(clean=False).is_open
    assert not rested.reopen(clean=True).is_open


def test_a_file_that_changed_while_the_broker_was_down_is_checked_at_the_start(
    rested: Store, read_log: ReadLog
) -> None:
    rested.stop(clean=True)
    with rested.files(".log")[-1].open("ab") as file:
        file.write(b"torn")
    rested.start()
    assert rested.log.is_open
    assert [record.offset for record in read_log(rested.log)] == [1, 2, 3, 4]


def test_a_file_that_is_left_over_is_tidied_up_at_the_start(rested: Store) -> None:
    rested.stop(clean=True)
    leftover = rested.directory / "00000000000000000099.log.deleted"
    leftover.write_bytes(b"")
    rested.start()
    assert rested.log.is_open
    assert not leftover.exists()


def test_a_file_that_changes_under_a_running_broker_takes_its_log_offline(rested: Store, make_batch: MakeBatch) -> None:
    log = rested.log
    rested.files(".log")[0].unlink()
    other = rested.manager.create("other", 0, log.topic_id or pytest.fail("it has an id"), LogConfig())
    for _ in range(2):
        with pytest.raises(LogStorageError, match="topic-0"):
            log.append_as_leader(make_batch(), leader_epoch=4)
    assert log.is_offline
    other.append_as_leader(make_batch(), leader_epoch=0)
    # The disk is not to blame, and the next start looks at this log alone.
    rested.stop(clean=True)
    manager = rested.start()
    assert manager.was_clean_shutdown
    assert list(manager.offline_partitions) == [("topic", 0)]


def test_a_full_disk_does_not_take_it_offline(rested: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tidelog.log.recovery.finish_swaps", full)
    with pytest.raises(LogStorageError, match="can't be opened"):
        rested.log.open()
    monkeypatch.undo()
    assert not rested.log.is_offline
    assert len(rested.log.open().producers) == 5


def test_retention_opens_only_what_may_have_expired(rested: Store, clock: VirtualClock) -> None:
    log = rested.log

    def run() -> None:
        asyncio.run(delete_expired(rested.manager.logs(), clock.now_ms()))

    run()
    clock.advance(ms=6 * DAY_MS)
    run()
    assert not log.is_open
    clock.advance(ms=2 * DAY_MS)
    run()
    assert log.is_open
    assert log.log_start_offset == log.log_end_offset == 5


def test_retention_by_size_opens_a_log_that_is_too_large(rested: Store, clock: VirtualClock) -> None:
    log = rested.log
    log.update_config(LogConfig(segment_bytes=400, retention_bytes=log.size_bytes))
    asyncio.run(delete_expired([log], clock.now_ms()))
    assert not log.is_open
    log.update_config(LogConfig(segment_bytes=400, retention_bytes=300))
    asyncio.run(delete_expired([log], clock.now_ms()))
    assert log.log_start_offset > 1


def test_a_compacted_log_is_rolled_when_its_time_has_come(rested: Store, clock: VirtualClock) -> None:
    log = rested.log
    log.update_config(LogConfig(cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=1000))
    assert not log.maybe_roll(clock.now_ms() + 1000)
    assert not log.is_open
    assert log.maybe_roll(clock.now_ms() + 1001)
    assert log.segments[-1].base_offset == 5


def test_it_can_be_deleted(rested: Store) -> None:
    log = rested.log
    rested.manager.delete("topic", 0)
    assert not log.is_open
    assert not rested.directory.exists()
    assert rested.manager.logs() == []


def test_a_checkpoint_of_an_earlier_version_opens_everything(rested: Store, caplog: pytest.LogCaptureFixture) -> None:
    rested.stop(clean=True)
    path = rested.path / "log-end-checkpoint"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], " ".join(lines[3].split()[:6]), ""]))
    with caplog.at_level(logging.WARNING):
        rested.start()
    assert "expected 8" in caplog.text
    assert rested.log.is_open
    assert rested.log.log_end_offset == 5


@pytest.mark.parametrize("segments_kept", [1, 2, 9])
def test_a_checkpoint_of_an_earlier_stop_condemns_no_log(
    rested: Store, make_batch: MakeBatch, read_log: ReadLog, segments_kept: int
) -> None:
    """The file may come from a backup, or another program stopped the log cleanly since."""
    rested.stop(clean=True)
    stale = (rested.path / "log-end-checkpoint").read_bytes()
    rested.start()
    if segments_kept < len(rested.log.segments):
        rested.log.truncate_to(rested.log.segments[segments_kept].base_offset)
        rested.log.advance_high_watermark(rested.log.log_end_offset)
    else:
        rested.log.append_as_leader(make_batch([b"more"]), leader_epoch=4)
        rested.log.advance_high_watermark(6)
    expected = [record.offset for record in read_log(rested.log)]
    rested.manager.close(broker_epoch=99)
    (rested.path / "log-end-checkpoint").write_bytes(stale)
    rested.start()
    assert not rested.manager.offline_partitions
    assert [record.offset for record in read_log(rested.log)] == expected


def test_two_threads_open_it_once(rested: Store) -> None:
    log = rested.log

    async def open_twice() -> list[object]:
        return list(await asyncio.gather(*(asyncio.to_thread(log.open) for _ in range(8))))

    contents = asyncio.run(open_twice())
    assert all(each is contents[0] for each in contents)
