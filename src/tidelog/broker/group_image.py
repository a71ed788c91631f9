"""The cluster image as group coordinators see it: topics by name and id, with their partitions and racks."""

from __future__ import annotations

import uuid
from collections.abc import Collection

from tidelog.controller.image import ClusterImage


class ClusterTopics:
    """The topics of one image; immutable, like the image itself."""

    __slots__ = ("_image",)

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def topic_id(self, name: str) -> uuid.UUID | None:
        topic = self._image.topics.get(name)
        return None if topic is None else topic.topic_id

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        topic = self._image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def partition_count(self, name: str) -> int:
        topic = self._image.topics.get(name)
        return 0 if topic is None else len(topic.partitions)

    def partition_racks(self, name: str) -> tuple[frozenset[str], ...]:
        topic = self._image.topics.get(name)
        if topic is None:
            return ()
        racks = {node_id: broker.rack for node_id, broker in self._image.brokers.items() if broker.rack is not None}
        return tuple(
            frozenset(racks[node_id] for node_id in state.replicas if node_id in racks) for state in topic.partitions
        )

    def topic_names(self) -> Collection[str]:
        return self._image.topics.keys()
