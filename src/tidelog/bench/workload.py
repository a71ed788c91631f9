"""The loads: the same C client (kcat, librdkafka), the same bytes, for whichever broker it is given.

What always holds: a load checks its own result (every record is in the log; every record was read), so that a broker
cannot look fast by doing less.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tidelog.bench.brokers import BrokerProcess
from tidelog.bench.errors import MeasurementError, PeerUnavailableError
from tidelog.bench.processes import cpu_s_of
from tidelog.client.admin import Admin, OffsetSpec
from tidelog.client.types import TopicPartition

KCAT_DEADLINE_S = 600.0
# One batch a request and large ones: what a throughput-minded user sets.
PRODUCER_SETTINGS = (
    "batch.size=1000000",
    "batch.num.messages=100000",
    "linger.ms=50",
    "queue.buffering.max.messages=1000000",
    "queue.buffering.max.kbytes=1048576",
)


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: how many records of which size, how acknowledged and compressed."""

    record_bytes: int
    records: int
    acks: str
    compression: str

    @property
    def label(self) -> str:
        return f"{self._size}, acks={self.acks}, {self.compression}"

    @property
    def stored_label(self) -> str:
        """What of it a reader can tell."""
        return f"{self._size}, {self.compression}"

    @property
    def _size(self) -> str:
        return f"{self.record_bytes} B" if self.record_bytes < 1000 else f"{self.record_bytes // 1000} KB"

    @property
    def payload_bytes(self) -> int:
        return self.record_bytes * self.records


@dataclass(frozen=True, slots=True)
class Throughput:
    """One run of a load against one broker."""

    seconds: float
    records: int
    payload_bytes: int
    broker_cpu_s: float

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds

    @property
    def cpu_s_per_gb(self) -> float:
        return self.broker_cpu_s / (self.payload_bytes / 1e9)


def write_lines(path: Path, load: Load, seed: int = 7) -> None:
    """Lines that look like events: compressible as real ones are, none like another, each of the exact size."""
    source = random.Random(seed)
    words = [f"{source.getrandbits(32):08x}" for _ in range(512)]
    with path.open("w") as file:
        for number in range(load.records):
            event = {"id": number, "user": source.randrange(100_000), "kind": source.choice(words[:16])}
            text = json.dumps(event, separators=(",", ":"))
            while len(text) < load.record_bytes:
                text += " " + source.choice(words)
            file.write(text[: load.record_bytes] + "\n")


def produce(broker: BrokerProcess, topic: str, lines: Path, load: Load) -> Throughput:
    settings = [f"acks={load.acks}", *PRODUCER_SETTINGS]
    arguments = ["-P", "-l", str(lines), "-z", load.compression, *_options(settings)]
    seconds, cpu_s = _run_kcat(broker, topic, arguments)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        asked = TopicPartition(topic, 0)
        stored = admin.list_offsets({asked: OffsetSpec.LATEST})[asked].offset
    if stored != load.records:
        raise MeasurementError(f"{broker.name} holds {stored} records of {load.records} sent")
    return Throughput(seconds, load.records, load.payload_bytes, cpu_s)


def consume(broker: BrokerProcess, topic: str, load: Load) -> Throughput:
    # -c ends kcat only when it has had that many records, so a short read is a time-out and not a good figure.
    arguments = ["-C", "-p", "0", "-o", "beginning", "-q", "-c", str(load.records)]
    seconds, cpu_s = _run_kcat(broker, topic, arguments)
    return Throughput(seconds, load.records, load.payload_bytes, cpu_s)


def _options(settings: list[str]) -> list[str]:
    return [argument for setting in settings for argument in ("-X", setting)]


def _run_kcat(broker: BrokerProcess, topic: str, arguments: list[str]) -> tuple[float, float]:
    if shutil.which("kcat") is None:
        raise PeerUnavailableError("kcat was not found: install the package kcat, the C client of this measurement")
    cpu_before_s = cpu_s_of(broker.pid)
    began = time.perf_counter()
    done = subprocess.run(
        ["kcat", "-b", broker.bootstrap, "-t", topic, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=KCAT_DEADLINE_S,
    )
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        raise MeasurementError(f"kcat failed against {broker.name}: {done.stderr.decode(errors='replace').strip()}")
    return seconds, cpu_s_of(broker.pid) - cpu_before_s
