"""`tidelog bench broker`: Tidelog and Apache Kafka on one machine, with the same C client, in alternating runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tidelog.bench.bare import Latency, echo_round_trips, fetch_batches, produce_batches, round_trips
from tidelog.bench.brokers import BrokerProcess, KafkaBroker, TidelogBroker, kafka_jars
from tidelog.bench.errors import PlanError
from tidelog.bench.processes import available_memory_bytes, held_to_one_core, resident_bytes_of, touch_memory
from tidelog.bench.report import Row, median_row
from tidelog.bench.stage import led_topic, work_directory
from tidelog.bench.workload import Load, Throughput, consume, produce, write_lines

Progress = Callable[[str], None]

THROUGHPUT_GOAL = 1.5
CPU_GOAL = 2.0
LATENCY_GOAL = 2.0
COLD_START_GOAL = 10.0
MEMORY_GOAL = 5.0
MEMORY_TOUCHED = 0.7

# A JVM compiles what it runs often: only after some ten thousand requests has it reached its speed.
LATENCY_WARM_UP_SENDS = 30_000

BrokerKind = type[TidelogBroker] | type[KafkaBroker]
SideT = TypeVar("SideT")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. A run of the default plan takes about ten minutes on two cores.

    Runs are even, so that each broker comes first equally often and a drift of the machine favours neither.
    """

    runs: int = 4
    megabytes: int = 300
    round_trips: int = 3000
    record_sizes: tuple[int, ...] = (100, 1000)
    acks: tuple[str, ...] = ("1", "all")
    compressions: tuple[str, ...] = ("none", "lz4")

    def __post_init__(self) -> None:
        if self.runs < 2 or self.runs % 2:
            raise PlanError(f"runs must be even, so that each side comes first equally often, not {self.runs}")

    def loads(self) -> Iterator[Load]:
        for size in self.record_sizes:
            for acks in self.acks:
                for compression in self.compressions:
                    yield Load(size, self.megabytes * 1_000_000 // size, acks, compression)


@dataclass(slots=True)
class _Samples:
    produce: list[Throughput] = field(default_factory=list)
    consume: list[Throughput] = field(default_factory=list)
    consume_on_one_core: list[Throughput] = field(default_factory=list)
    latency: list[Latency] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    idle_bytes: list[float] = field(default_factory=list)


def compare(plan: Plan, progress: Progress, directory: Path | None = None) -> list[Row]:
    """Measure everything the plan names; rows in the order of the docs' table."""
    progress("bringing Apache Kafka's jars (first time only)")
    kafka_jars()
    with work_directory(directory) as work:
        rows = _cold_starts(plan, work, progress)
        brokers: list[BrokerProcess] = [TidelogBroker(work / "tidelog"), KafkaBroker(work / "kafka")]
        try:
            for broker in brokers:
                broker.start()
            rows += _latencies(plan, brokers, progress)
            rows += _saturations(plan, brokers, progress)
            for load in plan.loads():
                rows += _throughputs(plan, load, brokers, work, progress)
        finally:
            for broker in brokers:
                broker.stop()
    return rows


def _cold_starts(plan: Plan, work: Path, progress: Progress) -> list[Row]:
    ours, theirs = _Samples(), _Samples()
    sides: list[tuple[BrokerKind, _Samples]] = [(TidelogBroker, ours), (KafkaBroker, theirs)]
    for run in range(plan.runs):
        progress(f"cold start and idle memory, run {run + 1} of {plan.runs}")
        for kind, samples in _in_turn(sides, run):
            broker: BrokerProcess = kind(work / f"start-{run}-{kind.__name__}")
            broker.start()
            samples.start_s.append(broker.start_seconds)
            samples.idle_bytes.append(resident_bytes_of(broker.pid) / 1e6)
            broker.stop()
            shutil.rmtree(broker.directory)
    return [
        median_row(
            "cold start to first answer",
            "s",
            ours.start_s,
            theirs.start_s,
            higher_is_better=False,
            target=COLD_START_GOAL,
        ),
        median_row("idle memory", "MB", ours.idle_bytes, theirs.idle_bytes, higher_is_better=False, target=MEMORY_GOAL),
    ]


def _latencies(plan: Plan, brokers: Sequence[BrokerProcess], progress: Progress) -> list[Row]:
    samples = [_Samples() for _ in brokers]
    for broker in brokers:
        progress(f"warming {broker.name} with {LATENCY_WARM_UP_SENDS} round trips")
        with led_topic(broker, "warm-up"):
            round_trips(broker, "warm-up", LATENCY_WARM_UP_SENDS)
    echo_us: list[float] = []
    for run in range(plan.runs):
        progress(f"one-record round trips, run {run + 1} of {plan.runs}")
        echo_us.append(echo_round_trips(plan.round_trips).p50_us)
        for broker, kept in _in_turn(list(zip(brokers, samples, strict=True)), run):
            topic = f"latency-{run}"
            with led_topic(broker, topic):
                kept.latency.append(round_trips(broker, topic, plan.round_trips))
    ours, theirs = samples
    what = "one-record produce, acks=all,"
    return [
        median_row(
            f"{what} p50", "us", [s.p50_us for s in ours.latency], [s.p50_us for s in theirs.latency],
            higher_is_better=False, target=LATENCY_GOAL,
        ),
        median_row(
            f"{what} p99", "us", [s.p99_us for s in ours.latency], [s.p99_us for s in theirs.latency],
            higher_is_better=False, target=LATENCY_GOAL,
        ),
        median_row(
            "an echo on another core, p50", "us", echo_us, echo_us, higher_is_better=False, target=None
        ),
    ]  # fmt: skip


def _in_turn(sides: list[SideT], run: int) -> list[SideT]:
    """Who goes first alternates from run to run."""
    return sides if run % 2 == 0 else sides[::-1]


def _touch_free_memory(progress: Progress) -> None:
    """Before every load: what is free for long, a host may take back."""
    progress("touching the machine's free memory, so that neither broker is the first to use it")
    touch_memory(int(available_memory_bytes() * MEMORY_TOUCHED))


def _saturations(plan: Plan, brokers: Sequence[BrokerProcess], progress: Progress) -> list[Row]:
    """What the brokers can do when the client's own work is out of the way."""
    samples = [_Samples() for _ in brokers]
    _touch_free_memory(progress)
    for run in range(plan.runs):
        progress(f"ready-made batches, run {run + 1} of {plan.runs}")
        for broker, kept in _in_turn(list(zip(brokers, samples, strict=True)), run):
            topic = f"saturation-{run}"
            with led_topic(broker, topic):
                produced = produce_batches(broker, topic, 100, plan.megabytes, acks=1)
                kept.produce.append(produced)
                kept.consume.append(fetch_batches(broker, topic, 100, produced.records))
    ours, theirs = samples
    return [
        *_throughput_rows("produce 100 B, acks=1, ready-made 1 MB batches", ours.produce, theirs.produce),
        *_throughput_rows("fetch the same, 1 MB at a time", ours.consume, theirs.consume),
    ]


def _throughputs(plan: Plan, load: Load, brokers: Sequence[BrokerProcess], work: Path, progress: Progress) -> list[Row]:
    lines = work / "lines.txt"
    write_lines(lines, load)
    _touch_free_memory(progress)
    samples = [_Samples() for _ in brokers]
    for run in range(plan.runs):
        progress(f"{load.label}: run {run + 1} of {plan.runs}")
        for broker, kept in _in_turn(list(zip(brokers, samples, strict=True)), run):
            topic = f"load-{load.record_bytes}-{load.acks}-{load.compression}-{run}"
            with led_topic(broker, topic):
                kept.produce.append(produce(broker, topic, lines, load))
                if load.acks == plan.acks[0]:  # what was stored does not tell how it was acknowledged
                    kept.consume.append(consume(broker, topic, load))
                    with held_to_one_core():
                        kept.consume_on_one_core.append(consume(broker, topic, load))
    ours, theirs = samples
    rows = _throughput_rows(f"produce {load.label}", ours.produce, theirs.produce)
    if ours.consume:
        stored = f"consume {load.stored_label}"
        rows += _throughput_rows(stored, ours.consume, theirs.consume)
        on_one_core = f"{stored}, kcat on one core"
        rows += _throughput_rows(on_one_core, ours.consume_on_one_core, theirs.consume_on_one_core)
    return rows


def _throughput_rows(what: str, ours: Sequence[Throughput], theirs: Sequence[Throughput]) -> list[Row]:
    speed = median_row(
        what, "records/s", [run.records_per_s for run in ours], [run.records_per_s for run in theirs],
        higher_is_better=True, target=THROUGHPUT_GOAL,
    )  # fmt: skip
    cost = median_row(
        what, "broker CPU s/GB", [run.cpu_s_per_gb for run in ours], [run.cpu_s_per_gb for run in theirs],
        higher_is_better=False, target=CPU_GOAL if what.startswith("produce") else None,
    )  # fmt: skip
    return [speed, cost]
