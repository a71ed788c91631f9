"""Calls about transactions: lists, descriptions, transactions that hang in partitions, and their end.

What always holds: what coordinators know is asked of coordinators, what is open in partitions of their leaders. A
transaction hangs when it is open in a partition whose coordinator will send no marker; only such ones should be aborted
here, because the coordinator of any other would not hear of it. It begins no transaction.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from tidelog.client.cluster import Cluster, TopicPartition, group_by_topic
from tidelog.client.connection import Connection
from tidelog.client.errors import BrokerError, ClientError, UnsupportedVersionError, raise_for
from tidelog.client.routing import KeyType, at_coordinator, at_leaders
from tidelog.client.transaction_types import (
    OpenTransaction,
    PartitionProducer,
    TransactionDescription,
    TransactionListing,
)
from tidelog.protocol import ErrorCode
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
)
from tidelog.protocol.messages.k66_list_transactions import (
    LIST_TRANSACTIONS,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")

_DURATIONS_FROM = 1
_PARTITIONS_AT_ONCE = 500
_FIRST_COORDINATOR_EPOCH = 0


class TransactionAdmin:
    """Calls about transactions over a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # What coordinators know

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        older_than_ms: int | None = None,
    ) -> list[TransactionListing]:
        """All transactional ids, or those in these states, of these producers; every broker is asked.

        With `older_than_ms` only transactions that have been open for longer: brokers compare the start also where the
        transaction has ended, so the states are limited to the open ones unless states are given.
        """
        request = ListTransactionsRequest(state_filters=list(states), producer_id_filters=list(producer_ids))
        if older_than_ms is not None:
            request.duration_filter = older_than_ms
            request.state_filters = list(states or OPEN_STATES)
        nodes = self._cluster.retry(lambda: self._cluster.refresh([])).nodes
        found: list[TransactionListing] = []
        for node_id in sorted(nodes):
            found += self._cluster.retry(functools.partial(self._list_at, node_id, request))
        return sorted(found, key=lambda listing: listing.transactional_id)

    def _list_at(self, node_id: int, request: ListTransactionsRequest) -> list[TransactionListing]:
        connection = self._cluster.connection_to(node_id)
        version = connection.version_for(LIST_TRANSACTIONS)
        if request.duration_filter >= 0 and version < _DURATIONS_FROM:
            raise UnsupportedVersionError(f"broker {node_id} can't tell how long transactions are open")
        response = connection.request(LIST_TRANSACTIONS, request, ListTransactionsResponse, version=version)
        raise_for(response.error_code, subject=f"broker {node_id}")
        if response.unknown_state_filters:
            raise ClientError(
                f"broker {node_id} knows no state {', '.join(response.unknown_state_filters)}; "
                "there are Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort"
            )
        return [
            TransactionListing(row.transactional_id, row.producer_id, row.transaction_state, node_id)
            for row in response.transaction_states
        ]

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """State, producer and partitions; raises BrokerError TRANSACTIONAL_ID_NOT_FOUND when it is not known."""

        def ask(connection: Connection, node_id: int) -> TransactionDescription:
            request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            response = connection.request(DESCRIBE_TRANSACTIONS, request, DescribeTransactionsResponse)
            for row in response.transaction_states:
                raise_for(row.error_code, subject=f"transactional id {transactional_id}")
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
            raise BrokerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, subject=f"transactional id {transactional_id}")

        return at_coordinator(self._cluster, KeyType.TRANSACTIONAL_ID, transactional_id, ask)

    # What is open in partitions

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Sequence[PartitionProducer]]:
        """The producers that the leaders of these partitions remember."""
        found: dict[TopicPartition, Sequence[PartitionProducer]] = {}
        remaining = iter(dict.fromkeys(partitions))
        while chunk := list(islice(remaining, _PARTITIONS_AT_ONCE)):
            found |= at_leaders(self._cluster, dict.fromkeys(chunk), _describe_producers)
        return found

    def open_transactions(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        return [
            OpenTransaction(
                topic_partition=topic_partition,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                coordinator_epoch=producer.coordinator_epoch,
                start_offset=producer.transaction_start_offset,
                last_timestamp_ms=producer.last_timestamp_ms,
            )
            for topic_partition, producers in self.describe_producers(partitions).items()
            for producer in producers
            if producer.transaction_start_offset is not None
        ]

    def find_hanging(self, partitions: Iterable[TopicPartition], *, written_before_ms: int) -> list[OpenTransaction]:
        """Open transactions, last written to before this time, that no coordinator is going to end."""
        candidates = [row for row in self.open_transactions(partitions) if row.last_timestamp_ms <= written_before_ms]
        awaited = self._awaited_partitions({row.producer_id for row in candidates})
        hanging = [row for row in candidates if row.topic_partition not in awaited.get(row.producer_id, ())]
        # One that ended after the leaders were asked looks as if it hung, but is not open at a second look.
        still_open = {
            (row.topic_partition, row.producer_id, row.start_offset)
            for row in self.open_transactions(row.topic_partition for row in hanging)
        }
        return [row for row in hanging if (row.topic_partition, row.producer_id, row.start_offset) in still_open]

    def _awaited_partitions(self, producer_ids: Iterable[int]) -> dict[int, set[TopicPartition]]:
        """The partitions to which coordinators will still send markers, by producer."""
        wanted = sorted(producer_ids)
        if not wanted:
            return {}
        awaited: dict[int, set[TopicPartition]] = {}
        for listing in self.list_transactions(producer_ids=wanted):
            try:
                described = self.describe_transaction(listing.transactional_id)
            except BrokerError as error:
                if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
                continue  # it expired meanwhile: nobody sends its markers
            awaited.setdefault(listing.producer_id, set()).update(described.partitions)
        return awaited

    def find_open(self, topic_partition: TopicPartition, start_offset: int) -> OpenTransaction:
        """The transaction that began at this offset and is open; raises ClientError when there is none."""
        for row in self.open_transactions([topic_partition]):
            if row.start_offset == start_offset:
                return row
        raise ClientError(f"partition {topic_partition} has no open transaction that begins at offset {start_offset}")

    def abort(
        self, topic_partition: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Have the partition's leader end what the producer has open there, as if its coordinator had aborted it."""

        def ask(
            connection: Connection, wanted: Mapping[TopicPartition, None]
        ) -> Iterable[tuple[TopicPartition, int, None]]:
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
            response = connection.request(WRITE_TXN_MARKERS, request, WriteTxnMarkersResponse)
            for written in response.markers:
                for topic in written.topics:
                    for row in topic.partitions:
                        yield TopicPartition(topic.name, row.partition_index), row.error_code, None

        at_leaders(self._cluster, {topic_partition: None}, ask, repeatable=False)


def _describe_producers(
    connection: Connection, wanted: Mapping[TopicPartition, None]
) -> Iterable[tuple[TopicPartition, int, Sequence[PartitionProducer]]]:
    request = DescribeProducersRequest(
        topics=[
            TopicRequest(name=topic, partition_indexes=indexes) for topic, indexes in group_by_topic(wanted).items()
        ]
    )
    response = connection.request(DESCRIBE_PRODUCERS, request, DescribeProducersResponse)
    for topic in response.topics:
        for row in topic.partitions:
            producers = [_producer(producer) for producer in row.active_producers]
            yield TopicPartition(topic.name, row.partition_index), row.error_code, producers


def _producer(row: ProducerState) -> PartitionProducer:
    return PartitionProducer(
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        last_sequence=row.last_sequence,
        last_timestamp_ms=row.last_timestamp,
        coordinator_epoch=row.coordinator_epoch,
        transaction_start_offset=row.current_txn_start_offset if row.current_txn_start_offset >= 0 else None,
    )
