"""Logs that a clean stop left at rest: whatever needs one has a thread open it, and the event loop serves others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.log.partition_log import LogContents, PartitionLog
from tidelog.protocol import Api
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse
from tidelog.protocol.messages.k02_list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k21_delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartition,
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
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.messages.k24_add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
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
from tidelog.testing import Broker
from tidelog.testing.raw_client import RawClient, fetch_request, produce_request

TOPIC = "orders"
TXN = "payments"

Question = tuple[Api, Any, type, int]


def produce() -> Question:
    return PRODUCE, produce_request(TOPIC, b"x"), ProduceResponse, 9


def fetch() -> Question:
    return FETCH, fetch_request(TOPIC, 0), FetchResponse, 11


def list_offsets() -> Question:
    topic = ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(partition_index=0, timestamp=1)])
    return LIST_OFFSETS, ListOffsetsRequest(replica_id=-1, topics=[topic]), ListOffsetsResponse, 6


def offset_for_leader_epoch() -> Question:
    """Of another epoch than the latest, which is known without opening the log."""
    wanted = OffsetForLeaderPartition(partition=0, leader_epoch=1_000)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[wanted])])
    return OFFSET_FOR_LEADER_EPOCH, request, OffsetForLeaderEpochResponse, 4


def describe_producers() -> Question:
    request = DescribeProducersRequest(topics=[TopicRequest(name=TOPIC, partition_indexes=[0])])
    return DESCRIBE_PRODUCERS, request, DescribeProducersResponse, 0


def delete_records() -> Question:
    topic = DeleteRecordsTopic(name=TOPIC, partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])
    return DELETE_RECORDS, DeleteRecordsRequest(topics=[topic], timeout_ms=20_000), DeleteRecordsResponse, 2


def write_txn_markers() -> Question:
    topics = [WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0])]
    marker = WritableTxnMarker(producer_id=1, producer_epoch=0, transaction_result=True, topics=topics)
    return WRITE_TXN_MARKERS, WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, 1


def init_producer_id() -> Question:
    """It ends the transaction that was open when the broker stopped."""
    request = InitProducerIdRequest(transactional_id=TXN, transaction_timeout_ms=60_000)
    return INIT_PRODUCER_ID, request, InitProducerIdResponse, 4


@pytest.fixture
def opened_by(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The threads that opened logs, by topic."""
    threads: dict[str, str] = {}
    open_log = PartitionLog.open

    def opened(log: PartitionLog) -> LogContents:
        if not log.is_open:
            threads[log.topic] = threading.current_thread().name
        return open_log(log)

    monkeypatch.setattr(PartitionLog, "open", opened)
    return threads


@pytest.mark.parametrize(
    "ask",
    [
        produce,
        fetch,
        list_offsets,
        offset_for_leader_epoch,
        describe_producers,
        delete_records,
        write_txn_markers,
        init_producer_id,
    ],
)
def test_a_thread_opens_a_log_at_rest(
    opened_by: dict[str, str], ask: Callable[[], Question], wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    with Broker() as broker:
        broker.create_topic(TOPIC)
        with RawClient(broker.port) as client:
            client.ask(*produce())
            begin_transaction(client)
        broker.stop()
        opened_by.clear()
        broker.start()
        assert TOPIC not in opened_by
        with RawClient(broker.port) as client:
            client.ask(*ask())
        wait_until(lambda: TOPIC in opened_by, "the log is open")
        assert opened_by[TOPIC].startswith("cold-lookups")


def begin_transaction(client: RawClient) -> None:
    find = FindCoordinatorRequest(key_type=1, coordinator_keys=[TXN])
    client.ask(FIND_COORDINATOR, find, FindCoordinatorResponse, 4)
    started: InitProducerIdResponse = client.ask(*init_producer_id())
    assert started.error_code == 0
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=TXN,
        v3_and_below_producer_id=started.producer_id,
        v3_and_below_producer_epoch=started.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
    )
    added = client.ask(ADD_PARTITIONS_TO_TXN, add, AddPartitionsToTxnResponse, 3)
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
