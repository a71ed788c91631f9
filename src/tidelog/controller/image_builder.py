"""Between records and images: the image that records of the store describe, and the records that describe an image.

What always holds: whatever a change does not touch is the same object in the image before and after it, down to single
partition states, so that those who follow images find what changed by comparing objects; a topic is in the image if its
`topics/` record says so, whatever chunks there are (see `layout`). An election and its results are not records: the
image's controller is the one that the caller names.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from tidelog.common.light_dataclass import dataclass
from tidelog.common.steps import Steps
from tidelog.controller import layout
from tidelog.controller.image import (
    INTERNAL_TOPICS,
    BrokerInfo,
    ClusterImage,
    PartitionState,
    TopicImage,
)
from tidelog.controller.layout import Record
from tidelog.metadata.store import MetadataStoreError
from tidelog.protocol.config_values import ConfigResource, ResourceType

_NO_CONFIGS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Built:
    """An image after some records, and what these tell besides."""

    image: ClusterImage
    # Topics that tombstones among the records name, by topic id; brokers may not have removed all of their files.
    deleted_topics: Mapping[uuid.UUID, str]
    # Keys of chunks that belong to no topic: left by an interrupted creation or deletion.
    orphans: list[str]


class ImageBuilder:
    """Collects records, in any order, and builds the image after all of them."""

    def __init__(self, image: ClusterImage, *, is_complete: bool = False) -> None:
        """Starts from an image; `is_complete` says that the records are all there are, so the rest of it is gone."""
        self._image = image
        self._is_complete = is_complete
        self._cluster_id = image.cluster_id
        self._brokers: dict[int, BrokerInfo | None] = {}
        self._configs: dict[ConfigResource, Mapping[str, str]] = {}
        self._topics: dict[str, layout.TopicRecord | None] = {}
        self._chunks: dict[uuid.UUID, dict[int, list[PartitionState]]] = {}
        self._deleted: dict[uuid.UUID, str] = {}

    def add(self, key: str, record: Record | None) -> None:
        """Take in one record; None means that the key was removed. A later record of a key replaces an earlier one.

        Keys that have no part in the image are passed over.
        """
        if key.startswith(layout.PARTITIONS):
            topic_id, chunk = layout.parse_chunk_key(key)
            # Parsed here rather than in `build`, so that pages of records cost as they come.
            self._chunks.setdefault(topic_id, {})[chunk] = [] if record is None else layout.parse_chunk(record)
        elif key.startswith(layout.TOPICS):
            self._add_topic(key.removeprefix(layout.TOPICS), record)
        elif key.startswith(layout.BROKERS):
            node_id = int(key.removeprefix(layout.BROKERS))
            self._brokers[node_id] = None if record is None else layout.parse_broker(key, record)
        elif key.startswith(layout.BROKER_CONFIGS):
            resource = ConfigResource(ResourceType.BROKER, layout.broker_configs_name(key))
            self._configs[resource] = {} if record is None else record["configs"]
        elif key.startswith(layout.GROUP_CONFIGS):
            # Without a record there was a group's empty one, which is in no image.
            if record is not None:
                self._configs[ConfigResource(ResourceType.GROUP, record["group"])] = record["configs"]
        elif key == layout.CLUSTER and record is not None:
            self._cluster_id = record["id"]

    def _add_topic(self, name: str, record: Record | None) -> None:
        deleted_topic_id = None if record is None else layout.parse_tombstone(record)
        if record is None or deleted_topic_id is not None:
            self._topics[name] = None
        else:
            self._topics[name] = layout.parse_topic(record)
        if deleted_topic_id is not None:
            self._deleted[deleted_topic_id] = name

    def build(self, revision: int, controller_id: int) -> Steps[Built]:
        """The image at this revision, in steps. Raises MetadataStoreError for a topic that lacks partitions."""
        image = replace(self._image, revision=revision, controller_id=controller_id, cluster_id=self._cluster_id)
        brokers = self._all_brokers()
        if brokers != image.brokers:
            image = replace(image, brokers=brokers)
        changed, deleted = yield from self._changed_topics(image)
        if deleted:
            # First: a topic that was deleted and recreated has the same name.
            image = image.with_topics((), deleted)
        if changed:
            image = image.with_topics(changed)
        return Built(image.with_configs(self._changed_configs(image)), self._deleted, list(self._orphans(image)))

    def _all_brokers(self) -> dict[int, BrokerInfo]:
        old = self._image.brokers
        brokers = self._brokers if self._is_complete else {**old, **self._brokers}
        return {
            node_id: old[node_id] if old.get(node_id) == broker else broker
            for node_id, broker in sorted(brokers.items())
            if broker is not None
        }

    def _changed_topics(self, image: ClusterImage) -> Steps[tuple[list[TopicImage], list[TopicImage]]]:
        changed, deleted = [], []
        names = dict.fromkeys([*self._topics, *(image.topics if self._is_complete else ())])
        for topic_id in self._chunks:
            if topic_id in image.topics_by_id:
                names[image.topics_by_id[topic_id].name] = None
        for name in names:
            old = image.topics.get(name)
            new = self._topic(name, old)
            if old is not None and (new is None or new.topic_id != old.topic_id):
                deleted.append(old)
            if new is not None and new is not old:
                changed.append(new)
            yield 0
        return changed, deleted

    def _topic(self, name: str, old: TopicImage | None) -> TopicImage | None:
        record = self._topics.get(name)
        if record is None:
            if name in self._topics or self._is_complete:
                return None
            assert old is not None  # its chunks brought it here
            record = layout.TopicRecord(old.topic_id, len(old.partitions), old.created_ms, {})
        before = old.partitions if old is not None and old.topic_id == record.topic_id else ()
        partitions = self._partitions(name, record, before)
        new = TopicImage(name, record.topic_id, partitions, name in INTERNAL_TOPICS, record.created_ms)
        return old if new == old else new

    def _partitions(
        self, name: str, record: layout.TopicRecord, before: tuple[PartitionState, ...]
    ) -> tuple[PartitionState, ...]:
        states = list(before)
        for chunk, parsed in sorted(self._chunks.get(record.topic_id, {}).items()):
            for index, state in enumerate(parsed, chunk * layout.PARTITIONS_PER_CHUNK):
                if index < len(states):
                    if states[index] != state:
                        states[index] = state
                elif index == len(states):
                    states.append(state)
        if len(states) < record.partitions:
            raise MetadataStoreError(
                f"the metadata of topic {name!r} is damaged: it should have {record.partitions} partitions, "
                f"the states of {len(states)} are there. Restore the metadata store from a backup."
            )
        # An interrupted CreatePartitions leaves more states than partitions; the next one overwrites them.
        return tuple(states[: record.partitions])

    def _changed_configs(self, image: ClusterImage) -> dict[ConfigResource, Mapping[str, str]]:
        told = dict(self._configs)
        for name, record in self._topics.items():
            if record is not None:
                told[ConfigResource(ResourceType.TOPIC, name)] = record.configs
        if self._is_complete:
            told = {**dict.fromkeys(image.configs, _NO_CONFIGS), **told}
        return {
            resource: overrides for resource, overrides in told.items() if overrides != image.configs.get(resource, {})
        }

    def _orphans(self, image: ClusterImage) -> Iterator[str]:
        for topic_id, chunks in self._chunks.items():
            if topic_id not in image.topics_by_id:
                for chunk, states in chunks.items():
                    if states:
                        yield layout.chunk_key(topic_id, chunk)


def records_of(image: ClusterImage, deleted_topics: Mapping[uuid.UUID, str]) -> Iterator[tuple[str, Record]]:
    """The records that describe an image, for an ImageBuilder elsewhere."""
    yield layout.CLUSTER, {"id": image.cluster_id, "version": layout.LAYOUT_VERSION}
    for topic_id, name in deleted_topics.items():
        if name not in image.topics:
            yield layout.topic_key(name), layout.topic_tombstone(topic_id)
    for broker in image.brokers.values():
        yield layout.broker_key(broker.node_id), layout.broker_record(broker)
    for resource, overrides in image.configs.items():
        if resource.type is ResourceType.BROKER:
            yield layout.broker_configs_key(resource.name), {"configs": dict(overrides)}
        elif resource.type is ResourceType.GROUP:
            yield layout.group_configs_key(resource.name), layout.group_configs_record(resource.name, overrides)
    for topic in image.topics.values():
        yield from layout.chunk_records(topic.topic_id, topic.partitions)
        yield layout.topic_key(topic.name), layout.topic_record(topic, image.topic_configs(topic.name))
