"""Calls about the committed offsets of consumer groups.

What always holds: they go to the group's coordinator, which is looked up again after it moves. Offsets can be committed
from outside only while the group has no members; the coordinator checks this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tidelog.client.admin.asking import Answer, as_results, at_coordinators, refusal
from tidelog.client.admin.results import Results
from tidelog.client.errors import BrokerError, UnsupportedVersionError, raise_for
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.network.offset_requests import NAMES_UP_TO, STABLE_FROM, build_offset_fetch
from tidelog.client.network.routing import KeyType, at_coordinator
from tidelog.client.types import OffsetAndMetadata, TopicPartition, group_by_topic
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k08_offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.k09_offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from tidelog.protocol.messages.k47_offset_delete import (
    OFFSET_DELETE,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

Committed = Mapping[TopicPartition, OffsetAndMetadata]

# These codes mean that the coordinator has done nothing for any partition.
_COORDINATOR_CODES = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


async def list_consumer_group_offsets(
    cluster: Cluster, groups: Mapping[str, Iterable[TopicPartition] | None], *, require_stable: bool
) -> Results[str, Committed]:
    wanted = {group_id: None if partitions is None else list(partitions) for group_id, partitions in groups.items()}

    async def ask(connection: Connection, _: int, group_id: str) -> Committed:
        version = connection.version_for(OFFSET_FETCH, at_most=NAMES_UP_TO)
        if require_stable and version < STABLE_FROM:
            raise UnsupportedVersionError(f"broker at {connection.address} can't return stable offsets")
        request = build_offset_fetch(version, group_id, wanted[group_id], require_stable=require_stable)
        response = await connection.request(OFFSET_FETCH, request, OffsetFetchResponse, version=version)
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic, row in _committed_rows(response, group_id):
            key = TopicPartition(topic, row.partition_index)
            raise_for(row.error_code, subject=f"group {group_id}, partition {key}")
            if row.committed_offset >= 0:
                found[key] = OffsetAndMetadata(row.committed_offset, row.committed_leader_epoch, row.metadata or "")
        return found

    return await at_coordinators(cluster, KeyType.GROUP, wanted, ask)


def _committed_rows(
    response: OffsetFetchResponse, group_id: str
) -> Iterator[tuple[str, OffsetFetchResponsePartition | OffsetFetchResponsePartitions]]:
    """Topic and row, from either form of the response."""
    raise_for(response.error_code, subject=f"group {group_id}")
    for topic in response.topics:
        yield from ((topic.name, row) for row in topic.partitions)
    for group in response.groups:
        raise_for(group.error_code, subject=f"group {group_id}")
        for named in group.topics:
            yield from ((named.name, row) for row in named.partitions)


async def alter_consumer_group_offsets(
    cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
) -> Results[TopicPartition, None]:
    wanted = {
        TopicPartition(*key): OffsetAndMetadata(value) if isinstance(value, int) else value
        for key, value in offsets.items()
    }
    topics = [
        OffsetCommitRequestTopic(
            name=topic,
            partitions=[_commit_row(partition, wanted[TopicPartition(topic, partition)]) for partition in partitions],
        )
        for topic, partitions in group_by_topic(wanted).items()
    ]
    request = OffsetCommitRequest(group_id=group_id, topics=topics)

    async def ask(connection: Connection, _: int) -> list[Answer[TopicPartition, None]]:
        version = connection.version_for(OFFSET_COMMIT, at_most=NAMES_UP_TO)
        response = await connection.request(OFFSET_COMMIT, request, OffsetCommitResponse, version=version)
        return [
            _answer(group_id, TopicPartition(topic.name, row.partition_index), row.error_code)
            for topic in response.topics
            for row in topic.partitions
        ]

    return as_results(wanted, await at_coordinator(cluster, KeyType.GROUP, group_id, ask))


def _commit_row(partition: int, committed: OffsetAndMetadata) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        committed_metadata=committed.metadata,
    )


async def delete_consumer_group_offsets(
    cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition]
) -> Results[TopicPartition, None]:
    wanted = [TopicPartition(*key) for key in dict.fromkeys(partitions)]
    topics = [
        OffsetDeleteRequestTopic(
            name=topic,
            partitions=[OffsetDeleteRequestPartition(partition_index=partition) for partition in indexes],
        )
        for topic, indexes in group_by_topic(wanted).items()
    ]
    request = OffsetDeleteRequest(group_id=group_id, topics=topics)

    async def ask(connection: Connection, _: int) -> list[Answer[TopicPartition, None]]:
        response = await connection.request(OFFSET_DELETE, request, OffsetDeleteResponse)
        raise_for(response.error_code, subject=f"group {group_id}")
        return [
            _answer(group_id, TopicPartition(topic.name, row.partition_index), row.error_code)
            for topic in response.topics
            for row in topic.partitions
        ]

    return as_results(wanted, await at_coordinator(cluster, KeyType.GROUP, group_id, ask))


def _answer(group_id: str, key: TopicPartition, code: int) -> Answer[TopicPartition, None]:
    if code in _COORDINATOR_CODES:
        raise_for(code, subject=f"group {group_id}")
    if code == ErrorCode.UNKNOWN_MEMBER_ID:
        message = "its consumers run; stop them first, then change its offsets"
        return key, BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, message, subject=f"group {group_id}"), None
    return key, refusal(code, None, f"group {group_id}, partition {key}"), None
