"""Topics that a broker itself has the controller create: on a client's first use, and for its coordinators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidelog.controller.requests import NewTopic, TopicResult
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.controller_channel import ControllerChannel
    from tidelog.broker.replica_manager import ReplicaManager
    from tidelog.controller.cluster_view import ClusterView

CREATION_TIMEOUT_S: Final = 10.0
"""How long the controller may take: an election takes milliseconds, but a machine that was just woken up is slow."""


class TopicCreation:
    """How a broker's own parts create topics."""

    def __init__(self, channel: ControllerChannel, cluster: ClusterView, replicas: ReplicaManager) -> None:
        self._channel = channel
        self._cluster = cluster
        self._replicas = replicas

    async def create(self, topics: Sequence[NewTopic], timeout_s: float = CREATION_TIMEOUT_S) -> list[TopicResult]:
        """One result a topic; what exists then is in this broker's image, and open as far as it is on this broker.

        Raises KafkaError as ControllerChannel does.
        """
        request = CreateTopicsRequest(topics=[_message(topic) for topic in topics], timeout_ms=int(timeout_s * 1000))
        response = await self._channel.call(CREATE_TOPICS, request, CreateTopicsResponse, timeout_s=timeout_s)
        results = [
            TopicResult(row.name, row.topic_id, ErrorCode(row.error_code), row.error_message) for row in response.topics
        ]
        made = [row for row in results if row.error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)]
        await self._cluster.wait_for(lambda image: all(row.name in image.topics for row in made), timeout_s)
        known = (self._cluster.image.topics.get(row.name) for row in made)
        await self._replicas.wait_until_opened(topic.topic_id for topic in known if topic is not None)
        return results


def _message(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in topic.assignments.items()
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )
