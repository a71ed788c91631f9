"""`tidelog bench client`: the Python client beside confluent-kafka, aiokafka and kafka-python, on one broker.

What always holds: all clients talk to the same Tidelog broker, each load in a fresh process, in alternating order; what
is read was written before by one of them, so all read the same bytes. The ratio is to the best of the others. A row has
a goal only where all do the same work.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidelog.bench import comparison
from tidelog.bench.brokers import BrokerProcess, TidelogBroker, environment
from tidelog.bench.comparison import Progress
from tidelog.bench.errors import MeasurementError
from tidelog.bench.processes import touch_memory
from tidelog.bench.report import figure
from tidelog.bench.stage import led_topic, work_directory

SPEED_GOAL = 1.5
ARROW_GOAL = 4.0
LARGE_ARROW_GOAL = 10.0
WAIT_GOAL = 1.0

OURS = "tidelog"
PEERS = ("confluent", "aiokafka", "kafka_python")
NAMES = {"confluent": "confluent-kafka", "aiokafka": "aiokafka", "kafka_python": "kafka-python"}
LARGE_BATCH_BYTES = 1_000_000
DEFAULT_BATCH_BYTES = 16_384
SEVERAL_PARTITIONS = 4
_TOUCHED_BYTES = 2 << 30
# The slower clients send and read fewer records: their speed does not depend on how many there are.
_SLOWER = {"aiokafka": 5, "kafka_python": 10}


@dataclass(frozen=True)
class Plan(comparison.Plan):
    """How much is measured."""

    records: int = 2_000_000
    round_trips: int = 3_000


@dataclass(frozen=True, slots=True)
class _Job:
    """What one process does: the load of one client."""

    client: str
    load: str
    value_bytes: int
    batch_bytes: int
    records: int
    partitions: int

    @property
    def reads(self) -> bool:
        return self.load.startswith("poll")


@dataclass(frozen=True, slots=True)
class _Load:
    """A row of the table, and what each client does for it."""

    what: str
    load: str
    figure: str
    unit: str
    higher_is_better: bool
    target: float | None
    records: int
    value_bytes: int = 100
    batch_bytes: int = LARGE_BATCH_BYTES
    partitions: int = 1
    # What the others do in its place, where only this client can do it.
    peers_load: str | None = None

    def job(self, client: str) -> _Job:
        is_ours = client == OURS
        name = self.load if is_ours or self.peers_load is None else self.peers_load
        records = self.records // (_SLOWER.get(client, 1) if name in ("send", "poll") else 1)
        # What is read does not depend on the reader's batches, so such jobs are the same.
        batch_bytes = self.batch_bytes if name.startswith("send") else LARGE_BATCH_BYTES
        return _Job(client, name, self.value_bytes, batch_bytes, records, self.partitions if is_ours else 1)


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One quantity for all clients: medians of the runs."""

    what: str
    unit: str
    ours: float
    peers: dict[str, float]
    higher_is_better: bool
    target: float | None

    @property
    def best_peer(self) -> float:
        return max(self.peers.values()) if self.higher_is_better else min(self.peers.values())

    @property
    def ratio(self) -> float:
        """How many times better than the best of the others; below 1 it is worse."""
        return self.ours / self.best_peer if self.higher_is_better else self.best_peer / self.ours

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "met" if self.ratio >= self.target else "not met"

    def cells(self) -> tuple[str, ...]:
        goal = "" if self.target is None else f"{self.target:g}x"
        peers = [figure(self.peers[peer]) for peer in PEERS]
        return (self.what, self.unit, figure(self.ours), *peers, f"{self.ratio:.2f}x", goal, self.verdict)

    def as_data(self) -> dict[str, object]:
        return {
            "what": self.what,
            "unit": self.unit,
            "tidelog": self.ours,
            **{NAMES[peer]: value for peer, value in self.peers.items()},
            "ratio_to_best": round(self.ratio, 3),
            "target_ratio": self.target,
            "met": None if self.target is None else self.ratio >= self.target,
        }


HEADINGS = ("what", "unit", "Tidelog", *(NAMES[peer] for peer in PEERS), "to the best", "goal", "")


def _loads(plan: Plan) -> list[_Load]:
    fast, small = plan.records, plan.records // 4
    several = f"{SEVERAL_PARTITIONS} partitions"

    def speed(what: str, load: str, target: float | None, records: int = fast, **more: Any) -> _Load:
        unit = "rows/s" if "arrow" in load else "records/s"
        return _Load(what, load, "records_per_s", unit, True, target, records, **more)

    def cost(what: str, load: str, figure: str, unit: str, target: float | None, records: int) -> _Load:
        return _Load(what, load, figure, unit, False, target, records)

    default = {"batch_bytes": DEFAULT_BATCH_BYTES}
    return [
        speed("send 100 B", "send", SPEED_GOAL),
        speed(
            "send 100 B, batches of 16 KB", "send_without_growth", SPEED_GOAL, peers_load="send", **default
        ),
        speed("the same, where ours may grow its batches to 1 MB, as it does by default", "send", None, **default),
        speed("send 1 KB", "send", SPEED_GOAL, small, value_bytes=1000),
        speed("send_arrow 100 B, against send", "send_arrow", ARROW_GOAL, peers_load="send"),
        speed(
            f"send_arrow 100 B to {several}, against send", "send_arrow", LARGE_ARROW_GOAL,
            partitions=SEVERAL_PARTITIONS, peers_load="send",
        ),
        speed("poll 100 B", "poll", SPEED_GOAL),
        speed("poll 1 KB", "poll", SPEED_GOAL, small, value_bytes=1000),
        speed("poll_arrow 100 B, against poll", "poll_arrow", ARROW_GOAL, peers_load="poll"),
        speed(
            f"poll_arrow 100 B, {several}, fetches of 8 MB, against poll", "poll_arrow_large", LARGE_ARROW_GOAL,
            partitions=SEVERAL_PARTITIONS, peers_load="poll",
        ),
        cost("send one record and wait, p50", "round_trip", "p50_us", "us", WAIT_GOAL, plan.round_trips),
        cost("send one record and wait, p99", "round_trip", "p99_us", "us", None, plan.round_trips),
        cost("memory at most, send 100 B", "send", "peak_mb", "MB", None, fast),
        cost("memory at most, poll 100 B", "poll", "peak_mb", "MB", None, fast),
        cost("import", "import", "seconds", "s", None, 1),
    ]  # fmt: skip


def compare(plan: Plan, progress: Progress, directory: Path | None = None) -> list[ClientRow]:
    """Measure all clients; rows in the order of the docs' table."""
    loads = _loads(plan)
    jobs = list(dict.fromkeys(load.job(client) for load in loads for client in (OURS, *PEERS)))
    found: dict[_Job, list[dict[str, float]]] = {job: [] for job in jobs}
    with work_directory(directory) as work, TidelogBroker(work / "tidelog") as broker, ExitStack() as topics:
        touch_memory(_TOUCHED_BYTES)
        progress("writing what is read")
        for size, partitions in dict.fromkeys((job.value_bytes, job.partitions) for job in jobs if job.reads):
            topic = _read_topic(size, partitions)
            topics.enter_context(led_topic(broker, topic, partitions=partitions))
            records = max(job.records for job in jobs if job.reads and job.value_bytes == size)
            _run(broker, _Job("confluent", "send", size, LARGE_BATCH_BYTES, records, partitions), topic)
        for run in range(plan.runs):
            for job in comparison.in_turn(jobs, run):
                progress(f"run {run + 1} of {plan.runs}: {job.client} {job.load} {job.value_bytes} B")
                found[job].append(_run_on_topic(broker, job, f"run-{run}"))
    return [_row(load, found) for load in loads]


def _read_topic(value_bytes: int, partitions: int) -> str:
    return f"read-{value_bytes}-from-{partitions}"


def _run_on_topic(broker: BrokerProcess, job: _Job, run: str) -> dict[str, float]:
    if job.reads:
        return _run(broker, job, _read_topic(job.value_bytes, job.partitions))
    topic = f"{run}-{job.client}-{job.load}-{job.value_bytes}-{job.batch_bytes}-{job.partitions}"
    with led_topic(broker, topic, partitions=job.partitions):
        return _run(broker, job, topic)


def _run(broker: BrokerProcess, job: _Job, topic: str) -> dict[str, float]:
    argument = json.dumps({**asdict(job), "bootstrap": broker.bootstrap, "topic": topic})
    command = [sys.executable, "-m", "tidelog.bench.client_drivers", argument]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    if done.returncode != 0:
        raise MeasurementError(f"{job.client} {job.load} failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _row(load: _Load, found: Mapping[_Job, Sequence[Mapping[str, float]]]) -> ClientRow:
    def median(client: str) -> float:
        return statistics.median(result[load.figure] for result in found[load.job(client)])

    peers = {peer: median(peer) for peer in PEERS}
    return ClientRow(load.what, load.unit, median(OURS), peers, load.higher_is_better, load.target)


def markdown(rows: Sequence[ClientRow]) -> str:
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"
