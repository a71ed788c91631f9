"""`tidelog bench partitions`: thousands of partitions on one broker, Tidelog's and Apache Kafka's, in alternating runs.

What always holds: a step ends when every partition has answered without an error, never when the broker merely says
that it is ready; both sides get the same ready-made requests; each run begins with an empty data directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog.bench.bare import IN_FLIGHT, PRODUCE_VERSION, BareConnection, frame
from tidelog.bench.brokers import BrokerProcess, KafkaBroker, TidelogBroker, kafka_jars
from tidelog.bench.errors import MeasurementError, PlanError
from tidelog.bench.processes import cpu_of, resident_bytes_of
from tidelog.bench.report import Row, median_row
from tidelog.bench.stage import clock, work_directory
from tidelog.client.admin import OffsetSpec
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k02_list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.records import encode_batch

Progress = Callable[[str], None]

GOAL: Final = 1.0
TOPIC: Final = "many"
# Versions that both brokers serve.
_CREATE_VERSION = 7
_LIST_OFFSETS_VERSION = 7
_DEADLINE_S = 300.0
_POLL_S = 0.005
_IDLE_S = 10.0
_TICK_S = 0.01


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. A run of both brokers with 5,000 partitions takes about two minutes on two cores.

    Runs are even, so that each broker comes first equally often.
    """

    partitions: int = 5000
    runs: int = 2

    def __post_init__(self) -> None:
        if self.runs < 2 or self.runs % 2:
            raise PlanError(f"runs must be even, so that each side comes first equally often, not {self.runs}")


@dataclass(slots=True)
class _Samples:
    """What one side took: seconds, and megabytes of memory after it."""

    create_s: list[float] = field(default_factory=list)
    created_mb: list[float] = field(default_factory=list)
    produce_at_once_s: list[float] = field(default_factory=list)
    produce_singly_s: list[float] = field(default_factory=list)
    produced_mb: list[float] = field(default_factory=list)
    idle_cpu_percent: list[float] = field(default_factory=list)
    stop_s: list[float] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    started_mb: list[float] = field(default_factory=list)
    crash_start_s: list[float] = field(default_factory=list)
    recovered_mb: list[float] = field(default_factory=list)


def compare(plan: Plan, progress: Progress, directory: Path | None = None) -> list[Row]:
    """Measure both brokers; rows in the order of the docs' table."""
    progress("bringing Apache Kafka's jars (first time only)")
    kafka_jars()
    kinds: list[type[TidelogBroker] | type[KafkaBroker]] = [TidelogBroker, KafkaBroker]
    samples = {kind: _Samples() for kind in kinds}
    for run in range(plan.runs):
        for kind in kinds if run % 2 == 0 else kinds[::-1]:
            with work_directory(directory) as work:
                progress(f"run {run + 1} of {plan.runs}: {kind.name}")
                _measure(kind(work), plan, samples[kind], progress)
    return _rows(samples[TidelogBroker], samples[KafkaBroker])


def _measure(broker: BrokerProcess, plan: Plan, samples: _Samples, progress: Progress) -> None:
    requests = _Requests(plan.partitions)
    try:
        broker.start()
        progress(f"  create {plan.partitions} partitions")
        with clock(samples.create_s):
            _create(broker, plan.partitions)
            _wait_until_all_answer(broker, requests)
        samples.created_mb.append(_resident_mb(broker))
        progress("  produce to all")
        with clock(samples.produce_at_once_s):
            _produce(broker, [requests.produce_at_once])
        with clock(samples.produce_singly_s):
            _produce(broker, requests.produce_singly)
        samples.produced_mb.append(_resident_mb(broker))
        samples.idle_cpu_percent.append(_idle_cpu_percent(broker))
        progress("  stop and start")
        with clock(samples.stop_s):
            broker.stop(_DEADLINE_S)
        with clock(samples.start_s):
            broker.start(_DEADLINE_S)
            _wait_until_all_answer(broker, requests)
        samples.started_mb.append(_resident_mb(broker))
        progress("  kill and start")
        _produce(broker, [requests.produce_at_once])
        broker.kill()
        with clock(samples.crash_start_s):
            broker.start(_DEADLINE_S)
            _wait_until_all_answer(broker, requests)
        samples.recovered_mb.append(_resident_mb(broker))
        _check_all_have(broker, requests, 3)
    finally:
        broker.kill()


class _Requests:
    """Requests made before the clock runs."""

    def __init__(self, partitions: int) -> None:
        batch = encode_batch([(None, bytes(100), (), None)], now_ms=time.time_ns() // 1_000_000)
        datas = [PartitionProduceData(index=index, records=batch) for index in range(partitions)]
        self.produce_at_once = _produce_frame(datas)
        self.produce_singly = [_produce_frame([data]) for data in datas]
        latest = OffsetSpec.LATEST
        asked = [ListOffsetsPartition(partition_index=index, timestamp=latest) for index in range(partitions)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=asked)])
        self.list_offsets = frame(LIST_OFFSETS, request, _LIST_OFFSETS_VERSION)


def _produce_frame(datas: Sequence[PartitionProduceData]) -> bytes:
    topic = TopicProduceData(name=TOPIC, partition_data=list(datas))
    return frame(PRODUCE, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic]), PRODUCE_VERSION)


def _create(broker: BrokerProcess, partitions: int) -> None:
    topic = CreatableTopic(name=TOPIC, num_partitions=partitions, replication_factor=1)
    with _connection(broker) as connection:
        connection.sock.sendall(frame(CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7))
        answer = connection.receive(CREATE_TOPICS, CreateTopicsResponse, _CREATE_VERSION)
        _check(broker, answer.topics[0].error_code)


def _produce(broker: BrokerProcess, frames: Sequence[bytes]) -> None:
    with _connection(broker) as connection:
        for sent in range(len(frames) + IN_FLIGHT):
            if sent >= IN_FLIGHT and sent - IN_FLIGHT < len(frames):
                answer = connection.receive(PRODUCE, ProduceResponse, PRODUCE_VERSION)
                for partition in answer.responses[0].partition_responses:
                    _check(broker, partition.error_code)
            if sent < len(frames):
                connection.sock.sendall(frames[sent])


def _wait_until_all_answer(broker: BrokerProcess, requests: _Requests) -> list[int]:
    """Where each partition ends, once all of them tell."""
    deadline_s = time.monotonic() + _DEADLINE_S
    with _connection(broker) as connection:
        while True:
            connection.sock.sendall(requests.list_offsets)
            answer = connection.receive(LIST_OFFSETS, ListOffsetsResponse, _LIST_OFFSETS_VERSION)
            partitions = answer.topics[0].partitions
            failed = [partition for partition in partitions if partition.error_code != ErrorCode.NONE]
            if not failed:
                return [partition.offset for partition in partitions]
            if time.monotonic() > deadline_s:
                name = ErrorCode(failed[0].error_code).name
                raise MeasurementError(f"{broker.name}: {len(failed)} partitions still do not answer: {name}")
            time.sleep(_POLL_S)


def _check_all_have(broker: BrokerProcess, requests: _Requests, records: int) -> None:
    """No record that was acknowledged may be missing, or the figures mean nothing."""
    ends = _wait_until_all_answer(broker, requests)
    if set(ends) != {records}:
        raise MeasurementError(f"{broker.name} has partitions that end at {sorted(set(ends))}, not all at {records}")


def _idle_cpu_percent(broker: BrokerProcess) -> float:
    """Of one core, while nobody asks for anything; at least the one tick that can be told from none."""
    before, began = cpu_of(broker.pid), time.perf_counter()
    time.sleep(_IDLE_S)
    used_s = max((cpu_of(broker.pid) - before).total_s, _TICK_S)
    return 100 * used_s / (time.perf_counter() - began)


def _resident_mb(broker: BrokerProcess) -> float:
    return resident_bytes_of(broker.pid) / 1e6


def _check(broker: BrokerProcess, code: int) -> None:
    if code != ErrorCode.NONE:
        raise MeasurementError(f"{broker.name} refused a request: {ErrorCode(code).name}")


@contextmanager
def _connection(broker: BrokerProcess) -> Iterator[BareConnection]:
    connection = BareConnection(broker.port)
    try:
        yield connection
    finally:
        connection.close()


def _rows(ours: _Samples, theirs: _Samples) -> list[Row]:
    def row(what: str, unit: str, name: str, target: float | None) -> Row:
        return median_row(what, unit, getattr(ours, name), getattr(theirs, name), higher_is_better=False, target=target)

    return [
        row("create, until all answer", "s", "create_s", GOAL),
        row("memory then", "MB", "created_mb", None),
        row("produce one record to each, in one request", "s", "produce_at_once_s", GOAL),
        row("produce one record to each, a request each", "s", "produce_singly_s", GOAL),
        row("memory then", "MB", "produced_mb", None),
        row("CPU while idle", "% of a core", "idle_cpu_percent", None),
        row("clean stop", "s", "stop_s", GOAL),
        row("start after it, until all answer", "s", "start_s", GOAL),
        row("memory then", "MB", "started_mb", None),
        row("start after kill -9, until all answer", "s", "crash_start_s", GOAL),
        row("memory then", "MB", "recovered_mb", None),
    ]
