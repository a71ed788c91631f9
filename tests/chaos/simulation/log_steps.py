"""What a program can do to one partition's log, each step with what it does to the model.

What always holds: before a step changes the log it notes what may be found should the process end in the middle, and
the model follows only when the step is done. A step finds something sensible to do in any state.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from log_model import Doubt, LogModel, ModelBatch, check_compacted, read_batches
from simulated_disk import FAILURES, CrashError, SimulatedDisk
from tidelog.common.clock import VirtualClock
from tidelog.common.ids import random_uuid
from tidelog.log import LogConfig, LogManager, LogStorageError, PartitionLog
from tidelog.log.errors import DataDirectoryError
from tidelog.log.producer_entry import ProducerEntry
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import (
    BatchDraft,
    Compression,
    ControlRecordType,
    assign_offsets,
    draft_marker,
    encode_batch,
    parse_header,
    set_log_append_time,
)

TOPIC = "topic"
NOW_MS = 1_700_000_000_000
PRODUCERS = (7, 8, 9)
COMPRESSIONS = (Compression.NONE, Compression.NONE, *Compression)
KEYS = 6
CLEANER_BYTES = 4096  # room for more keys than there are, and cheap to make


@dataclass(frozen=True)
class Step:
    """One thing to do; `a` and `b` are shares from which the step takes whatever it needs."""

    name: str
    a: float
    b: float
    # Calls after which the process ends: in this step, then in each start that follows. Empty: it goes well.
    crashes: tuple[int, ...] = ()
    is_power_cut: bool = False
    # Calls after which one fails; the log may refuse, and be restarted.
    failure: int = -1
    seed: int = 0


# How often each step is taken.
STEPS: dict[str, float] = {
    "append": 10,
    "append_by_producer": 8,
    "append_in_transaction": 4,
    "end_transaction": 3,
    "append_as_follower": 4,
    "retry": 3,
    "new_epoch": 2,
    "roll": 2,
    "flush": 4,
    "checkpoint": 2,
    "commit": 5,
    "delete_records": 2,
    "truncate": 2,
    "truncate_fully": 0.5,
    "expire": 1.5,
    "clean": 2,
    "remove_files": 1,
    "pass_time": 2,
    "restart": 1.5,
    "recreate": 0.3,
}


class LogSteps:
    """The log, its model, and the steps."""

    def __init__(self, base: Path, config: LogConfig) -> None:
        self._base = base
        self._config = config
        self._roots = 0
        self._clock = VirtualClock(NOW_MS)
        self._model = self._new_model()
        self._doubt = Doubt()
        self._epoch = self._counter = 0
        self._topic_id = random_uuid()
        self._root = base / "0"
        self._root.mkdir()
        self._new_disk()

    def _new_model(self) -> LogModel:
        return LogModel(is_compacted=self._config.is_compacted)

    def _new_disk(self) -> None:
        shelf = self._base / f"shelf-{self._roots}"
        shelf.mkdir()
        self._disk = SimulatedDisk(self._root, shelf)

    @property
    def _log(self) -> PartitionLog:
        log = self._manager.get(TOPIC, 0)
        assert log is not None
        return log

    def _open(self) -> None:
        settings = {"num.recovery.threads.per.data.dir": 1, "log.cleaner.dedupe.buffer.size": CLEANER_BYTES}
        self._manager = LogManager([self._root], settings, self._clock)
        self._manager.open("cluster", 1)
        self._manager.load({TOPIC: self._config})

    def _find_or_create(self) -> bool:
        """Whether it was made anew."""
        is_new = self._manager.get(TOPIC, 0) is None
        self._manager.get_or_create(TOPIC, 0, self._topic_id, self._config)
        return is_new

    def _take(self, step: Step) -> bool:
        """Whether the process has ended with it."""
        rng = random.Random(step.seed)
        take: Callable[[Step, random.Random], None] = getattr(self, f"_{step.name}")
        self._doubt = Doubt()
        if step.crashes:
            self._disk.crash_after(step.crashes[0], torn_share=rng.random())
            try:
                take(step, rng)
            except CrashError:
                return True
            self._doubt = Doubt()
            return True
        if step.failure >= 0:
            self._disk.fail_after(step.failure, rng.choice(FAILURES), torn_share=rng.random())
            try:
                take(step, rng)
            except (LogStorageError, DataDirectoryError, OSError):
                return True
            finally:
                self._disk.go_on()
            is_offline = any(directory.offline_reason for directory in self._manager.directories)
            if is_offline or self._log.is_offline:
                return True
            self._doubt = Doubt()
            return False
        take(step, rng)
        return False

    def _records(self, rng: random.Random) -> list[tuple[bytes | None, bytes | None, tuple[()], int]]:
        self._counter += 1
        count = rng.randint(1, 4)
        now_ms = self._clock.now_ms() + rng.randint(-50, 50)
        return [(b"%d" % rng.randrange(KEYS), self._value(i, rng), (), now_ms + i) for i in range(count)]

    def _value(self, place: int, rng: random.Random) -> bytes | None:
        """No two are alike, so that none can stand in for another."""
        if self._config.is_compacted and rng.random() < 0.1:
            return None
        return b"%d/%d/" % (self._counter, place) + rng.randbytes(rng.choice((0, 20, 90)))

    def _append_batch(self, appended: bytearray | BatchDraft) -> None:
        if isinstance(appended, BatchDraft):
            batch = appended.buffer
            appended.seal()
        else:
            batch = appended
        header = parse_header(batch)
        expected = bytearray(batch)
        end = self._model.end
        assign_offsets(memoryview(expected), end, self._epoch)
        self._doubt = Doubt(ends={end + header.records_count}, batches=[ModelBatch(bytes(expected))])
        if self._config.uses_log_append_time:
            self._doubt.batches = [ModelBatch(self._with_append_time(expected))]
        result = self._log.append_as_leader(
            memoryview(appended) if isinstance(appended, bytearray) else appended, leader_epoch=self._epoch
        )
        assert (result.first_offset, result.is_duplicate) == (end, False)
        self._model.append(bytes(batch))
        assert self._doubt.batches == [self._model.batches[-1]]

    def _with_append_time(self, batch: bytearray) -> bytes:
        set_log_append_time(memoryview(batch), self._clock.now_ms())
        return bytes(batch)

    def _append(self, step: Step, rng: random.Random) -> None:
        self._append_batch(encode_batch(self._records(rng), compression=rng.choice(COMPRESSIONS)))

    def _append_by_producer(self, step: Step, rng: random.Random, *, is_transactional: bool = False) -> None:
        producer_id = rng.choice(PRODUCERS)
        known = self._model.producers().get(producer_id)
        if known is not None and known.txn_first_offset >= 0:
            is_transactional = True
        entry = self._entry_of(producer_id)
        producer_epoch, sequence = 0, 0
        if known is not None:
            producer_epoch, sequence = known.producer_epoch, known.last_sequence + 1
        if entry is not None and (self._config.is_compacted or not entry.batches or not self._model.is_history_known):
            # Of what lies below the log's start only the end of a transaction may be left; of what was compacted, or
            # deleted and brought back, the log may know more than is there.
            producer_epoch, sequence = entry.producer_epoch, entry.last_sequence + 1
            is_transactional |= entry.current_txn_first_offset >= 0
        if entry is not None and rng.random() < 0.1:
            producer_epoch, sequence = producer_epoch + 1, 0
        self._append_batch(
            encode_batch(
                self._records(rng),
                compression=rng.choice(COMPRESSIONS),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=sequence,
                is_transactional=is_transactional,
            )
        )

    def _append_in_transaction(self, step: Step, rng: random.Random) -> None:
        # In compacted logs aborted records are removed, too; that has tests of its own.
        self._append_by_producer(step, rng, is_transactional=not self._config.is_compacted)

    def _end_transaction(self, step: Step, rng: random.Random) -> None:
        for producer_id, known in self._model.producers().items():
            if known.txn_first_offset >= 0:
                marker = draft_marker(
                    rng.choice(tuple(ControlRecordType)),
                    producer_id=producer_id,
                    producer_epoch=known.producer_epoch,
                    coordinator_epoch=1,
                    timestamp_ms=self._clock.now_ms(),
                )
                return self._append_batch(marker)

    def _append_as_follower(self, step: Step, rng: random.Random) -> None:
        batches = []
        end = self._model.end
        for _ in range(rng.randint(1, 4)):
            encoded = encode_batch(self._records(rng), compression=rng.choice(COMPRESSIONS))
            assign_offsets(memoryview(encoded), end, self._epoch)
            batches.append(ModelBatch(bytes(encoded)))
            end = batches[-1].next_offset
        self._doubt = Doubt(ends={batch.next_offset for batch in batches}, batches=batches)
        self._log.append_as_follower(
            memoryview(bytearray(b"".join(batch.contents for batch in batches))), leader_epoch=self._epoch
        )
        for batch in batches:
            self._model.append(batch.contents)

    def _retry(self, step: Step, rng: random.Random) -> None:
        """A producer sends a batch again: it is never written twice."""
        recent = [batch for known in self._model.producers().values() for batch in known.recent]
        if not recent:
            return
        batch = rng.choice(recent)
        header = batch.header
        if batch.next_offset <= self._model.start or header.records_count <= header.last_offset_delta:
            # Deleted, or not whole any more: the log need not know it, or would not take it from a producer.
            return
        entry = self._entry_of(header.producer_id)
        if entry is None or entry.producer_epoch != header.producer_epoch:
            return
        contents = bytearray(batch.contents)
        contents[:8] = bytes(8)  # a producer's batches all have base offset 0
        if self._config.uses_log_append_time:
            # As the producer sent it: without the broker's type of timestamps.
            contents = encode_batch(
                [(record.key, record.value, (), record.timestamp) for record in batch.records],
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                is_transactional=header.is_transactional,
            )
        end = self._log.log_end_offset
        try:
            result = self._log.append_as_leader(memoryview(contents), leader_epoch=self._epoch)
            assert (result.first_offset, result.is_duplicate) == (batch.first_offset, True)
        except KafkaError as error:
            # After a start only the last batch is known for sure.
            if error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or header.last_offset == entry.last_offset:
                raise
        assert self._log.log_end_offset == end

    def _entry_of(self, producer_id: int) -> ProducerEntry | None:
        return next((entry for entry in self._log.active_producers() if entry.producer_id == producer_id), None)

    def _new_epoch(self, step: Step, rng: random.Random) -> None:
        self._epoch += rng.randint(1, 2)
        self._log.assign_epoch(self._epoch, self._log.log_end_offset)

    def _roll(self, step: Step, rng: random.Random) -> None:
        self._log.roll()

    def _flush(self, step: Step, rng: random.Random) -> None:
        is_due = self._log.has_unflushed
        self._log.flush()
        assert self._log.flushed_offset == self._model.end
        if is_due:
            self._model.flushed()

    def _checkpoint(self, step: Step, rng: random.Random) -> None:
        self._doubt = Doubt(starts={self._model.start})
        if self._manager.checkpoint():
            self._model.checkpointed()

    def _commit(self, step: Step, rng: random.Random) -> None:
        model = self._model
        ends = [batch.next_offset for batch in model.visible()]
        if ends:
            model.high_watermark = max(model.high_watermark, ends[int(step.a**0.3 * len(ends))])
            self._log.advance_high_watermark(model.high_watermark)

    def _delete_records(self, step: Step, rng: random.Random) -> None:
        model = self._model
        start = max(model.start, int(model.start + step.a * (model.high_watermark - model.start + 1)))
        start = min(start, model.high_watermark)
        self._doubt = Doubt(starts=set(range(model.start, start + 1)))
        self._log.set_log_start_offset(start)
        model.start = start
        if step.b < 0.5 and self._manager.checkpoint():
            model.checkpointed()

    def _truncate(self, step: Step, rng: random.Random) -> None:
        model = self._model
        # Mostly what is not committed; a follower of an unclean leader may have to go below.
        lowest = model.start if step.b < 0.2 else model.high_watermark
        offset = int(lowest + step.a * (model.end - lowest))
        if offset >= model.end:
            return
        points = {point for point in model.truncation_points() if point <= model.end}
        self._doubt = Doubt(ends=points, starts={offset})
        if offset <= model.start:
            self._truncate_fully_at(offset, lambda: self._log.truncate_to(offset))
            return
        before = self._new_model()
        before.batches, before.end, before.start = list(model.batches), model.end, model.start
        before.truncate(offset)
        if before.end < model.start:
            # The first batch goes as a whole.
            self._truncate_fully_at(model.start, lambda: self._log.truncate_to(offset))
            return
        self._doubt.ends = {point for point in points if point >= before.end}
        durable_end = model.durable_end
        model.durable_end = min(model.durable_end, before.end)
        assert self._log.truncate_to(offset)
        model.durable_end = durable_end
        model.truncate(offset)
        self._doubt = Doubt(starts={model.start})
        if self._manager.checkpoint():
            model.checkpointed()

    def _truncate_fully(self, step: Step, rng: random.Random) -> None:
        model = self._model
        offset = int(step.a * 1.5 * model.end)
        self._truncate_fully_at(offset, lambda: self._log.truncate_fully_and_start_at(offset))

    def _truncate_fully_at(self, offset: int, truncate: Callable[[], object]) -> None:
        model = self._model
        self._doubt = Doubt(ends={*model.truncation_points(), offset}, starts={*model.truncation_points(), offset})
        model.durable_end = min(model.durable_end, offset, model.start)
        model.durable_start = min(model.durable_start, offset)
        truncate()
        model.start_at(offset)
        if self._manager.checkpoint():
            model.checkpointed()

    def _expire(self, step: Step, rng: random.Random) -> None:
        """Retention: what goes must be old enough or too much, and below the high watermark."""
        model, config, now_ms = self._model, self._config, self._clock.now_ms()
        self._doubt = Doubt(starts=set(range(model.start, model.high_watermark + 1)))
        self._log.delete_expired(now_ms)
        start = self._log.log_start_offset
        assert model.start <= start <= model.high_watermark
        gone = [batch for batch in model.visible() if batch.next_offset <= start]
        left_bytes = sum(len(batch.contents) for batch in model.visible()) - sum(len(batch.contents) for batch in gone)
        for batch in gone:
            is_old = 0 <= config.retention_ms < now_ms - batch.header.max_timestamp
            assert is_old or 0 <= config.retention_bytes <= left_bytes, "a segment went too early"
        model.start = start
        if step.b < 0.5 and self._log.has_dropped_segments:
            self._manager.rename_dropped_segments()
            if step.failure < 0:
                model.checkpointed()

    def _clean(self, step: Step, rng: random.Random) -> None:
        """Compaction: only outdated records go, and nothing else changes."""
        if not self._config.is_compacted:
            return
        model, before = self._model, self._model.visible()
        asyncio.run(self._manager.cleaner.run())
        found = read_batches(self._log)
        check_compacted(found, {*before}, before, model.start)
        model.batches = [batch for batch in model.batches if batch.next_offset <= model.start] + found

    def _remove_files(self, step: Step, rng: random.Random) -> None:
        for path in self._log.take_removed_paths(self._clock.now_ms()):
            path.unlink(missing_ok=True)

    def _pass_time(self, step: Step, rng: random.Random) -> None:
        self._clock.advance(ms=int(step.a * 200))
        self._log.maybe_roll(self._clock.now_ms())

    def _recreate(self, step: Step, rng: random.Random) -> None:
        self._doubt = Doubt(may_be_gone=True, ends={0}, starts={0})
        self._manager.delete(TOPIC, 0)
        self._manager.flush_deletions()
        self._model, self._topic_id = self._new_model(), random_uuid()
        self._find_or_create()
