"""`tidelog bench broker`: Tidelog and Apache Kafka on one machine, with the same clients, in alternating runs.

What always holds: both brokers are warm before anything but their start is measured. A JVM compiles what it runs often,
and only after some ten thousand requests of a kind has it reached its speed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog.bench import comparison
from tidelog.bench.bare import BATCH_BYTES, echo_round_trips, fetch_batches, produce_batches, round_trips
from tidelog.bench.brokers import BrokerProcess, KafkaBroker, TidelogBroker
from tidelog.bench.comparison import (
    Progress,
    Quantity,
    Samples,
    Side,
    both_running,
    in_turn,
    prepare_kafka,
    throughput,
    touch_free_memory,
)
from tidelog.bench.processes import held_to_one_core, resident_bytes_of
from tidelog.bench.report import Row
from tidelog.bench.stage import led_topic, work_directory
from tidelog.bench.workload import Load, consume, produce, write_lines

THROUGHPUT_GOAL = 1.5
CPU_GOAL = 2.0
LATENCY_GOAL = 2.0
KCAT_GOAL = 1.0
COLD_START_GOAL, COLD_START_LIMIT_S = 10.0, 0.2
IDLE_MEMORY_LIMIT_MB = 40.0

WARM_UP_ROUND_TRIPS = 30_000
WARM_UP_PRODUCES = 10_000
WARM_UP_BATCH_BYTES = 100_000
WARM_UP_FETCHES = 12_000
# Each run reads what was written so often, or it would be over before it has told anything.
FETCH_ROUNDS = 8
READY_MADE_ACKS = {"1": 1, "all": -1}
_READ = "read"
ROWS = ("start", "latency", "ready-made", "kcat")
UNCHECKED_SETTINGS = {"tidelog.records.check": "none"}


@dataclass(frozen=True)
class Plan(comparison.Plan):
    """How much is measured. The default plan takes about six minutes on two quiet cores."""

    megabytes: int = 300
    round_trips: int = 3000
    record_sizes: tuple[int, ...] = (100, 1000)
    compressions: tuple[str, ...] = ("none", "lz4")

    @classmethod
    def known_rows(cls) -> Sequence[str]:
        return ROWS

    def loads(self) -> Iterator[Load]:
        """What kcat sends, with acks=all as clients do by default."""
        for size in self.record_sizes:
            for compression in self.compressions:
                yield Load(size, self.megabytes * 1_000_000 // size, "all", compression)


def compare(plan: Plan, progress: Progress, directory: Path | None = None) -> list[Row]:
    """Measure everything the plan names; rows in the order of the docs' table."""
    prepare_kafka(progress)
    rows: list[Row] = []
    if "start" in plan.chosen:
        with work_directory(directory) as work:
            rows += _cold_starts(plan, work, progress)
    if plan.chosen == ["start"]:
        return rows
    with both_running(directory, progress) as (work, sides):
        touch_free_memory(progress)
        for side in sides:
            _warm_up(side.broker, progress)
        if "latency" in plan.chosen:
            rows += _latencies(plan, sides, progress)
        if "ready-made" in plan.chosen:
            rows += _ready_made(plan, sides, progress)
        if "kcat" in plan.chosen:
            touch_free_memory(progress)
            for load in plan.loads():
                rows += _through_kcat(plan, load, sides, work, progress)
    return rows


def _cold_starts(plan: Plan, work: Path, progress: Progress) -> list[Row]:
    ours, theirs = Samples(), Samples()
    sides: list[tuple[type[TidelogBroker] | type[KafkaBroker], Samples]] = [
        (TidelogBroker, ours),
        (KafkaBroker, theirs),
    ]
    for run in range(plan.runs):
        progress(f"cold start and idle memory, run {run + 1} of {plan.runs}")
        for kind, samples in in_turn(sides, run):
            with kind(work / f"start-{run}-{kind.__name__}") as broker:
                samples.add("start", broker.start_seconds)
                samples.add("idle memory", resident_bytes_of(broker.pid) / 1e6)
            shutil.rmtree(broker.directory)
    quantities = [
        Quantity("start", "cold start to first answer", "s", COLD_START_GOAL, limit=COLD_START_LIMIT_S),
        Quantity("idle memory", "idle memory", "MB", limit=IDLE_MEMORY_LIMIT_MB),
    ]
    return comparison.rows(quantities, ours, theirs)


def _warm_up(broker: BrokerProcess, progress: Progress) -> None:
    progress(f"warming up {broker.name}: {WARM_UP_ROUND_TRIPS:,} one-record requests")
    with led_topic(broker, "warm-up-latency"):
        round_trips(broker, "warm-up-latency", WARM_UP_ROUND_TRIPS)
    progress(f"warming up {broker.name}: {WARM_UP_PRODUCES:,} batches, {WARM_UP_FETCHES:,} fetches of 1 MB")
    with led_topic(broker, "warm-up"):
        sent = produce_batches(broker, "warm-up", 100, WARM_UP_PRODUCES, acks=1, batch_bytes=WARM_UP_BATCH_BYTES)
        fetch_batches(broker, "warm-up", 100, sent.records, WARM_UP_FETCHES)


def _latencies(plan: Plan, sides: Sequence[Side], progress: Progress) -> list[Row]:
    for run in range(plan.runs):
        progress(f"one-record round trips, run {run + 1} of {plan.runs}")
        echo_us = echo_round_trips(plan.round_trips).p50_us
        for side in in_turn(sides, run):
            topic = f"latency-{run}"
            with led_topic(side.broker, topic):
                latency = round_trips(side.broker, topic, plan.round_trips)
            side.samples.add("echo", echo_us)
            for name, took_us in (("p50", latency.p50_us), ("p99", latency.p99_us)):
                side.samples.add(name, took_us)
                side.samples.add(f"{name} less the echo", took_us - echo_us)
    what = "one-record produce, acks=all,"
    quantities = [
        Quantity("p50", f"{what} p50", "us"),
        Quantity("p99", f"{what} p99", "us"),
        Quantity("echo", "an echo on another core, p50", "us"),
        Quantity("p50 less the echo", f"{what} p50 less the echo", "us", LATENCY_GOAL),
        Quantity("p99 less the echo", f"{what} p99 less the echo", "us", LATENCY_GOAL),
    ]
    return comparison.rows(quantities, *(side.samples for side in sides))


def _ready_made(plan: Plan, sides: Sequence[Side], progress: Progress) -> list[Row]:
    """What the brokers can do when the client's own work is out of the way."""
    batches = plan.megabytes * 1_000_000 // BATCH_BYTES
    quantities = []
    for label, acks in READY_MADE_ACKS.items():
        what = f"produce 100 B, acks={label}, ready-made 1 MB batches"
        quantities += throughput(what, what, THROUGHPUT_GOAL, CPU_GOAL)
        for run in range(plan.runs):
            progress(f"{what}: run {run + 1} of {plan.runs}")
            for side in in_turn(sides, run):
                topic = f"ready-made-{label}-{run}"
                with led_topic(side.broker, topic):
                    produced = produce_batches(side.broker, topic, 100, batches, acks=acks)
                    side.samples.add_throughput(what, produced)
                    if acks == -1:
                        fetches = FETCH_ROUNDS * batches
                        fetched = fetch_batches(side.broker, topic, 100, produced.records, fetches)
                        side.samples.add_throughput(_READ, fetched)
        if acks == 1:
            quantities += _unchecked(plan, sides, batches, what, progress)
    quantities += throughput(_READ, "fetch the same, 1 MB at a time", THROUGHPUT_GOAL, CPU_GOAL)
    return comparison.rows(quantities, *(side.samples for side in sides))


def _unchecked(plan: Plan, sides: Sequence[Side], batches: int, checked: str, progress: Progress) -> list[Quantity]:
    """The same without the check of records, which Kafka can't leave out: there it is measured with the check again."""
    what = f"{checked}, records not checked"
    for run in range(plan.runs):
        progress(f"{what}: run {run + 1} of {plan.runs}")
        for side in in_turn(sides, run):
            topic = f"unchecked-{run}"
            settings = UNCHECKED_SETTINGS if isinstance(side.broker, TidelogBroker) else None
            with led_topic(side.broker, topic, settings):
                side.samples.add_throughput(what, produce_batches(side.broker, topic, 100, batches, acks=1))
    return throughput(what, what, None)


def _through_kcat(plan: Plan, load: Load, sides: Sequence[Side], work: Path, progress: Progress) -> list[Row]:
    """Produce and consume with kcat held to one core; how its threads share two tells more about them than about us."""
    lines = work / "lines.txt"
    write_lines(lines, load)
    sent, stored = f"produce {load.label}, kcat on one core", f"consume {load.stored_label}, kcat"
    for run in range(plan.runs):
        progress(f"{load.label}: run {run + 1} of {plan.runs}")
        for side in in_turn(sides, run):
            topic = f"load-{load.record_bytes}-{load.compression}-{run}"
            with led_topic(side.broker, topic):
                with held_to_one_core():
                    side.samples.add_throughput(sent, produce(side.broker, topic, lines, load))
                    side.samples.add_throughput(f"{stored} on one core", consume(side.broker, topic, load))
                side.samples.add_throughput(f"{stored} on both cores", consume(side.broker, topic, load))
    quantities = [
        *throughput(sent, sent, KCAT_GOAL),
        *throughput(f"{stored} on one core", f"{stored} on one core", KCAT_GOAL),
        *throughput(f"{stored} on both cores", f"{stored} on both cores", None),
    ]
    return comparison.rows(quantities, *(side.samples for side in sides))
