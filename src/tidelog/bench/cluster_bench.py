"""`tidelog bench cluster`: three Tidelog brokers beside three of Apache Kafka that replicate all, in alternating runs.

What always holds: topics have three replicas and min.insync.replicas=2, and produce waits for acks=all; both sides get
the same ready-made requests over the same number of connections, and enough of them beforehand; no record that was
acknowledged may be missing afterwards. Each run begins with new processes and an empty directory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.bench import comparison
from tidelog.bench.bare import (
    BATCH_BYTES,
    IN_FLIGHT,
    PRODUCE_VERSION,
    RECORD_OVERHEAD_BYTES,
    BareConnection,
    check_accepted,
    produce_frame,
    round_trips,
)
from tidelog.bench.brokers import BrokerProcess
from tidelog.bench.clusters import MEMBERS, Cluster, KafkaCluster, TidelogCluster
from tidelog.bench.comparison import Progress, Quantity, Samples, in_turn, prepare_kafka, throughput, touch_free_memory
from tidelog.bench.errors import MeasurementError
from tidelog.bench.report import Row
from tidelog.bench.stage import work_directory
from tidelog.bench.workload import Throughput
from tidelog.client.admin import Admin, NewTopic, OffsetSpec
from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse

RECORD_BYTES: Final = (100, 1000)
WARM_UP_ROUND_TRIPS = 8_000
WARM_UP_BATCHES = 2_000
_SETTINGS: Final = {"min.insync.replicas": "2"}
_WARM_UP_TOPIC: Final = "warm-up"
_ATTEMPT_PAUSE_S: Final = 0.005
_FAILOVER_DEADLINE_S: Final = 120.0
_MANY_DEADLINE_S: Final = 600.0


@dataclass(frozen=True)
class Plan(comparison.Plan):
    """How much is measured; rows are names of MEASUREMENTS."""

    runs: int = 2
    megabytes: int = 300
    round_trips: int = 3000
    failovers: int = 3
    partitions: int = 2000

    @classmethod
    def known_rows(cls) -> Sequence[str]:
        return tuple(MEASUREMENTS)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Rows that are measured together, and how."""

    quantities: Sequence[Quantity]
    measure: Callable[[Cluster, Plan, Samples], None]


def compare(plan: Plan, progress: Progress, directory: Path | None = None) -> list[Row]:
    """Measure both clusters; rows in the order of the docs' table."""
    prepare_kafka(progress)
    ours, theirs = Samples(), Samples()
    sides: list[tuple[type[TidelogCluster] | type[KafkaCluster], Samples]] = [
        (TidelogCluster, ours),
        (KafkaCluster, theirs),
    ]
    for run in range(plan.runs):
        for kind, samples in in_turn(sides, run):
            progress(f"run {run + 1} of {plan.runs}: {kind.name}")
            with work_directory(directory) as work:
                measure(kind(work / "cluster"), plan, samples, progress)
    quantities = [each for name in plan.chosen for each in MEASUREMENTS[name].quantities]
    return comparison.rows(quantities, ours, theirs)


def measure(cluster: Cluster, plan: Plan, samples: Samples, progress: Progress) -> None:
    """Start a cluster, take what the plan asks for, and end it whatever happens."""
    try:
        progress("  start and warm up")
        cluster.start()
        samples.add("idle memory", statistics.median(cluster.resident_bytes) / 1e6)
        _warm_up(cluster)
        # A warm-up writes 6 GB, and the cluster before this one has given back as much.
        touch_free_memory(lambda line: progress(f"  {line}"))
        for name in plan.chosen:
            progress(f"  {name}")
            MEASUREMENTS[name].measure(cluster, plan, samples)
    finally:
        cluster.stop()


def _warm_up(cluster: Cluster) -> None:
    """Let a JVM compile what it will run, on the leader and on the followers."""
    _create(cluster, _WARM_UP_TOPIC, MEMBERS)
    round_trips(cluster.leader(_WARM_UP_TOPIC), _WARM_UP_TOPIC, WARM_UP_ROUND_TRIPS)
    _produce(cluster, _WARM_UP_TOPIC, RECORD_BYTES[0], WARM_UP_BATCHES)


def _create(cluster: Cluster, topic: str, partitions: int, assignments: dict[int, Sequence[int]] | None = None) -> None:
    """A topic whose partitions are led and have all their replicas in sync."""
    new = NewTopic(topic, partitions, MEMBERS, _SETTINGS)
    if assignments is not None:
        new = NewTopic(topic, configs=_SETTINGS, assignments=assignments)
    with Admin(bootstrap_servers=cluster.bootstrap, default_api_timeout_ms=300_000) as admin:
        admin.create_topics([new]).raise_for_errors()
    cluster.wait_for_replicas(topic, range(1, MEMBERS + 1) if assignments is None else assignments[0])


def _delete(cluster: Cluster, topic: str) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.delete_topics(topic).raise_for_errors()


def _check_end(cluster: Cluster, topic: str, records: int) -> None:
    """Nothing that was acknowledged may be missing, or the figures mean nothing."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        asked = [TopicPartition(topic, each.partition) for each in cluster.partitions(topic)]
        ends = admin.list_offsets(dict.fromkeys(asked, OffsetSpec.LATEST))
        stored = sum(ends[each].offset for each in asked)
    if stored < records:
        raise MeasurementError(f"{cluster.name} holds {stored} records of {records} that it acknowledged")


def _produce(cluster: Cluster, topic: str, record_bytes: int, count: int) -> Throughput:
    """Ready-made batches to all partitions in turn, each over a connection to its leader."""
    records = BATCH_BYTES // (record_bytes + RECORD_OVERHEAD_BYTES)
    partitions = cluster.partitions(topic)
    frames = [produce_frame(topic, bytes(record_bytes), records, -1, each.partition) for each in partitions]
    leaders = [cluster.members[each.leader_id] for each in partitions]
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(BareConnection(leader.port))) for leader in leaders]
        in_flight = IN_FLIGHT * len(connections)
        cpu_before_s, began_s = cluster.cpu_s, time.perf_counter()
        for sent in range(count + in_flight):
            turn = sent % len(connections)
            if in_flight <= sent:
                answer = connections[turn].receive(PRODUCE, ProduceResponse, PRODUCE_VERSION)
                check_accepted(leaders[turn], answer.responses[0].partition_responses[0].error_code)
            if sent < count:
                connections[turn].sock.sendall(frames[turn])
        seconds = time.perf_counter() - began_s
        cpu_s = cluster.cpu_s - cpu_before_s
    return Throughput(seconds, count * records, count * records * record_bytes, cpu_s)


def _measure_produce(cluster: Cluster, plan: Plan, samples: Samples) -> None:
    for record_bytes in RECORD_BYTES:
        topic = f"produce-{record_bytes}"
        _create(cluster, topic, MEMBERS)
        run = _produce(cluster, topic, record_bytes, max(plan.megabytes * 1_000_000 // BATCH_BYTES, 1))
        samples.add_throughput(f"produce {record_bytes}", run)
        _check_end(cluster, topic, run.records)
        _delete(cluster, topic)


def _measure_latency(cluster: Cluster, plan: Plan, samples: Samples) -> None:
    _create(cluster, "latency", 1)
    cpu_before_s = cluster.cpu_s
    latency = round_trips(cluster.leader("latency"), "latency", plan.round_trips)
    samples.add("latency CPU", 1e6 * (cluster.cpu_s - cpu_before_s) / (plan.round_trips + 500))
    samples.add("latency p50", latency.p50_us)
    samples.add("latency p99", latency.p99_us)
    _check_end(cluster, "latency", plan.round_trips)
    _delete(cluster, "latency")


def _measure_failover(cluster: Cluster, plan: Plan, samples: Samples) -> None:
    """Kill the leader, and produce until a new one has acknowledged; then let it come back and catch up."""
    topic = "failover"
    _create(cluster, topic, 1)
    request = produce_frame(topic, bytes(100), 1, -1)
    for _ in range(plan.failovers):
        leader = _wait_for_acknowledgement(cluster, topic, request)
        with samples.clock("failover"):
            leader.kill()
            _wait_for_acknowledgement(cluster, topic, request)
        leader.start(_FAILOVER_DEADLINE_S)
        cluster.wait_for_replicas(topic)
        cluster.wait_for_replicas(_WARM_UP_TOPIC)
    _delete(cluster, topic)


def _wait_for_acknowledgement(cluster: Cluster, topic: str, request: bytes) -> BrokerProcess:
    """What a producer does: look for the leader, send, and start over when that fails. Returns the leader."""
    deadline_s = time.monotonic() + _FAILOVER_DEADLINE_S
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        while time.monotonic() < deadline_s:
            with suppress(ClientError, MeasurementError, OSError):
                leader = cluster.members.get(admin.describe_topics(topic)[topic].partitions[0].leader_id)
                if leader is not None and leader.is_running and _is_acknowledged(leader, request):
                    return leader
            time.sleep(_ATTEMPT_PAUSE_S)
    raise MeasurementError(f"{cluster.name} acknowledged nothing for {_FAILOVER_DEADLINE_S:g} s after its leader died")


def _is_acknowledged(leader: BrokerProcess, request: bytes) -> bool:
    with closing(BareConnection(leader.port)) as connection:
        connection.sock.sendall(request)
        answer = connection.receive(PRODUCE, ProduceResponse, PRODUCE_VERSION)
    return answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def _measure_catch_up(cluster: Cluster, plan: Plan, samples: Samples) -> None:
    """Give a partition of two replicas a third one, which has to copy all of it."""
    topic = "catch-up"
    _create(cluster, topic, 1, {0: [1, 2]})
    run = _produce(cluster, topic, RECORD_BYTES[1], max(plan.megabytes * 1_000_000 // BATCH_BYTES, 1))
    cpu_before_s, began_s = cluster.cpu_s, time.perf_counter()
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.alter_partition_reassignments({TopicPartition(topic, 0): [1, 2, 3]}).raise_for_errors()
    cluster.wait_for_replicas(topic)
    samples.add("catch-up", run.payload_bytes / 1e6 / (time.perf_counter() - began_s))
    samples.add("catch-up CPU", (cluster.cpu_s - cpu_before_s) / (run.payload_bytes / 1e9))
    _check_end(cluster, topic, run.records)
    _delete(cluster, topic)


def _measure_partitions(cluster: Cluster, plan: Plan, samples: Samples) -> None:
    """Restart one broker of a cluster with thousands of partitions, until all replicas are in sync again."""
    topic = "many"
    with samples.clock("partitions create"):
        _create(cluster, topic, plan.partitions)
    member = cluster.members[MEMBERS]
    with samples.clock("partitions restart"):
        member.stop(_MANY_DEADLINE_S)
        member.start(_MANY_DEADLINE_S)
        cluster.wait_for_replicas(topic)
    samples.add("partitions memory", statistics.median(cluster.resident_bytes) / 1e6)
    _delete(cluster, topic)


def _measure_memory(cluster: Cluster, plan: Plan, samples: Samples) -> None:
    """It was measured before the warm-up."""


MEASUREMENTS: Final = {
    "memory": Measurement((Quantity("idle memory", "idle memory of a broker", "MB"),), _measure_memory),
    "latency": Measurement(
        (
            Quantity("latency p50", "one-record produce, p50", "us", 1.0),
            Quantity("latency p99", "one-record produce, p99", "us", 1.0),
            Quantity("latency CPU", "one-record produce", "CPU us of all brokers"),
        ),
        _measure_latency,
    ),
    "produce": Measurement(
        (
            *throughput("produce 100", "produce 100 B, ready-made 1 MB batches", 1.5, 2.0),
            *throughput("produce 1000", "produce 1 KB, ready-made 1 MB batches", 1.5, 2.0),
        ),
        _measure_produce,
    ),
    "catch-up": Measurement(
        (
            Quantity("catch-up", "an empty follower catches up", "MB/s", None, higher_is_better=True),
            Quantity("catch-up CPU", "an empty follower catches up", "CPU s/GB of all brokers"),
        ),
        _measure_catch_up,
    ),
    "failover": Measurement(
        (Quantity("failover", "write again after kill -9 of the leader", "s", 3.0, limit=1.0),), _measure_failover
    ),
    "partitions": Measurement(
        (
            Quantity("partitions create", "create many partitions, until all are in sync", "s"),
            Quantity("partitions restart", "restart a broker with them, until all are in sync", "s"),
            Quantity("partitions memory", "memory of a broker then", "MB"),
        ),
        _measure_partitions,
    ),
}
