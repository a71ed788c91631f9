"""What a request changes: computes the results, the records to write and the new image from an image and a request.

What always holds: these are pure functions, so a validate-only request goes through all of it and the result is
dropped; records come in the order in which they must be written, so what a crash leaves behind is recognised as
unfinished (see `layout`); a refused item adds no record.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from tidelog.common.checks import collision_key
from tidelog.common.ids import random_uuid
from tidelog.common.settings import Settings, SettingScope
from tidelog.controller import configs as config_rules
from tidelog.controller import layout
from tidelog.controller.decisions import (
    check_partitions_count,
    check_request_size,
    decide_new_partitions,
    decide_new_topic,
)
from tidelog.controller.elections import registration_changes
from tidelog.controller.image import BrokerInfo, ClusterImage, TopicImage
from tidelog.controller.ledger import Write
from tidelog.controller.requests import (
    ConfigAlteration,
    ConfigReplacement,
    ConfigResult,
    DeleteResult,
    NewPartitions,
    NewTopic,
    PartitionsResult,
    TopicResult,
)
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import ConfigResource, ResourceType

_UNCLEAN_SETTING = "unclean.leader.election.enable"

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Change(Generic[R]):
    """What to answer, what to write, and the image once it is written."""

    results: R
    writes: Sequence[Write]
    image: ClusterImage


def create_topics(
    topics: Sequence[NewTopic], image: ClusterImage, settings: Settings, now_ms: int
) -> Change[list[TopicResult]]:
    counts = Counter(topic.name for topic in topics)
    results: dict[str, TopicResult] = {}
    writes: list[Write] = []
    accepted: dict[str, str] = {}
    made: list[TopicImage] = []
    configs: dict[ConfigResource, Mapping[str, str]] = {}
    partitions = 0
    for new in topics:
        if new.name in results:
            continue
        try:
            if counts[new.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"The request names topic '{new.name}' more than once.")
            decision = decide_new_topic(new, random_uuid(), now_ms, image, accepted, settings)
            topic = decision.topic
            check_request_size(partitions + len(topic.partitions))
            check_partitions_count(topic.name, partitions + len(topic.partitions), image, settings)
        except KafkaError as error:
            results[new.name] = TopicResult(new.name, error=error.code, message=error.message)
            continue
        partitions += len(topic.partitions)
        accepted[collision_key(topic.name)] = topic.name
        made.append(topic)
        configs[ConfigResource(ResourceType.TOPIC, topic.name)] = decision.configs
        writes += _topic_writes(topic, decision.configs, None)
        results[topic.name] = TopicResult(
            topic.name,
            topic.topic_id,
            partitions=len(topic.partitions),
            replication_factor=topic.replication_factor,
            configs=decision.configs,
        )
    return Change(list(results.values()), writes, image.with_topics(made).with_configs(configs))


def delete_topics(topics: Sequence[str | uuid.UUID], image: ClusterImage) -> Change[list[DeleteResult]]:
    found = [_find_topic(asked, image) for asked in topics]
    counts = Counter(topic.name for topic in found if topic is not None)
    results = []
    writes: list[Write] = []
    deleted = []
    for asked, topic in zip(topics, found, strict=True):
        if topic is None:
            results.append(_not_found(asked))
        elif counts[topic.name] > 1:
            message = f"The request names topic '{topic.name}' more than once."
            results.append(DeleteResult(topic.name, topic.topic_id, ErrorCode.INVALID_REQUEST, message))
        else:
            deleted.append(topic)
            # The topic is gone with this first write, whatever happens to the rest.
            writes.append(Write(layout.topic_key(topic.name), layout.topic_tombstone(topic.topic_id)))
            writes += [Write(key, None) for key, _ in layout.chunk_records(topic.topic_id, topic.partitions)]
            results.append(DeleteResult(topic.name, topic.topic_id))
    return Change(results, writes, image.with_topics((), deleted))


def create_partitions(
    topics: Sequence[NewPartitions], image: ClusterImage, settings: Settings
) -> Change[list[PartitionsResult]]:
    counts = Counter(new.name for new in topics)
    results: dict[str, PartitionsResult] = {}
    writes: list[Write] = []
    grown: list[TopicImage] = []
    added = 0
    for new in topics:
        if new.name in results:
            continue
        try:
            if counts[new.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"The request names topic '{new.name}' more than once.")
            old = image.topics.get(new.name)
            if old is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{new.name}' does not exist.")
            topic = decide_new_partitions(new, old, image)
            check_request_size(added + len(topic.partitions) - len(old.partitions))
            check_partitions_count(topic.name, added + len(topic.partitions) - len(old.partitions), image, settings)
        except KafkaError as error:
            results[new.name] = PartitionsResult(new.name, error.code, error.message)
            continue
        added += len(topic.partitions) - len(old.partitions)
        grown.append(topic)
        new_indexes = set(range(len(old.partitions), len(topic.partitions)))
        writes += _topic_writes(topic, image.topic_configs(topic.name), new_indexes)
        results[new.name] = PartitionsResult(new.name)
    return Change(list(results.values()), writes, image.with_topics(grown))


def alter_configs(
    asked: Sequence[ConfigReplacement] | Sequence[ConfigAlteration], image: ClusterImage, settings: Settings
) -> Change[list[ConfigResult]]:
    """The change of AlterConfigs or of IncrementalAlterConfigs."""
    counts = Counter(each.resource for each in asked)
    results: dict[ConfigResource, ConfigResult] = {}
    writes = []
    configs: dict[ConfigResource, Mapping[str, str]] = {}
    for each in asked:
        resource = each.resource
        if resource in results:
            continue
        try:
            if counts[resource] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if isinstance(each, ConfigReplacement):
                overrides = config_rules.replace_configs(resource, each.configs, image, settings)
            else:
                overrides = config_rules.alter_configs(resource, each.changes, image, settings)
        except KafkaError as error:
            results[resource] = ConfigResult(resource, error.code, error.message)
            continue
        results[resource] = ConfigResult(resource)
        if overrides != image.configs.get(resource, {}):
            configs[resource] = overrides
            writes.append(_config_write(resource, overrides, image))
    return Change(list(results.values()), writes, image.with_configs(configs))


def register_broker(
    broker: BrokerInfo, image: ClusterImage, settings: Settings, *, clean_shutdown: bool
) -> Change[int]:
    """The change when a broker has started; the result is its new epoch."""
    before = image.brokers.get(broker.node_id)
    broker = replace(broker, epoch=1 if before is None else before.epoch + 1)
    brokers = {**image.brokers, broker.node_id: broker}
    live = {node_id for node_id, each in brokers.items() if not each.fenced}
    changed = []
    writes: list[Write] = []
    for old, new in registration_changes(
        image.topics, broker.node_id, live, clean_shutdown=clean_shutdown, unclean_allowed=_unclean(image, settings)
    ):
        changed.append(new)
        indexes = {index for index, state in enumerate(new.partitions) if state is not old.partitions[index]}
        writes += [Write(*chunk) for chunk in layout.chunk_records(new.topic_id, new.partitions, indexes)]
    # Last, so that a replica that may have lost records is out of every ISR before its broker counts as alive.
    writes.append(Write(layout.broker_key(broker.node_id), layout.broker_record(broker)))
    after = image.with_topics(changed) if changed else image
    return Change(broker.epoch, writes, replace(after, brokers=brokers))


def _topic_writes(topic: TopicImage, configs: Mapping[str, str], indexes: set[int] | None) -> Iterator[Write]:
    """The chunks of these partitions (None: all), then the topic itself, which makes them count."""
    for key, record in layout.chunk_records(topic.topic_id, topic.partitions, indexes):
        yield Write(key, record)
    yield Write(layout.topic_key(topic.name), layout.topic_record(topic, configs))


def _config_write(resource: ConfigResource, overrides: Mapping[str, str], image: ClusterImage) -> Write:
    if resource.type is ResourceType.TOPIC:
        topic = image.topics[resource.name]
        return Write(layout.topic_key(topic.name), layout.topic_record(topic, overrides))
    return Write(layout.broker_configs_key(resource.name), {"configs": dict(overrides)})


def _find_topic(asked: str | uuid.UUID, image: ClusterImage) -> TopicImage | None:
    return image.topics.get(asked) if isinstance(asked, str) else image.topics_by_id.get(asked)


def _not_found(asked: str | uuid.UUID) -> DeleteResult:
    if isinstance(asked, str):
        message = f"The topic '{asked}' does not exist."
        return DeleteResult(asked, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message=message)
    return DeleteResult(None, asked, ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this topic id.")


def _unclean(image: ClusterImage, settings: Settings) -> Callable[[str], bool]:
    """Whether a topic may get a leader that lacks committed records, by its own setting or the brokers'."""
    everywhere = image.broker_configs(None).get(_UNCLEAN_SETTING)
    if everywhere is None and settings.table.find(_UNCLEAN_SETTING, SettingScope.BROKER) is not None:
        everywhere = str(settings[_UNCLEAN_SETTING])
    return lambda topic: str(image.topic_configs(topic).get(_UNCLEAN_SETTING, everywhere)).lower() == "true"
