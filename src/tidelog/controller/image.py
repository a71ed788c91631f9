"""The cluster as one immutable value: brokers, topics, partition states, settings that were set at run time.

What always holds: an image never changes after it was made, so it may be read from anywhere without a lock; a newer
image has a greater `revision`; whatever did not change between two images is the same object in both. The image only
holds state: decisions about it are in `decisions`, its format in the store is in `layout`.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Final

from tidelog.common.checks import collision_key
from tidelog.common.endpoint import Endpoint
from tidelog.common.ids import ZERO_UUID
from tidelog.common.light_dataclass import dataclass
from tidelog.protocol.config_values import ConfigResource, ResourceType

NO_LEADER: Final = -1
"""The leader of a partition that has none, as Kafka's requests carry it."""

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics that brokers use themselves; clients see them marked as internal."""


class LeaderRecoveryState(enum.IntEnum):
    """Whether a leader was elected without having all that was committed (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One registered broker. `epoch` is new with every registration of it (KIP-380)."""

    node_id: int
    epoch: int
    # Where it can be reached, one address a listener.
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    fenced: bool = False
    directories: tuple[uuid.UUID, ...] = ()
    # It is about to stop, and hands over what it leads.
    in_controlled_shutdown: bool = False
    # Which start of the broker registered: the one that holds the store's key for this node id is alive.
    incarnation: uuid.UUID = ZERO_UUID
    # The lowest and the highest level of each feature that it supports (KIP-584).
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def endpoint(self, listener_name: str) -> Endpoint:
        """Where those reach it who came in by a listener of this name; the first address if it has no such listener."""
        return next((each for each in self.endpoints if each.listener_name == listener_name), self.endpoints[0])

    @property
    def is_active(self) -> bool:
        """Whether it may become leader, and get replicas of new topics."""
        return not self.fenced and not self.in_controlled_shutdown


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the controller has decided about one partition; only the controller creates new states.

    `partition_epoch` grows with every change, `leader_epoch` when the leader changes or a replica is removed.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    recovery: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    # Who led it before it had no leader; only while it has none.
    last_leader: int = NO_LEADER

    @property
    def is_reassigned(self) -> bool:
        """Whether it is being moved to other replicas (KIP-455)."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic; partition N is `partitions[N]`."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionState, ...]
    is_internal: bool = False
    created_ms: int = 0

    @property
    def replication_factor(self) -> int:
        """Of the first partition; one that is being moved has more replicas than it will have."""
        state = self.partitions[0]
        return len(state.replicas) - len(state.removing)


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Everything that brokers need to know about the cluster at one revision of the store."""

    revision: int = 0
    cluster_id: str = ""
    controller_id: int = -1
    brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[uuid.UUID, TopicImage] = field(default_factory=dict)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    # Topic names by what they look like in metrics, so that checking a new name doesn't go through all topics.
    names_by_collision_key: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    # Of all topics together, counted as they come and go.
    partitions_count: int = field(default=0, repr=False, compare=False)

    def partition(self, topic: str, index: int) -> PartitionState | None:
        """The state of one partition, or None when the topic or the partition is unknown."""
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    def with_topics(self, changed: Iterable[TopicImage], deleted: Sequence[TopicImage] = ()) -> ClusterImage:
        """This image with topics added or replaced, and others removed with their settings."""
        topics, by_id = dict(self.topics), dict(self.topics_by_id)
        names, configs = dict(self.names_by_collision_key), self.configs
        partitions_count = self.partitions_count
        for topic in changed:
            before = topics.get(topic.name)
            partitions_count += len(topic.partitions) - (0 if before is None else len(before.partitions))
            topics[topic.name] = by_id[topic.topic_id] = topic
            names[collision_key(topic.name)] = topic.name
        gone = {ConfigResource(ResourceType.TOPIC, topic.name) for topic in deleted}
        for topic in deleted:
            partitions_count -= len(topic.partitions)
            del topics[topic.name], by_id[topic.topic_id], names[collision_key(topic.name)]
        if not gone.isdisjoint(configs):
            configs = {resource: values for resource, values in configs.items() if resource not in gone}
        return replace(
            self,
            topics=topics,
            topics_by_id=by_id,
            names_by_collision_key=names,
            configs=configs,
            partitions_count=partitions_count,
        )

    def with_configs(self, changed: Mapping[ConfigResource, Mapping[str, str]]) -> ClusterImage:
        """This image with the overrides of some resources replaced; an empty set of overrides is left out."""
        if not changed:
            return self
        merged = {**self.configs, **changed}
        return replace(self, configs={resource: values for resource, values in merged.items() if values})

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        """The settings set on that topic itself; empty when none is."""
        return self.configs.get(ConfigResource(ResourceType.TOPIC, topic), _NO_CONFIGS)

    def broker_configs(self, node_id: int | None) -> Mapping[str, str]:
        """The settings set at run time on that broker, or on all brokers (None)."""
        name = "" if node_id is None else str(node_id)
        return self.configs.get(ConfigResource(ResourceType.BROKER, name), _NO_CONFIGS)

    def group_configs(self, group_id: str) -> Mapping[str, str]:
        """The settings set on that group itself; empty when none is."""
        return self.configs.get(ConfigResource(ResourceType.GROUP, group_id), _NO_CONFIGS)


_NO_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({})
EMPTY_IMAGE: Final = ClusterImage()


def stages(old: ClusterImage, new: ClusterImage, topics_max: int) -> Iterator[ClusterImage]:
    """Images that lead from one to the other, none of which changes more topics than this; `new` is the last.

    The others have the old one's revision, since what that of the new one stands for is not all in them.
    """
    deleted = [topic for name, topic in old.topics.items() if name not in new.topics]
    changed = [topic for name, topic in new.topics.items() if old.topics.get(name) is not topic]
    known = {topic.name for topic in changed}
    configured = [
        resource
        for resource in old.configs.keys() | new.configs.keys()
        if resource.type is ResourceType.TOPIC
        and resource.name in new.topics
        and resource.name not in known
        and old.configs.get(resource) is not new.configs.get(resource)
    ]
    image = old
    for start in range(0, len(deleted), topics_max):
        topics = deleted[start : start + topics_max]
        image = image.with_topics((), topics)
        yield image
    for start in range(0, len(changed), topics_max):
        topics = changed[start : start + topics_max]
        resources = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in topics]
        image = image.with_topics(topics).with_configs(_configs_of(resources, old, new))
        yield image
    for start in range(0, len(configured), topics_max):
        part = configured[start : start + topics_max]
        image = image.with_configs(_configs_of(part, old, new))
        yield image
    yield new


def _configs_of(
    resources: Iterable[ConfigResource], old: ClusterImage, new: ClusterImage
) -> dict[ConfigResource, Mapping[str, str]]:
    """The overrides of these that differ between the images."""
    return {
        resource: new.configs.get(resource, _NO_CONFIGS)
        for resource in resources
        if old.configs.get(resource) is not new.configs.get(resource)
    }
