"""`tidelog bench compaction`: how fast the log cleaners of Tidelog and Apache Kafka go through the same dirty log.

What always holds: both brokers hold the same batches in segments of one size and run one cleaner thread with the same
buffers; the clock runs from the change of `min.cleanable.dirty.ratio` that makes the topic eligible to the moment when
the broker's own cleaner checkpoint says that everything but the active segment is clean; afterwards every record that
is left is read and compared with what must be left, so that nobody looks fast by doing less.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.bench import comparison
from tidelog.bench.brokers import BrokerProcess
from tidelog.bench.compaction_load import ONE_RECORD_BYTES, KeyedLoad, MadeLoad, check_cleaned, make_load, send
from tidelog.bench.comparison import Progress, Quantity, Side, both_running, in_turn
from tidelog.bench.errors import MeasurementError, PlanError
from tidelog.bench.processes import cpu_s_of, reset_resident_peak, resident_peak_bytes_of
from tidelog.bench.report import Row
from tidelog.bench.stage import led_topic
from tidelog.log.checkpoints import CLEANER_OFFSET_FILE
from tidelog.protocol.config_values import ConfigResource
from tidelog.records import Compression

GOAL: Final = 1.0
# One thread each, memory for five million keys, and no waiting between looks for work that could blur the figures.
BROKER_SETTINGS: Final = {
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": str(128 << 20),
    "log.cleaner.io.buffer.size": str(4 << 20),
    "log.cleaner.backoff.ms": "50",
}
SEGMENT_BYTES: Final = 50_000_000
SMALL_SHARE: Final = 0.1
SEGMENTS_MIN: Final = 8  # of records that are not compressed; compressed ones fill fewer
NEVER_DIRTY_ENOUGH: Final = "1.0"
TOPIC_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT_BYTES),
    "min.cleanable.dirty.ratio": NEVER_DIRTY_ENOUGH,
}
ALWAYS_DIRTY_ENOUGH: Final = "0.01"
WARM_UP_MEGABYTES: Final = 250
_DEADLINE_S = 900.0
_POLL_S = 0.01


@dataclass(frozen=True)
class Plan(comparison.Plan):
    """How much is measured."""

    runs: int = 2
    megabytes: int = 500
    keys: int = 1_000_000
    batches: tuple[tuple[int, Compression], ...] = (
        (16_000, Compression.NONE),
        (16_000, Compression.LZ4),
        (16_000, Compression.ZSTD),
        (500_000, Compression.NONE),
        (ONE_RECORD_BYTES, Compression.NONE),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.megabytes * 1_000_000 < SEGMENTS_MIN * SEGMENT_BYTES:
            raise PlanError(
                f"compaction needs some segments, so at least {SEGMENTS_MIN * SEGMENT_BYTES // 1_000_000} MB"
            )

    def loads(self) -> Iterator[KeyedLoad]:
        for batch_bytes, compression in self.batches:
            # A request holds one batch, so that small ones take their time to be sent.
            share = SMALL_SHARE if batch_bytes == ONE_RECORD_BYTES else 1.0
            yield KeyedLoad(int(share * self.megabytes), self.keys, batch_bytes, compression)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """One clean of one topic."""

    seconds: float
    dirty_bytes: int  # of the segments that were cleaned, as they lay there before
    cpu_s: float
    peak_bytes: int

    @property
    def mb_per_s(self) -> float:
        return self.dirty_bytes / 1e6 / self.seconds

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / (self.dirty_bytes / 1e9)


def compare(plan: Plan, progress: Progress, directory: Path | None = None) -> list[Row]:
    """Measure both brokers; rows in the order of the docs' table."""
    with both_running(directory, progress, BROKER_SETTINGS) as (work, sides):
        _warm_up(sides, plan, work, progress)
        quantities: list[Quantity] = []
        for load in plan.loads():
            quantities += _measure_load(sides, plan, load, work, progress)
    return comparison.rows(quantities, *(side.samples for side in sides))


def _warm_up(sides: Sequence[Side], plan: Plan, work: Path, progress: Progress) -> None:
    """A JVM compiles what it runs often; its first clean is not its speed."""
    load = KeyedLoad(WARM_UP_MEGABYTES, plan.keys, *plan.batches[0])
    made = make_load(work / "batches", load)
    for side in sides:
        progress(f"warming up {side.broker.name} with {load.megabytes} MB")
        _clean(side.broker, "warm-up", made)


def _measure_load(sides: Sequence[Side], plan: Plan, load: KeyedLoad, work: Path, progress: Progress) -> list[Quantity]:
    progress(f"making {load.megabytes} MB in {load.label}")
    made = make_load(work / "batches", load)
    what = f"compact {load.label}"
    for run in range(plan.runs):
        for side in in_turn(sides, run):
            progress(f"{load.label}: run {run + 1} of {plan.runs}, {side.broker.name}")
            topic = f"compacted-{load.batch_bytes}-{load.compression.label}-{run}"
            cleaned = _clean(side.broker, topic, made)
            side.samples.add(f"{what} MB/s", cleaned.mb_per_s)
            side.samples.add(f"{what} CPU", cleaned.cpu_s_per_gb)
            side.samples.add(f"{what} memory", cleaned.peak_bytes / 1e6)
    return [
        Quantity(f"{what} MB/s", what, "MB/s", GOAL, higher_is_better=True),
        Quantity(f"{what} CPU", what, "broker CPU s/GB"),
        Quantity(f"{what} memory", what, "memory at most, MB"),
    ]


def _clean(broker: BrokerProcess, topic: str, made: MadeLoad) -> Cleaned:
    """Fill a topic that may not be cleaned yet, let it be cleaned, and look at what is left."""
    with led_topic(broker, topic, TOPIC_SETTINGS) as admin:
        send(broker, topic, made)
        (partition,) = broker.directory.rglob(f"{topic}-0")
        logs = sorted(partition.glob("*.log"))
        dirty_bytes = sum(log.stat().st_size for log in logs[:-1])
        clean_end = int(logs[-1].stem)
        reset_resident_peak(broker.pid)
        cpu_before_s, began_s = cpu_s_of(broker.pid), time.perf_counter()
        changes = {ConfigResource.topic(topic): {"min.cleanable.dirty.ratio": ALWAYS_DIRTY_ENOUGH}}
        admin.incremental_alter_configs(changes).raise_for_errors()
        _wait_until_clean(broker, partition.parent / CLEANER_OFFSET_FILE, topic, clean_end)
        seconds = time.perf_counter() - began_s
        cleaned = Cleaned(
            seconds=seconds,
            dirty_bytes=dirty_bytes,
            cpu_s=cpu_s_of(broker.pid) - cpu_before_s,
            peak_bytes=resident_peak_bytes_of(broker.pid),
        )
        check_cleaned(broker, topic, made, clean_end)
        return cleaned


def _wait_until_clean(broker: BrokerProcess, checkpoint: Path, topic: str, clean_end: int) -> None:
    """Until the checkpoint that both brokers write after a clean, in one format, has reached the active segment."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while (cleaned := _cleaned_to(checkpoint, topic)) < clean_end:
        if time.monotonic() > deadline_s:
            raise MeasurementError(f"{broker.name} has cleaned up to {cleaned}, not to {clean_end}")
        time.sleep(_POLL_S)


def _cleaned_to(checkpoint: Path, topic: str) -> int:
    """The topic's row; Kafka makes the file before it has anything to say."""
    start = f"{topic} 0 "
    rows = checkpoint.read_text().splitlines() if checkpoint.exists() else []
    return next((int(row.removeprefix(start)) for row in rows if row.startswith(start)), 0)
