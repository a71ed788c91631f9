"""The sink on real Spark, on two executors, while tasks, executors, drivers, commits and the broker are killed with -9.

Faults strike at chosen requests of the sink (`killing_source`), one after another; rows come in all the while. In the
end the committed output must be the input, row for row.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from killing_source import SparkFault, Victim
from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.spark.worker_python import worker_python

PARTITIONS = 2
ROWS_A_FAULT = 40
ROWS_EVERY_S = 2.0
STRIKE_WAIT_S = 600.0
END_WAIT_S = 600.0
# A task asks for metadata, its coordinator, an id, and produces, and later ones for an id alone; a commit takes over,
# reads, decides and ends three transactions, and later ones only decide and end.
REQUESTS = {"write": 5, "commit": 9}
REQUESTS_LATER = {"write": 2, "commit": 5}
# A driver takes longest to come back, then an executor.
MANY = [
    *[("write", Victim.PROCESS)] * 48,
    *[("commit", Victim.PROCESS)] * 32,
    *[("write", Victim.JVM)] * 14,
    *[("write", Victim.BROKER), ("commit", Victim.BROKER)] * 5,
    *[("commit", Victim.DRIVER), ("write", Victim.DRIVER)] * 4,
]
FEW = [
    ("write", Victim.PROCESS),
    ("commit", Victim.BROKER),
    ("commit", Victim.PROCESS),
    ("write", Victim.BROKER),
    ("write", Victim.JVM),
    ("commit", Victim.DRIVER),
]


class KilledQuery:
    """The driver's process, the broker, and the faults on their way."""

    def __init__(self, broker: Any, directory: Path) -> None:
        self.broker = broker
        self.directory = directory
        self.faults = directory / "faults"
        self.faults.mkdir()
        self.written: Counter[bytes] = Counter()
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._output = (directory / "driver.log").open("ab")
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic("source", PARTITIONS), NewTopic("target", PARTITIONS)]).raise_for_errors()
        self._note_broker()

    def _note_broker(self) -> None:
        (self.faults / "broker.pid").write_text(str(self.broker.pid))

    def start(self) -> None:
        settings = {
            "master": "local-cluster[2,1,1024]",
            "directory": str(self.directory),
            "faults": str(self.faults),
            "bootstrap": self.broker.bootstrap,
            "source": "source",
            "target": "target",
        }
        here = Path(__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(here),
            "PYSPARK_PYTHON": worker_python(),
        }
        self._process = subprocess.Popen(
            [sys.executable, str(here / "killed_driver.py"), json.dumps(settings)],
            env=environment,
            cwd=self.directory,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        (self.faults / "driver.pid").write_text(str(self._process.pid))
        self.starts += 1

    def keep_running(self) -> None:
        """Start again what was killed."""
        if not self.broker.is_running:
            self.broker.kill()
            self.broker.start()
            self._note_broker()
        if self._process is not None and self._process.poll() is not None:
            self._kill_group()
            self.start()

    def _kill_group(self) -> None:
        """Executors and Python processes are in the driver's group, and outlive it for a while."""
        assert self._process is not None
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def write_rows(self, producer: Producer, count: int) -> None:
        sent = []
        for _ in range(count):
            value = b"row %d" % len(self.written)
            self.written[value] += 1
            sent.append(producer.send("source", value, key=value))
        while not all(future.done() for future in sent):
            self.keep_running()  # the broker may be what was killed
            time.sleep(0.01)
        for future in sent:
            future.result()

    def strike(self, producer: Producer, fault: SparkFault) -> bool:
        """Have the fault strike; whether it did, or the process that took it made fewer requests."""
        before = len(list(self.faults.glob("struck-*")))
        (self.faults / fault.file_name).touch()
        deadline_s = time.monotonic() + STRIKE_WAIT_S
        written_at_s, taken_at_s = 0.0, None
        while time.monotonic() < deadline_s:
            self.keep_running()
            if len(list(self.faults.glob("struck-*"))) > before:
                self.keep_running()
                return True
            if not (self.faults / fault.file_name).exists():
                taken_at_s = taken_at_s or time.monotonic()
                if time.monotonic() - taken_at_s > 2:
                    return False
            elif time.monotonic() - written_at_s > ROWS_EVERY_S:
                self.write_rows(producer, ROWS_A_FAULT)
                written_at_s = time.monotonic()
            time.sleep(0.05)
        raise AssertionError(f"{fault} was not taken within {STRIKE_WAIT_S:g} s; the driver said:\n{self._tail()}")

    def finish(self) -> Counter[bytes]:
        """Wait until everything was written and stop; what readers of committed records see."""
        found: Counter[bytes] = Counter()
        partitions = [TopicPartition("target", number) for number in range(PARTITIONS)]
        deadline_s = time.monotonic() + END_WAIT_S
        with Consumer(
            bootstrap_servers=self.broker.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign(partitions)
            while sum(found.values()) < sum(self.written.values()) and time.monotonic() < deadline_s:
                self.keep_running()
                found.update(record.value for record in consumer.poll(0.2))
            (self.directory / "stop").touch()
            assert self._process is not None
            try:
                self._process.wait(60)
            finally:
                self._kill_group()
            ends = consumer.end_offsets(partitions)
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                found.update(record.value for record in consumer.poll(0.2))
        return found

    def open_transactions(self) -> list[str]:
        with Admin(bootstrap_servers=self.broker.bootstrap) as admin:
            listed = admin.list_transactions(states=["Ongoing"])
        return [listing.transactional_id for listing in listed]

    def _tail(self) -> str:
        return (self.directory / "driver.log").read_bytes()[-3000:].decode(errors="replace")

    def close(self) -> None:
        if self._process is not None:
            self._kill_group()
            self._process.wait()
        self._output.close()


@pytest.fixture
def killed_query(serve: Callable[..., Any], tmp_path: Path) -> Iterator[KilledQuery]:
    query = KilledQuery(serve({"group.initial.rebalance.delay.ms": "0"}), tmp_path)
    yield query
    query.close()


def _faults(kinds: list[tuple[str, Victim]], source: random.Random) -> Iterator[SparkFault]:
    for kind, victim in kinds:
        moment = source.choice(["before", "sent", "answered"])
        requests = REQUESTS_LATER if source.random() < 0.7 else REQUESTS
        yield SparkFault(kind, source.randint(1, requests[kind]), moment, victim)


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(FEW, id="few", marks=pytest.mark.timeout(900)),
        pytest.param(MANY, id="many", marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)
def test_the_committed_output_is_the_input(killed_query: KilledQuery, kinds: list[tuple[str, Victim]]) -> None:
    source = random.Random(len(kinds))
    struck: Counter[str] = Counter()
    killed_query.start()
    with Producer(bootstrap_servers=killed_query.broker.bootstrap) as producer:
        killed_query.write_rows(producer, ROWS_A_FAULT)
        for fault in _faults(source.sample(kinds, len(kinds)), source):
            began_s = time.monotonic()
            while not killed_query.strike(producer, fault):
                # The process that took it made fewer requests, as most do that are not their first.
                fault = fault._replace(request=max(fault.request - 2, 1))
            struck[f"{fault.kind} {fault.victim.value}"] += 1
            print(f"{fault.file_name} struck after {time.monotonic() - began_s:.1f} s", flush=True)
        killed_query.write_rows(producer, ROWS_A_FAULT)
    found = killed_query.finish()
    lost, twice = killed_query.written - found, found - killed_query.written
    print(
        f"{sum(struck.values())} kill points: {dict(struck)}; {killed_query.starts} starts; {sum(found.values())} rows"
    )
    assert (sorted(lost.elements()), sorted(twice.elements())) == ([], [])
    assert killed_query.open_transactions() == []
    assert sum(struck.values()) == len(kinds)
