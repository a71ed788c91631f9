"""Admin calls: topics, settings, offsets, log directories, the cluster.

What always holds: per-topic refusals are rows with an error, so that the others' results are not lost; a refusal of
what was asked for as a whole raises. Calls that change something are not repeated after a lost connection, because
the broker may have carried them out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from tidelog.client.admin_types import (
    ClusterDescription,
    ConfigEntry,
    ListedOffset,
    LogDir,
    LogDirReplica,
    NewTopic,
    TopicOutcome,
)
from tidelog.client.cluster import Cluster, TopicMetadata, TopicPartition
from tidelog.client.connection import Connection
from tidelog.client.errors import BrokerError, ClientError, error_code, raise_for
from tidelog.client.routing import at_leaders
from tidelog.protocol import ErrorCode
from tidelog.protocol.config_values import ConfigChange, ConfigResource, ConfigSource, ResourceType
from tidelog.protocol.messages.k02_list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.k20_delete_topics import (
    DELETE_TOPICS,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.protocol.messages.k21_delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.protocol.messages.k35_describe_log_dirs import (
    DESCRIBE_LOG_DIRS,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from tidelog.protocol.messages.k37_create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.protocol.messages.k44_incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.protocol.messages.k60_describe_cluster import (
    DESCRIBE_CLUSTER,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

NEW_TOPIC_WAIT_S = 5.0
_DELETE_TOPICS_BY_STATE_FROM = 6  # before, the request held plain names

ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")


class Admin:
    """Admin calls over a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def _timeout_ms(self) -> int:
        return int(self._cluster.request_timeout_s * 1000)

    # Topics

    def list_topics(self, *, include_internal: bool = False) -> list[TopicMetadata]:
        metadata = self._cluster.retry(lambda: self._cluster.refresh(None))
        listed = (topic for topic in metadata.topics.values() if include_internal or not topic.is_internal)
        return sorted(listed, key=lambda topic: topic.name)

    def describe_topics(self, names: Iterable[str]) -> list[TopicMetadata]:
        """The topics in the order asked for; raises BrokerError for the first that is unknown."""
        described = []
        for name in names:
            self._cluster.forget(name)
            described.append(self._cluster.topic(name))
        return described

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> list[TopicOutcome]:
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.replication_factor,
                    configs=[CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()],
                )
                for topic in topics
            ],
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )

        def create() -> list[TopicOutcome]:
            response = self._cluster.call(CREATE_TOPICS, request, CreateTopicsResponse)
            return [
                TopicOutcome(
                    name=row.name,
                    error=_error(row.error_code, row.error_message, f"topic {row.name}"),
                    topic_id=row.topic_id,
                    partitions=row.num_partitions,
                    replication_factor=row.replication_factor,
                )
                for row in response.topics
            ]

        return self._while_controller_moves(create)

    def wait_for_topic(self, name: str) -> None:
        """Until the brokers have heard of a topic that was just created; with one broker that is at once."""

        def look() -> None:
            code = self._cluster.refresh([name]).errors.get(name, ErrorCode.NONE)
            raise_for(code, subject=f"topic {name}")

        self._cluster.retry(look, timeout_s=NEW_TOPIC_WAIT_S)

    def create_partitions(self, counts: Mapping[str, int], *, validate_only: bool = False) -> list[TopicOutcome]:
        """Grow topics to these numbers of partitions."""
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in counts.items()],
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )

        def grow() -> list[TopicOutcome]:
            response = self._cluster.call(CREATE_PARTITIONS, request, CreatePartitionsResponse)
            return [
                TopicOutcome(row.name, _error(row.error_code, row.error_message, f"topic {row.name}"))
                for row in response.results
            ]

        outcomes = self._while_controller_moves(grow)
        for name in counts:
            self._cluster.forget(name)
        return outcomes

    def delete_topics(self, names: Sequence[str]) -> list[TopicOutcome]:
        def delete() -> list[TopicOutcome]:
            connection = self._cluster.any_connection()
            version = connection.version_for(DELETE_TOPICS)
            request = DeleteTopicsRequest(timeout_ms=self._timeout_ms)
            if version >= _DELETE_TOPICS_BY_STATE_FROM:
                request.topics = [DeleteTopicState(name=name) for name in names]
            else:
                request.topic_names = list(names)
            response = connection.request(DELETE_TOPICS, request, DeleteTopicsResponse, version=version)
            return [
                TopicOutcome(
                    name=row.name or "",
                    error=_error(row.error_code, row.error_message, f"topic {row.name}"),
                    topic_id=row.topic_id,
                )
                for row in response.responses
            ]

        outcomes = self._while_controller_moves(delete)
        for name in names:
            self._cluster.forget(name)
        return outcomes

    def _while_controller_moves(self, change: Callable[[], list[TopicOutcome]]) -> list[TopicOutcome]:
        """Ask again while the cluster has no controller; nothing was changed then."""

        def attempt() -> list[TopicOutcome]:
            outcomes = change()
            errors = [outcome.error for outcome in outcomes if outcome.error is not None]
            if errors and all(error.code is ErrorCode.NOT_CONTROLLER for error in errors):
                raise errors[0]
            return outcomes

        return self._cluster.retry(attempt, repeatable=False)

    # Settings

    def describe_configs(
        self, resource: ConfigResource, names: Sequence[str] | None = None, *, documentation: bool = False
    ) -> list[ConfigEntry]:
        """The resource's settings, sorted by name; only those named, when names are given."""

        def ask() -> list[ConfigEntry]:
            connection = self._connection_for(resource)
            version = connection.version_for(DESCRIBE_CONFIGS)
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=resource.type,
                        resource_name=resource.name,
                        configuration_keys=None if names is None else list(names),
                    )
                ]
            )
            if version >= 3:
                request.include_documentation = documentation
            response = connection.request(DESCRIBE_CONFIGS, request, DescribeConfigsResponse, version=version)
            for result in response.results:
                _refuse(result.error_code, result.error_message, str(resource))
            return [
                ConfigEntry(
                    name=row.name,
                    value=row.value,
                    source=_source(row.config_source),
                    read_only=row.read_only,
                    sensitive=row.is_sensitive,
                    documentation=row.documentation,
                )
                for result in response.results
                for row in sorted(result.configs, key=lambda row: row.name)
            ]

        # "Unknown topic" is an answer here: settings are not asked for a topic that is only just being made.
        return self._cluster.retry(ask, giving_up_on=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}))

    def alter_configs(
        self, resource: ConfigResource, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> None:
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configs=[
                        AlterableConfig(name=change.name, config_operation=change.operation, value=change.value)
                        for change in changes
                    ],
                )
            ],
            validate_only=validate_only,
        )

        def alter() -> None:
            connection = self._connection_for(resource)
            response = connection.request(INCREMENTAL_ALTER_CONFIGS, request, IncrementalAlterConfigsResponse)
            for row in response.responses:
                _refuse(row.error_code, row.error_message, str(resource))

        self._cluster.retry(alter, repeatable=False, giving_up_on=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}))

    def _connection_for(self, resource: ConfigResource) -> Connection:
        """A broker answers for its own settings; for all else any broker does."""
        if resource.type is not ResourceType.BROKER or not resource.name:
            return self._cluster.any_connection()
        if not resource.name.isdigit():
            raise ClientError(f"a broker is named by its id, a number, not {resource.name!r}")
        return self._cluster.connection_to(int(resource.name))

    # Offsets

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, ListedOffset]:
        """The first offset at or after each timestamp, or at one of the special ones (EARLIEST_TIMESTAMP...)."""

        def ask(
            connection: Connection, wanted: Mapping[TopicPartition, int]
        ) -> Iterable[tuple[TopicPartition, int, ListedOffset]]:
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation_level,
                topics=[
                    ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
                            for partition, timestamp in rows
                        ],
                    )
                    for topic, rows in _by_topic(wanted)
                ],
                timeout_ms=self._timeout_ms,
            )
            response = connection.request(LIST_OFFSETS, request, ListOffsetsResponse)
            for topic in response.topics:
                for row in topic.partitions:
                    listed = ListedOffset(row.offset, row.timestamp, row.leader_epoch)
                    yield TopicPartition(topic.name, row.partition_index), row.error_code, listed

        return at_leaders(self._cluster, timestamps, ask)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Drop all records before these offsets (-1: all there are); gives each partition's new first offset."""

        def ask(
            connection: Connection, wanted: Mapping[TopicPartition, int]
        ) -> Iterable[tuple[TopicPartition, int, int]]:
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            DeleteRecordsPartition(partition_index=partition, offset=offset)
                            for partition, offset in rows
                        ],
                    )
                    for topic, rows in _by_topic(wanted)
                ],
                timeout_ms=self._timeout_ms,
            )
            response = connection.request(DELETE_RECORDS, request, DeleteRecordsResponse)
            for topic in response.topics:
                for row in topic.partitions:
                    yield TopicPartition(topic.name, row.partition_index), row.error_code, row.low_watermark

        return at_leaders(self._cluster, before, ask)

    # The cluster

    def describe_cluster(self) -> ClusterDescription:
        def ask() -> ClusterDescription:
            metadata = self._cluster.refresh([])
            connection = self._cluster.any_connection()
            nodes = [metadata.nodes[node_id] for node_id in sorted(metadata.nodes)]
            if not connection.supports(DESCRIBE_CLUSTER):
                return ClusterDescription(metadata.cluster_id, metadata.controller_id, nodes)
            response = connection.request(DESCRIBE_CLUSTER, DescribeClusterRequest(), DescribeClusterResponse)
            raise_for(response.error_code, response.error_message)
            return ClusterDescription(response.cluster_id, response.controller_id, nodes)

        return self._cluster.retry(ask)

    def describe_log_dirs(self, topic_partitions: Iterable[TopicPartition] | None = None) -> list[LogDir]:
        """Every broker's log directories, with the replicas of these partitions, or of all."""
        topics = None
        if topic_partitions is not None:
            rows = dict.fromkeys(topic_partitions)
            topics = [
                DescribableLogDirTopic(topic=topic, partitions=[partition for partition, _ in members])
                for topic, members in _by_topic(rows)
            ]

        def ask(node_id: int) -> list[LogDir]:
            connection = self._cluster.connection_to(node_id)
            request = DescribeLogDirsRequest(topics=topics)
            response = connection.request(DESCRIBE_LOG_DIRS, request, DescribeLogDirsResponse)
            raise_for(response.error_code, subject=f"broker {node_id}")
            return [_log_dir(node_id, row) for row in response.results]

        nodes = self._cluster.retry(lambda: self._cluster.refresh([])).nodes
        directories: list[LogDir] = []
        for node_id in sorted(nodes):
            directories += self._cluster.retry(functools.partial(ask, node_id))
        return directories


def _by_topic(wanted: Mapping[TopicPartition, ValueT]) -> list[tuple[str, list[tuple[int, ValueT]]]]:
    topics: dict[str, list[tuple[int, ValueT]]] = {}
    for topic_partition, value in wanted.items():
        topics.setdefault(topic_partition.topic, []).append((topic_partition.partition, value))
    return list(topics.items())


def _error(code: int, message: str | None, subject: str) -> BrokerError | None:
    if code == ErrorCode.NONE:
        return None
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        message = "there is no such topic"  # brokers speak of partitions that they don't host
    return BrokerError(error_code(code), message, subject=subject)


def _refuse(code: int, message: str | None, subject: str) -> None:
    error = _error(code, message, subject)
    if error is not None:
        raise error


def _source(number: int) -> ConfigSource:
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN


def _log_dir(node_id: int, row: DescribeLogDirsResult) -> LogDir:
    replicas = [
        LogDirReplica(
            topic_partition=TopicPartition(topic.name, partition.partition_index),
            size_bytes=partition.partition_size,
            offset_lag=partition.offset_lag,
            is_future=partition.is_future_key,
        )
        for topic in row.topics
        for partition in topic.partitions
    ]
    error = _error(row.error_code, None, f"log directory {row.log_dir}")
    return LogDir(node_id, row.log_dir, error, row.total_bytes, row.usable_bytes, replicas)
