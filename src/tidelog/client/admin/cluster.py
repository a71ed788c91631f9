"""Calls about the cluster as a whole: its brokers, their log directories, its features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidelog import __version__
from tidelog.client.address import Address
from tidelog.client.admin.asking import at_brokers, refusal
from tidelog.client.admin.results import Results
from tidelog.client.admin.types import (
    ClusterDescription,
    FeatureMetadata,
    FeatureVersions,
    LogDir,
    LogDirReplica,
)
from tidelog.client.errors import BrokerError, raise_for
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import CLIENT_SOFTWARE_NAME, Connection
from tidelog.client.types import Node, TopicPartition, group_by_topic
from tidelog.protocol.messages.k18_api_versions import API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.k34_alter_replica_log_dirs import (
    ALTER_REPLICA_LOG_DIRS,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from tidelog.protocol.messages.k35_describe_log_dirs import (
    DESCRIBE_LOG_DIRS,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from tidelog.protocol.messages.k60_describe_cluster import (
    DESCRIBE_CLUSTER,
    DescribeClusterRequest,
    DescribeClusterResponse,
)


async def describe_cluster(cluster: Cluster) -> ClusterDescription:
    async def ask() -> ClusterDescription:
        connection = await cluster.any_connection()
        if not connection.supports(DESCRIBE_CLUSTER):
            metadata = await cluster.refresh([])
            nodes = [metadata.nodes[node_id] for node_id in sorted(metadata.nodes)]
            return ClusterDescription(metadata.cluster_id, metadata.controller_id, nodes)
        response = await connection.request(DESCRIBE_CLUSTER, DescribeClusterRequest(), DescribeClusterResponse)
        raise_for(response.error_code, response.error_message)
        rows = sorted(response.brokers, key=lambda row: row.broker_id)
        nodes = [Node(row.broker_id, Address(row.host, row.port), row.rack) for row in rows]
        return ClusterDescription(response.cluster_id, response.controller_id, nodes)

    return await cluster.retry(ask)


async def describe_features(cluster: Cluster) -> FeatureMetadata:
    async def ask() -> FeatureMetadata:
        connection = await cluster.any_connection()
        request = ApiVersionsRequest(client_software_name=CLIENT_SOFTWARE_NAME, client_software_version=__version__)
        response = await connection.request(API_VERSIONS, request, ApiVersionsResponse)
        raise_for(response.error_code)
        epoch = response.finalized_features_epoch
        return FeatureMetadata(
            supported={
                row.name: FeatureVersions(row.min_version, row.max_version) for row in response.supported_features
            },
            finalized={
                row.name: FeatureVersions(row.min_version_level, row.max_version_level)
                for row in response.finalized_features
            },
            finalized_epoch=epoch if epoch >= 0 else None,
        )

    return await cluster.retry(ask)


async def describe_log_dirs(
    cluster: Cluster, broker_ids: Iterable[int] | None, partitions: Iterable[TopicPartition] | None
) -> Results[int, Sequence[LogDir]]:
    topics = None
    if partitions is not None:
        topics = [
            DescribableLogDirTopic(topic=topic, partitions=indexes)
            for topic, indexes in group_by_topic(dict.fromkeys(partitions)).items()
        ]

    async def ask(connection: Connection, node_id: int) -> Sequence[LogDir]:
        request = DescribeLogDirsRequest(topics=topics)
        response = await connection.request(DESCRIBE_LOG_DIRS, request, DescribeLogDirsResponse)
        raise_for(response.error_code, subject=f"broker {node_id}")
        return [_log_dir(node_id, row) for row in response.results]

    return await at_brokers(cluster, ask, node_ids=broker_ids)


async def alter_replica_log_dirs(
    cluster: Cluster, broker_id: int, targets: Mapping[TopicPartition, str]
) -> Results[TopicPartition, None]:
    by_path: dict[str, list[TopicPartition]] = {}
    for key, path in targets.items():
        by_path.setdefault(path, []).append(TopicPartition(*key))

    async def ask(connection: Connection, _: int) -> dict[TopicPartition, BrokerError]:
        request = AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=path,
                    topics=[
                        AlterReplicaLogDirTopic(name=topic, partitions=indexes)
                        for topic, indexes in group_by_topic(keys).items()
                    ],
                )
                for path, keys in by_path.items()
            ]
        )
        response = await connection.request(ALTER_REPLICA_LOG_DIRS, request, AlterReplicaLogDirsResponse)
        rows = ((topic.topic_name, row) for topic in response.results for row in topic.partitions)
        answers = {TopicPartition(name, row.partition_index): row.error_code for name, row in rows}
        refused = {key: refusal(code, None, f"partition {key} on broker {broker_id}") for key, code in answers.items()}
        return {key: error for key, error in refused.items() if error is not None}

    errors = (await at_brokers(cluster, ask, node_ids=[broker_id]))[broker_id]
    wanted = [TopicPartition(*key) for key in targets]
    return Results(wanted, {key: None for key in wanted if key not in errors}, errors)


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
    error = refusal(row.error_code, None, f"log directory {row.log_dir}")
    return LogDir(node_id, row.log_dir, error, row.total_bytes, row.usable_bytes, replicas)
