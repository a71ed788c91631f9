"""What looks like a transaction that hangs, and what is one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.client.admin import OpenTransaction
from tidelog.client.admin.transactions import find_hanging_transactions
from tidelog.client.network.cluster import Cluster
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages import k61_describe_producers as producers
from tidelog.protocol.messages import k65_describe_transactions as described
from tidelog.protocol.messages import k66_list_transactions as listed

if TYPE_CHECKING:
    from tests.unit.client.admin.conftest import FakeBrokers

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def opened(
    partition: TopicPartition, producer_id: int, start_offset: int = 5, written_ms: int = 100
) -> OpenTransaction:
    return OpenTransaction(partition, producer_id, 0, -1, start_offset, written_ms)


def find(
    cluster: Cluster,
    brokers: FakeBrokers,
    *looks: list[OpenTransaction],
    known: Mapping[int, Sequence[TopicPartition] | None] | None = None,
) -> list[OpenTransaction]:
    """Leaders answer one list after the other, coordinators what they know: None is an id that has expired."""
    remaining, coordinators = list(looks), known or {}

    def describe_producers(_: int, request: producers.DescribeProducersRequest) -> object:
        look = remaining.pop(0)
        (topic,) = request.topics
        rows = [
            producers.PartitionResponse(
                partition_index=index,
                active_producers=[
                    producers.ProducerState(
                        producer_id=row.producer_id,
                        coordinator_epoch=-1,
                        last_timestamp=row.last_timestamp_ms,
                        current_txn_start_offset=row.start_offset,
                    )
                    for row in look
                    if row.topic_partition.partition == index
                ],
            )
            for index in topic.partition_indexes
        ]
        return producers.DescribeProducersResponse(topics=[producers.TopicResponse(name=topic.name, partitions=rows)])

    def list_transactions(node_id: int, request: listed.ListTransactionsRequest) -> object:
        states = [
            listed.TransactionState(transactional_id=str(number), producer_id=number, transaction_state="Ongoing")
            for number in request.producer_id_filters
            if node_id == 1 and number in coordinators
        ]
        return listed.ListTransactionsResponse(transaction_states=states)

    def describe_transactions(_: int, request: described.DescribeTransactionsRequest) -> object:
        (name,) = request.transactional_ids
        partitions = coordinators[int(name)]
        if partitions is None:
            row = described.TransactionState(transactional_id=name, error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        else:
            topic = described.TopicData(topic="t", partitions=[key.partition for key in partitions])
            row = described.TransactionState(transactional_id=name, topics=[topic])
        return described.DescribeTransactionsResponse(transaction_states=[row])

    brokers.leaders = {FIRST: 1, SECOND: 1}
    brokers.answers = {
        producers.DESCRIBE_PRODUCERS: describe_producers,
        listed.LIST_TRANSACTIONS: list_transactions,
        described.DESCRIBE_TRANSACTIONS: describe_transactions,
    }
    return asyncio.run(find_hanging_transactions(cluster, [FIRST, SECOND], written_before_ms=1000))


def test_what_no_coordinator_knows_hangs(cluster: Cluster, brokers: FakeBrokers) -> None:
    rows = [opened(FIRST, 7)]
    assert find(cluster, brokers, rows, rows) == rows


def test_what_expired_at_its_coordinator_hangs(cluster: Cluster, brokers: FakeBrokers) -> None:
    rows = [opened(FIRST, 7)]
    assert find(cluster, brokers, rows, rows, known={7: None}) == rows


def test_what_a_coordinator_will_end_does_not_hang(cluster: Cluster, brokers: FakeBrokers) -> None:
    rows = [opened(FIRST, 7), opened(SECOND, 7)]
    assert find(cluster, brokers, rows, known={7: [FIRST, SECOND]}) == []


def test_a_partition_that_a_coordinator_forgot_hangs(cluster: Cluster, brokers: FakeBrokers) -> None:
    rows = [opened(FIRST, 7), opened(SECOND, 7)]
    assert find(cluster, brokers, rows, rows, known={7: [FIRST]}) == [opened(SECOND, 7)]


def test_what_was_written_to_lately_is_left_alone(cluster: Cluster, brokers: FakeBrokers) -> None:
    assert find(cluster, brokers, [opened(FIRST, 7, written_ms=1001)]) == []


def test_what_ended_between_two_looks_does_not_hang(cluster: Cluster, brokers: FakeBrokers) -> None:
    """A transaction that ends while brokers are asked is open at its leader and unknown to its coordinator."""
    assert find(cluster, brokers, [opened(FIRST, 7)], [], known={7: []}) == []
    again = [opened(FIRST, 7, start_offset=9)]
    assert find(cluster, brokers, [opened(FIRST, 7)], again, known={7: []}) == []
