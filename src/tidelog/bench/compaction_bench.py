"""`tidelog bench compaction`: how fast the log cleaners of Tidelog and Apache Kafka go through the same dirty log.

What always holds: both brokers hold the same batches in segments of one size and run one cleaner thread with the same
buffers; the clock runs from the change of `min.cleanable.dirty.ratio` that makes the topic eligible to the moment when
the broker's own cleaner checkpoint says that everything but the active segment is clean; afterwards every record that
is left is read and compared with what must be left, so that nobody looks fast by doing less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog.bench.brokers import BrokerProcess, KafkaBroker, TidelogBroker, kafka_jars
from tidelog.bench.compaction_load import ONE_RECORD_BYTES, KeyedLoad, MadeLoad, check_cleaned, make_load, send
from tidelog.bench.errors import MeasurementError, PlanError
from tidelog.bench.processes import cpu_of, reset_resident_peak, resident_peak_bytes_of
from tidelog.bench.report import Row, median_row
from tidelog.bench.stage import led_topic, work_directory
from tidelog.log.checkpoints import CLEANER_OFFSET_FILE
from tidelog.protocol.config_values import ConfigResource
from tidelog.records import Compression

Progress = Callable[[str], None]

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


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. Runs are even, so that each broker comes first equally often."""

    megabytes: int = 1000
    keys: int = 1_000_000
    runs: int = 2
    batches: tuple[tuple[int, Compression], ...] = (
        (16_000, Compression.NONE),
        (16_000, Compression.LZ4),
        (16_000, Compression.ZSTD),
        (500_000, Compression.NONE),
        (ONE_RECORD_BYTES, Compression.NONE),
    )

    def __post_init__(self) -> None:
        if self.runs < 2 or self.runs % 2:
            raise PlanError(f"runs must be even, so that each side comes first equally often, not {self.runs}")
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


@dataclass(slots=True)
class _Side:
    broker: BrokerProcess
    runs: list[Cleaned] = field(default_factory=list)


def compare(plan: Plan, progress: Progress, directory: Path | None = None) -> list[Row]:
    """Measure both brokers; rows in the order of the docs' table."""
    progress("bringing Apache Kafka's jars (first time only)")
    kafka_jars()
    rows: list[Row] = []
    with work_directory(directory) as work:
        brokers: list[BrokerProcess] = [
            TidelogBroker(work / "tidelog", settings=BROKER_SETTINGS),
            KafkaBroker(work / "kafka", settings=BROKER_SETTINGS),
        ]
        try:
            for broker in brokers:
                broker.start()
            _warm_up(brokers, plan, work, progress)
            for load in plan.loads():
                rows += _measure_load(brokers, plan, load, work, progress)
        finally:
            for broker in brokers:
                broker.stop()
    return rows


def _warm_up(brokers: Sequence[BrokerProcess], plan: Plan, work: Path, progress: Progress) -> None:
    """A JVM compiles what it runs often; its first clean is not its speed."""
    load = KeyedLoad(WARM_UP_MEGABYTES, plan.keys, *plan.batches[0])
    made = make_load(work / "batches", load)
    for broker in brokers:
        progress(f"warming {broker.name} up with {load.megabytes} MB")
        _clean(broker, "warm-up", made)


def _measure_load(
    brokers: Sequence[BrokerProcess], plan: Plan, load: KeyedLoad, work: Path, progress: Progress
) -> list[Row]:
    progress(f"making {load.megabytes} MB in {load.label}")
    made = make_load(work / "batches", load)
    sides = [_Side(broker) for broker in brokers]
    for run in range(plan.runs):
        for side in sides if run % 2 == 0 else sides[::-1]:
            progress(f"{load.label}: run {run + 1} of {plan.runs}, {side.broker.name}")
            side.runs.append(_clean(side.broker, f"compacted-{load.batch_bytes}-{load.compression.label}-{run}", made))
    ours, theirs = (side.runs for side in sides)

    def row(unit: str, figure: Callable[[Cleaned], float], *, higher_is_better: bool) -> Row:
        return median_row(
            f"compact {load.label}",
            unit,
            [figure(run) for run in ours],
            [figure(run) for run in theirs],
            higher_is_better=higher_is_better,
            target=None,
        )

    return [
        row("MB/s", lambda run: run.mb_per_s, higher_is_better=True),
        row("broker CPU s/GB", lambda run: run.cpu_s_per_gb, higher_is_better=False),
        row("memory at most, MB", lambda run: run.peak_bytes / 1e6, higher_is_better=False),
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
        before = cpu_of(broker.pid)
        began = time.perf_counter()
        changes = {ConfigResource.topic(topic): {"min.cleanable.dirty.ratio": ALWAYS_DIRTY_ENOUGH}}
        admin.incremental_alter_configs(changes).raise_for_errors()
        _wait_until_clean(broker, partition.parent / CLEANER_OFFSET_FILE, topic, clean_end)
        seconds = time.perf_counter() - began
        cleaned = Cleaned(
            seconds=seconds,
            dirty_bytes=dirty_bytes,
            cpu_s=(cpu_of(broker.pid) - before).total_s,
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
