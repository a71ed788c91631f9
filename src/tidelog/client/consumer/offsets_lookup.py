"""Looks up offsets at the leaders: by time, at both ends of a partition, and where a leader epoch ended.

What always holds: every requested partition is in the result, or the call raises. Leaders that moved are found and
asked again until the time is up, each with its leader epoch as it is known by then. A lookup that is partial is one
attempt: it returns what the leaders answered that could be asked, and raises only if none did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.network.routing import at_leaders
from tidelog.client.types import OffsetAndTimestamp, TopicPartition
from tidelog.protocol.messages.k02_list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.k23_offset_for_leader_epoch import (
    OFFSET_FOR_LEADER_EPOCH,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
_CONSUMER_ID = -1  # where a follower would put its own id
_ISOLATION_FROM = 2


class EpochEnd(NamedTuple):
    """Where the leader's log of the largest epoch up to the requested one ends; -1 if it knows none."""

    leader_epoch: int
    end_offset: int
    current_leader_epoch: int  # of the leader that says so


async def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    is_read_committed: bool,
    is_partial: bool = False,
    timeout_s: float | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """The first offset at or after each timestamp, or at an end (-2, -1). Offset -1: no record is that recent."""

    async def ask(
        connection: Connection, wanted: Mapping[TopicPartition, int]
    ) -> Iterable[tuple[TopicPartition, int, OffsetAndTimestamp]]:
        topics: dict[str, ListOffsetsTopic] = {}
        for (name, partition), timestamp in wanted.items():
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = ListOffsetsTopic(name=name)
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=partition,
                    timestamp=timestamp,
                    current_leader_epoch=cluster.metadata.leader_epoch(TopicPartition(name, partition)),
                )
            )
        request = ListOffsetsRequest(replica_id=_CONSUMER_ID, topics=list(topics.values()))
        version = connection.version_for(LIST_OFFSETS)
        if version >= _ISOLATION_FROM:
            request.isolation_level = 1 if is_read_committed else 0
        response = await connection.request(LIST_OFFSETS, request, ListOffsetsResponse, version=version)
        return [
            (
                TopicPartition(topic_row.name, row.partition_index),
                row.error_code,
                OffsetAndTimestamp(row.offset, row.timestamp, row.leader_epoch),
            )
            for topic_row in response.topics
            for row in topic_row.partitions
        ]

    return await at_leaders(cluster, timestamps, ask, is_partial=is_partial, timeout_s=timeout_s)


async def epoch_ends(cluster: Cluster, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd | None]:
    """Where the leaders' logs end for these epochs (KIP-320); None for a leader that can't tell. It is partial."""

    async def ask(
        connection: Connection, wanted: Mapping[TopicPartition, int]
    ) -> Iterable[tuple[TopicPartition, int, EpochEnd | None]]:
        if not connection.supports(OFFSET_FOR_LEADER_EPOCH):
            return [(topic_partition, 0, None) for topic_partition in wanted]
        current_epochs = {topic_partition: cluster.metadata.leader_epoch(topic_partition) for topic_partition in wanted}
        topics: dict[str, OffsetForLeaderTopic] = {}
        for topic_partition, leader_epoch in wanted.items():
            topic = topics.get(topic_partition.topic)
            if topic is None:
                topic = topics[topic_partition.topic] = OffsetForLeaderTopic(topic=topic_partition.topic)
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=topic_partition.partition,
                    leader_epoch=leader_epoch,
                    current_leader_epoch=current_epochs[topic_partition],
                )
            )
        request = OffsetForLeaderEpochRequest(replica_id=_CONSUMER_ID, topics=list(topics.values()))
        response = await connection.request(OFFSET_FOR_LEADER_EPOCH, request, OffsetForLeaderEpochResponse)
        return [
            (
                topic_partition := TopicPartition(topic_row.topic, row.partition),
                row.error_code,
                EpochEnd(row.leader_epoch, row.end_offset, current_epochs[topic_partition]),
            )
            for topic_row in response.topics
            for row in topic_row.partitions
        ]

    return await at_leaders(cluster, epochs, ask, is_partial=True)
