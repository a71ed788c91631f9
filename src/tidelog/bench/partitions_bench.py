"""`tidelog bench partitions`: thousands of partitions on one broker, Tidelog's and Apache Kafka's, in alternating runs.

What always holds: a step ends when every partition has answered without an error, never when the broker merely says
that it is ready; both sides get the same ready-made requests, and enough of them beforehand on a small topic; each run
begins with an empty data directory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.bench import comparison
from tidelog.bench.bare import IN_FLIGHT, PRODUCE_VERSION, BareConnection, check_accepted, frame
from tidelog.bench.brokers import BrokerProcess
from tidelog.bench.comparison import Progress, Quantity, Samples, measure_new_brokers
from tidelog.bench.errors import MeasurementError
from tidelog.bench.processes import cpu_s_of, resident_bytes_of
from tidelog.bench.report import Row
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

GOAL: Final = 1.0
TOPIC: Final = "many"
# Versions that both brokers serve.
_CREATE_VERSION = 7
_LIST_OFFSETS_VERSION = 7
_DEADLINE_S = 300.0
_POLL_S = 0.005
_IDLE_S = 10.0
_WARM_UP_TOPIC = "warm-up"
WARM_UP_PARTITIONS = 50
WARM_UP_REQUESTS = 500
AGAIN = 5


@dataclass(frozen=True)
class Plan(comparison.Plan):
    """How much is measured. A run of both brokers with 5,000 partitions takes about two minutes on two cores."""

    runs: int = 2
    partitions: int = 5000

    @classmethod
    def known_rows(cls) -> Sequence[str]:
        return tuple(QUANTITIES)


QUANTITIES: Final = {
    "create": (
        Quantity("create", "create, until all answer", "s", GOAL),
        Quantity("memory when created", "memory then", "MB"),
    ),
    "produce": (
        Quantity("first at once", "produce the first record to each, in one request", "s", GOAL),
        Quantity("at once", f"produce another to each, in one request, median of {AGAIN}", "s", GOAL),
        Quantity("singly", "produce another to each, a request each", "s", GOAL),
        Quantity("memory when written", "memory then", "MB"),
    ),
    "idle": (Quantity("idle CPU", "CPU while idle", "% of a core"),),
    "restart": (
        Quantity("stop", "clean stop", "s", GOAL),
        Quantity("start", "start after it, until all answer", "s", GOAL),
        Quantity("memory when started", "memory then", "MB"),
    ),
    "crash": (
        Quantity("start after a crash", "start after kill -9, until all answer", "s", GOAL),
        Quantity("memory when recovered", "memory then", "MB"),
    ),
}


def compare(plan: Plan, progress: Progress, directory: Path | None = None) -> list[Row]:
    """Measure both brokers; rows in the order of the docs' table."""

    def measure(broker: BrokerProcess, samples: Samples) -> None:
        _measure(broker, plan, samples, progress)

    quantities = [each for name in plan.chosen for each in QUANTITIES[name]]
    return comparison.rows(quantities, *measure_new_brokers(plan.runs, directory, progress, measure))


def _measure(broker: BrokerProcess, plan: Plan, samples: Samples, progress: Progress) -> None:
    """The steps that the plan asks for, each on what those before it left; the partitions are always created."""
    requests = _Requests(TOPIC, plan.partitions)
    broker.start()
    progress("  warm up with a few partitions")
    _warm_up(broker)
    progress(f"  create {plan.partitions} partitions")
    with samples.clock("create"):
        _create(broker, TOPIC, plan.partitions)
        _wait_until_all_answer(broker, requests)
    samples.add("memory when created", _resident_mb(broker))
    records = 0
    if "produce" in plan.chosen:
        progress("  produce to all")
        records += _measure_produce(broker, requests, samples)
    if "idle" in plan.chosen:
        progress("  idle")
        samples.add("idle CPU", _idle_cpu_percent(broker))
    if "restart" in plan.chosen:
        progress("  stop and start")
        _measure_restart(broker, requests, samples)
    if "crash" in plan.chosen:
        progress("  kill and start")
        records += _measure_crash(broker, requests, samples)
    _check_all_have(broker, requests, records)


def _measure_produce(broker: BrokerProcess, requests: _Requests, samples: Samples) -> int:
    """Gives the records that each partition got."""
    with samples.clock("first at once"):
        _produce(broker, [requests.produce_at_once])
    again = Samples()
    for _ in range(AGAIN):
        with again.clock("at once"):
            _produce(broker, [requests.produce_at_once])
    samples.add("at once", again.median("at once"))
    with samples.clock("singly"):
        _produce(broker, requests.produce_singly)
    samples.add("memory when written", _resident_mb(broker))
    return 1 + AGAIN + 1


def _measure_restart(broker: BrokerProcess, requests: _Requests, samples: Samples) -> None:
    with samples.clock("stop"):
        broker.stop(_DEADLINE_S)
    with samples.clock("start"):
        broker.start(_DEADLINE_S)
        _wait_until_all_answer(broker, requests)
    samples.add("memory when started", _resident_mb(broker))


def _measure_crash(broker: BrokerProcess, requests: _Requests, samples: Samples) -> int:
    """Gives the records that each partition got."""
    _produce(broker, [requests.produce_at_once])
    broker.kill()
    with samples.clock("start after a crash"):
        broker.start(_DEADLINE_S)
        _wait_until_all_answer(broker, requests)
    samples.add("memory when recovered", _resident_mb(broker))
    return 1


def _warm_up(broker: BrokerProcess) -> None:
    """Let a JVM compile what it will run: only then do requests cost what they cost a broker in use."""
    requests = _Requests(_WARM_UP_TOPIC, WARM_UP_PARTITIONS)
    _create(broker, _WARM_UP_TOPIC, WARM_UP_PARTITIONS)
    _wait_until_all_answer(broker, requests)
    _produce(broker, [requests.produce_at_once] * WARM_UP_REQUESTS)
    for _ in range(WARM_UP_REQUESTS):
        _wait_until_all_answer(broker, requests)


class _Requests:
    """Requests made before the clock runs."""

    def __init__(self, topic: str, partitions: int) -> None:
        batch = encode_batch([(None, bytes(100), (), None)], now_ms=time.time_ns() // 1_000_000)
        datas = [PartitionProduceData(index=index, records=batch) for index in range(partitions)]
        self.produce_at_once = _produce_frame(topic, datas)
        self.produce_singly = [_produce_frame(topic, [data]) for data in datas]
        latest = OffsetSpec.LATEST
        asked = [ListOffsetsPartition(partition_index=index, timestamp=latest) for index in range(partitions)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
        self.list_offsets = frame(LIST_OFFSETS, request, _LIST_OFFSETS_VERSION)


def _produce_frame(topic: str, datas: Sequence[PartitionProduceData]) -> bytes:
    data = TopicProduceData(name=topic, partition_data=list(datas))
    return frame(PRODUCE, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data]), PRODUCE_VERSION)


def _create(broker: BrokerProcess, topic: str, partitions: int) -> None:
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)], timeout_ms=60_000
    )
    with closing(BareConnection(broker.port)) as connection:
        connection.sock.sendall(frame(CREATE_TOPICS, request, _CREATE_VERSION))
        answer = connection.receive(CREATE_TOPICS, CreateTopicsResponse, _CREATE_VERSION)
        check_accepted(broker, answer.topics[0].error_code)


def _produce(broker: BrokerProcess, frames: Sequence[bytes]) -> None:
    with closing(BareConnection(broker.port)) as connection:
        for sent in range(len(frames) + IN_FLIGHT):
            if sent >= IN_FLIGHT and sent - IN_FLIGHT < len(frames):
                answer = connection.receive(PRODUCE, ProduceResponse, PRODUCE_VERSION)
                for partition in answer.responses[0].partition_responses:
                    check_accepted(broker, partition.error_code)
            if sent < len(frames):
                connection.sock.sendall(frames[sent])


def _wait_until_all_answer(broker: BrokerProcess, requests: _Requests) -> list[int]:
    """Where each partition ends, once all of them tell."""
    deadline_s = time.monotonic() + _DEADLINE_S
    with closing(BareConnection(broker.port)) as connection:
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
    """Of one core, while nobody asks for anything."""
    cpu_before_s, began_s = cpu_s_of(broker.pid), time.perf_counter()
    time.sleep(_IDLE_S)
    return 100 * (cpu_s_of(broker.pid) - cpu_before_s) / (time.perf_counter() - began_s)


def _resident_mb(broker: BrokerProcess) -> float:
    return resident_bytes_of(broker.pid) / 1e6
