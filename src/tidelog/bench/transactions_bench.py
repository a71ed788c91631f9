"""`tidelog bench transactions`: transactional produce on Tidelog and Apache Kafka, in alternating runs.

What always holds: both brokers get the same ready-made frames over one plain connection, made before the clock starts;
every partition is in every transaction; afterwards the logs hold every record and every marker, or there is no figure.
The requests are the versions that librdkafka sends, with which a producer keeps its epoch from commit to commit; small
transactions are measured a second time as Java clients from 4.0 on send them (transaction.version 2, KIP-890), without
adding partitions beforehand, and with an epoch for each. A request that comes before the markers of the last
transaction are written is refused, and is sent again after the pause that clients make.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tidelog.bench import comparison
from tidelog.bench.bare import IN_FLIGHT, PRODUCE_VERSION, RECORD_OVERHEAD_BYTES, BareConnection, frame
from tidelog.bench.brokers import BrokerProcess
from tidelog.bench.comparison import Progress, Quantity, Samples, both_running, in_turn, throughput
from tidelog.bench.errors import MeasurementError
from tidelog.bench.processes import cpu_s_of
from tidelog.bench.report import Row
from tidelog.bench.stage import led_topic
from tidelog.bench.workload import Throughput
from tidelog.client.admin import Admin, OffsetSpec
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidelog.protocol.messages.k24_add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tidelog.protocol.messages.k26_end_txn import END_TXN, EndTxnRequest, EndTxnResponse
from tidelog.records import encode_batch

GOAL = 1.0
PARTITIONS = 4
RECORD_BYTES = 100
BATCH_BYTES = 100_000
WARM_UP_TRANSACTIONS = 2_000
_LARGE, _SMALL, _SMALL_VERSION_2 = "large", "small", "small version 2"
_FIND_VERSION, _INIT_VERSION, _ADD_VERSION, _END_VERSION = 2, 4, 3, 3
_PRODUCE_VERSION_2, _END_VERSION_2 = 12, 5  # of transaction.version 2
_TRANSACTION = 1  # the type of the key that FindCoordinator is asked for
_DEADLINE_S = 60.0
_POLL_S = 0.02
# How long clients wait before they ask again: the Java client and librdkafka after AddPartitionsToTxn was refused, and
# the Java client (retry.backoff.ms) after a produce was, which Kafka holds back for up to 0.1 s before it refuses it.
_ADD_BACKOFF_S = 0.02
_PRODUCE_BACKOFF_S = 0.1
# While the coordinator's topic is made, and while the markers of the last transaction are being written.
_RETRIED = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


@dataclass(frozen=True)
class Plan(comparison.Plan):
    """How much is measured."""

    megabytes: int = 300
    commit_interval_ms: int = 100
    small_transactions: int = 1000


class TransactionalProducer:
    """One producer with one connection; it counts what it sends, to hold the logs against it."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.connection = BareConnection(broker.port)
        self.sequences = [0] * PARTITIONS
        self.transactions = 0
        self.transactional_id = f"bench-{topic}"
        self.producer_id, self.epoch = self._init()

    def close(self) -> None:
        self.connection.close()

    def _init(self) -> tuple[int, int]:
        find = FindCoordinatorRequest(key=self.transactional_id, key_type=_TRANSACTION)

        def ask_for_coordinator() -> int:
            self.connection.sock.sendall(frame(FIND_COORDINATOR, find, _FIND_VERSION))
            return self.connection.receive(FIND_COORDINATOR, FindCoordinatorResponse, _FIND_VERSION).error_code

        self._until_taken("FindCoordinator", ask_for_coordinator, _POLL_S)
        init = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=60_000)
        given: list[InitProducerIdResponse] = []

        def ask_for_id() -> int:
            self.connection.sock.sendall(frame(INIT_PRODUCER_ID, init, _INIT_VERSION))
            given.append(self.connection.receive(INIT_PRODUCER_ID, InitProducerIdResponse, _INIT_VERSION))
            return given[-1].error_code

        self._until_taken("InitProducerId", ask_for_id, _POLL_S)
        return given[-1].producer_id, given[-1].producer_epoch

    def make_frames(self, count: int, records: int) -> list[bytes]:
        """That many produce requests, a batch each, the partitions in turn."""
        made = []
        for number in range(count):
            partition = number % PARTITIONS
            made.append(self._frame(partition, records, self.epoch, self.sequences[partition], PRODUCE_VERSION))
            self.sequences[partition] += records
        return made

    def make_version_2_frames(self, transactions: int) -> list[list[bytes]]:
        """A record for each partition and transaction; every transaction has its own epoch and sequence."""
        # Its epoch is that of the transactions before, which have numbered on.
        self.producer_id, self.epoch = self._init()
        made = []
        for number in range(transactions):
            epoch = self.epoch + number
            made.append([self._frame(partition, 1, epoch, 0, _PRODUCE_VERSION_2) for partition in range(PARTITIONS)])
        self.sequences = [count + transactions for count in self.sequences]
        return made

    def _frame(self, partition: int, records: int, epoch: int, sequence: int, version: int) -> bytes:
        batch = encode_batch(
            [(None, bytes(RECORD_BYTES), (), None)] * records,
            producer_id=self.producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
            now_ms=time.time_ns() // 1_000_000,
        )
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(name=self.topic, partition_data=[data])],
        )
        return frame(PRODUCE, request, version)

    def add_partitions(self) -> None:
        topic = AddPartitionsToTxnTopic(name=self.topic, partitions=list(range(PARTITIONS)))
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )
        asked = frame(ADD_PARTITIONS_TO_TXN, request, _ADD_VERSION)

        def ask() -> int:
            self.connection.sock.sendall(asked)
            answer = self.connection.receive(ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnResponse, _ADD_VERSION)
            rows = answer.results_by_topic_v3_and_below[0].results_by_partition
            return max(row.partition_error_code for row in rows)

        self._until_taken("AddPartitionsToTxn", ask, _ADD_BACKOFF_S)

    def send(self, frames: Iterator[bytes], until_s: float) -> int:
        """Five requests in flight until that time or the last frame; returns how many were acknowledged."""
        sent = answered = 0
        for request in frames:
            self.connection.sock.sendall(request)
            sent += 1
            if sent - answered == IN_FLIGHT:
                self._receive_produced()
                answered += 1
            if time.perf_counter() > until_s and sent >= PARTITIONS:
                break
        while answered < sent:
            self._receive_produced()
            answered += 1
        return sent

    def send_version_2(self, frames: list[bytes]) -> None:
        """All in flight; what comes before the markers of the last transaction are written is sent again, later."""
        deadline_s = time.monotonic() + _DEADLINE_S
        while frames:
            for request in frames:
                self.connection.sock.sendall(request)
            refused = []
            for request in frames:
                answer = self.connection.receive(PRODUCE, ProduceResponse, _PRODUCE_VERSION_2)
                code = answer.responses[0].partition_responses[0].error_code
                if code in _RETRIED and time.monotonic() < deadline_s:
                    refused.append(request)
                else:
                    self._check("Produce", code)
            frames = refused
            if frames:
                time.sleep(_PRODUCE_BACKOFF_S)

    def _receive_produced(self) -> None:
        answer = self.connection.receive(PRODUCE, ProduceResponse, PRODUCE_VERSION)
        self._check("Produce", answer.responses[0].partition_responses[0].error_code)

    def commit(self, version: int = _END_VERSION) -> None:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=True,
        )
        self.connection.sock.sendall(frame(END_TXN, request, version))
        answer = self.connection.receive(END_TXN, EndTxnResponse, version)
        self._check("EndTxn", answer.error_code)
        self.transactions += 1
        if version >= _END_VERSION_2:
            if (answer.producer_id, answer.producer_epoch) != (self.producer_id, self.epoch + 1):
                raise MeasurementError(f"{self.broker.name} answered a commit with another epoch than the next")
            self.epoch = answer.producer_epoch

    def check_logs(self) -> None:
        """Every record, and a marker for every transaction, must be in the logs."""
        expected = sum(self.sequences) + PARTITIONS * self.transactions
        partitions = {TopicPartition(self.topic, partition): OffsetSpec.LATEST for partition in range(PARTITIONS)}
        deadline_s = time.monotonic() + _DEADLINE_S
        with Admin(bootstrap_servers=self.broker.bootstrap) as admin:
            while True:
                found = admin.list_offsets(partitions)
                stored = sum(offset.offset for offset in found.values())
                if stored == expected:
                    return
                # The markers of the last transaction may still be on their way.
                if time.monotonic() > deadline_s:
                    raise MeasurementError(f"{self.broker.name} holds {stored} records and markers of {expected}")
                time.sleep(_POLL_S)

    def _until_taken(self, what: str, ask: Callable[[], int], pause_s: float) -> None:
        deadline_s = time.monotonic() + _DEADLINE_S
        while (code := ask()) in _RETRIED and time.monotonic() < deadline_s:
            time.sleep(pause_s)
        self._check(what, code)

    def _check(self, what: str, code: int) -> None:
        if code != ErrorCode.NONE:
            raise MeasurementError(f"{self.broker.name} answered {what} with {ErrorCode(code).name}")


def compare(plan: Plan, progress: Progress, directory: Path | None = None) -> list[Row]:
    """Measure both brokers; rows in the order of the docs' table."""
    with both_running(directory, progress) as (_, sides):
        for side in sides:
            progress(f"warming up {side.broker.name}")
            _measure(side.broker, f"warm-up-{side.broker.port}", plan, Samples(), WARM_UP_TRANSACTIONS)
        for run in range(plan.runs):
            progress(f"run {run + 1} of {plan.runs}")
            for side in in_turn(sides, run):
                _measure(side.broker, f"run-{run}", plan, side.samples, plan.small_transactions)
    return comparison.rows(quantities(plan), *(side.samples for side in sides))


def quantities(plan: Plan) -> list[Quantity]:
    """The rows of the table."""
    large = f"transactional produce 100 B, a commit every {plan.commit_interval_ms} ms"
    small = f"transactions of {PARTITIONS} records in {PARTITIONS} partitions, one after the other"
    return [
        *throughput(_LARGE, large, GOAL),
        Quantity(f"{_LARGE} commit", f"{large}: the commit, p50", "ms"),
        *_small_quantities(_SMALL, small),
        *_small_quantities(_SMALL_VERSION_2, f"{small}, version 2"),
    ]


def _small_quantities(name: str, what: str) -> list[Quantity]:
    return [
        Quantity(f"{name} transactions/s", what, "transactions/s", GOAL, higher_is_better=True),
        Quantity(f"{name} p50", f"{what}, p50", "ms"),
        Quantity(f"{name} p99", f"{what}, p99", "ms"),
        Quantity(f"{name} commit", f"{what}: the commit, p50", "ms"),
    ]


def _measure(broker: BrokerProcess, topic: str, plan: Plan, samples: Samples, small_transactions: int) -> None:
    with led_topic(broker, topic, partitions=PARTITIONS), closing(TransactionalProducer(broker, topic)) as producer:
        _large_transactions(producer, plan, samples)
        _small_transactions(producer, small_transactions, samples)
        _small_version_2_transactions(producer, small_transactions, samples)
        producer.check_logs()


def _large_transactions(producer: TransactionalProducer, plan: Plan, samples: Samples) -> None:
    """As many records as go through, and a commit whenever the interval has passed."""
    records = BATCH_BYTES // (RECORD_BYTES + RECORD_OVERHEAD_BYTES)
    frames = producer.make_frames(plan.megabytes * 1_000_000 // BATCH_BYTES // PARTITIONS * PARTITIONS, records)
    left = iter(frames)
    sent = 0
    commits_ms = []
    cpu_before_s = cpu_s_of(producer.broker.pid)
    began_s = time.perf_counter()
    while sent < len(frames):
        producer.add_partitions()
        sent += producer.send(left, time.perf_counter() + plan.commit_interval_ms / 1000)
        ended_s = time.perf_counter()
        producer.commit()
        commits_ms.append((time.perf_counter() - ended_s) * 1000)
    seconds = time.perf_counter() - began_s
    cpu_s = cpu_s_of(producer.broker.pid) - cpu_before_s
    run = Throughput(seconds, sent * records, sent * records * RECORD_BYTES, cpu_s)
    samples.add_throughput(_LARGE, run)
    samples.add(f"{_LARGE} commit", statistics.median(commits_ms))


def _small_transactions(producer: TransactionalProducer, count: int, samples: Samples) -> None:
    """One record for each partition, and a commit; the next when the answer is in."""
    left = iter(producer.make_frames(count * PARTITIONS, 1))

    def write(_: int) -> None:
        producer.add_partitions()
        producer.send(left, until_s=0)

    _one_after_the_other(count, write, producer.commit, samples, _SMALL)


def _small_version_2_transactions(producer: TransactionalProducer, count: int, samples: Samples) -> None:
    """The same with transaction.version 2."""
    frames = producer.make_version_2_frames(count)
    _one_after_the_other(
        count,
        lambda number: producer.send_version_2(frames[number]),
        lambda: producer.commit(_END_VERSION_2),
        samples,
        _SMALL_VERSION_2,
    )


def _one_after_the_other(
    count: int, write: Callable[[int], None], commit: Callable[[], None], samples: Samples, name: str
) -> None:
    took_ms = []
    commits_ms = []
    began_s = time.perf_counter()
    for number in range(count):
        one_began_s = time.perf_counter()
        write(number)
        written_s = time.perf_counter()
        commit()
        ended_s = time.perf_counter()
        took_ms.append((ended_s - one_began_s) * 1000)
        commits_ms.append((ended_s - written_s) * 1000)
    samples.add(f"{name} transactions/s", count / (time.perf_counter() - began_s))
    samples.add(f"{name} p50", statistics.median(took_ms))
    samples.add(f"{name} p99", statistics.quantiles(took_ms, n=100)[98])
    samples.add(f"{name} commit", statistics.median(commits_ms))
