"""New topics and partitions: what is refused with which code, and where replicas go."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace

import pytest

from tidelog.common.settings import Settings
from tidelog.controller.decisions import decide_new_partitions, decide_new_topic
from tidelog.controller.image import ClusterImage, TopicImage
from tidelog.controller.requests import NewPartitions, NewTopic
from tidelog.protocol import ErrorCode, KafkaError

ID = uuid.UUID(int=12345)


def refused(new: NewTopic, image: ClusterImage, settings: Settings) -> tuple[ErrorCode, str]:
    with pytest.raises(KafkaError) as caught:
        decide_new_topic(new, ID, 0, image, {}, settings)
    return caught.value.code, caught.value.message or ""


def made(new: NewTopic, image: ClusterImage, settings: Settings) -> TopicImage:
    return decide_new_topic(new, ID, 0, image, {}, settings).topic


def test_minus_one_means_the_brokers_defaults(image: ClusterImage, settings: Settings) -> None:
    topic = made(NewTopic("a"), image, settings)
    assert (len(topic.partitions), topic.replication_factor, topic.topic_id) == (3, 1, ID)
    state = topic.partitions[0]
    assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (
        state.replicas[0],
        state.replicas,
        0,
        0,
    )


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a", 0), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("a", -2), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("a", 2**31 - 1), ErrorCode.POLICY_VIOLATION),
        (NewTopic("a", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("a", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("a", 1, 5), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("a", 1, assignments={0: [0]}), ErrorCode.INVALID_REQUEST),
        (NewTopic("a", assignments={1: [0]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignments={0: [0], 2: [0]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignments={0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignments={0: [0, 0]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignments={0: [0, 9]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignments={0: [0, 1], 1: [0]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignments={0: [3]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", configs={"retention.msec": "1"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("a", configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("a", configs={"segment.bytes": "0"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("a", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
    ],
)
def test_refusals(new: NewTopic, code: ErrorCode, image: ClusterImage, settings: Settings) -> None:
    assert refused(new, image, settings)[0] is code


def test_an_unknown_setting_is_answered_with_the_nearest_one(image: ClusterImage, settings: Settings) -> None:
    message = refused(NewTopic("a", configs={"retention.msec": "1"}), image, settings)[1]
    assert "did you mean 'retention.ms'" in message


def test_names_that_exist_or_look_alike_are_refused(image: ClusterImage, settings: Settings) -> None:
    image = image.with_topics([made(NewTopic("a.b"), image, settings)])
    assert refused(NewTopic("a.b"), image, settings)[0] is ErrorCode.TOPIC_ALREADY_EXISTS
    code, message = refused(NewTopic("a_b"), image, settings)
    assert code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "'a.b'" in message


def test_a_given_assignment_is_taken_as_it_is(image: ClusterImage, settings: Settings) -> None:
    topic = made(NewTopic("a", assignments={1: [2, 0], 0: [3, 1]}), image, settings)
    assert [state.replicas for state in topic.partitions] == [(3, 1), (2, 0)]
    assert [state.isr for state in topic.partitions] == [(1,), (2, 0)]
    assert [state.leader for state in topic.partitions] == [1, 2]


def test_internal_topics_are_marked(image: ClusterImage, settings: Settings) -> None:
    assert made(NewTopic("__consumer_offsets"), image, settings).is_internal
    assert not made(NewTopic("consumer_offsets"), image, settings).is_internal


def test_replicas_are_spread_and_not_on_fenced_brokers(image: ClusterImage, settings: Settings) -> None:
    topic = made(NewTopic("a", 12, 2), image, settings)
    leaders = Counter(state.leader for state in topic.partitions)
    replicas = Counter(node_id for state in topic.partitions for node_id in state.replicas)
    assert leaders == {0: 4, 1: 4, 2: 4}
    assert replicas == {0: 8, 1: 8, 2: 8}
    assert all(len(set(state.replicas)) == 2 for state in topic.partitions)


def test_a_broker_that_is_down_gets_replicas_where_the_others_are_too_few(
    image: ClusterImage, settings: Settings
) -> None:
    topic = made(NewTopic("a", 3, 4), image, settings)
    assert all(set(state.replicas) == {0, 1, 2, 3} for state in topic.partitions)
    assert all(set(state.isr) == {0, 1, 2} for state in topic.partitions)
    assert Counter(state.leader for state in topic.partitions) == {0: 1, 1: 1, 2: 1}


def grown_from(
    count: int, image: ClusterImage, settings: Settings, new: NewPartitions
) -> tuple[TopicImage, TopicImage]:
    topic = made(NewTopic("a", count, 2), image, settings)
    return topic, decide_new_partitions(new, topic, image)


def test_partitions_are_added_after_those_there_are(image: ClusterImage, settings: Settings) -> None:
    topic, grown = grown_from(2, image, settings, NewPartitions("a", 5))
    assert grown.partitions[:2] == topic.partitions
    assert len(grown.partitions) == 5
    assert replace(grown, partitions=topic.partitions) == topic


def test_added_partitions_take_their_given_brokers(image: ClusterImage, settings: Settings) -> None:
    _, grown = grown_from(1, image, settings, NewPartitions("a", 3, [[0, 1], [2, 1]]))
    assert [state.replicas for state in grown.partitions[1:]] == [(0, 1), (2, 1)]


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewPartitions("a", 2), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("a", 1), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("a", 0), ErrorCode.INVALID_PARTITIONS),
        (NewPartitions("a", 2**31 - 1), ErrorCode.POLICY_VIOLATION),
        (NewPartitions("a", 4, [[0, 1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("a", 3, [[0]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewPartitions("a", 3, [[0, 9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_growing_is_refused(new: NewPartitions, code: ErrorCode, image: ClusterImage, settings: Settings) -> None:
    with pytest.raises(KafkaError) as caught:
        grown_from(2, image, settings, new)
    assert caught.value.code is code
