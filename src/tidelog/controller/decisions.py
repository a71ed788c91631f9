"""How the controller decides on new topics and partitions: pure checks. Where replicas go is decided by `placement`.

What always holds: nothing here touches the store or the clock; a refusal is a KafkaError with the code and the reason
for the client; a decision that is returned can be carried out as it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tidelog.common.checks import collision_key, topic_name_problem
from tidelog.common.light_dataclass import dataclass
from tidelog.common.settings import Settings
from tidelog.controller.configs import check_topic_configs
from tidelog.controller.image import INTERNAL_TOPICS, ClusterImage, PartitionState, TopicImage
from tidelog.controller.placement import Replicas, place_replicas
from tidelog.controller.requests import NewPartitions, NewTopic
from tidelog.protocol import ErrorCode, KafkaError

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""As in Kafka's controller: a single request can't make the metadata too large for the brokers' memory."""

RESERVED_TOPICS: Final = frozenset({"__cluster_metadata"})
"""Names that tools take for parts of a Kafka broker, and that Kafka lets nobody create."""


@dataclass(frozen=True, slots=True)
class TopicDecision:
    """A topic that may be created, and its own settings."""

    topic: TopicImage
    configs: Mapping[str, str]


def decide_new_topic(
    new: NewTopic,
    topic_id: uuid.UUID,
    created_ms: int,
    image: ClusterImage,
    accepted: Mapping[str, str],
    settings: Settings,
) -> TopicDecision:
    """How to create this topic; raises KafkaError. `accepted` are names in the same request, by collision key."""
    check_new_name(new.name, image, accepted)
    if new.assignments:
        replicas = _given_assignment(new, image)
    else:
        count = _count_or_default(new.partitions, settings, "num.partitions")
        factor = _count_or_default(new.replication_factor, settings, "default.replication.factor")
        if count <= 0:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, "The number of partitions must be larger than 0, or -1.")
        check_request_size(count)
        replicas = place_replicas(image.brokers.values(), count, factor, first=topic_id.int)
    configs = check_topic_configs(new.configs, image, settings)
    partitions = _new_partitions(replicas, image)
    return TopicDecision(TopicImage(new.name, topic_id, partitions, new.name in INTERNAL_TOPICS, created_ms), configs)


def check_new_name(name: str, image: ClusterImage, accepted: Mapping[str, str]) -> None:
    problem = topic_name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name in RESERVED_TOPICS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Topic '{name}' can't be created: Kafka keeps its metadata in it.")
    if name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    key = collision_key(name)
    other = image.names_by_collision_key.get(key) or accepted.get(key)
    if other is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with topic '{other}': '.' and '_' look alike in metric names.",
        )


def check_request_size(partitions: int) -> None:
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{partitions} partitions in one request; at most {PARTITIONS_PER_REQUEST_MAX} can be created at once.",
        )


def check_partitions_count(topic: str, added: int, image: ClusterImage, settings: Settings) -> None:
    """Refuse partitions beyond tidelog.max.partitions, save those of topics that the brokers keep for themselves."""
    count_max = settings.get_int("tidelog.max.partitions")
    if image.partitions_count + added > count_max and topic not in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The cluster has {image.partitions_count} partitions, and {added} more would exceed "
            f"tidelog.max.partitions={count_max}. Delete topics that are not needed, or raise the limit.",
        )


def new_partition(replicas: Replicas, image: ClusterImage) -> PartitionState:
    """The first state of a partition: all active replicas are in sync, since there is nothing to copy yet."""
    isr = tuple(node_id for node_id in replicas if image.brokers[node_id].is_active)
    if not isr:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers {list(replicas)} of the assignment are fenced or shutting down.",
        )
    return PartitionState(replicas=replicas, isr=isr, leader=isr[0])


def _new_partitions(replicas: Sequence[Replicas], image: ClusterImage) -> tuple[PartitionState, ...]:
    """First states of partitions; those with the same replicas share one, which thousands may do."""
    made = {assigned: new_partition(assigned, image) for assigned in dict.fromkeys(replicas)}
    return tuple(made[assigned] for assigned in replicas)


def decide_new_partitions(new: NewPartitions, topic: TopicImage, image: ClusterImage) -> TopicImage:
    """The topic grown to its new count; raises KafkaError."""
    current = len(topic.partitions)
    if new.count == current:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if new.count < current:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic has {current} partition(s), which can't be reduced to {new.count}.",
        )
    added = new.count - current
    check_request_size(added)
    if new.assignments is None:
        first = topic.topic_id.int + current
        replicas = place_replicas(image.brokers.values(), added, topic.replication_factor, first)
    else:
        replicas = [checked_replicas(given, image) for given in new.assignments]
        if len(replicas) != added:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{added} partition(s) would be added, but {len(replicas)} assignment(s) are given.",
            )
        _check_same_length(replicas, topic.replication_factor)
    return replace(topic, partitions=topic.partitions + _new_partitions(replicas, image))


def _count_or_default(asked: int, settings: Settings, name: str) -> int:
    return settings.get_int(name) if asked == -1 else asked


def _given_assignment(new: NewTopic, image: ClusterImage) -> list[Replicas]:
    if new.partitions != -1 or new.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "With an assignment of replicas, the number of partitions and the replication factor must both be -1.",
        )
    if sorted(new.assignments) != list(range(len(new.assignments))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The partitions of an assignment must be numbered from 0 without gaps.",
        )
    check_request_size(len(new.assignments))
    replicas = [checked_replicas(new.assignments[index], image) for index in range(len(new.assignments))]
    _check_same_length(replicas, len(replicas[0]))
    return replicas


def checked_replicas(given: Sequence[int], image: ClusterImage) -> Replicas:
    """The replicas that a client gives a partition; raises KafkaError."""
    replicas = tuple(given)
    problem = None
    if not replicas:
        problem = "A partition's assignment names no broker."
    elif len(set(replicas)) != len(replicas):
        problem = f"The assignment {list(replicas)} names a broker twice."
    else:
        unknown = [node_id for node_id in replicas if node_id not in image.brokers]
        if unknown:
            problem = f"The assignment {list(replicas)} names brokers that are not registered: {unknown}."
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    return replicas


def _check_same_length(replicas: Sequence[Replicas], replication_factor: int) -> None:
    for assigned in replicas:
        if len(assigned) != replication_factor:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The assignment {list(assigned)} has {len(assigned)} replica(s) where the topic's others have "
                f"{replication_factor}.",
            )
