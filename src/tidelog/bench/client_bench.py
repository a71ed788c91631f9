"""`tidelog bench client`: the Python client beside confluent-kafka, aiokafka and kafka-python, on one broker.

What always holds: all clients talk to the same Tidelog broker, each load in a fresh process, in alternating order; what
is read was written before by one of them, so all read the same bytes. The ratio is to the best of the others.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog.bench.brokers import BrokerProcess, TidelogBroker, environment
from tidelog.bench.errors import MeasurementError, PlanError
from tidelog.bench.processes import touch_memory
from tidelog.bench.report import figure
from tidelog.bench.stage import led_topic, work_directory

Progress = Callable[[str], None]

OURS = "tidelog"
PEERS = ("confluent", "aiokafka", "kafka_python")
NAMES = {"confluent": "confluent-kafka", "aiokafka": "aiokafka", "kafka_python": "kafka-python"}
LARGE_BATCH_BYTES = 1_000_000
DEFAULT_BATCH_BYTES = 16_384
_TOUCHED_BYTES = 2 << 30
# The slower clients send and read fewer records: their speed does not depend on how many there are.
_SLOWER = {"aiokafka": 5, "kafka_python": 10}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    runs: int = 4
    records: int = 2_000_000
    round_trips: int = 3_000

    def __post_init__(self) -> None:
        if self.runs < 2:
            raise PlanError(f"one run is no measurement; runs must be 2 or more, not {self.runs}")


@dataclass(frozen=True, slots=True)
class _Load:
    what: str
    load: str
    figure: str
    unit: str
    higher_is_better: bool
    target: float | None
    value_bytes: int = 100
    batch_bytes: int = LARGE_BATCH_BYTES
    # What the others do in its place, where only this client can do it.
    peers_load: str | None = None
    records: int | None = None


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
    return [
        _Load("send 100 B", "send", "records_per_s", "records/s", True, 1.5, records=fast),
        _Load("send 100 B, batches of 16 KB", "send", "records_per_s", "records/s", True, 1.5, 100, DEFAULT_BATCH_BYTES,
              records=fast),
        _Load("send 1 KB", "send", "records_per_s", "records/s", True, 1.5, 1000, records=small),
        _Load("send_arrow 100 B, against send", "send_arrow", "records_per_s", "rows/s", True, 10, peers_load="send",
              records=fast),
        _Load("poll 100 B", "poll", "records_per_s", "records/s", True, 1.5, records=fast),
        _Load("poll 1 KB", "poll", "records_per_s", "records/s", True, 1.5, 1000, records=small),
        _Load("poll_arrow 100 B, against poll", "poll_arrow", "records_per_s", "rows/s", True, 10, peers_load="poll",
              records=fast),
        _Load("send one record and wait, p50", "round_trip", "p50_us", "us", False, None, records=plan.round_trips),
        _Load("send one record and wait, p99", "round_trip", "p99_us", "us", False, None, records=plan.round_trips),
        _Load("memory at most, send 100 B", "send", "peak_mb", "MB", False, None, records=fast),
        _Load("memory at most, poll 100 B", "poll", "peak_mb", "MB", False, None, records=fast),
        _Load("import", "import", "seconds", "s", False, None, records=1),
    ]  # fmt: skip


def compare(plan: Plan, progress: Progress, directory: Path | None = None) -> list[ClientRow]:
    """Measure all clients; rows in the order of the docs' table."""
    loads = _loads(plan)
    jobs = list(dict.fromkeys(_job_key(load, client) for load in loads for client in (OURS, *PEERS)))
    found: dict[tuple[object, ...], list[dict[str, float]]] = {job: [] for job in jobs}
    touch_memory(_TOUCHED_BYTES)
    with work_directory(directory) as work:
        broker = TidelogBroker(work / "tidelog")
        broker.start()
        try:
            with led_topic(broker, "read-100"), led_topic(broker, "read-1000"):
                progress("writing what is read")
                for size, count in ((100, plan.records), (1000, plan.records // 4)):
                    _run(broker, ("confluent", "send", size, LARGE_BATCH_BYTES, count), f"read-{size}")
                for run in range(plan.runs):
                    for job in jobs if run % 2 == 0 else jobs[::-1]:
                        progress(f"run {run + 1} of {plan.runs}: {job[0]} {job[1]} {job[2]} B")
                        found[job].append(_run_on_topic(broker, job, f"run-{run}"))
        finally:
            broker.kill()
    return [_row(load, found) for load in loads]


def _job_key(load: _Load, client: str) -> tuple[str, str, int, int, int]:
    name = load.load if client == OURS or load.peers_load is None else load.peers_load
    records = (load.records or 1) // (_SLOWER.get(client, 1) if name in ("send", "poll") else 1)
    # What is read does not depend on the reader's batches, so such jobs are the same.
    batch_bytes = load.batch_bytes if name in ("send", "send_arrow") else LARGE_BATCH_BYTES
    return client, name, load.value_bytes, batch_bytes, records


def _run_on_topic(broker: BrokerProcess, job: tuple[str, str, int, int, int], run: str) -> dict[str, float]:
    client, load, size, batch_bytes, _ = job
    if load == "poll" or load == "poll_arrow":
        return _run(broker, job, f"read-{size}")
    topic = f"{run}-{client}-{load}-{size}-{batch_bytes}"
    with led_topic(broker, topic):
        return _run(broker, job, topic)


def _run(broker: BrokerProcess, job: tuple[str, str, int, int, int], topic: str) -> dict[str, float]:
    client, load, size, batch_bytes, records = job
    argument = {
        "client": client,
        "load": load,
        "bootstrap": broker.bootstrap,
        "topic": topic,
        "records": records,
        "value_bytes": size,
        "batch_bytes": batch_bytes,
    }
    command = [sys.executable, "-m", "tidelog.bench.client_drivers", json.dumps(argument)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    if done.returncode != 0:
        raise MeasurementError(f"{client} {load} failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _row(load: _Load, found: dict[tuple[object, ...], list[dict[str, float]]]) -> ClientRow:
    def median(client: str) -> float:
        return statistics.median(result[load.figure] for result in found[_job_key(load, client)])

    peers = {peer: median(peer) for peer in PEERS}
    return ClientRow(load.what, load.unit, median(OURS), peers, load.higher_is_better, load.target)


def markdown(rows: Sequence[ClientRow]) -> str:
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"
