"""Brokers and producers are killed, stopped and repeat themselves in the middle of transactions.

A reader of what is committed must see every committed record once, in order, no aborted one, and every transaction in
all of its partitions or in none; the offset that was committed with it tells which.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tidelog.protocol import Api, ErrorCode
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
from tidelog.protocol.messages.k26_end_txn import END_TXN, EndTxnRequest, EndTxnResponse
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidelog.records import encode_batch
from tidelog.testing.raw_client import RawClient

if TYPE_CHECKING:
    from tests.chaos.conftest import ServedBroker, StartServed

WRITER = Path(__file__).with_name("transactional_writer.py")
FENCED = 3
GROUP, TRANSACTION = 0, 1
WRITERS = 3
PARTITIONS = 4
RECORDS = 2
WAIT_S = 60.0
QUIET = {"log_level": 0}
# Fewer partitions of the broker's own: their number changes nothing here but the time of a start.
SETTINGS = {"transaction.state.log.num.partitions": 5, "offsets.topic.num.partitions": 5}
# What may go away by itself: not there yet, loading (producers are told that replicas are missing), moving, still
# ending the last transaction.
RETRIED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
ResponseT = TypeVar("ResponseT")


class Written(NamedTuple):
    """One record as a reader sees it."""

    partition: int
    writer: str
    number: int
    tag: str
    record: int
    partitions: tuple[int, ...]


def read(bootstrap: str, isolation_level: str) -> list[Written]:
    """All records of all partitions, each partition in the order of its offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
        }
    )
    try:
        consumer.assign([TopicPartition("written", partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        found: list[Written] = []
        ended: set[int | None] = set()
        deadline_s = time.monotonic() + WAIT_S
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline_s, f"only {ended} came to their end"
            for message in consumer.consume(5_000, timeout=0.2):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(message.partition())
                    continue
                partition, value = message.partition(), message.value()
                assert partition is not None
                assert value is not None
                writer, number, tag, record, partitions = json.loads(value)
                found.append(Written(partition, writer, number, tag, record, tuple(sorted(partitions))))
        return found
    finally:
        consumer.close()


def check(found: list[Written], committed: dict[str, int], aborted: set[tuple[str, int, str]]) -> None:
    """`committed` is the offset that each writer's group holds: how many of its transactions count."""
    rows: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    tags: dict[tuple[str, int], set[str]] = defaultdict(set)
    places: dict[tuple[str, int], set[int]] = defaultdict(set)
    asked: dict[tuple[str, int], set[tuple[int, ...]]] = defaultdict(set)
    for row in found:
        transaction = row.writer, row.number
        assert (*transaction, row.tag) not in aborted, f"aborted, and yet read: {row}"
        rows[row.writer, row.partition].append((row.number, row.record))
        tags[transaction].add(row.tag)
        places[transaction].add(row.partition)
        asked[transaction].add(row.partitions)
    for (writer, partition), seen in rows.items():
        assert seen == sorted(set(seen)), f"{writer} in partition {partition} is doubled or out of order"
        numbers = {number for number, _ in seen}
        assert len(seen) == RECORDS * len(numbers), f"{writer} in partition {partition} lacks records"
    for transaction, used in tags.items():
        assert len(used) == 1, f"{transaction} was committed by several attempts: {used}"
        assert asked[transaction] == {tuple(sorted(places[transaction]))}, f"{transaction} is torn"
    for writer, count in committed.items():
        assert {number for name, number in tags if name == writer} == set(range(count)), f"{writer}: {count} count"


def committed_offsets(bootstrap: str, writers: list[str]) -> dict[str, int]:
    """What the groups hold, once whatever was left open is aborted as a successor does it."""
    offsets = {}
    for index, name in enumerate(writers):
        Producer({"bootstrap.servers": bootstrap, "transactional.id": name} | QUIET).init_transactions(WAIT_S)
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": name} | QUIET)
        [stored] = consumer.committed([TopicPartition("source", index)], timeout=WAIT_S)
        consumer.close()
        offsets[name] = max(0, stored.offset)
    return offsets


class Writers:
    """Processes that write transactions, each under a transactional id of its own, and what they noted."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self._directory = directory
        self._seed = 0
        self.names = [f"writer-{index}" for index in range(WRITERS)]
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.zombies: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, name: str) -> None:
        self._seed += 1
        arguments = [self._bootstrap, name, str(self.names.index(name)), str(self._journal(name)), str(self._seed)]
        self.running[name] = subprocess.Popen([sys.executable, str(WRITER), *arguments], start_new_session=True)

    def _journal(self, name: str) -> Path:
        return self._directory / f"{name}.journal"

    def notes(self, name: str, kind: str) -> list[str]:
        lines = self._journal(name).read_text().splitlines() if self._journal(name).exists() else []
        return [line.partition(" ")[2] for line in lines if line.split(" ")[0] == kind]

    def wait_for_commits(self, names: list[str]) -> None:
        """Until each of them has one more."""
        before = {name: len(self.notes(name, "commit")) for name in names}
        deadline_s = time.monotonic() + WAIT_S
        while waiting := [name for name in names if len(self.notes(name, "commit")) == before[name]]:
            assert time.monotonic() < deadline_s, f"waited in vain for a commit of {waiting}"
            time.sleep(0.002)

    def replace(self, name: str) -> None:
        """It dies in the middle of what it does, and another one comes."""
        self.running[name].kill()
        self.running[name].wait(WAIT_S)
        self.start(name)

    def stop(self, name: str) -> None:
        """It stands still, is taken for dead, and another one comes."""
        process = self.running[name]
        process.send_signal(signal.SIGSTOP)
        self.zombies.append((name, process))
        self.start(name)

    def wake_zombies(self) -> None:
        for name, process in self.zombies:
            self.wait_for_commits([name])
            process.send_signal(signal.SIGCONT)
            assert process.wait(WAIT_S) == FENCED, f"{name}: a zombie went on"
        self.zombies.clear()

    def end(self) -> None:
        for process in [*self.running.values(), *(process for _, process in self.zombies)]:
            process.kill()
            process.wait(WAIT_S)

    def aborted(self) -> set[tuple[str, int, str]]:
        notes = [note.split(" ") for name in self.names for note in self.notes(name, "abort")]
        return {(name, int(number), tag) for name, number, tag in notes}


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[Callable[[str], Writers]]:
    started: list[Writers] = []

    def start(bootstrap: str) -> Writers:
        made = Writers(bootstrap, tmp_path)
        started.append(made)
        for name in made.names:
            made.start(name)
        return made

    yield start
    for made in started:
        made.end()


@pytest.mark.parametrize(
    ("kills", "settings"),
    [
        pytest.param(10, {}, id="ten kills"),
        pytest.param(30, {"transaction.state.log.segment.bytes": 100_000}, id="thirty kills", marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(1200)
def test_every_committed_record_is_read_once_and_no_aborted_one(
    serve: StartServed, writers: Callable[[str], Writers], kills: int, settings: dict[str, int]
) -> None:
    source = random.Random(kills)
    broker = serve(settings=SETTINGS | settings)
    broker.create_topic("source", WRITERS)
    broker.create_topic("written", PARTITIONS)
    load = writers(broker.bootstrap)
    for turn in range(kills):
        load.wait_for_commits(load.names)
        name = source.choice(load.names)
        if turn % 3 == 1:
            load.replace(name)
        elif turn % 3 == 2:
            load.stop(name)
        time.sleep(source.uniform(0, 0.1))  # the moment of the kill, within some transactions
        broker.kill()
        broker.start()
        load.wake_zombies()
    load.end()
    assert not [note for name in load.names for note in load.notes(name, "broken")]
    committed = committed_offsets(broker.bootstrap, load.names)
    for name in load.names:
        assert set(map(int, load.notes(name, "commit"))) <= set(range(committed[name])), "a commit was lost"
    aborted = load.aborted()
    assert aborted
    check(read(broker.bootstrap, "read_committed"), committed, aborted)
    # The same check finds fault with what it should find fault with.
    with pytest.raises(AssertionError):
        check(read(broker.bootstrap, "read_uncommitted"), committed, aborted)
    assert "Traceback" not in broker.output()


class ByHand:
    """A transactional producer that sends its frames itself: again when the broker dies, and again much too late."""

    NAME = "by-hand"

    def __init__(self, broker: ServedBroker, source: random.Random) -> None:
        self.broker = broker
        self.source = source
        self.client = RawClient(broker.port)
        self.kills = 0
        self.number = 0
        self.attempts = 0
        self.aborted: set[tuple[str, int, str]] = set()
        self.late: list[tuple[Api, object, type, int]] = []
        self.late_answers: dict[str, int] = defaultdict(int)
        self.producer_id, self.epoch = -1, -1

    def close(self) -> None:
        self.client.close()

    def ask(self, api: Api, request: object, response: type[ResponseT], version: int, *, dies: bool) -> ResponseT:
        """Ask until there is an answer that is one; with `dies` the broker is killed while it has the request."""
        deadline_s = time.monotonic() + WAIT_S
        if dies:
            self.client.send(api, request, version)
            time.sleep(self.source.uniform(0, 0.004))
            self.restart()
        while True:
            answer = self.client.ask(api, request, response, version)
            if error_of(answer) not in RETRIED:
                return answer
            assert time.monotonic() < deadline_s, f"{type(request).__name__} is answered {error_of(answer)!r}"
            time.sleep(0.005)

    def restart(self) -> None:
        self.kills += 1
        self.client.close()
        self.broker.kill()
        self.broker.start()
        self.client = RawClient(self.broker.port)

    def find_coordinators(self) -> None:
        """Ask as clients do, which creates the topics that coordinators keep their records in."""
        for key_type in (GROUP, TRANSACTION):
            request = FindCoordinatorRequest(key=self.NAME, key_type=key_type)
            assert self.ask(FIND_COORDINATOR, request, FindCoordinatorResponse, 2, dies=False).error_code == 0

    def init(self, *, dies: bool = False) -> None:
        request = InitProducerIdRequest(transactional_id=self.NAME, transaction_timeout_ms=60_000)
        answer = self.ask(INIT_PRODUCER_ID, request, InitProducerIdResponse, 5, dies=dies)
        assert answer.error_code == 0
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def transact(self, dies_at: int | None) -> None:
        """One transaction; the broker dies at that step of it, and old frames arrive between the steps."""
        self.attempts += 1
        tag = str(self.attempts)
        partitions = self.source.sample(range(PARTITIONS), 3)
        frames: list[tuple[Api, object, type, int]] = [
            (PRODUCE, self._records(partition, tag, partitions), ProduceResponse, 12) for partition in partitions
        ]
        frames.append((TXN_OFFSET_COMMIT, self._offset(), TxnOffsetCommitResponse, 5))
        for step, (api, request, response, version) in enumerate(frames):
            answer: object = self.ask(api, request, response, version, dies=step == dies_at)
            assert error_of(answer) == 0, f"{type(request).__name__}: {error_of(answer)!r}"
            self._come_too_late()
        ending = self.source.choice(["commit", "commit", "commit", "abort", "successor"])
        if ending == "successor":
            # Its commit is on the way all the while, and arrives after somebody took its place.
            frames.append((END_TXN, self._end(commit=True), EndTxnResponse, 5))
            self.init(dies=dies_at == len(partitions) + 1)
        else:
            end = self._end(commit=ending == "commit")
            frames.append((END_TXN, end, EndTxnResponse, 5))
            ended = self.ask(END_TXN, end, EndTxnResponse, 5, dies=dies_at == len(partitions) + 1)
            assert ended.error_code == 0, ErrorCode(ended.error_code)
            assert (ended.producer_id, ended.producer_epoch) == (self.producer_id, self.epoch + 1)
            self.epoch = ended.producer_epoch
        if ending == "commit":
            self.number += 1
        else:
            self.aborted.add((self.NAME, self.number, tag))
        self.late += frames

    def _come_too_late(self) -> None:
        if self.late and self.source.random() < 0.5:
            api, request, response, version = self.source.choice(self.late[-40:])
            with RawClient(self.broker.port) as other:
                self.late_answers[error_of(other.ask(api, request, response, version)).name] += 1

    def _records(self, partition: int, tag: str, partitions: list[int]) -> ProduceRequest:
        values = [json.dumps([self.NAME, self.number, tag, record, partitions]).encode() for record in range(RECORDS)]
        batch = encode_batch(
            [(None, value, (), None) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=0,
            is_transactional=True,
            now_ms=time.time_ns() // 1_000_000,
        )
        data = TopicProduceData(name="written", partition_data=[PartitionProduceData(index=partition, records=batch)])
        return ProduceRequest(transactional_id=self.NAME, acks=-1, timeout_ms=10_000, topic_data=[data])

    def _offset(self) -> TxnOffsetCommitRequest:
        stored = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=self.number + 1)
        return TxnOffsetCommitRequest(
            transactional_id=self.NAME,
            group_id=self.NAME,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name="source", partitions=[stored])],
        )

    def _end(self, *, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.NAME, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit
        )


def error_of(answer: object) -> ErrorCode:
    """The one error of an answer about one thing."""
    if isinstance(answer, ProduceResponse):
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)
    if isinstance(answer, TxnOffsetCommitResponse):
        return ErrorCode(answer.topics[0].partitions[0].error_code)
    assert isinstance(answer, FindCoordinatorResponse | InitProducerIdResponse | EndTxnResponse)
    return ErrorCode(answer.error_code)


@pytest.mark.parametrize(
    ("seed", "transactions"),
    [
        pytest.param(1, 60, id="sixty transactions"),
        *[pytest.param(seed, 300, id=f"seed {seed}", marks=pytest.mark.soak) for seed in range(2, 7)],
    ],
)
@pytest.mark.timeout(1200)
def test_repeated_and_late_requests_change_nothing(serve: StartServed, seed: int, transactions: int) -> None:
    source = random.Random(seed)
    broker = serve(settings=SETTINGS)
    broker.create_topic("source", 1)
    broker.create_topic("written", PARTITIONS)
    with closing(ByHand(broker, source)) as producer:
        producer.find_coordinators()
        producer.init()
        for turn in range(transactions):
            producer.transact(source.randrange(5) if turn % 6 == 5 else None)
    assert producer.kills == transactions // 6
    committed = committed_offsets(broker.bootstrap, [ByHand.NAME])
    assert committed == {ByHand.NAME: producer.number}
    check(read(broker.bootstrap, "read_committed"), committed, producer.aborted)
    with pytest.raises(AssertionError):
        check(read(broker.bootstrap, "read_uncommitted"), committed, producer.aborted)
    assert producer.late_answers.keys() - {"NONE"}, "nothing that came too late was refused"
    assert "Traceback" not in broker.output()
