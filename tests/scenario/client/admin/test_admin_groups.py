from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import Consumer

from tidelog import Admin
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.admin import GroupDescription
from tidelog.client.errors import BrokerError
from tidelog.client.types import OffsetAndMetadata, RecordMetadata, TopicPartition
from tidelog.protocol import ErrorCode

FreshName = Callable[[str], str]
MakeTopic = Callable[..., str]
WaitUntil = Callable[[Callable[[], bool], str], None]
DEADLINE_S = 30.0

PROTOCOLS = [
    "classic",
    pytest.param(
        "consumer",
        marks=pytest.mark.skipif(
            os.environ.get("COMPAT_CLIENT_PEER", "").startswith("3."), reason="Kafka 3.9 has it off by default"
        ),
    ),
]


def code_of(error: object) -> ErrorCode:
    assert isinstance(error, BrokerError)
    return error.code


@contextmanager
def member(bootstrap: str, group_id: str, topic: str, protocol: str = "classic", **config: str) -> Iterator[Consumer]:
    """A consumer that has been given its partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group_id,
            "group.protocol": protocol,
            "client.id": "tester",
            "enable.auto.commit": False,
            "log_level": 2,
            **{name.replace("_", "."): value for name, value in config.items()},
        }
    )
    with closing(consumer):
        consumer.subscribe([topic])
        deadline_s = time.monotonic() + DEADLINE_S
        while not consumer.assignment():
            assert time.monotonic() < deadline_s, "the member was given nothing"
            consumer.poll(0.1)
        yield consumer


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_groups_are_listed_and_described(
    admin: Admin,
    make_topic: MakeTopic,
    fresh_name: FreshName,
    client_cluster: BrokerProcess,
    protocol: str,
    wait_until: WaitUntil,
) -> None:
    topic, group_id = make_topic(2), fresh_name("group")

    def describe() -> GroupDescription:
        return admin.describe_consumer_groups(group_id)[group_id]

    with member(client_cluster.bootstrap, group_id, topic, protocol):
        wait_until(lambda: describe().state == "Stable", "the group is stable")
        group = describe()
        assert (group.group_id, group.type, group.protocol_type) == (group_id, protocol, "consumer")
        assert group.assignor
        (joined,) = group.members
        assert joined.client_id == "tester"
        assert joined.client_host
        assert joined.subscribed_topics == [topic]
        assert joined.assignment == [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        assert joined.target_assignment == joined.assignment
        assert (group.group_epoch > 0) == (protocol == "consumer")
        (listed,) = [row for row in admin.list_groups() if row.group_id == group_id]
        assert (listed.type.lower(), listed.state, listed.protocol_type) == (protocol, "Stable", "consumer")
        assert listed.coordinator_id == group.coordinator_id

        def is_listed(**filters: list[str]) -> bool:
            return group_id in [row.group_id for row in admin.list_groups(**filters)]

        assert is_listed(states=["Stable", "Dead"], types=[protocol], protocol_types=["consumer"])
        assert not is_listed(states=["Empty"])
        assert not is_listed(types=["consumer" if protocol == "classic" else "classic"])
        assert not is_listed(protocol_types=["connect"])


def test_a_group_that_is_not_there_is_its_own_error(admin: Admin, make_topic: MakeTopic, fresh_name: FreshName) -> None:
    there, missing = fresh_name("group"), fresh_name("missing")
    admin.alter_consumer_group_offsets(there, {TopicPartition(make_topic(), 0): 0}).raise_for_errors()
    described = admin.describe_consumer_groups([missing, there])
    assert described[there].state == "Empty"
    assert described[there].members == []
    assert code_of(described.errors[missing]) is ErrorCode.GROUP_ID_NOT_FOUND
    deleted = admin.delete_consumer_groups([there, missing])
    assert deleted.succeeded == {there: None}
    assert code_of(deleted.errors[missing]) is ErrorCode.GROUP_ID_NOT_FOUND
    assert there not in [row.group_id for row in admin.list_groups()]


def test_offsets_are_altered_listed_and_deleted(admin: Admin, make_topic: MakeTopic, fresh_name: FreshName) -> None:
    topic, first, second = make_topic(3), fresh_name("first"), fresh_name("second")
    keys = [TopicPartition(topic, number) for number in range(3)]
    altered = admin.alter_consumer_group_offsets(
        first, {keys[0]: 7, keys[1]: OffsetAndMetadata(8, 0, "by hand"), TopicPartition(fresh_name("gone"), 0): 1}
    )
    assert list(altered.succeeded) == keys[:2]
    (error,) = altered.errors.values()
    assert code_of(error) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    admin.alter_consumer_group_offsets(second, {keys[2]: 9}).raise_for_errors()
    listed = admin.list_consumer_group_offsets([first, second, fresh_name("nobody")])
    assert listed[first] == {keys[0]: OffsetAndMetadata(7), keys[1]: OffsetAndMetadata(8, 0, "by hand")}
    assert listed[second] == {keys[2]: OffsetAndMetadata(9)}
    assert list(listed.values())[2] == {}
    some = admin.list_consumer_group_offsets({first: [keys[1], keys[2]], second: None}, require_stable=True)
    assert some[first].keys() == {keys[1]}
    assert some[second].keys() == {keys[2]}
    forgotten = admin.delete_consumer_group_offsets(first, [keys[0]])
    assert forgotten == {keys[0]: None}
    assert admin.list_consumer_group_offsets(first)[first].keys() == {keys[1]}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_with_members_is_not_changed_from_outside(
    admin: Admin, make_topic: MakeTopic, fresh_name: FreshName, client_cluster: BrokerProcess, protocol: str
) -> None:
    topic, group_id = make_topic(), fresh_name("group")
    key = TopicPartition(topic, 0)
    with member(client_cluster.bootstrap, group_id, topic, protocol):
        refused = admin.alter_consumer_group_offsets(group_id, {key: 0})
        with pytest.raises(BrokerError, match="its consumers run; stop them first"):
            refused[key]
        deleted = admin.delete_consumer_groups(group_id)
        assert code_of(deleted.errors[group_id]) is ErrorCode.NON_EMPTY_GROUP
        forgotten = admin.delete_consumer_group_offsets(group_id, [key])
        assert code_of(forgotten.errors[key]) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_static_members_are_removed_by_their_instance(
    admin: Admin, make_topic: MakeTopic, fresh_name: FreshName, client_cluster: BrokerProcess
) -> None:
    topic, group_id = make_topic(), fresh_name("group")
    with member(client_cluster.bootstrap, group_id, topic, group_instance_id="first"):
        removed = admin.remove_members_from_consumer_group(group_id, ["first", "second"], reason="moved house")
        assert removed.succeeded == {"first": None}
        assert code_of(removed.errors["second"]) is ErrorCode.UNKNOWN_MEMBER_ID
        assert admin.describe_consumer_groups(group_id)[group_id].members == []


def test_all_members_are_removed_at_once(
    admin: Admin, make_topic: MakeTopic, fresh_name: FreshName, client_cluster: BrokerProcess
) -> None:
    topic, group_id = make_topic(), fresh_name("group")
    with member(client_cluster.bootstrap, group_id, topic):
        (joined,) = admin.describe_consumer_groups(group_id)[group_id].members
        removed = admin.remove_members_from_consumer_group(group_id)
        assert removed == {joined.member_id: None}
        assert joined.member_id not in [
            row.member_id for row in admin.describe_consumer_groups(group_id)[group_id].members
        ]
    assert admin.remove_members_from_consumer_group(group_id) == {}


def test_what_is_committed_is_what_consumers_committed(
    admin: Admin,
    make_topic: MakeTopic,
    fresh_name: FreshName,
    client_cluster: BrokerProcess,
    produce: Callable[..., RecordMetadata],
) -> None:
    topic, group_id = make_topic(), fresh_name("group")
    produce(topic, b"one")
    with member(client_cluster.bootstrap, group_id, topic, auto_offset_reset="earliest") as consumer:
        while consumer.poll(1.0) is None:
            pass
        consumer.commit(asynchronous=False)
    assert admin.list_consumer_group_offsets(group_id)[group_id][TopicPartition(topic, 0)].offset == 1
