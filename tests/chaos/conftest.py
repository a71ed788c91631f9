"""Brokers as processes of their own, to be killed, starved and lied to; and a client that behaves beside all that."""

from __future__ import annotations

import functools
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition

from tidelog.bench.brokers import TidelogBroker
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.records import decode_records, iter_headers
from tidelog.testing.raw_client import RawClient, fetch_request, produce_request
from tidelog.torture.disks import DiskImage, Tracing

START_WAIT_S = 30.0
ANSWER_WAIT_S = 60.0
GOOD_TOPIC = "good"
# How long the broker may keep a client waiting that asks for next to nothing, whatever others ask for: a few turns of
# its event loop, none of which takes more than 20 ms.
STALL_MS_MAX = 100.0


class ServedBroker(TidelogBroker):
    """`tidelog serve` with settings of the test's choice."""

    def __init__(self, directory: Path, settings: Mapping[str, object], port: int | None = None) -> None:
        super().__init__(directory, port)
        self.settings = {name: str(value) for name, value in settings.items()}

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def log_dir(self) -> Path:
        return self.data_dir / "broker-1"

    def command(self) -> list[str]:
        command = super().command()
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        return command

    def output(self) -> str:
        return self.log_path.read_text(errors="replace")

    def fail_to_start(self) -> tuple[int, list[str]]:
        """Start it where it can't; its exit code and the lines it wrote on standard error."""
        done = subprocess.run(self.command(), capture_output=True, text=True, timeout=START_WAIT_S)
        return done.returncode, done.stderr.splitlines()

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )
        with RawClient(self.port) as client:
            request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
            (created,) = client.ask(CREATE_TOPICS, request, CreateTopicsResponse, 5).topics
            assert created.error_code == 0, f"{name}: {created.error_message}"


StartServed = Callable[..., ServedBroker]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[StartServed]:
    """Starts brokers as processes: `serve(settings)`; each is killed after the test."""
    brokers: list[ServedBroker] = []

    def make(
        settings: Mapping[str, object] | None = None, directory: Path | None = None, *, start: bool = True
    ) -> ServedBroker:
        broker = ServedBroker(directory or tmp_path / f"broker-{len(brokers)}", settings or {})
        brokers.append(broker)
        if start:
            broker.start()
        return broker

    yield make
    for broker in brokers:
        broker.kill()


def _read_committed(broker: ServedBroker, topic: str, partitions: int) -> list[tuple[int, bytes]]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[tuple[int, bytes]] = []
    at_end: set[int] = set()
    deadline_s = time.monotonic() + START_WAIT_S
    try:
        while len(at_end) < partitions:
            assert time.monotonic() < deadline_s, at_end
            message = consumer.poll(0.1)
            if message is None:
                continue
            index = message.partition()
            assert index is not None
            if message.error() is not None:
                at_end.add(index)
            else:
                found.append((index, message.value() or b""))
    finally:
        consumer.close()
    return found


ReadCommitted = Callable[[ServedBroker, str, int], list[tuple[int, bytes]]]


@pytest.fixture
def read_committed() -> ReadCommitted:
    """Reads all committed records of a topic: `read_committed(broker, topic, partitions)`, by partition and value."""
    return _read_committed


MakeDisk = Callable[..., DiskImage]


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[MakeDisk]:
    """Makes disks: `make_disk(size_mb, options)`; they are gone after the test."""
    disks: list[DiskImage] = []

    def make(size_mb: int = 64, options: str = "") -> DiskImage:
        disk = DiskImage(tmp_path / f"disk-{len(disks)}", size_mb, options)
        disks.append(disk)
        return disk

    yield make
    for disk in disks:
        disk.remove()


Trace = Callable[..., Tracing]


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Trace]:
    """`trace(broker, *options)` with strace's options."""
    traces: list[Tracing] = []

    def start(broker: ServedBroker, *options: str) -> Tracing:
        tracing = Tracing(broker.pid, tmp_path / f"trace-{len(traces)}", *options)
        traces.append(tracing)
        return tracing

    yield start
    for tracing in traces:
        tracing.stop()


class Spent(NamedTuple):
    """Where the time of a request went, as the kernel counts it, in seconds.

    Tests share their machine, so a slow answer is not always the broker's fault. It is its fault if its event loop
    used the processor for long, or slept while nothing kept it from going on: a flush, say, or a thread that holds the
    interpreter's lock. What runs late because the machine ran something else is not: that may be the loop, any other
    thread of the broker, as the lock may be its, or the good client.
    """

    wall_s: float
    loop_cpu_s: float
    loop_waited_s: float
    others_waited_s: float

    @classmethod
    def by(cls, request: Callable[[], None], broker_pid: int) -> Spent:
        # The clock is read within the counters: if this process has to wait in between, the wait is counted.
        before = cls._counted(broker_pid)
        began_s = time.perf_counter()
        request()
        wall_s = time.perf_counter() - began_s
        return cls(wall_s, *(end - begin for end, begin in zip(cls._counted(broker_pid), before, strict=True)))

    @staticmethod
    def _counted(broker_pid: int) -> tuple[float, float, float]:
        loop_cpu_s = loop_waited_s = 0.0
        others_waited_s = _stolen_s() + _cpu_and_waited_s(Path("/proc/self/schedstat"))[1]
        for thread in Path(f"/proc/{broker_pid}/task").iterdir():
            try:
                cpu_s, waited_s = _cpu_and_waited_s(thread / "schedstat")
            except (FileNotFoundError, ProcessLookupError):
                continue  # a thread that has just ended
            if thread.name == str(broker_pid):
                loop_cpu_s, loop_waited_s = cpu_s, waited_s
            else:
                others_waited_s += waited_s
        return loop_cpu_s, loop_waited_s, others_waited_s

    @property
    def stall_ms(self) -> float:
        """How much of the time the broker has to answer for."""
        slept_s = self.wall_s - self.loop_cpu_s - self.loop_waited_s
        return 1000 * (self.loop_cpu_s + max(0.0, slept_s - self.others_waited_s))


def _cpu_and_waited_s(schedstat: Path) -> tuple[float, float]:
    """How long a thread ran, and how long it was ready to run while the machine ran something else."""
    cpu_ns, waited_ns, _ = schedstat.read_text().split()
    return int(cpu_ns) / 1e9, int(waited_ns) / 1e9


def _stolen_s() -> float:
    """How long this machine, if it is a virtual one, was not run by its host."""
    with Path("/proc/stat").open() as stat:
        return int(stat.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


class Progress(NamedTuple):
    """What the good client saw since it was last asked; `problem` is empty as long as all went well."""

    round_trips: int
    slowest: Spent
    problem: str

    def check(self, stall_ms_max: float = STALL_MS_MAX) -> None:
        """Nothing went wrong, and no request waited for the broker for long."""
        assert not self.problem, self.problem
        assert self.slowest.stall_ms < stall_ms_max, f"the broker kept a good client waiting: {self.slowest}"


class GoodClient:
    """Writes one record and reads it back, over and over, in a process of its own.

    Its own process, so that the test's work does not look like a stall of the broker.
    """

    def __init__(self, broker: ServedBroker) -> None:
        broker.create_topic(GOOD_TOPIC)
        context = get_context("fork")
        self._control, far_end = context.Pipe()
        self._process = context.Process(
            target=_work, args=(broker.port, broker.pid, far_end, self._control), daemon=True
        )
        self._process.start()
        far_end.close()

    def report(self) -> Progress:
        """What it saw since the last report."""
        return self._ask("report")

    def finish(self) -> Progress:
        """The last report, after it read every record that it ever wrote once more."""
        progress = self._ask("finish")
        self._process.join(ANSWER_WAIT_S)
        return progress

    def close(self) -> None:
        self._control.close()
        self._process.join(ANSWER_WAIT_S)
        self._process.close()

    def _ask(self, what: str) -> Progress:
        self._control.send(what)
        assert self._control.poll(ANSWER_WAIT_S), "the good client is stuck"
        progress: Progress = self._control.recv()
        return progress


@pytest.fixture
def good_client() -> Iterator[Callable[[ServedBroker], GoodClient]]:
    with ExitStack() as clients:

        def start(broker: ServedBroker) -> GoodClient:
            client = GoodClient(broker)
            clients.callback(client.close)
            return client

        yield start


def _work(port: int, broker_pid: int, control: Connection, test_end: Connection) -> None:
    test_end.close()  # a copy; the end of the test could not be seen otherwise
    written = round_trips = 0
    nothing = slowest = Spent(0.0, 0.0, 0.0, 0.0)
    problem = ""
    with RawClient(port) as client:
        while True:
            # The pause leaves the machine's few cores to the broker.
            try:
                order = control.recv() if control.poll(0.002) else "go on"
            except EOFError:
                return
            if order == "finish" and not problem:
                problem = _find_lost(client, written)
            if order != "go on":
                control.send(Progress(round_trips, slowest, problem))
                round_trips, slowest = 0, nothing
            if order == "finish":
                return
            if problem:
                continue
            try:
                for step in (_write, _read_back):
                    spent = Spent.by(functools.partial(step, client, written), broker_pid)
                    slowest = max(slowest, spent, key=lambda each: each.stall_ms)
            except (AssertionError, OSError) as error:
                problem = f"record {written}: {error!r}"
            written += 1
            round_trips += 1


def _write(client: RawClient, number: int) -> None:
    produced = client.ask(PRODUCE, produce_request(GOOD_TOPIC, b"good-%d" % number), ProduceResponse, 9)
    (answer,) = produced.responses[0].partition_responses
    assert (answer.error_code, answer.base_offset) == (0, number)


def _read_back(client: RawClient, number: int) -> None:
    assert _read(client, number) == [(number, b"good-%d" % number)]


def _read(client: RawClient, offset: int) -> list[tuple[int, bytes | None]]:
    fetched = client.ask(FETCH, fetch_request(GOOD_TOPIC, offset), FetchResponse, 11)
    (partition,) = fetched.responses[0].partitions
    assert partition.error_code == 0
    assert isinstance(partition.records, memoryview)
    return [
        (record.offset, record.value)
        for position, _ in iter_headers(partition.records)
        for record in decode_records(partition.records, position)
    ]


def _find_lost(client: RawClient, written: int) -> str:
    found: list[tuple[int, bytes | None]] = []
    while len(found) < written:
        found += _read(client, len(found))
    return "" if found == [(number, b"good-%d" % number) for number in range(written)] else "records are lost"
