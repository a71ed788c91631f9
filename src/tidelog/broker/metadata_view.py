"""The cluster image as Metadata answers show it, built once per topic and kept while the topic does not change.

What always holds: an answer built from here is what the image says, but for partitions that their leader can't serve
yet, which have no leader for clients; the messages are shared between answers and never
changed. Building 5,000 partitions takes 10 to 16 ms of the event loop, looking them up again 1 ms, and after a start of
many clients each of them asks for everything.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

from tidelog.broker.authorized_operations import NOT_ASKED_FOR
from tidelog.controller.image import EMPTY_IMAGE, NO_LEADER, ClusterImage, PartitionState, TopicImage
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k03_metadata import (
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class MetadataView:
    """Messages made from the newest image that was asked for."""

    def __init__(self) -> None:
        self._image = EMPTY_IMAGE
        self.live_brokers: frozenset[int] = frozenset()
        self.brokers: list[MetadataResponseBroker] = []
        self._topics: dict[uuid.UUID, tuple[TopicImage, MetadataResponseTopic]] = {}

    def follow(self, image: ClusterImage) -> None:
        """Answer from this image from now on; topics that it shares with the last one are kept."""
        if image is self._image:
            return
        live_brokers = frozenset(node_id for node_id, broker in image.brokers.items() if not broker.fenced)
        if live_brokers != self.live_brokers:
            self._topics.clear()
        elif len(self._topics) > len(image.topics):
            self._topics = {key: known for key, known in self._topics.items() if key in image.topics_by_id}
        self._image, self.live_brokers = image, live_brokers
        self.brokers = [
            MetadataResponseBroker(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in image.brokers.values()
            if not broker.fenced
        ]

    def topic(self, topic: TopicImage, opening: Collection[int] = ()) -> MetadataResponseTopic:
        """A topic of the followed image, some of its partitions still being opened, without authorized operations."""
        if opening:
            # Not remembered: it changes without another image.
            return self.topic_with_operations(topic, NOT_ASKED_FOR, opening)
        known = self._topics.get(topic.topic_id)
        if known is not None and known[0] is topic:
            return known[1]
        message = self.topic_with_operations(topic, NOT_ASKED_FOR)
        self._topics[topic.topic_id] = (topic, message)
        return message

    def topic_with_operations(
        self, topic: TopicImage, operations: int, opening: Collection[int] = ()
    ) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=[
                self._partition(index, state, is_opening=index in opening)
                for index, state in enumerate(topic.partitions)
            ],
            topic_authorized_operations=operations,
        )

    def _partition(self, index: int, state: PartitionState, *, is_opening: bool) -> MetadataResponsePartition:
        has_leader = state.leader in self.live_brokers and not is_opening
        return MetadataResponsePartition(
            error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=state.leader if has_leader else NO_LEADER,
            leader_epoch=state.leader_epoch,
            replica_nodes=list(state.replicas),
            isr_nodes=list(state.isr),
            offline_replicas=[replica for replica in state.replicas if replica not in self.live_brokers],
        )
