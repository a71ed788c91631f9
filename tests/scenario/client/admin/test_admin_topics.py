from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from tidelog import Admin, NewTopic
from tidelog.client.admin import NewPartitions
from tidelog.client.errors import BrokerError, NoSuchPartitionError
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import ErrorCode

FreshName = Callable[[str], str]
MakeTopic = Callable[..., str]
WaitUntil = Callable[[Callable[[], bool], str], None]


def code_of(error: object) -> ErrorCode:
    assert isinstance(error, BrokerError)
    return error.code


@pytest.mark.on_three_brokers
def test_created_topics_are_told_as_they_are(admin: Admin, fresh_name: FreshName) -> None:
    first, second = fresh_name("a"), fresh_name("b")
    created = admin.create_topics([NewTopic(first, 3, 1, {"retention.ms": "12345"}), second])
    assert list(created) == [first, second]
    assert created[first].name == first
    assert created[first].partitions == 3
    assert created[first].replication_factor == 1
    assert created[first].configs["retention.ms"] == "12345"
    assert created[first].topic_id not in (ZERO_UUID, created[second].topic_id)
    assert created[second].partitions == 1
    admin.wait_for_topics([first, second])
    described = admin.describe_topics([second, first])
    assert list(described) == [second, first]
    assert described[first].topic_id == created[first].topic_id
    assert [row.partition for row in described[first].partitions] == [0, 1, 2]
    assert all(row.leader_id == row.replicas[0] for row in described[first].partitions)
    assert all(row.isr == row.replicas for row in described[first].partitions)


def test_one_topic_needs_no_list(admin: Admin, fresh_name: FreshName) -> None:
    first, second = fresh_name("named"), fresh_name("described")
    assert list(admin.create_topics(first).raise_for_errors()) == [first]
    assert admin.create_topics(NewTopic(second, 2))[second].partitions == 2


def test_what_is_refused_does_not_hurt_the_others(admin: Admin, fresh_name: FreshName) -> None:
    good, name = fresh_name("good"), fresh_name("twice")
    admin.create_topics([name]).raise_for_errors()
    created = admin.create_topics(
        [NewTopic(name), NewTopic("not/valid"), NewTopic(good), NewTopic(fresh_name("x"), configs={"no.such": "1"})]
    )
    assert list(created.succeeded) == [good]
    codes = [code_of(error) for error in created.errors.values()]
    assert codes == [ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_CONFIG]
    with pytest.raises(BrokerError, match=r"TOPIC_ALREADY_EXISTS"):
        created[name]
    with pytest.raises(BrokerError, match=r"TOPIC_ALREADY_EXISTS"):
        created.raise_for_errors()


def test_validation_makes_nothing(admin: Admin, fresh_name: FreshName) -> None:
    name = fresh_name("only-checked")
    assert admin.create_topics([NewTopic(name, 4, 1)], validate_only=True)[name].partitions == 4
    with pytest.raises(NoSuchPartitionError, match=f"there is no topic '{name}'"):
        admin.describe_topics(name)[name]
    assert name not in [topic.name for topic in admin.list_topics()]


def test_replicas_can_be_placed_by_hand(admin: Admin, fresh_name: FreshName) -> None:
    node, *_ = admin.describe_cluster().nodes
    name = fresh_name("placed")
    created = admin.create_topics([NewTopic(name, assignments={0: [node.node_id], 1: [node.node_id]})])
    assert created[name].partitions == 2
    grown = admin.create_partitions({name: NewPartitions(3, [[node.node_id]])})
    assert grown == {name: None}
    refused = admin.create_topics([NewTopic(fresh_name("placed"), assignments={0: [node.node_id + 1000]})])
    (error,) = refused.errors.values()
    assert code_of(error) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_topics_are_listed_by_name(admin: Admin, make_topic: MakeTopic) -> None:
    names = [make_topic(2), make_topic()]
    listed = admin.list_topics()
    assert [topic.name for topic in listed] == sorted(topic.name for topic in listed)
    found = {topic.name: topic for topic in listed}
    assert [len(found[name].partitions) for name in names] == [2, 1]
    assert not any(topic.is_internal for topic in listed)


def test_internal_topics_are_listed_when_asked_for(admin: Admin, fresh_name: FreshName) -> None:
    assert admin.describe_consumer_groups([fresh_name("nobody")]).errors  # finding the coordinator makes the topic
    internal = [topic.name for topic in admin.list_topics(include_internal=True) if topic.is_internal]
    assert "__consumer_offsets" in internal


def test_topics_are_described_by_id_too(admin: Admin, make_topic: MakeTopic) -> None:
    name = make_topic()
    topic_id = admin.describe_topics(name)[name].topic_id
    unknown = uuid.uuid4()
    described = admin.describe_topics([topic_id, unknown])
    assert described[topic_id].name == name
    assert code_of(described.errors[unknown]) is ErrorCode.UNKNOWN_TOPIC_ID


def test_a_topic_that_is_not_there_is_its_own_error(admin: Admin, make_topic: MakeTopic, fresh_name: FreshName) -> None:
    name, missing = make_topic(), fresh_name("missing")
    described = admin.describe_topics([missing, name])
    assert described.succeeded.keys() == {name}
    assert isinstance(described.errors[missing], NoSuchPartitionError)


@pytest.mark.on_three_brokers
def test_topics_grow(admin: Admin, make_topic: MakeTopic, fresh_name: FreshName, wait_until: WaitUntil) -> None:
    name, missing = make_topic(2), fresh_name("missing")
    assert admin.create_partitions({name: 4}, validate_only=True) == {name: None}
    assert len(admin.describe_topics(name)[name].partitions) == 2
    grown = admin.create_partitions({name: 4, missing: 2})
    assert grown.succeeded == {name: None}
    assert code_of(grown.errors[missing]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wait_until(lambda: len(admin.describe_topics(name)[name].partitions) == 4, "the topic has grown")
    shrunk = admin.create_partitions({name: 3})
    assert code_of(shrunk.errors[name]) is ErrorCode.INVALID_PARTITIONS


def test_topics_are_deleted_by_name_and_by_id(
    admin: Admin, make_topic: MakeTopic, fresh_name: FreshName, wait_until: WaitUntil
) -> None:
    by_name, by_id, missing = make_topic(), make_topic(), fresh_name("missing")
    topic_id = admin.describe_topics(by_id)[by_id].topic_id
    deleted = admin.delete_topics([by_name, missing])
    assert deleted[by_name].name == by_name
    assert code_of(deleted.errors[missing]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown = uuid.uuid4()
    ended = admin.delete_topics([topic_id, unknown])
    assert ended[topic_id].name == by_id
    assert code_of(ended.errors[unknown]) is ErrorCode.UNKNOWN_TOPIC_ID

    def are_gone() -> bool:
        return not {by_name, by_id} & {topic.name for topic in admin.list_topics()}

    wait_until(are_gone, "the topics are gone")
