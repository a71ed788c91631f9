"""A program while it runs: every step is taken, crashed and recovered from, and compared with the model.

What always holds: after each step the log is what the model says, read by offset and by time, with its producers and
leader epochs; after a crash it is what the model allows, and the model goes on from what was found.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from unittest import mock

from log_model import Doubt, ModelBatch, check_compacted, check_whole, read_batches
from log_steps import NOW_MS, TOPIC, LogSteps, Step
from simulated_disk import CrashError
from tidelog.log.checkpoints import CLEAN_SHUTDOWN_FILE
from tidelog.log.inspect import verify
from tidelog.records import parse_header


class LogRun(LogSteps):
    """One program, in directories of its own below `base`."""

    def run(self, steps: list[Step]) -> None:
        boot_id = self._base / "boot_id"
        boot_id.write_text("first")
        with mock.patch("tidelog.log.boot_id.BOOT_ID_PATH", boot_id):
            with self._disk.installed():
                self._open()
                self._find_or_create()
            try:
                for step in steps:
                    with self._disk.installed():
                        ended = self._take(step)
                    if ended:
                        self._recover(step, boot_id)
                    self._compare(random.Random(step.seed))
                self._manager.close()
                problems = list(verify(self._root / f"{TOPIC}-0"))
                assert not problems, problems
            finally:
                self._manager.close(clean=False)

    # Starting

    def _restart(self, step: Step, rng: random.Random) -> None:
        self._doubt = Doubt(starts={self._model.start})
        self._manager.close()
        is_clean = (self._root / CLEAN_SHUTDOWN_FILE).exists()
        if is_clean:
            self._model.flushed()
            self._model.checkpointed()
        self._open()
        self._check_found(is_exact=is_clean, was_power_cut=False)

    def _recover(self, step: Step, boot_id: Path) -> None:
        """Start again as often as it takes, and compare what is there with what may be."""
        was_power_cut = False
        for count, crash in enumerate([*step.crashes[1:], -1]):
            self._disk.go_on()
            self._manager.close(clean=False)
            if step.is_power_cut:
                was_power_cut = True
                self._cut_power(random.Random(step.seed + count))
                boot_id.write_text(f"boot {self._roots}")
            with self._disk.installed():
                if crash >= 0:
                    self._disk.crash_after(crash)
                try:
                    self._open()
                    if crash < 0:
                        self._check_found(is_exact=False, was_power_cut=was_power_cut)
                        return
                except CrashError:
                    continue

    def _cut_power(self, rng: random.Random) -> None:
        self._roots += 1
        target = self._base / str(self._roots)
        self._disk.power_cut(target, rng)
        shutil.rmtree(self._root)
        self._root = target
        self._new_disk()

    def _check_found(self, *, is_exact: bool, was_power_cut: bool) -> None:
        """Hold what a start found against the model, and go on with it."""
        model, doubt = self._model, self._doubt
        is_new = self._find_or_create()
        if is_new:
            assert not is_exact
            assert doubt.may_be_gone or (was_power_cut and model.may_be_gone), "the partition is gone"
            # Its files may come back as long as nothing of the new one is flushed.
            self._model = self._new_model()
            self._model.ghosts = {*model.batches, *model.ghosts, *model.buried}
            return
        log = self._log
        found = read_batches(log)
        start, end = log.log_start_offset, log.log_end_offset
        if is_exact:
            assert (start, end) == (model.start, model.end)
        if was_power_cut:
            promised = max(min(model.durable_end, model.last_end), model.durable_start)
            assert end >= promised, f"the log ends at {end}, {promised} was flushed"
            required_end = model.durable_end
        else:
            ends = {model.end, *doubt.ends, *((model.last_end,) if model.is_compacted else ())}
            assert end in ends, f"the log ends at {end}, not at {model.end}"
            required_end = min(ends)
        assert model.durable_start <= start, f"the log starts at {start}, {model.durable_start} was written down"
        starts = {model.start, *doubt.starts, *(model.ghost_starts if was_power_cut else ())}
        assert start <= max(starts), f"the log starts at {start}, not at {model.start}"
        known = {*model.batches, *doubt.batches, *(model.ghosts | model.buried if was_power_cut else ())}
        required = [batch for batch in model.batches if start < batch.next_offset <= required_end]
        if self._config.is_compacted:
            check_compacted(found, known, required, start)
        else:
            check_whole(found, known, required, start, end)
        self._adopt(found, start, end)

    def _adopt(self, found: list[ModelBatch], start: int, end: int) -> None:
        self._model.adopt(found, self._doubt.batches, start, end)
        log, model = self._log, self._model
        assert start <= log.high_watermark <= end
        model.high_watermark = max(min(model.high_watermark, end), log.high_watermark)
        log.advance_high_watermark(model.high_watermark)

    # Comparing

    def _compare(self, rng: random.Random) -> None:
        log, model = self._log, self._model
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (
            model.start, model.high_watermark, model.end
        )  # fmt: skip
        visible = model.visible()
        assert read_batches(log, rng.choice((100, 400, 5000))) == visible
        for batch in visible:
            if batch.first_offset >= model.start:
                assert log.epoch_for_offset(batch.first_offset) == batch.header.partition_leader_epoch
        if visible:
            offset = rng.randint(max(model.start, visible[0].first_offset), visible[-1].next_offset - 1)
            read = log.read(offset, 1, limit_offset=model.end, min_one_batch=True)
            header = parse_header(read.slices[0].read())
            assert offset <= header.last_offset
            assert header.base_offset <= offset or self._config.is_compacted
        self._compare_times(rng)
        self._compare_producers()
        if not model.has_transactions_below_start():
            assert log.last_stable_offset in model.last_stable_offsets()

    def _compare_times(self, rng: random.Random) -> None:
        log, model = self._log, self._model
        records = model.records()
        times = [record.timestamp for record in records] or [NOW_MS]
        for timestamp in (rng.choice(times), rng.choice(times) + 1, max(times), max(times) + 1):
            found = log.offset_for_timestamp(timestamp)
            found_offset = None if found is None else found.offset
            assert found_offset == model.first_at(timestamp), f"time {timestamp} is at {found_offset}"
        latest = log.offset_of_max_timestamp()
        if latest is not None and not self._config.is_compacted:
            assert latest.timestamp == max(times)
            assert latest.offset == model.first_at(max(times))

    def _compare_producers(self) -> None:
        model = self._model
        entries = {entry.producer_id: entry for entry in self._log.active_producers()}
        for producer_id, known in model.producers().items():
            entry = entries.pop(producer_id, None)
            if entry is None:
                assert known.last_offset < model.start, f"producer {producer_id} is forgotten"
                continue
            if self._config.is_compacted or not model.is_history_known:
                # The log may know of batches that were compacted or deleted, where the model knows only what is left.
                is_older = (entry.producer_epoch, entry.last_sequence) < (known.producer_epoch, known.last_sequence)
                assert not is_older or known.last_offset < model.start
                continue
            assert entry.producer_epoch == known.producer_epoch
            assert entry.last_sequence == known.last_sequence or (known.last_offset < model.start and not entry.batches)
            if known.txn_first_offset >= model.start:
                assert entry.current_txn_first_offset == known.txn_first_offset
        assert not entries or self._config.is_compacted or not model.is_history_known, (
            "there are producers that wrote nothing"
        )
