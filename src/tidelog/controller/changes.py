"""What a request changes: computes the results, the records to write and the new image from an image and a request.

What always holds: these are pure functions, so a validate-only request goes through all of it and the result is
dropped; those for requests that may name thousands of things work in steps. Records come in the order in which they
must be written, so what a crash leaves behind is recognised as unfinished (see `layout`); a refused item adds none.
"""

from __future__ import annotations

import functools
import itertools
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Generic, TypeVar

from tidelog.common.checks import collision_key
from tidelog.common.ids import random_uuid
from tidelog.common.light_dataclass import dataclass
from tidelog.common.settings import Settings
from tidelog.common.steps import Steps
from tidelog.controller import configs as config_rules
from tidelog.controller import layout, partition_changes
from tidelog.controller.decisions import (
    check_partitions_count,
    check_request_size,
    checked_replicas,
    decide_new_partitions,
    decide_new_topic,
)
from tidelog.controller.elections import Rules
from tidelog.controller.group_configs import GroupRoom
from tidelog.controller.image import NO_LEADER, BrokerInfo, ClusterImage, PartitionState, TopicImage
from tidelog.controller.leader_balance import imbalanced_partitions
from tidelog.controller.ledger import Write
from tidelog.controller.partition_updates import MIN_ISR_SETTING, UNCLEAN_SETTING, PartitionUpdates
from tidelog.controller.requests import (
    ConfigAlteration,
    ConfigReplacement,
    ConfigResult,
    DeleteResult,
    ElectionResult,
    ElectionType,
    IsrChange,
    IsrResult,
    NewPartitions,
    NewTopic,
    PartitionsResult,
    Reassignment,
    ReassignmentResult,
    TopicResult,
)
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import ConfigResource, ResourceType

ELECTIONS_PER_BALANCING_MAX: Final = 1_000
"""As in Kafka's controller: other changes need not wait until all leaders of a large cluster have moved."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Change(Generic[R]):
    """What to answer, what to write, and the image once it is written."""

    results: R
    writes: Sequence[Write]
    image: ClusterImage


def create_topics(
    topics: Sequence[NewTopic], image: ClusterImage, settings: Settings, now_ms: int
) -> Steps[Change[list[TopicResult]]]:
    counts = Counter(topic.name for topic in topics)
    results: dict[str, TopicResult] = {}
    writes: list[Write] = []
    accepted: dict[str, str] = {}
    made: list[TopicImage] = []
    configs: dict[ConfigResource, Mapping[str, str]] = {}
    partitions = 0
    for new in topics:
        yield 0
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


def delete_topics(topics: Sequence[str | uuid.UUID], image: ClusterImage) -> Steps[Change[list[DeleteResult]]]:
    found = [_find_topic(asked, image) for asked in topics]
    counts = Counter(topic.name for topic in found if topic is not None)
    results = []
    writes: list[Write] = []
    deleted = []
    for asked, topic in zip(topics, found, strict=True):
        yield 0
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
) -> Steps[Change[list[PartitionsResult]]]:
    counts = Counter(new.name for new in topics)
    results: dict[str, PartitionsResult] = {}
    writes: list[Write] = []
    grown: list[TopicImage] = []
    added = 0
    for new in topics:
        yield 0
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
) -> Steps[Change[list[ConfigResult]]]:
    """The change of AlterConfigs or of IncrementalAlterConfigs."""
    counts = Counter(each.resource for each in asked)
    results: dict[ConfigResource, ConfigResult] = {}
    writes = []
    configs: dict[ConfigResource, Mapping[str, str]] = {}
    room = GroupRoom(image)
    for each in asked:
        yield 0
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
            if overrides:
                room.take(resource)
        except KafkaError as error:
            results[resource] = ConfigResult(resource, error.code, error.message)
            continue
        results[resource] = ConfigResult(resource)
        if overrides != image.configs.get(resource, {}):
            configs[resource] = overrides
            writes.append(_config_write(resource, overrides, image))
    updates = PartitionUpdates(image.with_configs(configs), settings)
    updates.update_all(
        partition_changes.reconsidered,
        where=lambda state: bool(state.elr) or state.leader == NO_LEADER,
        topics=_topics_to_reconsider(configs, image),
    )
    # States come first: if only half of this is written, no ELR outlives the min.insync.replicas that it was made for.
    return Change(list(results.values()), [*updates.writes(), *writes], updates.image())


def _topics_to_reconsider(
    configs: Mapping[ConfigResource, Mapping[str, str]], image: ClusterImage
) -> Iterator[TopicImage]:
    """The topics whose elections may come out differently with the new overrides."""
    changed = [
        resource
        for resource, overrides in configs.items()
        if resource.type is not ResourceType.GROUP
        and any(
            overrides.get(name) != image.configs.get(resource, {}).get(name)
            for name in (MIN_ISR_SETTING, UNCLEAN_SETTING)
        )
    ]
    if any(resource.type is ResourceType.BROKER for resource in changed):
        yield from image.topics.values()
    else:
        yield from (image.topics[resource.name] for resource in changed)


def register_broker(
    broker: BrokerInfo, image: ClusterImage, settings: Settings, *, clean_shutdown: bool
) -> Change[int]:
    """The change when a broker has started; the result is its new epoch."""
    before = image.brokers.get(broker.node_id)
    # The revision keeps epochs growing even for a broker that was unregistered in between.
    broker = replace(broker, epoch=max(image.revision, 0 if before is None else before.epoch) + 1)
    # A broker that comes back with none of its directories has lost all it had; one that nobody knows may have.
    same_disks = before is not None and (
        not before.directories or not broker.directories or not set(before.directories).isdisjoint(broker.directories)
    )
    is_clean = clean_shutdown and before is not None
    updates = PartitionUpdates(_with_broker(image, broker), settings)
    updates.update_all(
        lambda state, rules: partition_changes.after_registration(
            state, broker.node_id, rules, clean_shutdown=is_clean, same_disks=same_disks
        ),
        where=lambda state: broker.node_id in state.replicas,
    )
    # The broker comes last, so that a replica that may have lost records is out of every ISR before it counts as alive.
    return Change(broker.epoch, [*updates.writes(), _broker_write(broker)], updates.image())


def fence_brokers(node_ids: Collection[int], image: ClusterImage, settings: Settings) -> Change[list[int]]:
    """The change when brokers are seen to be gone; the result are those that were not fenced before."""
    gone = [node_id for node_id in node_ids if node_id in image.brokers and not image.brokers[node_id].fenced]
    if not gone:
        return Change([], [], image)
    fenced = [replace(image.brokers[node_id], fenced=True, in_controlled_shutdown=False) for node_id in gone]
    updates = PartitionUpdates(_with_broker(image, *fenced), settings)
    updates.update_all(
        lambda state, rules: partition_changes.without_brokers(state, gone, rules),
        where=lambda state: state.leader in gone or any(member in gone for member in state.isr),
    )
    # The brokers come last: a controller that takes over halfway sees them unfenced, and does it all again.
    return Change(gone, [*updates.writes(), *map(_broker_write, fenced)], updates.image())


def shut_down_broker(node_id: int, epoch: int, image: ClusterImage, settings: Settings) -> Change[bool]:
    """The change when a broker asks to shut down; the result is whether it may do so now.

    It may once it leads nothing that another active replica could still take over. Raises KafkaError.
    """
    broker = checked_broker(node_id, epoch, image)
    if broker.fenced:
        return Change(True, [], image)
    leaving = replace(broker, in_controlled_shutdown=True)
    updates = PartitionUpdates(_with_broker(image, leaving), settings)
    updates.update_all(
        lambda state, rules: partition_changes.in_controlled_shutdown(state, node_id, rules),
        where=lambda state: node_id in state.isr,
    )
    after = updates.image()
    writes = [] if broker.in_controlled_shutdown else [_broker_write(leaving)]
    writes += updates.writes()
    active = {each.node_id for each in after.brokers.values() if each.is_active}
    may_stop = not any(
        state.leader == node_id and not active.isdisjoint(state.replicas)
        for topic in after.topics.values()
        for state in topic.partitions
    )
    return Change(may_stop, writes, after)


def checked_broker(node_id: int, epoch: int, image: ClusterImage) -> BrokerInfo:
    """The registration of a broker that sends a request; raises KafkaError if it is no longer that one (KIP-380)."""
    broker = image.brokers.get(node_id)
    if broker is None:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {node_id} is not registered.")
    if broker.epoch != epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"The epoch of broker {node_id} is {broker.epoch}, the request has {epoch}."
        )
    return broker


def alter_partition(
    node_id: int, epoch: int, changes: Sequence[IsrChange], image: ClusterImage, settings: Settings
) -> Change[list[IsrResult]]:
    """The change of AlterPartition: one result each, in the order asked. Raises KafkaError STALE_BROKER_EPOCH."""
    checked_broker(node_id, epoch, image)
    updates = PartitionUpdates(image, settings)
    results = []
    for change in changes:
        try:
            state = _altered(node_id, change, image, updates)
        except KafkaError as error:
            results.append(IsrResult(change.topic_id, change.index, error.code, error.message))
        else:
            results.append(IsrResult(change.topic_id, change.index, state=state))
    return Change(results, list(updates.writes()), updates.image())


def _altered(node_id: int, change: IsrChange, image: ClusterImage, updates: PartitionUpdates) -> PartitionState:
    topic = image.topics_by_id.get(change.topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this topic id.")
    if not 0 <= change.index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic has {len(topic.partitions)} partitions.")
    before = updates.state(topic, change.index)
    partition_changes.check_isr_change(before, change, node_id, image.brokers)
    isr = tuple(member.node_id for member in change.isr)
    state = updates.update(
        topic,
        change.index,
        lambda state, rules: partition_changes.with_isr(state, isr, change.recovery, rules, sender=node_id),
    )
    if state.leader != before.leader:
        # The change stands; the sender learns that it has handed over, and waits for the image (KIP-841).
        raise KafkaError(ErrorCode.NEW_LEADER_ELECTED, f"The leader is broker {state.leader} now.")
    return state


def elect_leaders(
    election_type: ElectionType,
    partitions: Sequence[tuple[str, int]] | None,
    image: ClusterImage,
    settings: Settings,
) -> Change[list[ElectionResult]]:
    """The change of ElectLeaders; for None (all partitions) those that need no election have no result."""
    updates = PartitionUpdates(image, settings)
    results = []
    asked = partitions
    if asked is None:
        asked = [(topic.name, index) for topic in image.topics.values() for index in range(len(topic.partitions))]
    for name, index in asked:
        error, message = ErrorCode.NONE, None
        try:
            topic = _topic_of(name, index, image)
            updates.update(
                topic, index, lambda state, rules: partition_changes.after_election(state, election_type, rules)
            )
        except KafkaError as refusal:
            error, message = refusal.code, refusal.message
        if partitions is not None or error is not ErrorCode.ELECTION_NOT_NEEDED:
            results.append(ElectionResult(name, index, error, message))
    return Change(results, list(updates.writes()), updates.image())


def alter_reassignments(
    asked: Sequence[Reassignment], image: ClusterImage, settings: Settings, *, allow_factor_change: bool = True
) -> Change[list[ReassignmentResult]]:
    """The change of AlterPartitionReassignments: one result each, in the order asked."""
    updates = PartitionUpdates(image, settings)
    results = []
    for each in asked:
        try:
            topic = _topic_of(each.topic, each.index, image)
            state = updates.state(topic, each.index)
            target = _reassignment_target(each.replicas, state, image, allow_factor_change)
            updates.update(topic, each.index, functools.partial(_reassigned, target=target))
        except KafkaError as error:
            results.append(ReassignmentResult(each.topic, each.index, error.code, error.message))
        else:
            results.append(ReassignmentResult(each.topic, each.index))
    return Change(results, list(updates.writes()), updates.image())


def _reassignment_target(
    replicas: Sequence[int] | None, state: PartitionState, image: ClusterImage, allow_factor_change: bool
) -> Sequence[int]:
    """The replicas to move to; raises KafkaError."""
    if replicas is None:
        if not state.is_reassigned:
            code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
            raise KafkaError(code, code.description)
        return partition_changes.original_replicas(state)
    target = checked_replicas(replicas, image)
    factor = len(state.replicas) - len(state.removing)
    if len(target) != factor and not allow_factor_change:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor would change from {factor} to {len(target)}, which the request does not allow.",
        )
    return target


def _reassigned(state: PartitionState, rules: Rules, target: Sequence[int]) -> PartitionState:
    return partition_changes.reassigned(state, target, rules)


def unregister_broker(node_id: int, image: ClusterImage) -> Change[None]:
    """The change of UnregisterBroker: the broker is forgotten, save as a replica of its partitions. Raises KafkaError.

    A broker that is alive is refused: it would carry on without knowing, and nobody would lead what it leads.
    """
    broker = image.brokers.get(node_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node_id} is not currently registered.")
    if not broker.fenced:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker {node_id} is running; stop it before it is unregistered.")
    brokers = {each: other for each, other in image.brokers.items() if each != node_id}
    return Change(None, [Write(layout.broker_key(node_id), None)], replace(image, brokers=brokers))


def balance_leaders(image: ClusterImage, settings: Settings) -> Change[int]:
    """Give brokers that lead too few of their partitions some back; the result is how many, at most a thousand."""
    percentage_max = settings.get_int("leader.imbalance.per.broker.percentage")
    updates = PartitionUpdates(image, settings)
    for topic, index in itertools.islice(imbalanced_partitions(image, percentage_max), ELECTIONS_PER_BALANCING_MAX):
        updates.update(
            topic, index, lambda state, rules: partition_changes.conclude(state, state, rules, preferred=True)
        )
    return Change(updates.partitions_count, list(updates.writes()), updates.image())


def _topic_of(name: str, index: int, image: ClusterImage) -> TopicImage:
    """The topic that has this partition; raises KafkaError."""
    topic = image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not have a partition {index}.")
    return topic


def _with_broker(image: ClusterImage, *brokers: BrokerInfo) -> ClusterImage:
    return replace(image, brokers={**image.brokers, **{broker.node_id: broker for broker in brokers}})


def _broker_write(broker: BrokerInfo) -> Write:
    return Write(layout.broker_key(broker.node_id), layout.broker_record(broker))


def _topic_writes(topic: TopicImage, configs: Mapping[str, str], indexes: set[int] | None) -> Iterator[Write]:
    """The chunks of these partitions (None: all), then the topic itself, which makes them count."""
    for key, record in layout.chunk_records(topic.topic_id, topic.partitions, indexes):
        yield Write(key, record)
    yield Write(layout.topic_key(topic.name), layout.topic_record(topic, configs))


def _config_write(resource: ConfigResource, overrides: Mapping[str, str], image: ClusterImage) -> Write:
    if resource.type is ResourceType.TOPIC:
        topic = image.topics[resource.name]
        return Write(layout.topic_key(topic.name), layout.topic_record(topic, overrides))
    if resource.type is ResourceType.GROUP:
        record = layout.group_configs_record(resource.name, overrides)
        return Write(layout.group_configs_key(resource.name), record)
    return Write(layout.broker_configs_key(resource.name), {"configs": dict(overrides)})


def _find_topic(asked: str | uuid.UUID, image: ClusterImage) -> TopicImage | None:
    return image.topics.get(asked) if isinstance(asked, str) else image.topics_by_id.get(asked)


def _not_found(asked: str | uuid.UUID) -> DeleteResult:
    if isinstance(asked, str):
        message = f"The topic '{asked}' does not exist."
        return DeleteResult(asked, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message=message)
    return DeleteResult(None, asked, ErrorCode.UNKNOWN_TOPIC_ID, "No topic has this topic id.")
