"""Calls about topics and their partitions.

What always holds: an error for one topic does not affect the results of the others. A call that changes something is
not repeated after a lost connection, because the broker may have carried it out.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from tidelog.client.admin.asking import Answer, at_controller, refusal, request_timeout_ms
from tidelog.client.admin.results import Results
from tidelog.client.admin.types import CreatedTopic, DeletedTopic, NewPartitions, NewTopic
from tidelog.client.errors import BrokerError, ClientError, NoSuchPartitionError, UnsupportedVersionError, raise_for
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.network.metadata_cache import read_metadata
from tidelog.client.types import TopicMetadata
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.k20_delete_topics import (
    DELETE_TOPICS,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.protocol.messages.k37_create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)

_DELETE_BY_ID_FROM = 6  # before that, the request held plain names
_METADATA_BY_ID_FROM = 12  # ids existed before that, but could not be used in requests

TopicKey = str | uuid.UUID
"""A topic is named by its name or its id."""


# Listing topics


async def list_topics(cluster: Cluster, *, include_internal: bool) -> list[TopicMetadata]:
    metadata = await cluster.retry(lambda: cluster.refresh(None))
    listed = (topic for topic in metadata.topics.values() if include_internal or not topic.is_internal)
    return sorted(listed, key=lambda topic: topic.name)


async def describe_topics(cluster: Cluster, topics: Sequence[TopicKey]) -> Results[TopicKey, TopicMetadata]:
    values: dict[TopicKey, TopicMetadata] = {}
    errors: dict[TopicKey, ClientError] = {}
    by_name = [topic for topic in topics if isinstance(topic, str)]
    by_id = [topic for topic in topics if not isinstance(topic, str)]
    if by_name:
        await _describe_by_name(cluster, by_name, values, errors)
    if by_id:
        await _describe_by_id(cluster, by_id, values, errors)
    return Results(topics, values, errors)


async def _describe_by_name(
    cluster: Cluster, names: Sequence[str], values: dict[TopicKey, TopicMetadata], errors: dict[TopicKey, ClientError]
) -> None:
    passing: dict[str, BrokerError] = {}

    async def attempt() -> None:
        passing.clear()
        missing = [name for name in names if name not in values and name not in errors]
        metadata = await cluster.refresh(missing)
        for name in missing:
            code = metadata.errors.get(name, ErrorCode.NONE)
            if name in metadata.topics:
                values[name] = metadata.topics[name]
            elif code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                errors[name] = no_such_topic(name)
            elif code is not ErrorCode.NONE:
                error = BrokerError(code, subject=f"topic {name}")
                (passing if error.retriable else errors)[name] = error
        for error in passing.values():
            raise error

    try:
        await cluster.retry(attempt)
    except BrokerError:
        errors.update(passing)


async def _describe_by_id(
    cluster: Cluster,
    ids: Sequence[uuid.UUID],
    values: dict[TopicKey, TopicMetadata],
    errors: dict[TopicKey, ClientError],
) -> None:
    async def attempt() -> None:
        connection = await cluster.any_connection()
        version = connection.version_for(METADATA)
        if version < _METADATA_BY_ID_FROM:
            raise UnsupportedVersionError(f"broker at {connection.address} can't describe topics by id")
        request = MetadataRequest(
            topics=[MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in ids],
            allow_auto_topic_creation=False,
        )
        response = await connection.request(METADATA, request, MetadataResponse, version=version)
        for row in response.topics:
            error = refusal(row.error_code, None, f"the topic with id {row.topic_id}")
            if error is not None:
                errors[row.topic_id] = error
        values.update({topic.topic_id: topic for topic in read_metadata(response).topics.values()})

    await cluster.retry(attempt)


async def wait_for_topics(cluster: Cluster, names: Sequence[str]) -> None:
    async def look() -> None:
        metadata = await cluster.refresh(names)
        for name in names:
            raise_for(metadata.errors.get(name, ErrorCode.NONE), subject=f"topic {name}")
            for partition in metadata.topics[name].partitions:
                if partition.leader_id < 0:
                    raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, subject=f"partition {name}-{partition.partition}")

    await cluster.retry(look)


def no_such_topic(name: str) -> NoSuchPartitionError:
    return NoSuchPartitionError(f"there is no topic {name!r}; create it with 'tidelog topics create {name}'")


# Changes


async def create_topics(
    cluster: Cluster, topics: NewTopic | str | Iterable[NewTopic | str], *, validate_only: bool
) -> Results[str, CreatedTopic]:
    rows = [topics] if isinstance(topics, (NewTopic, str)) else topics  # a name is not a list of letters
    wanted = [NewTopic(topic) if isinstance(topic, str) else topic for topic in rows]
    request = CreateTopicsRequest(
        topics=[_creatable(topic) for topic in wanted],
        timeout_ms=request_timeout_ms(cluster),
        validate_only=validate_only,
    )

    async def ask(connection: Connection) -> Iterable[Answer[str, CreatedTopic]]:
        response = await connection.request(CREATE_TOPICS, request, CreateTopicsResponse)
        return [
            (row.name, refusal(row.error_code, row.error_message, f"topic {row.name}"), _created(row))
            for row in response.topics
        ]

    return await at_controller(cluster, [topic.name for topic in wanted], ask)


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))
            for partition, brokers in (topic.assignments or {}).items()
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _created(row: CreatableTopicResult) -> CreatedTopic:
    configs = {config.name: config.value for config in row.configs or ()}
    return CreatedTopic(row.name, row.topic_id, row.num_partitions, row.replication_factor, configs)


async def create_partitions(
    cluster: Cluster, counts: Mapping[str, int | NewPartitions], *, validate_only: bool
) -> Results[str, None]:
    request = CreatePartitionsRequest(
        topics=[_grown(name, wanted) for name, wanted in counts.items()],
        timeout_ms=request_timeout_ms(cluster),
        validate_only=validate_only,
    )

    async def ask(connection: Connection) -> Iterable[Answer[str, None]]:
        response = await connection.request(CREATE_PARTITIONS, request, CreatePartitionsResponse)
        return [
            (row.name, refusal(row.error_code, row.error_message, f"topic {row.name}"), None)
            for row in response.results
        ]

    results = await at_controller(cluster, counts, ask)
    for name in counts:
        cluster.forget(name)
    return results


def _grown(name: str, wanted: int | NewPartitions) -> CreatePartitionsTopic:
    if isinstance(wanted, int):
        return CreatePartitionsTopic(name=name, count=wanted, assignments=None)
    assignments = None
    if wanted.assignments is not None:
        assignments = [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in wanted.assignments]
    return CreatePartitionsTopic(name=name, count=wanted.total_count, assignments=assignments)


async def delete_topics(cluster: Cluster, topics: Sequence[TopicKey]) -> Results[TopicKey, DeletedTopic]:
    async def ask(connection: Connection) -> Iterable[Answer[TopicKey, DeletedTopic]]:
        version = connection.version_for(DELETE_TOPICS)
        request = DeleteTopicsRequest(timeout_ms=request_timeout_ms(cluster))
        if version >= _DELETE_BY_ID_FROM:
            request.topics = [
                DeleteTopicState(name=topic) if isinstance(topic, str) else DeleteTopicState(topic_id=topic)
                for topic in topics
            ]
        else:
            names = [topic for topic in topics if isinstance(topic, str)]
            if len(names) < len(topics):
                raise UnsupportedVersionError(f"broker at {connection.address} can't delete topics by id")
            request.topic_names = names
        response = await connection.request(DELETE_TOPICS, request, DeleteTopicsResponse, version=version)
        return [
            (
                row.topic_id if row.topic_id in topics else row.name or "",
                refusal(row.error_code, row.error_message, f"topic {row.name or row.topic_id}"),
                DeletedTopic(row.name or "", row.topic_id),
            )
            for row in response.responses
        ]

    results = await at_controller(cluster, topics, ask)
    for topic in topics:
        name = topic if isinstance(topic, str) else cluster.topic_name(topic)
        if name is not None:
            cluster.forget(name)
    return results


def topic_keys(topics: TopicKey | Iterable[TopicKey]) -> list[TopicKey]:
    if isinstance(topics, (str, uuid.UUID)):
        return [topics]
    return list(dict.fromkeys(topics))
