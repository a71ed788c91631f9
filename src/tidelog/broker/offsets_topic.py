"""The topic __consumer_offsets, and how it is created when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.broker.internal_topics import replication_factor
from tidelog.controller.requests import NewTopic

if TYPE_CHECKING:
    from tidelog.common.settings import Settings
    from tidelog.controller.image import ClusterImage

OFFSETS_TOPIC: Final = "__consumer_offsets"


def new_offsets_topic(settings: Settings, image: ClusterImage) -> NewTopic:
    """The topic according to its settings."""
    return NewTopic(
        OFFSETS_TOPIC,
        partitions=settings.get_int("offsets.topic.num.partitions"),
        replication_factor=replication_factor("offsets.topic.replication.factor", settings, image),
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(settings.get_int("offsets.topic.segment.bytes")),
        },
    )
