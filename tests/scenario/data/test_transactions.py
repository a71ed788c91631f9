"""Transactions as a partition sees them: records held back until a marker decides, over plain sockets.

The markers come from the test itself, as a coordinator would send them, and no coordinator is asked about partitions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import PRODUCE, PartitionProduceResponse, ProduceRequest, ProduceResponse
from tidelog.protocol.messages.k01_fetch import PartitionData
from tidelog.protocol.messages.k27_write_txn_markers import (
    WRITE_TXN_MARKERS,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
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


def test_without_verification_turned_off_no_transaction_begins(
    connect: Connect, batch: MakeBatch, produce: MakeProduce
) -> None:
    """Behaviour 60: a partition that no coordinator knows of takes no transactional records."""
    with Broker() as broker:
        broker.create_topic("topic")
        raw = connect(broker)
        producer = Producer(raw, batch, produce, 9)
        assert producer.send("topic", b"a").error_code == ErrorCode.INVALID_TXN_STATE
        assert raw.fetch("topic", 0).high_watermark == 0


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
