"""Calls about replicas: who leads a partition, which brokers hold it, and brokers that are gone for good.

What always holds: an error for one partition does not affect the results of the others. A reassignment continues after
the call has returned; `list_partition_reassignments` shows its progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidelog.client.admin.asking import Answer, at_controller, by_topic, refusal, request_timeout_ms
from tidelog.client.admin.results import Results
from tidelog.client.admin.types import ElectionType, PartitionReassignment
from tidelog.client.errors import raise_for
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.types import TopicPartition, group_by_topic
from tidelog.protocol.messages.k43_elect_leaders import (
    ELECT_LEADERS,
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from tidelog.protocol.messages.k45_alter_partition_reassignments import (
    ALTER_PARTITION_REASSIGNMENTS,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.protocol.messages.k46_list_partition_reassignments import (
    LIST_PARTITION_REASSIGNMENTS,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)
from tidelog.protocol.messages.k64_unregister_broker import (
    UNREGISTER_BROKER,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)


async def elect_leaders(
    cluster: Cluster, election_type: ElectionType, partitions: Iterable[TopicPartition] | None
) -> Results[TopicPartition, None]:
    wanted = None if partitions is None else list(dict.fromkeys(TopicPartition(*each) for each in partitions))
    answered: list[TopicPartition] = []

    async def ask(connection: Connection) -> list[Answer[TopicPartition, None]]:
        request = ElectLeadersRequest(
            election_type=election_type,
            topic_partitions=None
            if wanted is None
            else [
                TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in group_by_topic(wanted).items()
            ],
            timeout_ms=request_timeout_ms(cluster),
        )
        response = await connection.request(ELECT_LEADERS, request, ElectLeadersResponse)
        raise_for(response.error_code, subject="election of leaders")
        answers: list[Answer[TopicPartition, None]] = []
        for topic in response.replica_election_results:
            for row in topic.partition_result:
                key = TopicPartition(topic.topic, row.partition_id)
                answers.append((key, refusal(row.error_code, row.error_message, f"partition {key}"), None))
        answered[:] = [key for key, _, _ in answers]
        return answers

    # When asked for all partitions, the controller names those it looked at.
    return await at_controller(cluster, answered if wanted is None else wanted, ask)


async def alter_partition_reassignments(
    cluster: Cluster, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> Results[TopicPartition, None]:
    wanted = {TopicPartition(*key): replicas for key, replicas in targets.items()}

    async def ask(connection: Connection) -> list[Answer[TopicPartition, None]]:
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=request_timeout_ms(cluster),
            topics=[
                ReassignableTopic(
                    name=topic,
                    partitions=[
                        ReassignablePartition(
                            partition_index=index, replicas=None if replicas is None else list(replicas)
                        )
                        for index, replicas in rows
                    ],
                )
                for topic, rows in by_topic(wanted)
            ],
        )
        response = await connection.request(ALTER_PARTITION_REASSIGNMENTS, request, AlterPartitionReassignmentsResponse)
        answers: list[Answer[TopicPartition, None]] = []
        overall = refusal(response.error_code, response.error_message, "reassignment")
        if overall is not None:
            return [(key, overall, None) for key in wanted]
        for topic in response.responses:
            for row in topic.partitions:
                key = TopicPartition(topic.name, row.partition_index)
                answers.append((key, refusal(row.error_code, row.error_message, f"partition {key}"), None))
        return answers

    return await at_controller(cluster, wanted, ask)


async def list_partition_reassignments(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, PartitionReassignment]:
    topics = None
    if partitions is not None:
        grouped = group_by_topic(dict.fromkeys(TopicPartition(*each) for each in partitions))
        topics = [
            ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
            for topic, indexes in grouped.items()
        ]

    async def ask() -> dict[TopicPartition, PartitionReassignment]:
        connection = await cluster.any_connection()
        request = ListPartitionReassignmentsRequest(timeout_ms=request_timeout_ms(cluster), topics=topics)
        response = await connection.request(LIST_PARTITION_REASSIGNMENTS, request, ListPartitionReassignmentsResponse)
        raise_for(response.error_code, response.error_message, subject="reassignments")
        return {
            TopicPartition(topic.name, row.partition_index): PartitionReassignment(
                tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
            )
            for topic in response.topics
            for row in topic.partitions
        }

    return await cluster.retry(ask)


async def unregister_broker(cluster: Cluster, node_id: int) -> None:
    async def ask(connection: Connection) -> list[Answer[int, None]]:
        response = await connection.request(
            UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id=node_id), UnregisterBrokerResponse
        )
        error = refusal(response.error_code, response.error_message, f"broker {node_id}")
        return [(node_id, error, None)]

    (await at_controller(cluster, [node_id], ask)).raise_for_errors()
