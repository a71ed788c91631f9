"""The last known metadata of a cluster: its brokers, topics and leaders.

What always holds: values are replaced whole, never changed in place, so another thread sees the state either before or
after a change. A leader with an older epoch than the known one is ignored: responses may overtake each other.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

from tidelog.client.address import Address
from tidelog.client.errors import error_code
from tidelog.client.types import ClusterMetadata, Node, PartitionMetadata, TopicMetadata, TopicPartition
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k03_metadata import MetadataResponse, MetadataResponseTopic


class MetadataCache:
    """The brokers, and the topics that were requested, as last known."""

    def __init__(self) -> None:
        self.nodes: Mapping[int, Node] = {}
        self.topics: Mapping[str, TopicMetadata] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self._names_by_id: Mapping[uuid.UUID, str] = {}

    def remember(self, metadata: ClusterMetadata, *, everything: bool) -> None:
        """Adopt a response; with `everything` it covered all topics, so missing ones are removed."""
        if metadata.nodes:  # a broker that has only just started may list no brokers
            self.nodes = dict(metadata.nodes)
        self.controller_id = metadata.controller_id
        self.cluster_id = metadata.cluster_id
        topics = {} if everything else {**self.topics}
        for name in metadata.errors:
            topics.pop(name, None)
        for name, topic in metadata.topics.items():
            topics[name] = _newer(self.topics.get(name), topic)
        self._set_topics(topics)

    def forget(self, name: str) -> None:
        if name in self.topics:
            self._set_topics({known: topic for known, topic in self.topics.items() if known != name})

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        return self._names_by_id.get(topic_id)

    def partition(self, topic_partition: TopicPartition) -> PartitionMetadata | None:
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else find_partition(topic, topic_partition.partition)

    def leader_epoch(self, topic_partition: TopicPartition) -> int:
        """-1 if the partition or its leader's epoch is not known."""
        known = self.partition(topic_partition)
        return -1 if known is None else known.leader_epoch

    def note_leader(self, topic_partition: TopicPartition, leader_id: int, leader_epoch: int) -> bool:
        """A broker mentioned the new leader in another response; returns whether that was news."""
        known = self.partition(topic_partition)
        if known is None or leader_epoch <= known.leader_epoch or leader_id < 0:
            return False
        topic = self.topics[topic_partition.topic]
        partitions = tuple(
            replace(row, leader_id=leader_id, leader_epoch=leader_epoch) if row is known else row
            for row in topic.partitions
        )
        self._set_topics({**self.topics, topic.name: replace(topic, partitions=partitions)})
        return True

    def note_nodes(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = {**self.nodes, **nodes}

    def _set_topics(self, topics: dict[str, TopicMetadata]) -> None:
        self._names_by_id = {topic.topic_id: topic.name for topic in topics.values()}
        self.topics = topics


def _newer(known: TopicMetadata | None, told: TopicMetadata) -> TopicMetadata:
    """The response, but with newer known leaders kept."""
    if known is None or known.topic_id != told.topic_id:
        return told
    epochs = {row.partition: row for row in known.partitions}
    partitions = tuple(
        epochs[row.partition]
        if row.partition in epochs and row.leader_epoch < epochs[row.partition].leader_epoch
        else row
        for row in told.partitions
    )
    return replace(told, partitions=partitions)


def read_metadata(response: MetadataResponse) -> ClusterMetadata:
    """A Metadata response as our own types."""
    topics: dict[str, TopicMetadata] = {}
    errors: dict[str, ErrorCode] = {}
    for row in response.topics:
        name = row.name or ""
        if row.error_code != ErrorCode.NONE:
            errors[name] = error_code(row.error_code)
        else:
            topics[name] = _read_topic(row)
    nodes = {row.node_id: Node(row.node_id, Address(row.host, row.port), row.rack) for row in response.brokers}
    return ClusterMetadata(response.cluster_id, response.controller_id, nodes, topics, errors)


def _read_topic(row: MetadataResponseTopic) -> TopicMetadata:
    partitions = tuple(
        PartitionMetadata(
            partition=partition.partition_index,
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            replicas=tuple(partition.replica_nodes),
            isr=tuple(partition.isr_nodes),
            offline_replicas=tuple(partition.offline_replicas),
        )
        for partition in sorted(row.partitions, key=lambda partition: partition.partition_index)
    )
    return TopicMetadata(row.name or "", row.topic_id or ZERO_UUID, row.is_internal, partitions)


def find_partition(topic: TopicMetadata, number: int) -> PartitionMetadata | None:
    """The partition of this number, if the topic has one."""
    partitions = topic.partitions
    if 0 <= number < len(partitions) and partitions[number].partition == number:
        return partitions[number]
    return next((row for row in partitions if row.partition == number), None)
