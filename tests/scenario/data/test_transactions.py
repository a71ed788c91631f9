"""Transactions as a partition sees them: records held back until a marker decides, over plain sockets.

The markers come from the test itself, as a coordinator would send them, and no coordinator is asked about partitions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.broker.internal_topics import partition_for
from tidelog.broker.offsets_topic import OFFSETS_TOPIC
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import PRODUCE, PartitionProduceResponse, ProduceRequest, ProduceResponse
from tidelog.protocol.messages.k01_fetch import PartitionData
from tidelog.protocol.messages.k08_offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.k09_offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k27_write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidelog.protocol.messages.k61_describe_producers import (
    DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tidelog.records import Record
from tidelog.testing import Broker

if TYPE_CHECKING:
    from tests.scenario.data.conftest import RawClient

NewTopic = Callable[..., str]
MakeBatch = Callable[..., bytearray]
ReadRecords = Callable[[PartitionData], list[Record]]
Connect = Callable[[Broker], "RawClient"]
MakeProduce = Callable[..., ProduceRequest]

READ_COMMITTED = 1
LATEST = -1
UNVERIFIED = {"transaction.partition.verification.enable": "false"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=UNVERIFIED) as running:
        yield running


class Producer:
    """A transactional producer without a coordinator."""

    def __init__(self, raw: RawClient, make_batch: MakeBatch, produce: MakeProduce, producer_id: int) -> None:
        self.raw = raw
        self.make_batch = make_batch
        self.make_request = produce
        self.producer_id = producer_id
        self.epoch = 0
        self.sequences: dict[tuple[str, int], int] = {}

    def send(self, topic: str, *values: bytes, partition: int = 0, version: int = 11) -> PartitionProduceResponse:
        sequence = self.sequences.get((topic, partition), 0)
        self.sequences[topic, partition] = sequence + len(values)
        batch = self.make_batch(
            *values,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        request = self.make_request({(topic, partition): batch})
        request.transactional_id = f"tx-{self.producer_id}"
        return self.raw.ask(PRODUCE, version, request, ProduceResponse).responses[0].partition_responses[0]

    def end(self, topic: str, *, commit: bool, partition: int = 0, coordinator_epoch: int = 0, version: int = 1) -> int:
        marker = WritableTxnMarker(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            transaction_result=commit,
            coordinator_epoch=coordinator_epoch,
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        response = self.raw.ask(WRITE_TXN_MARKERS, version, request, WriteTxnMarkersResponse)
        (result,) = response.markers
        assert result.producer_id == self.producer_id
        assert [(item.name, item.partitions[0].partition_index) for item in result.topics] == [(topic, partition)]
        return result.topics[0].partitions[0].error_code


NewProducer = Callable[..., Producer]
_producer_ids = iter(range(1000, 2000))


@pytest.fixture
def new_producer(raw: RawClient, batch: MakeBatch, produce: MakeProduce) -> NewProducer:
    return lambda client=raw: Producer(client, batch, produce, next(_producer_ids))


def aborted(data: PartitionData) -> list[tuple[int, int]]:
    return [(entry.producer_id, entry.first_offset) for entry in data.aborted_transactions or []]


def test_an_open_transaction_is_read_by_nobody_who_reads_committed(
    raw: RawClient, new_topic: NewTopic, batch: MakeBatch, records: ReadRecords, new_producer: NewProducer
) -> None:
    """Behaviours 38, 57: data above the last stable offset is hidden; a marker takes an offset; a commit shows it."""
    topic = new_topic()
    raw.produce(topic, batch(b"before"))
    producer = new_producer()
    assert producer.send(topic, b"in", b"side").base_offset == 1
    raw.produce(topic, batch(b"behind"))
    held = raw.fetch(topic, 0, isolation_level=READ_COMMITTED)
    assert [record.value for record in records(held)] == [b"before"]
    assert (held.high_watermark, held.last_stable_offset, aborted(held)) == (4, 1, [])
    assert len(records(raw.fetch(topic, 0))) == 4
    assert raw.fetch(topic, 0).aborted_transactions is None
    assert raw.list_offset(topic, LATEST).offset == 4
    assert raw.list_offset(topic, LATEST, isolation_level=READ_COMMITTED).offset == 1
    assert producer.end(topic, commit=True) == ErrorCode.NONE
    shown = raw.fetch(topic, 0, isolation_level=READ_COMMITTED)
    assert [record.value for record in records(shown)][:4] == [b"before", b"in", b"side", b"behind"]
    assert (shown.high_watermark, shown.last_stable_offset, aborted(shown)) == (5, 5, [])
    assert raw.list_offset(topic, LATEST, isolation_level=READ_COMMITTED).offset == 5


def test_aborted_transactions_are_listed_for_what_is_read(
    raw: RawClient, new_topic: NewTopic, new_producer: NewProducer
) -> None:
    """Behaviour 38: sorted by first offset, and only those that touch what the answer holds."""
    topic = new_topic()
    one, two = new_producer(), new_producer()
    one.send(topic, b"a")
    two.send(topic, b"b")
    assert two.end(topic, commit=False) == ErrorCode.NONE
    assert one.end(topic, commit=False) == ErrorCode.NONE
    two.send(topic, b"c")
    assert two.end(topic, commit=True) == ErrorCode.NONE
    answer = raw.fetch(topic, 0, isolation_level=READ_COMMITTED)
    assert aborted(answer) == [(one.producer_id, 0), (two.producer_id, 1)]
    assert aborted(raw.fetch(topic, 3, isolation_level=READ_COMMITTED)) == [(one.producer_id, 0)]
    assert aborted(raw.fetch(topic, 4, isolation_level=READ_COMMITTED)) == []


def test_a_waiting_reader_hears_of_the_marker(
    broker: Broker,
    raw: RawClient,
    connect: Connect,
    new_topic: NewTopic,
    records: ReadRecords,
    new_producer: NewProducer,
) -> None:
    topic = new_topic()
    producer = new_producer()
    producer.send(topic, b"a")
    reader = connect(broker)
    answers: list[PartitionData] = []
    waiting = threading.Thread(
        target=lambda: answers.append(
            reader.fetch(topic, 0, isolation_level=READ_COMMITTED, max_wait_ms=20_000, min_bytes=1)
        )
    )
    waiting.start()
    # It may arrive after the marker, too; then it need not wait.
    assert producer.end(topic, commit=True) == ErrorCode.NONE
    waiting.join(15)
    assert not waiting.is_alive()
    assert records(answers[0])[0].value == b"a"


def test_markers_are_fenced_and_known_by_partition(
    raw: RawClient, new_topic: NewTopic, new_producer: NewProducer
) -> None:
    topic = new_topic()
    producer = new_producer()
    producer.send(topic, b"a")
    assert producer.end(topic, commit=True, coordinator_epoch=5, version=2) == ErrorCode.NONE
    assert producer.end(topic, commit=True, coordinator_epoch=4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    producer.epoch = -1
    assert producer.end(topic, commit=True, coordinator_epoch=5) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end("nowhere", commit=True) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_hanging_transaction_is_described(raw: RawClient, new_topic: NewTopic, new_producer: NewProducer) -> None:
    """Behaviour 61."""
    topic = new_topic()
    producer = new_producer()
    producer.send(topic, b"a", b"b")
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0])])

    def described() -> tuple[int, int, int, int]:
        response = raw.ask(DESCRIBE_PRODUCERS, 0, request, DescribeProducersResponse)
        (found,) = response.topics[0].partitions[0].active_producers
        return found.producer_id, found.last_sequence, found.coordinator_epoch, found.current_txn_start_offset

    assert described() == (producer.producer_id, 1, -1, 0)
    producer.end(topic, commit=False, coordinator_epoch=3)
    assert described() == (producer.producer_id, 1, 3, -1)


class Group:
    """A group's offsets of one partition, over a plain socket."""

    def __init__(self, raw: RawClient, topic: str) -> None:
        self.raw = raw
        self.topic = topic
        self.group_id = f"group-of-{topic}"
        self.partition = partition_for(self.group_id, 50)
        find = FindCoordinatorRequest(coordinator_keys=[self.group_id])
        found = raw.ask(FIND_COORDINATOR, 4, find, FindCoordinatorResponse)
        assert found.coordinators[0].error_code == 0

    def commit(self, producer: Producer, offset: int, *, version: int = 3, generation_id: int = -1) -> int:
        request = TxnOffsetCommitRequest(
            transactional_id=f"tx-{producer.producer_id}",
            group_id=self.group_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            generation_id=generation_id,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=self.topic,
                    partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)],
                )
            ],
        )
        answer = self.raw.ask(TXN_OFFSET_COMMIT, version, request, TxnOffsetCommitResponse)
        assert answer.topics[0].name == self.topic
        return answer.topics[0].partitions[0].error_code

    def commit_plainly(self, offset: int) -> int:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name=self.topic, partitions=[partition])],
        )
        answer = self.raw.ask(OFFSET_COMMIT, 8, request, OffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    def fetch(self, *, require_stable: bool = True) -> tuple[int, int]:
        topics = [OffsetFetchRequestTopics(name=self.topic, partition_indexes=[0])]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=self.group_id, topics=topics)], require_stable=require_stable
        )
        answer = self.raw.ask(OFFSET_FETCH, 8, request, OffsetFetchResponse).groups[0]
        assert answer.error_code == 0
        partition = answer.topics[0].partitions[0]
        return partition.committed_offset, partition.error_code

    def coordinator_is_loading(self) -> bool:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=self.group_id, topics=None)])
        answer = self.raw.ask(OFFSET_FETCH, 8, request, OffsetFetchResponse).groups[0]
        return answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def end(self, producer: Producer, *, commit: bool) -> None:
        assert producer.end(OFFSETS_TOPIC, commit=commit, partition=self.partition) == ErrorCode.NONE


UNSTABLE = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)


@pytest.mark.parametrize("version", range(6))
def test_offsets_in_a_transaction_count_when_it_is_committed(
    raw: RawClient, new_topic: NewTopic, new_producer: NewProducer, version: int
) -> None:
    """Behaviours 52, 59: pending offsets are read by nobody, and tell those who ask for stable ones to wait."""
    group = Group(raw, new_topic())
    producer = new_producer()
    assert group.commit(producer, 5, version=version) == ErrorCode.NONE
    assert group.fetch() == UNSTABLE
    assert group.fetch(require_stable=False) == (-1, ErrorCode.NONE)
    group.end(producer, commit=True)
    assert group.fetch() == (5, ErrorCode.NONE)
    assert group.commit(producer, 9, version=version) == ErrorCode.NONE
    assert group.fetch() == UNSTABLE
    assert group.fetch(require_stable=False) == (5, ErrorCode.NONE)
    group.end(producer, commit=False)
    assert group.fetch() == (5, ErrorCode.NONE)


def test_the_offset_that_was_written_last_counts(
    raw: RawClient, new_topic: NewTopic, new_producer: NewProducer
) -> None:
    group = Group(raw, new_topic())
    one, two = new_producer(), new_producer()
    assert group.commit_plainly(3) == ErrorCode.NONE
    group.commit(one, 5)
    group.end(one, commit=True)
    assert group.fetch() == (5, ErrorCode.NONE)
    group.commit(one, 6)
    assert group.commit_plainly(7) == ErrorCode.NONE
    group.end(one, commit=True)
    assert group.fetch() == (7, ErrorCode.NONE)
    group.commit(one, 8)
    group.commit(two, 9)
    group.end(one, commit=True)
    assert group.fetch() == UNSTABLE
    group.end(two, commit=True)
    assert group.fetch() == (9, ErrorCode.NONE)
    group.commit(one, 10)
    group.commit(two, 11)
    group.end(two, commit=True)
    group.end(one, commit=True)
    assert group.fetch() == (11, ErrorCode.NONE)


def test_offsets_in_a_transaction_are_refused_for_others_and_for_what_is_not_there(
    raw: RawClient, new_topic: NewTopic, new_producer: NewProducer
) -> None:
    """Behaviour 59: generation and member are checked where the producer names them."""
    group = Group(raw, new_topic())
    producer = new_producer()
    assert group.commit(producer, 5, generation_id=3) == ErrorCode.ILLEGAL_GENERATION
    group.topic = "nowhere"
    assert group.commit(producer, 5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_in_a_transaction_survive_restarts(
    tmp_path: Path, connect: Connect, batch: MakeBatch, produce: MakeProduce, commit: bool
) -> None:
    broker = Broker(data_dir=tmp_path, settings=UNVERIFIED).start()
    broker.create_topic("topic")
    group = Group(connect(broker), "topic")
    producer = Producer(group.raw, batch, produce, 1)
    group.commit_plainly(2)
    group.commit(producer, 5)
    for end in (Broker.stop, Broker.crash):
        end(broker)
        broker.start()
        producer.raw = group.raw = connect(broker)
        deadline_s = time.monotonic() + 20
        while group.coordinator_is_loading():
            assert time.monotonic() < deadline_s
        assert group.fetch() == UNSTABLE
    group.end(producer, commit=commit)
    assert group.fetch() == (5 if commit else 2, ErrorCode.NONE)
    broker.close()


def test_transactions_survive_restarts(
    tmp_path: Path, connect: Connect, batch: MakeBatch, produce: MakeProduce
) -> None:
    broker = Broker(data_dir=tmp_path, settings=UNVERIFIED).start()
    broker.create_topic("topic")
    one, two = (Producer(connect(broker), batch, produce, producer_id) for producer_id in (1, 2))
    one.send("topic", b"a")
    two.send("topic", b"b")
    one.end("topic", commit=False)
    for end in (Broker.stop, Broker.crash):
        end(broker)
        broker.start()
        raw = connect(broker)
        answer = raw.fetch("topic", 0, isolation_level=READ_COMMITTED)
        assert (answer.last_stable_offset, aborted(answer)) == (1, [(1, 0)])
    two.raw = raw
    two.end("topic", commit=False)
    answer = raw.fetch("topic", 0, isolation_level=READ_COMMITTED)
    assert (answer.last_stable_offset, aborted(answer)) == (4, [(1, 0), (2, 1)])
    broker.close()
