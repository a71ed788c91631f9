"""The coordinators' topics: which partition an id belongs to, who leads it, and how the topic is created.

What always holds: an id's partition is the one that Kafka's own brokers and tools compute for it. The first client that
looks for a coordinator causes the topic to be created, once, however many ask at the same time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidelog.controller.image import BrokerInfo, ClusterImage
from tidelog.controller.requests import NewTopic
from tidelog.protocol import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidelog.broker.topic_creation import TopicCreation
    from tidelog.common.settings import Settings
    from tidelog.controller.cluster_view import ClusterView

logger = logging.getLogger(__name__)

_REMEMBERED_CHARACTERS_MAX: Final = 128

_CREATION_S_MAX: Final = 5.0
"""How long a client waits for the topic to be created before it has to retry."""


def java_hash(text: str) -> int:
    """Java's String.hashCode, which determines where Kafka stores a group or a transactional id."""
    data = text.encode("utf-16-be")
    value = 0
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(key: str, partition_count: int) -> int:
    """The partition of an id; cached for ids of normal length, because every request needs it."""
    if len(key) <= _REMEMBERED_CHARACTERS_MAX:
        return _remembered_partition_for(key, partition_count)
    return _compute_partition_for(key, partition_count)


def _compute_partition_for(key: str, partition_count: int) -> int:
    value = java_hash(key)
    # The one number whose absolute value doesn't fit in a Java int counts as 0.
    return (0 if value == -(1 << 31) else abs(value)) % partition_count


_remembered_partition_for = functools.lru_cache(maxsize=4096)(_compute_partition_for)


def coordinator_of(key: str, topic_name: str, image: ClusterImage) -> BrokerInfo | None:
    """The broker that coordinates this id, or None if there is none at the moment."""
    topic = image.topics.get(topic_name)
    if topic is None:
        return None
    leader = image.brokers.get(topic.partitions[partition_for(key, len(topic.partitions))].leader)
    return None if leader is None or leader.fenced else leader


def replication_factor(setting: str, settings: Settings, image: ClusterImage) -> int:
    """The number of replicas that a setting asks for."""
    factor = settings.get_int(setting)
    if settings.is_set(setting):
        return factor
    # An explicit number must be met, but the default must not keep a small cluster from having coordinators.
    return min(factor, sum(not broker.fenced for broker in image.brokers.values()))


class InternalTopicCreation:
    """Creates the topic when it is first needed."""

    def __init__(
        self, new_topic: Callable[[ClusterImage], NewTopic], cluster: ClusterView, creation: TopicCreation
    ) -> None:
        self._new_topic = new_topic
        self._cluster = cluster
        self._creation = creation
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the topic is being created; it may already be in the image while its files don't exist yet."""
        return self._task is not None

    async def ensure(self) -> None:
        """Wait until the topic exists and its partitions on this broker are ready, or creating it timed out."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._create())
            self._task.add_done_callback(self._on_done)
        await asyncio.wait([self._task], timeout=_CREATION_S_MAX)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None

    async def _create(self) -> None:
        topic = self._new_topic(self._cluster.image)
        try:
            (result,) = await self._creation.create([topic])
        except KafkaError as error:
            logger.warning("could not create %s: %s", topic.name, error)
            return
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            logger.warning("could not create %s: %s", topic.name, result.message)
