"""ListOffsets, DeleteRecords, OffsetForLeaderEpoch, InitProducerId and the describing requests over a plain socket."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k21_delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidelog.protocol.messages.k23_offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.messages.k35_describe_log_dirs import (
    DESCRIBE_LOG_DIRS,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tidelog.protocol.messages.k61_describe_producers import (
    DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tidelog.records import encode_batch
from tidelog.testing import Broker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scenario.data.conftest import RawClient

    MakeBatch = Callable[..., bytearray]
    NewTopic = Callable[..., str]
    Connect = Callable[[Broker], RawClient]

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6


def delete_before(raw: RawClient, topic: str, offset: int, version: int = 2) -> DeleteRecordsPartitionResult:
    request = DeleteRecordsRequest(
        timeout_ms=5_000,
        topics=[DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(offset=offset)])],
    )
    return raw.ask(DELETE_RECORDS, version, request, DeleteRecordsResponse).topics[0].partitions[0]


def end_of_epoch(
    raw: RawClient, topic: str, epoch: int, *, current: int = -1, version: int = 4, partition: int = 0
) -> EpochEndOffset:
    wanted = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
    )
    response = raw.ask(OFFSET_FOR_LEADER_EPOCH, version, request, OffsetForLeaderEpochResponse)
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_in_every_version(raw: RawClient, new_topic: NewTopic, batch: MakeBatch, version: int) -> None:
    """Behaviour 39: latest, earliest and by time; what a version does not know yet is refused."""
    topic = new_topic()
    base_ms = time.time_ns() // 1_000_000 - 10_000
    for number in range(3):
        raw.produce(topic, batch(b"v", timestamp_ms=base_ms + number * 100))

    def listed(timestamp: int) -> tuple[int, int, int]:
        answer = raw.list_offset(topic, timestamp, version=version)
        return answer.error_code, answer.offset, answer.timestamp

    unsupported = (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
    assert listed(LATEST) == (0, 3, -1)
    assert listed(EARLIEST) == (0, 0, -1)
    assert listed(base_ms) == (0, 0, base_ms)
    assert listed(base_ms + 1) == (0, 1, base_ms + 100)
    assert listed(base_ms + 201) == (0, -1, -1)
    assert listed(MAX_TIMESTAMP) == ((0, 2, base_ms + 200) if version >= 7 else unsupported)
    assert listed(EARLIEST_LOCAL) == ((0, 0, -1) if version >= 8 else unsupported)
    assert listed(LATEST_TIERED) == ((0, -1, -1) if version >= 9 else unsupported)
    assert listed(EARLIEST_PENDING) == ((0, -1, -1) if version >= 11 else unsupported)
    assert listed(-7) == unsupported


def test_list_offsets_of_an_empty_partition(raw: RawClient, new_topic: NewTopic) -> None:
    """Behaviour 39: nothing found is -1 and no error."""
    topic = new_topic()
    assert [raw.list_offset(topic, timestamp).offset for timestamp in (LATEST, EARLIEST)] == [0, 0]
    for timestamp in (MAX_TIMESTAMP, 0, 1_000):
        answer = raw.list_offset(topic, timestamp)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, -1, -1)


def test_timestamps_out_of_order(raw: RawClient, new_topic: NewTopic) -> None:
    """Behaviour 39: the first offset, in the log's order, whose timestamp is not below; also within a batch."""
    topic = new_topic()
    base_ms = time.time_ns() // 1_000_000 - 10_000
    for deltas in ((50, 10), (30, 90, 70), (20,)):
        raw.produce(topic, encode_batch([(b"k", b"v", (), base_ms + delta) for delta in deltas], now_ms=base_ms))
    found = {delta: raw.list_offset(topic, base_ms + delta).offset for delta in (0, 20, 50, 51, 80, 90, 91)}
    assert found == {0: 0, 20: 0, 50: 0, 51: 3, 80: 3, 90: 3, 91: -1}
    answer = raw.list_offset(topic, MAX_TIMESTAMP)
    assert (answer.offset, answer.timestamp) == (3, base_ms + 90)


def test_list_offsets_errors(raw: RawClient, broker: Broker, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviours 36 and 39: unknown partitions, epochs, isolation levels."""
    topic = new_topic()
    raw.produce(topic, batch(b"a"))
    epoch = broker.server.services.replicas.find(topic, 0).leader_epoch
    assert raw.list_offset("never made", LATEST).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert raw.list_offset(topic, LATEST, partition=4).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert raw.list_offset(topic, LATEST, leader_epoch=epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert raw.list_offset(topic, LATEST, leader_epoch=epoch).leader_epoch == epoch
    assert raw.list_offset(topic, LATEST, isolation_level=1).offset == 1


@pytest.mark.parametrize("version", range(3))
def test_delete_records(raw: RawClient, new_topic: NewTopic, batch: MakeBatch, version: int) -> None:
    """Behaviour 40: the low watermark moves up to the high watermark and never back."""
    topic = new_topic()
    for _ in range(5):
        raw.produce(topic, batch(b"a"))

    def deleted(offset: int) -> tuple[int, int]:
        result = delete_before(raw, topic, offset, version)
        return result.error_code, result.low_watermark

    assert deleted(2) == (0, 2)
    assert deleted(1) == (0, 2)
    assert deleted(6) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert deleted(-2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert raw.list_offset(topic, EARLIEST).offset == 2
    assert raw.fetch(topic, 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert raw.fetch(topic, 2).log_start_offset == 2
    assert deleted(-1) == (0, 5)
    assert raw.produce(topic, batch(b"b")).log_start_offset == 5


def test_delete_records_is_refused(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    """Behaviour 40: unknown partitions, topics of the brokers, topics that are only compacted."""
    assert delete_before(raw, "never made", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete_before(raw, "__consumer_offsets", 0).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    topic = new_topic(cleanup_policy="compact")
    raw.produce(topic, batch(b"a"))
    assert delete_before(raw, topic, 1).error_code == ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("version", range(2, 5))
def test_offset_for_leader_epoch(
    raw: RawClient, broker: Broker, new_topic: NewTopic, batch: MakeBatch, version: int
) -> None:
    """Behaviour 36: the current epoch ends at the end of the log; unknown ones are -1."""
    topic = new_topic()
    raw.produce(topic, batch(b"a", b"b"))
    epoch = broker.server.services.replicas.find(topic, 0).leader_epoch

    def ended(asked: int, current: int = -1, partition: int = 0) -> tuple[int, int, int]:
        answer = end_of_epoch(raw, topic, asked, current=current, version=version, partition=partition)
        return answer.error_code, answer.leader_epoch, answer.end_offset

    assert ended(epoch) == (0, epoch, 2)
    assert ended(epoch, epoch) == (0, epoch, 2)
    assert ended(epoch + 5) == (0, -1, -1)
    assert ended(epoch, epoch + 1) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert ended(epoch, partition=9) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


@pytest.mark.parametrize("ending", ["stop", "crash"])
def test_what_survives_a_restart(connect: Connect, batch: MakeBatch, ending: str) -> None:
    """Behaviours 30, 36 and 40: the memory of idempotent producers, epochs with their ends, the low watermark."""
    with Broker() as broker:
        broker.create_topic("t")
        raw = connect(broker)
        for sequence in range(4):
            raw.produce("t", batch(b"a", producer_id=7, producer_epoch=0, base_sequence=sequence))
        first_epoch = broker.server.services.replicas.find("t", 0).leader_epoch
        assert delete_before(raw, "t", 2).low_watermark == 2
        getattr(broker, ending)()
        broker.start()
        raw = connect(broker)
        repeat = raw.produce("t", batch(b"a", producer_id=7, producer_epoch=0, base_sequence=3))
        assert (repeat.error_code, repeat.base_offset) == (0, 3)
        raw.produce("t", batch(b"b", b"c"))
        epoch = broker.server.services.replicas.find("t", 0).leader_epoch
        assert epoch > first_epoch
        answer = end_of_epoch(raw, "t", first_epoch)
        assert (answer.leader_epoch, answer.end_offset) == (first_epoch, 4)
        assert end_of_epoch(raw, "t", epoch).end_offset == 6
        assert raw.fetch("t", 4, leader_epoch=first_epoch).error_code == ErrorCode.FENCED_LEADER_EPOCH
        diverged = raw.fetch("t", 5, last_fetched_epoch=first_epoch)
        assert (diverged.diverging_epoch.epoch, diverged.diverging_epoch.end_offset) == (first_epoch, 4)
        assert raw.list_offset("t", EARLIEST).offset == 2
        assert raw.list_offset("t", LATEST).offset == 6


@pytest.mark.parametrize("version", range(6))
def test_producer_ids(raw: RawClient, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    answers = [raw.ask(INIT_PRODUCER_ID, version, request, InitProducerIdResponse) for _ in range(5)]
    assert {(answer.error_code, answer.producer_epoch) for answer in answers} == {(0, 0)}
    assert len({answer.producer_id for answer in answers}) == 5
    transactional = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    refused = raw.ask(INIT_PRODUCER_ID, version, transactional, InitProducerIdResponse)
    # Nobody has looked for its coordinator yet, so there is none.
    assert (refused.error_code, refused.producer_id) == (ErrorCode.NOT_COORDINATOR, -1)


@pytest.mark.parametrize("version", range(1, 6))
def test_describe_log_dirs(raw: RawClient, broker: Broker, new_topic: NewTopic, batch: MakeBatch, version: int) -> None:
    topic = new_topic(partitions=2)
    sent = batch(bytes(500))
    raw.produce(topic, sent, partition=1)
    wanted = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=topic, partitions=[0, 1, 9])])
    response = raw.ask(DESCRIBE_LOG_DIRS, version, wanted, DescribeLogDirsResponse)
    (directory,) = response.results
    assert directory.error_code == 0
    assert directory.log_dir.startswith("/")
    (described,) = directory.topics
    sizes = {partition.partition_index: partition.partition_size for partition in described.partitions}
    assert (described.name, sizes) == (topic, {0: 0, 1: len(sent)})
    assert {(partition.offset_lag, partition.is_future_key) for partition in described.partitions} == {(0, False)}
    assert (directory.total_bytes > directory.usable_bytes > 0) == (version >= 4)
    everything = raw.ask(DESCRIBE_LOG_DIRS, version, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    assert topic in {described.name for described in everything.results[0].topics}
    nothing = raw.ask(DESCRIBE_LOG_DIRS, version, DescribeLogDirsRequest(topics=[]), DescribeLogDirsResponse)
    assert nothing.results[0].topics == []


def test_describe_producers(raw: RawClient, new_topic: NewTopic, batch: MakeBatch) -> None:
    topic = new_topic()
    for sequence in range(3):
        raw.produce(topic, batch(b"a", producer_id=42, producer_epoch=3, base_sequence=sequence))
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0, 1])])
    known, unknown = raw.ask(DESCRIBE_PRODUCERS, 0, request, DescribeProducersResponse).topics[0].partitions
    (producer,) = known.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (42, 3, 2)
    assert producer.current_txn_start_offset == -1
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_settings_of_a_topic_take_effect_at_once(
    raw: RawClient, broker: Broker, new_topic: NewTopic, batch: MakeBatch
) -> None:
    """Behaviour 17: without a restart."""
    from tidelog.controller.requests import ConfigAlteration
    from tidelog.protocol.config_values import AlterOperation, ConfigChange, ConfigResource, ResourceType

    topic = new_topic()
    assert raw.produce(topic, batch(bytes(2000))).error_code == 0
    change = ConfigChange("max.message.bytes", AlterOperation.SET, "1000")
    alteration = ConfigAlteration(ConfigResource(ResourceType.TOPIC, topic), [change])
    broker.call(lambda server: server.services.controller.incremental_alter_configs([alteration]))
    assert raw.produce(topic, batch(bytes(2000))).error_code == ErrorCode.MESSAGE_TOO_LARGE
