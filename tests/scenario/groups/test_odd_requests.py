"""Odd requests about groups and transactions over plain sockets, answered with the codes of Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k14_sync_group import SYNC_GROUP, SyncGroupRequest, SyncGroupResponse
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
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TXN_OFFSET_COMMIT,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidelog.protocol.messages.k47_offset_delete import OFFSET_DELETE, OffsetDeleteRequest, OffsetDeleteResponse
from tidelog.protocol.messages.k65_describe_transactions import (
    DESCRIBE_TRANSACTIONS,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tidelog.protocol.messages.k69_consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tidelog.testing import Broker
from tidelog.testing.raw_client import RawClient

Connect = Callable[[Broker], RawClient]


@pytest.fixture
def client(broker: Broker, connect: Connect) -> RawClient:
    return connect(broker)


def test_an_empty_group_id_is_refused_where_members_or_transactions_are_concerned(client: RawClient) -> None:
    row = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = TxnOffsetCommitRequest(
        transactional_id="tx", topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[row])]
    )
    answer = client.ask(TXN_OFFSET_COMMIT, request, TxnOffsetCommitResponse, 3)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_GROUP_ID
    deleted = client.ask(OFFSET_DELETE, OffsetDeleteRequest(), OffsetDeleteResponse, 0)
    assert deleted.error_code == ErrorCode.INVALID_GROUP_ID
    asked = ConsumerGroupDescribeRequest(group_ids=[""])
    (described,) = client.ask(CONSUMER_GROUP_DESCRIBE, asked, ConsumerGroupDescribeResponse, 1).groups
    assert described.error_code == ErrorCode.INVALID_GROUP_ID


def test_offsets_of_unknown_partitions_begin_no_transaction(broker: Broker, client: RawClient) -> None:
    broker.create_topic("plain")
    for key, kind in (("tx", 1), ("g", 0)):
        request = FindCoordinatorRequest(key=key, key_type=kind)
        assert client.ask(FIND_COORDINATOR, request, FindCoordinatorResponse, 3).error_code == ErrorCode.NONE
    begin = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    producer = client.ask(INIT_PRODUCER_ID, begin, InitProducerIdResponse, 4)

    def commit(topic: str, partition: int) -> int:
        row = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=1)
        request = TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id="g",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[row])],
        )
        return client.ask(TXN_OFFSET_COMMIT, request, TxnOffsetCommitResponse, 5).topics[0].partitions[0].error_code

    def state() -> str:
        request = DescribeTransactionsRequest(transactional_ids=["tx"])
        answer = client.ask(DESCRIBE_TRANSACTIONS, request, DescribeTransactionsResponse, 0)
        return answer.transaction_states[0].transaction_state

    assert commit("plain", 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit("none", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert state() == "Empty"
    assert commit("plain", 0) == ErrorCode.NONE
    assert state() == "Ongoing"


@pytest.mark.parametrize(
    ("protocol_type", "protocol_name"), [(None, None), ("consumer", None), (None, "range")], ids=repr
)
def test_a_sync_of_version_5_must_say_what_the_group_agreed_on(
    client: RawClient, protocol_type: str | None, protocol_name: str | None
) -> None:
    request = SyncGroupRequest(
        group_id="g", generation_id=1, member_id="m", protocol_type=protocol_type, protocol_name=protocol_name
    )
    answer = client.ask(SYNC_GROUP, request, SyncGroupResponse, 5)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_no_producer_adds_an_internal_topic_to_its_transaction(broker: Broker, client: RawClient) -> None:
    broker.create_topic("plain")
    found = client.ask(FIND_COORDINATOR, FindCoordinatorRequest(key="tx", key_type=1), FindCoordinatorResponse, 3)
    assert found.error_code == ErrorCode.NONE
    begin = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    producer = client.ask(INIT_PRODUCER_ID, begin, InitProducerIdResponse, 4)
    assert producer.error_code == ErrorCode.NONE
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name="__transaction_state", partitions=[0]),
            AddPartitionsToTxnTopic(name="plain", partitions=[0]),
        ],
    )
    answer = client.ask(ADD_PARTITIONS_TO_TXN, request, AddPartitionsToTxnResponse, 3)
    told = [topic.results_by_partition[0].partition_error_code for topic in answer.results_by_topic_v3_and_below]
    assert told == [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED]
