from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest

from tidelog import Admin, Producer
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.admin import DeletedRecords, OffsetSpec
from tidelog.client.errors import BrokerError, ConfigError, NoSuchPartitionError
from tidelog.client.types import RecordMetadata, TopicPartition
from tidelog.protocol import ErrorCode

FreshName = Callable[[str], str]
MakeTopic = Callable[..., str]
Produce = Callable[..., RecordMetadata]
NOON = datetime.datetime(2024, 2, 3, 12, tzinfo=datetime.UTC)
NOON_MS = 1706961600000


@pytest.fixture
def partition(make_topic: MakeTopic, produce: Produce) -> TopicPartition:
    """Three records: at noon, an hour later, half an hour later."""
    key = TopicPartition(make_topic(2), 0)
    for minutes in (0, 60, 30):
        produce(key.topic, b"x", partition=0, timestamp=NOON_MS + minutes * 60_000)
    return key


def test_offsets_by_time_and_by_name(admin: Admin, partition: TopicPartition) -> None:
    def offset(wanted: int | datetime.datetime | OffsetSpec) -> int:
        return admin.list_offsets({partition: wanted})[partition].offset

    assert offset(OffsetSpec.EARLIEST) == 0
    assert offset(OffsetSpec.LATEST) == 3
    assert offset(OffsetSpec.MAX_TIMESTAMP) == 1
    assert offset(NOON_MS) == 0
    assert offset(NOON) == 0
    assert offset(NOON + datetime.timedelta(milliseconds=1)) == 1
    assert offset(NOON + datetime.timedelta(hours=2)) == -1
    found = admin.list_offsets({partition: NOON_MS + 1})[partition]
    assert found.timestamp == NOON_MS + 3_600_000
    assert found.leader_epoch >= 0


def test_times_need_a_time_zone(admin: Admin, partition: TopicPartition) -> None:
    with pytest.raises(ConfigError, match="has no time zone"):
        admin.list_offsets({partition: NOON.replace(tzinfo=None)})


def test_partitions_that_are_not_there_are_their_own_errors(
    admin: Admin, partition: TopicPartition, fresh_name: FreshName
) -> None:
    ninth, nowhere = TopicPartition(partition.topic, 9), TopicPartition(fresh_name("missing"), 0)
    listed = admin.list_offsets(dict.fromkeys([ninth, partition, nowhere], OffsetSpec.LATEST))
    assert listed[partition].offset == 3
    assert list(listed.errors) == [ninth, nowhere]
    with pytest.raises(NoSuchPartitionError, match="has no partition 9; it has 0 to 1"):
        listed[ninth]
    with pytest.raises(NoSuchPartitionError, match="there is no topic"):
        listed[nowhere]


def test_readers_of_committed_records_end_at_an_open_transaction(
    admin: Admin, make_topic: MakeTopic, fresh_name: FreshName, client_cluster: BrokerProcess
) -> None:
    key = TopicPartition(make_topic(), 0)
    with Producer(bootstrap_servers=client_cluster.bootstrap, transactional_id=fresh_name("tx")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(key.topic, b"open").result(20)
        assert admin.list_offsets({key: OffsetSpec.LATEST})[key].offset == 1
        assert admin.list_offsets({key: OffsetSpec.LATEST}, isolation_level="read_committed")[key].offset == 0
        producer.abort_transaction()
    with pytest.raises(ConfigError, match="expected one of read_uncommitted, read_committed"):
        admin.list_offsets({key: OffsetSpec.LATEST}, isolation_level="none")  # type: ignore[arg-type]  # on purpose


def test_records_are_deleted(admin: Admin, partition: TopicPartition) -> None:
    ninth = TopicPartition(partition.topic, 9)
    deleted = admin.delete_records({partition: 2, ninth: 0})
    assert deleted[partition] == DeletedRecords(low_watermark=2)
    assert list(deleted.errors) == [ninth]
    assert admin.list_offsets({partition: OffsetSpec.EARLIEST})[partition].offset == 2
    beyond = admin.delete_records({partition: 99}).errors[partition]
    assert isinstance(beyond, BrokerError)
    assert beyond.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert admin.delete_records({partition: -1})[partition].low_watermark == 3
