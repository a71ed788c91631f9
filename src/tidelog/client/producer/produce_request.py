"""Builds Produce requests from batches, and splits their responses by partition."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from tidelog.client.address import Address
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.hooks import TransactionHooks
from tidelog.client.producer.settings import ProducerSettings
from tidelog.client.types import Node, TopicPartition
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

_TOPIC_IDS_FROM = 13


class BuiltRequest(NamedTuple):
    """A request, the size of each of its batches, and the topics by the ids they had then."""

    message: ProduceRequest
    version: int
    sealed_sizes: list[tuple[ProducerBatch, int]]
    names: dict[uuid.UUID, str]


def build_request(
    settings: ProducerSettings,
    cluster: Cluster,
    connection: Connection,
    batches: list[ProducerBatch],
    hooks: TransactionHooks | None,
) -> BuiltRequest:
    """The request with these batches, one per partition, and the version to send it in."""
    topics: dict[str, TopicProduceData] = {}
    at_most = hooks.produce_version_at_most if hooks is not None else None
    sizes = []
    for batch in batches:
        name, partition = batch.topic_partition
        data = topics.get(name)
        if data is None:
            known = cluster.known_topic(name)
            topic_id = known.topic_id if known is not None else ZERO_UUID
            if topic_id == ZERO_UUID:
                at_most = _TOPIC_IDS_FROM - 1 if at_most is None else min(at_most, _TOPIC_IDS_FROM - 1)
            data = topics[name] = TopicProduceData(name=name, topic_id=topic_id)
        sealed = batch.seal(settings.compression, settings.compression_level, is_transactional=hooks is not None)
        if settings.acks == 0:
            sealed = bytes(sealed)  # nobody reports when it has left, so the batch's own memory can't be waited for
        data.partition_data.append(PartitionProduceData(index=partition, records=sealed))
        sizes.append((batch, len(sealed)))
    request = ProduceRequest(
        transactional_id=hooks.transactional_id if hooks is not None else None,
        acks=settings.acks,
        timeout_ms=settings.request_timeout_ms,
        topic_data=list(topics.values()),
    )
    names = {data.topic_id: name for name, data in topics.items()}
    return BuiltRequest(request, connection.version_for(PRODUCE, at_most=at_most), sizes, names)


def answers_of(
    response: ProduceResponse, names: dict[uuid.UUID, str]
) -> dict[TopicPartition, PartitionProduceResponse]:
    """The rows of a response; topics are identified by name or by id."""
    rows: dict[TopicPartition, PartitionProduceResponse] = {}
    for topic in response.responses:
        name = topic.name or names.get(topic.topic_id)
        if name is not None:
            for row in topic.partition_responses:
                rows[TopicPartition(name, row.index)] = row
    return rows


def nodes_of(response: ProduceResponse) -> dict[int, Node]:
    """The brokers that a response names as leaders of partitions it refused."""
    return {row.node_id: Node(row.node_id, Address(row.host, row.port), row.rack) for row in response.node_endpoints}
