"""A log against a list: any order of appends, rolls, truncations, deletions, clean stops and crashes."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidelog.common.clock import VirtualClock
from tidelog.common.ids import random_uuid
from tidelog.log import LogConfig, LogManager, PartitionLog
from tidelog.log.inspect import verify
from tidelog.records import decode_records, encode_batch, iter_headers

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, file_delete_delay_ms=0)


class LogModel(RuleBasedStateMachine):
    """`batches` is what the log must hold: the first offset, the values and the timestamps of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="tidelog-model-"))
        self.clock = VirtualClock(1_700_000_000_000)
        self.batches: list[tuple[int, list[bytes], list[int]]] = []
        self.end = self.start = self.high_watermark = self.counter = self.epoch = 0

    def teardown(self) -> None:
        self.manager.close(clean=False)
        shutil.rmtree(self.root)

    @initialize()
    def create(self) -> None:
        self.open()
        self.manager.create("topic", 0, random_uuid(), CONFIG)

    def open(self) -> None:
        self.manager = LogManager([self.root], {}, self.clock)
        self.manager.open("cluster", 1)
        self.manager.load({"topic": CONFIG})

    @property
    def log(self) -> PartitionLog:
        log = self.manager.get("topic", 0)
        assert log is not None
        return log

    @rule(sizes=st.lists(st.integers(0, 120), min_size=1, max_size=4), skew_ms=st.integers(-50, 50))
    def append(self, sizes: list[int], skew_ms: int) -> None:
        self.counter += 1
        values = [b"%d/%d" % (self.counter, index) + bytes(size) for index, size in enumerate(sizes)]
        times = [self.clock.now_ms() + skew_ms + index for index in range(len(values))]
        batch = encode_batch(
            [(None, value, (), time) for value, time in zip(values, times, strict=True)],
            producer_id=1,
            producer_epoch=self.counter % 30_000,
            base_sequence=0,
        )
        result = self.log.append_as_leader(memoryview(batch), leader_epoch=self.epoch)
        assert result.first_offset == self.end
        self.batches.append((self.end, values, times))
        self.end += len(values)

    @rule(ms=st.integers(1, 100))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.flushed_offset == self.end

    @rule()
    def checkpoint(self) -> None:
        self.manager.checkpoint()

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        ends = [first + len(values) for first, values, _ in self.batches]
        if ends:
            self.high_watermark = max(self.high_watermark, ends[int(share * (len(ends) - 1))])
            self.log.advance_high_watermark(self.high_watermark)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        self.start = max(self.start, int(self.start + share * (self.high_watermark - self.start)))
        self.log.set_log_start_offset(self.start)
        for path in self.log.take_removed_paths(self.clock.now_ms()):
            path.unlink(missing_ok=True)
        # A real broker writes it in the background; a crash before that would bring records back, which is allowed.
        self.manager.checkpoint()

    @precondition(lambda self: self.high_watermark < self.end)
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.high_watermark + int(share * (self.end - self.high_watermark))
        self.log.truncate_to(offset)
        self.drop_from(offset)
        self.manager.checkpoint()

    def drop_from(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch[0] + len(batch[1]) <= offset]
        self.end = self.batches[-1][0] + len(self.batches[-1][1]) if self.batches else self.start
        self.end = max(self.end, self.start)

    @rule()
    def restart(self) -> None:
        self.manager.close()
        self.open()

    @rule()
    def crash(self) -> None:
        self.manager.checkpoint_high_watermarks()
        self.manager.close(clean=False)
        self.open()
        self.log.advance_high_watermark(self.high_watermark)

    @rule(share=st.floats(0, 1))
    def crash_with_torn_tail(self, share: float) -> None:
        """What was not committed may be torn anywhere."""
        self.manager.checkpoint_high_watermarks()
        active = self.log.segments[-1]
        committed = active.find(self.high_watermark)
        self.manager.close(clean=False)
        if committed is not None and active.size_bytes:
            size = committed.position + int(share * (active.size_bytes - committed.position))
            os.truncate(active.path, size)
            kept = [header for _, header in iter_headers(active.path.read_bytes(), allow_partial=True)]
            self.drop_from(kept[-1].next_offset if kept else active.base_offset)
        self.open()
        self.log.advance_high_watermark(self.high_watermark)

    @invariant()
    def offsets_agree(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (
            self.start,
            self.high_watermark,
            self.end,
        )

    @invariant()
    def records_agree(self) -> None:
        found: dict[int, tuple[bytes | None, int]] = {}
        offset = self.start
        while offset < self.end:
            read = self.log.read(offset, 400, limit_offset=self.end, min_one_batch=True)
            data = read.slices[0].read()
            for position, header in iter_headers(data, allow_partial=True):
                for record in decode_records(data, position):
                    found[record.offset] = (record.value, record.timestamp)
                offset = header.next_offset
        expected = {
            first + index: (value, time)
            for first, values, times in self.batches
            for index, (value, time) in enumerate(zip(values, times, strict=True))
        }
        first_found = min(found, default=self.end)
        assert first_found <= self.start or not found
        assert found == {offset: record for offset, record in expected.items() if offset >= first_found}

    @invariant()
    def timestamps_agree(self) -> None:
        target = self.clock.now_ms() - 20
        expected = next(
            (
                first + index
                for first, _, times in self.batches
                for index, time in enumerate(times)
                if time >= target and first + index >= self.start
            ),
            None,
        )
        found = self.log.offset_for_timestamp(target)
        assert (None if found is None else found.offset) == expected

    @rule()
    def files_agree(self) -> None:
        self.manager.close()
        assert list(verify(self.root / "topic-0")) == []
        self.open()


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
