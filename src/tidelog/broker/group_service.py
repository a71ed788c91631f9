"""Runs the group coordinators of this broker: one shard for each partition of __consumer_offsets that it leads.

What always holds: what `coordinator_service` says of all coordinators; a write whose outcome is not known in
offsets.commit.timeout.ms makes its shard be loaded anew. Shards see topics as they are in the newest image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidelog.broker.coordinator_service import KEY_CHARACTERS_MAX, CoordinatorService, Held
from tidelog.broker.group_image import ClusterTopics
from tidelog.broker.group_loading import load_shard
from tidelog.broker.offsets_topic import OFFSETS_TOPIC, new_offsets_topic
from tidelog.broker.partition import Partition
from tidelog.coordinator.config import GroupConfig
from tidelog.coordinator.shard import GroupShard
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import Compression

if TYPE_CHECKING:
    from tidelog.broker.replica_manager import ReplicaManager
    from tidelog.common.clock import Clock
    from tidelog.common.settings import Settings
    from tidelog.controller import Controller
    from tidelog.controller.image import ClusterImage
    from tidelog.controller.requests import NewTopic

_GROUP_SETTINGS: Final = (
    "group.consumer.assignment.interval.ms",
    "group.consumer.assignors",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.max.size",
    "group.consumer.migration.policy",
    "group.consumer.regex.refresh.interval.ms",
    "group.consumer.session.timeout.ms",
    "group.initial.rebalance.delay.ms",
    "group.max.session.timeout.ms",
    "group.max.size",
    "group.min.session.timeout.ms",
    "offset.metadata.max.bytes",
    "offsets.retention.check.interval.ms",
    "offsets.retention.minutes",
)


class GroupService(CoordinatorService[GroupShard]):
    """The coordinators of all groups whose partition this broker leads."""

    topic = OFFSETS_TOPIC
    noun = "groups"

    def __init__(self, *, settings: Settings, clock: Clock, controller: Controller, replicas: ReplicaManager) -> None:
        """To be made on the running event loop."""
        super().__init__(
            clock=clock,
            controller=controller,
            replicas=replicas,
            commit_timeout_ms=settings.get_int("offsets.commit.timeout.ms"),
            compression=Compression(settings.get_int("offsets.topic.compression.codec")),
        )
        self._settings = settings
        self._config = group_config(settings)
        self._load_buffer_bytes = settings.get_int("offsets.load.buffer.size")
        self._topics = ClusterTopics(controller.image)
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._topics = ClusterTopics(self._controller.image)
        self._unsubscribe = self._controller.subscribe(self._on_image)
        super().start()

    async def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        await super().close()

    def _find(self, key: str) -> Held[GroupShard]:
        if len(key) > KEY_CHARACTERS_MAX:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is too long to be written down")
        return super()._find(key)

    def _new_topic(self, image: ClusterImage) -> NewTopic:
        return new_offsets_topic(self._settings, image)

    def _make_shard(self, partition: Partition) -> GroupShard:
        return GroupShard(partition.partition, self._config, self._topics)

    async def _replay(self, shard: GroupShard, partition: Partition) -> int:
        return await load_shard(shard, partition, self._load_buffer_bytes)

    def _on_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.topics_by_id is new.topics_by_id:
            return
        self._topics = ClusterTopics(new)
        for held in tuple(self._held.values()):
            if held.is_loaded:
                self._run(held, held.shard.on_topics_changed(self._topics, self._now()))

    def _on_loaded(self, held: Held[GroupShard]) -> None:
        # Topics may have changed while the log was read.
        held.shard.state.image = self._topics
        super()._on_loaded(held)


def group_config(settings: Settings) -> GroupConfig:
    """The settings of groups as their coordinators read them."""
    values: dict[str, Any] = {name.replace(".", "_"): settings[name] for name in _GROUP_SETTINGS}
    values["group_consumer_assignors"] = tuple(values["group_consumer_assignors"])
    return GroupConfig(**values)
