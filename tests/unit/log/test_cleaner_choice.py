"""Which log is cleaned, how far, which segments become one, and how fast it may go."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.log import LogConfig, PartitionLog
from tidelog.log.cleaner_choice import RUN_SEGMENTS_MAX, Run, measure
from tidelog.log.cleaner_io import SourceSegment, Throttle
from tidelog.log.config import FOREVER

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store

COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))
HOUR_MS = 3_600_000
Fill = Callable[..., None]


@pytest.fixture
def log(store: Store) -> PartitionLog:
    return store.create(COMPACTED)


@pytest.fixture
def fill(log: PartitionLog, make_batch: MakeBatch, clock: VirtualClock) -> Fill:
    """Add a segment with one batch of a size, flushed and committed; the next one is active and empty."""

    def add(size_bytes: int = 1_000, timestamp: int | None = None) -> None:
        empty = len(make_batch([b""], keys=[b"k"]))
        time = clock.now_ms() if timestamp is None else timestamp
        batch = make_batch([b"x" * (size_bytes - empty - 2)], keys=[b"k"], timestamps=[time])
        log.append_as_leader(batch, leader_epoch=0)
        log.roll()
        log.flush()
        log.advance_high_watermark(log.log_end_offset)

    return add


def test_a_log_is_due_once_more_than_the_ratio_is_dirty(log: PartitionLog, fill: Fill, clock: VirtualClock) -> None:
    for _ in range(4):
        fill()
    log.first_dirty_offset = 2
    measured = measure(log, clock.now_ms())
    assert measured.dirty_ratio == pytest.approx(0.5, abs=0.01)
    log.update_config(replace(COMPACTED, min_cleanable_dirty_ratio=measured.dirty_ratio))
    assert not measure(log, clock.now_ms()).is_due
    fill()
    measured = measure(log, clock.now_ms())
    assert measured.is_due
    assert (measured.first_dirty_offset, measured.end_offset) == (2, 5)


def test_an_empty_log_is_never_due(log: PartitionLog, clock: VirtualClock) -> None:
    log.update_config(replace(COMPACTED, min_cleanable_dirty_ratio=0.0, max_compaction_lag_ms=1))
    assert not measure(log, clock.now_ms() + HOUR_MS).is_due


def test_the_active_segment_does_not_count(log: PartitionLog, make_batch: MakeBatch, clock: VirtualClock) -> None:
    log.append_as_leader(make_batch([b"v"], keys=[b"k"]), leader_epoch=0)
    log.flush()
    log.advance_high_watermark(1)
    assert measure(log, clock.now_ms()).dirty_bytes == 0


def test_segments_that_reach_beyond_the_high_watermark_wait(
    log: PartitionLog, make_batch: MakeBatch, clock: VirtualClock
) -> None:
    for _ in range(3):
        log.append_as_leader(make_batch([b"v", b"w"], keys=[b"k", b"l"]), leader_epoch=0)
        log.roll()
    log.flush()
    for high_watermark, end_offset in ((0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (6, 6)):
        log.advance_high_watermark(high_watermark)
        assert measure(log, clock.now_ms()).end_offset == end_offset


def test_what_is_younger_than_the_lag_waits(log: PartitionLog, fill: Fill, clock: VirtualClock) -> None:
    log.update_config(replace(COMPACTED, min_compaction_lag_ms=24 * HOUR_MS))
    fill()
    clock.advance(hours=12)
    fill()
    clock.advance(hours=12)
    assert measure(log, clock.now_ms()).end_offset == 1
    clock.advance(hours=11, minutes=59)
    assert measure(log, clock.now_ms()).end_offset == 1
    clock.advance(minutes=1)
    assert measure(log, clock.now_ms()).end_offset == 2


def test_a_record_that_waited_too_long_makes_a_log_due(log: PartitionLog, fill: Fill, clock: VirtualClock) -> None:
    log.update_config(replace(COMPACTED, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=24 * HOUR_MS))
    fill()
    fill()
    log.first_dirty_offset = 1
    clock.advance(hours=24)
    assert not measure(log, clock.now_ms()).is_due
    clock.advance(ms=1)
    assert measure(log, clock.now_ms()).is_due
    assert measure(log, clock.now_ms()).delay_ms == 1
    log.first_dirty_offset = 2
    assert not measure(log, clock.now_ms()).is_due


def test_the_lag_ends_the_active_segment_in_time(log: PartitionLog, make_batch: MakeBatch, clock: VirtualClock) -> None:
    log.update_config(replace(COMPACTED, max_compaction_lag_ms=24 * HOUR_MS))
    log.append_as_leader(make_batch([b"v"], keys=[b"k"]), leader_epoch=0)
    clock.advance(hours=24)
    assert not log.maybe_roll(clock.now_ms())
    clock.advance(ms=1)
    assert log.maybe_roll(clock.now_ms())
    clock.advance(hours=1)
    log.append_as_leader(make_batch([b"v"], keys=[b"k"]), leader_epoch=0)
    clock.advance(hours=25)
    log.append_as_leader(make_batch([b"v"], keys=[b"k"]), leader_epoch=0)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]


def test_a_log_that_is_not_compacted_rolls_by_its_own_time_only() -> None:
    assert replace(LogConfig(), max_compaction_lag_ms=1).max_segment_ms == LogConfig().segment_ms
    assert replace(COMPACTED, max_compaction_lag_ms=FOREVER).max_segment_ms == COMPACTED.segment_ms
    assert replace(COMPACTED, max_compaction_lag_ms=0).max_segment_ms == COMPACTED.segment_ms


@pytest.mark.parametrize(
    ("noted", "policy", "words"),
    [
        (1, {"compact"}, "the checkpointed offset 1 lies below its start 2"),
        (1, {"compact", "delete"}, None),
        (9, {"compact"}, "the checkpointed offset 9 lies above its end 4"),
        (9, {"compact", "delete"}, "the checkpointed offset 9 lies above its end 4"),
    ],
)
def test_an_offset_outside_of_the_log_starts_anew(
    store: Store,
    log: PartitionLog,
    fill: Fill,
    caplog: pytest.LogCaptureFixture,
    noted: int,
    policy: set[str],
    words: str | None,
) -> None:
    for _ in range(4):
        fill()
    log.set_log_start_offset(2)
    log.first_dirty_offset = noted
    log.update_config(replace(COMPACTED, cleanup_policy=frozenset(policy)))
    with caplog.at_level(logging.WARNING):
        measured = store.manager.cleaner._measure(log)
    assert measured is not None
    assert measured.first_dirty_offset == 2
    assert log.first_dirty_offset == 2
    assert ([record.getMessage() for record in caplog.records] != []) == (words is not None)
    assert words is None or words in caplog.text


def test_truncation_makes_what_was_clean_dirty(log: PartitionLog, fill: Fill) -> None:
    for _ in range(4):
        fill()
    log.first_dirty_offset = 4
    log.truncate_to(2)
    assert log.first_dirty_offset == 2


def segment(base: int, end: int, size: int = 100, index: int = 8, time_index: int = 12) -> SourceSegment:
    return SourceSegment(Path(f"{base:020d}.log"), base, end, size, index, time_index)


@pytest.mark.parametrize(
    ("segment_bytes", "index_bytes", "takes"),
    [(200, 24, True), (199, 24, False), (200, 23, False), (10**9, 15, False)],
)
def test_a_run_takes_what_fits_behind_what_is_left(segment_bytes: int, index_bytes: int, takes: bool) -> None:
    run = Run(0, segments_count=1, size_bytes=100, index_bytes=8, time_index_bytes=12)
    assert run.takes(segment(10, 20), segment_bytes, index_bytes) == takes


def test_a_run_takes_one_segment_whatever_its_size() -> None:
    assert Run(0).takes(segment(0, 10, size=10**9), 14, 4)


def test_offsets_of_a_run_fit_its_index() -> None:
    run = Run(0, segments_count=1)
    assert run.takes(segment(5, 2**31), 1_000, 1_000)
    assert not run.takes(segment(5, 2**31 + 1), 1_000, 1_000)
    assert run.takes(segment(5, 2**31 + 1, size=0), 1_000, 1_000)


def test_a_run_is_no_longer_than_the_loop_can_rename_in_a_turn() -> None:
    assert Run(0, segments_count=RUN_SEGMENTS_MAX - 1).takes(segment(5, 6), 1_000, 1_000)
    assert not Run(0, segments_count=RUN_SEGMENTS_MAX).takes(segment(5, 6), 1_000, 1_000)


def test_all_threads_keep_to_one_budget() -> None:
    throttle = Throttle(1_000)
    assert throttle.take(500, now_ms=0) == 500
    assert throttle.take(500, now_ms=0) == 1_000
    assert throttle.take(100, now_ms=1_000) == 100
    assert throttle.take(100, now_ms=60_000) == 100  # what was not used is not saved up
    assert Throttle(1.7976931348623157e308).take(10**9, now_ms=5) == 0
