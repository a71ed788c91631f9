"""Calls about transactions: list and describe them, find those that hang in partitions, and end them.

What always holds: coordinators are asked for their transactions, partition leaders for those open in their partitions.
A transaction hangs if it is open in a partition but no coordinator will ever send its marker there. Only such
transactions should be aborted here, because the coordinator of any other would not find out. Nothing here begins a
transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from tidelog.client.admin.asking import PartitionAnswer, at_brokers, at_coordinators, at_leaders, request_timeout_ms
from tidelog.client.admin.results import Results
from tidelog.client.admin.types import (
    OpenTransaction,
    PartitionProducer,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionListing,
)
from tidelog.client.errors import BrokerError, ClientError, ConfigError, UnsupportedVersionError, raise_for
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.network.routing import KeyType
from tidelog.client.types import TopicPartition, group_by_topic
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
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
    ProducerState,
    TopicRequest,
)
from tidelog.protocol.messages.k65_describe_transactions import (
    DESCRIBE_TRANSACTIONS,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from tidelog.protocol.messages.k66_list_transactions import (
    LIST_TRANSACTIONS,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")

_DURATIONS_FROM = 1
_PATTERNS_FROM = 2
_PARTITIONS_AT_ONCE = 500
_FIRST_COORDINATOR_EPOCH = 0


# Questions for coordinators


async def list_transactions(
    cluster: Cluster,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    older_than_ms: int | None = None,
    transactional_id_pattern: str | None = None,
) -> list[TransactionListing]:
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        transactional_id_pattern=transactional_id_pattern,
    )
    if older_than_ms is not None:
        request.duration_filter = older_than_ms
        # Brokers apply the age filter to ended transactions, too.
        request.state_filters = list(states or OPEN_STATES)

    async def ask(connection: Connection, node_id: int) -> list[TransactionListing]:
        version = connection.version_for(LIST_TRANSACTIONS)
        if request.duration_filter >= 0 and version < _DURATIONS_FROM:
            raise UnsupportedVersionError(f"broker {node_id} can't filter transactions by age")
        if request.transactional_id_pattern is not None and version < _PATTERNS_FROM:
            raise UnsupportedVersionError(f"broker {node_id} can't filter transactional ids by a pattern")
        response = await connection.request(LIST_TRANSACTIONS, request, ListTransactionsResponse, version=version)
        raise_for(response.error_code, subject=f"broker {node_id}")
        if response.unknown_state_filters:
            raise ConfigError(
                f"broker {node_id} knows no state {', '.join(response.unknown_state_filters)}; "
                "there are Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort"
            )
        return [
            TransactionListing(row.transactional_id, row.producer_id, row.transaction_state, node_id)
            for row in response.transaction_states
        ]

    by_broker = await at_brokers(cluster, ask)
    found = (listing for listings in by_broker.values() for listing in listings)
    return sorted(found, key=lambda listing: listing.transactional_id)


async def describe_transactions(
    cluster: Cluster, transactional_ids: Iterable[str]
) -> Results[str, TransactionDescription]:
    async def ask(connection: Connection, node_id: int, transactional_id: str) -> TransactionDescription:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        response = await connection.request(DESCRIBE_TRANSACTIONS, request, DescribeTransactionsResponse)
        for row in response.transaction_states:
            raise_for(row.error_code, subject=f"transactional id {transactional_id}")
            return _description(row, node_id)
        raise BrokerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, subject=f"transactional id {transactional_id}")

    return await at_coordinators(cluster, KeyType.TRANSACTIONAL_ID, transactional_ids, ask)


def _description(row: TransactionState, node_id: int) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=row.transactional_id,
        state=row.transaction_state,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        timeout_ms=row.transaction_timeout_ms,
        start_time_ms=row.transaction_start_time_ms if row.transaction_start_time_ms >= 0 else None,
        coordinator_id=node_id,
        partitions=sorted(
            TopicPartition(topic.topic, partition) for topic in row.topics for partition in topic.partitions
        ),
    )


async def fence_producers(cluster: Cluster, transactional_ids: Iterable[str]) -> Results[str, ProducerIdAndEpoch]:
    async def ask(connection: Connection, _: int, transactional_id: str) -> ProducerIdAndEpoch:
        # This is what a new producer of the id does first: the coordinator ends the open transaction and fences the old
        # one.
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=request_timeout_ms(cluster)
        )
        response = await connection.request(INIT_PRODUCER_ID, request, InitProducerIdResponse)
        raise_for(response.error_code, subject=f"transactional id {transactional_id}")
        return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

    return await at_coordinators(cluster, KeyType.TRANSACTIONAL_ID, transactional_ids, ask)


# Questions for partition leaders


async def describe_producers(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> Results[TopicPartition, Sequence[PartitionProducer]]:
    values: dict[TopicPartition, Sequence[PartitionProducer]] = {}
    errors: dict[TopicPartition, ClientError] = {}
    wanted = list(dict.fromkeys(partitions))
    remaining = iter(wanted)
    while chunk := list(islice(remaining, _PARTITIONS_AT_ONCE)):
        found = await at_leaders(cluster, dict.fromkeys(chunk), _describe_producers)
        values |= found.succeeded
        errors |= found.errors
    return Results(wanted, values, errors)


async def _describe_producers(
    connection: Connection, wanted: Mapping[TopicPartition, None]
) -> list[PartitionAnswer[Sequence[PartitionProducer]]]:
    request = DescribeProducersRequest(
        topics=[
            TopicRequest(name=topic, partition_indexes=indexes) for topic, indexes in group_by_topic(wanted).items()
        ]
    )
    response = await connection.request(DESCRIBE_PRODUCERS, request, DescribeProducersResponse)
    return [
        (
            TopicPartition(topic.name, row.partition_index),
            row.error_code,
            row.error_message,
            [_producer(producer) for producer in row.active_producers],
        )
        for topic in response.topics
        for row in topic.partitions
    ]


def _producer(row: ProducerState) -> PartitionProducer:
    return PartitionProducer(
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        last_sequence=row.last_sequence,
        last_timestamp_ms=row.last_timestamp,
        coordinator_epoch=row.coordinator_epoch,
        transaction_start_offset=row.current_txn_start_offset if row.current_txn_start_offset >= 0 else None,
    )


async def list_open_transactions(cluster: Cluster, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
    return [
        OpenTransaction(
            topic_partition=topic_partition,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=producer.coordinator_epoch,
            start_offset=producer.transaction_start_offset,
            last_timestamp_ms=producer.last_timestamp_ms,
        )
        for topic_partition, producers in (await describe_producers(cluster, partitions)).items()
        for producer in producers
        if producer.transaction_start_offset is not None
    ]


async def find_hanging_transactions(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, written_before_ms: int
) -> list[OpenTransaction]:
    opened = await list_open_transactions(cluster, partitions)
    candidates = [row for row in opened if row.last_timestamp_ms <= written_before_ms]
    awaited = await _awaited_partitions(cluster, {row.producer_id for row in candidates})
    hanging = [row for row in candidates if row.topic_partition not in awaited.get(row.producer_id, ())]
    # A transaction that ended after the leaders were asked looks like a hanging one, so look a second time.
    still_open = {
        (row.topic_partition, row.producer_id, row.start_offset)
        for row in await list_open_transactions(cluster, [row.topic_partition for row in hanging])
    }
    return [row for row in hanging if (row.topic_partition, row.producer_id, row.start_offset) in still_open]


async def _awaited_partitions(cluster: Cluster, producer_ids: Iterable[int]) -> dict[int, set[TopicPartition]]:
    """The partitions to which coordinators will still send markers, by producer."""
    wanted = sorted(producer_ids)
    if not wanted:
        return {}
    awaited: dict[int, set[TopicPartition]] = {}
    listings = await list_transactions(cluster, producer_ids=wanted)
    described = await describe_transactions(cluster, [listing.transactional_id for listing in listings])
    for error in described.errors.values():
        # One that is not found expired meanwhile: nobody sends its markers.
        if not isinstance(error, BrokerError) or error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise error
    for listing in listings:
        if listing.transactional_id in described.succeeded:
            awaited.setdefault(listing.producer_id, set()).update(described[listing.transactional_id].partitions)
    return awaited


async def abort_transaction(
    cluster: Cluster, topic_partition: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    async def ask(connection: Connection, wanted: Mapping[TopicPartition, None]) -> list[PartitionAnswer[None]]:
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=False,
            # Leaders tell -1 before the first marker; the first epoch is below any that a coordinator has later.
            coordinator_epoch=max(coordinator_epoch, _FIRST_COORDINATOR_EPOCH),
            topics=[
                WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                for topic, indexes in group_by_topic(wanted).items()
            ],
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        response = await connection.request(WRITE_TXN_MARKERS, request, WriteTxnMarkersResponse)
        return [
            (TopicPartition(topic.name, row.partition_index), row.error_code, None, None)
            for written in response.markers
            for topic in written.topics
            for row in topic.partitions
        ]

    results = await at_leaders(cluster, {topic_partition: None}, ask, repeatable=False)
    results.raise_for_errors()
