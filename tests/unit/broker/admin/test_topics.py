"""CreateTopics, DeleteTopics, CreatePartitions and DescribeTopicPartitions as their answers read on the wire."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.controller import NewTopic
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.k20_delete_topics import (
    DELETE_TOPICS,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidelog.protocol.messages.k37_create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.protocol.messages.k75_describe_topic_partitions import (
    DESCRIBE_TOPIC_PARTITIONS,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)

if TYPE_CHECKING:
    from tests.unit.broker.admin.conftest import AdminBroker


def topic(name: str, partitions: int = 1, replicas: int = 1, **configs: str | None) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def create(
    broker: AdminBroker, *topics: CreatableTopic, version: int = 7, validate_only: bool = False
) -> CreateTopicsResponse:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)
    return broker.call(CREATE_TOPICS, request, CreateTopicsResponse, version)


def make(broker: AdminBroker, name: str, partitions: int = 1) -> None:
    broker.run(broker.controller.create_topics([NewTopic(name, partitions)]))


@pytest.mark.parametrize("version", range(2, 8))
def test_create_answers_with_what_the_version_has(broker: AdminBroker, version: int) -> None:
    [result] = create(broker, topic("a", 2, retention_ms="1000"), version=version).topics
    assert (result.name, result.error_code, result.error_message) == ("a", 0, None)
    assert result.topic_id == (broker.image.topics["a"].topic_id if version >= 7 else uuid.UUID(int=0))
    assert (result.num_partitions, result.replication_factor) == ((2, 1) if version >= 5 else (-1, -1))
    configs = {config.name: config for config in result.configs or ()}
    if version >= 5:
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
        assert (configs["segment.bytes"].value, configs["segment.bytes"].config_source) == ("1073741824", 5)
        assert not configs["retention.ms"].read_only
    else:
        assert not configs
    assert len(broker.image.topics["a"].partitions) == 2


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (topic("exists"), 36),
        (topic("p", 0), 37),
        (topic("p", -2), 37),
        (topic("r", 1, 0), 38),
        (topic("r", 1, 2), 38),
        (topic("c", retention_ms="soon"), 40),
        (topic("c", retention_ms=None), 40),
        (topic("c", no_such_setting="1"), 40),
        (topic("with.dot"), 17),
        (topic("bad name"), 17),
        (
            CreatableTopic(
                name="a",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[7])],
            ),
            39,
        ),
        (
            CreatableTopic(
                name="a",
                num_partitions=1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
            ),
            42,
        ),
        (
            CreatableTopic(
                name="a",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])] * 2,
            ),
            39,
        ),
        (topic("__cluster_metadata"), 42),
    ],
    ids=lambda value: value.name if isinstance(value, CreatableTopic) else str(value),
)
def test_refusals_have_their_code_and_a_reason_and_leave_others_alone(
    broker: AdminBroker, wanted: CreatableTopic, error: int
) -> None:
    """Behaviour 15."""
    make(broker, "exists")
    make(broker, "with_dot")
    results = {result.name: result for result in create(broker, wanted, topic("good")).topics}
    assert results[wanted.name].error_code == error
    assert results[wanted.name].error_message
    assert results["good"].error_code == 0
    assert set(broker.image.topics) == {"exists", "with_dot", "good"}


def test_a_name_that_stands_twice_is_refused_once_and_the_rest_is_made(broker: AdminBroker) -> None:
    """Behaviour 15."""
    results = create(broker, topic("a"), topic("b"), topic("a", 3)).topics
    assert [(result.name, result.error_code) for result in results] == [("a", 42), ("b", 0)]
    assert set(broker.image.topics) == {"b"}


def test_validate_only_answers_the_same_and_changes_nothing(broker: AdminBroker) -> None:
    """Behaviour 15."""
    results = create(broker, topic("a", 3, 1, retention_ms="5"), topic("b", 0), validate_only=True).topics
    assert [(result.name, result.error_code, result.num_partitions) for result in results] == [
        ("a", 0, 3),
        ("b", 37, -1),
    ]
    assert {config.name: config.value for config in results[0].configs or ()}["retention.ms"] == "5"
    assert not broker.image.topics


def test_of_a_setting_that_is_given_twice_the_last_value_counts(broker: AdminBroker) -> None:
    configs = [CreatableTopicConfig(name="retention.ms", value=value) for value in ("1000", "2000")]
    [made] = create(broker, CreatableTopic(name="a", num_partitions=1, replication_factor=1, configs=configs)).topics
    assert made.error_code == 0
    assert broker.image.topic_configs("a") == {"retention.ms": "2000"}


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_without_time_nothing_is_done(broker: AdminBroker, timeout_ms: int) -> None:
    make(broker, "a")
    created = CreateTopicsRequest(timeout_ms=timeout_ms, topics=[topic("b")])
    [row] = broker.call(CREATE_TOPICS, created, CreateTopicsResponse, 7).topics
    assert (row.name, row.error_code) == ("b", ErrorCode.REQUEST_TIMED_OUT)
    deleted = DeleteTopicsRequest(timeout_ms=timeout_ms, topics=[DeleteTopicState(name="a")])
    [gone] = broker.call(DELETE_TOPICS, deleted, DeleteTopicsResponse, 6).responses
    assert (gone.name, gone.error_code) == ("a", ErrorCode.REQUEST_TIMED_OUT)
    grown = CreatePartitionsRequest(timeout_ms=timeout_ms, topics=[CreatePartitionsTopic(name="a", count=9)])
    [larger] = broker.call(CREATE_PARTITIONS, grown, CreatePartitionsResponse, 3).results
    assert (larger.name, larger.error_code) == ("a", ErrorCode.REQUEST_TIMED_OUT)
    assert {name: len(each.partitions) for name, each in broker.image.topics.items()} == {"a": 1}


def test_partitions_that_are_not_open_in_time_are_told(broker: AdminBroker) -> None:
    broker.replicas.are_slow = True
    made, refused = create(broker, topic("a"), topic("b", 0)).topics
    assert (made.error_code, refused.error_code) == (7, 37)
    assert made.error_message == "The topic was created, but not all of its partitions are open yet."
    assert "a" in broker.image.topics
    [result] = create(broker, topic("a")).topics
    assert result.error_code == 36
    assert grow(broker, 3, CreatePartitionsTopic(name="a", count=2, assignments=None)) == [("a", 7, True)]
    assert len(broker.image.topics["a"].partitions) == 2


def test_topics_with_the_same_settings_are_told_the_same(broker: AdminBroker) -> None:
    one, two, three = create(broker, topic("a"), topic("b", retention_ms="5"), topic("c")).topics
    assert one.configs == three.configs != two.configs


def test_minus_one_asks_for_the_broker_s_defaults(make_broker: Callable[..., AdminBroker]) -> None:
    """Behaviour 15."""
    broker = make_broker("num.partitions=6")
    [result] = create(broker, topic("a", -1, -1)).topics
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 6, 1)


def test_an_assignment_places_the_replicas(broker: AdminBroker) -> None:
    assignments = [CreatableReplicaAssignment(partition_index=index, broker_ids=[1]) for index in (1, 0)]
    wanted = CreatableTopic(name="a", num_partitions=-1, replication_factor=-1, assignments=assignments)
    assert [result.error_code for result in create(broker, wanted).topics] == [0]
    assert [state.replicas for state in broker.image.topics["a"].partitions] == [(1,), (1,)]


def delete(broker: AdminBroker, version: int, *names: str) -> DeleteTopicsResponse:
    if version >= 6:
        request = DeleteTopicsRequest(timeout_ms=10_000, topics=[DeleteTopicState(name=name) for name in names])
    else:
        request = DeleteTopicsRequest(timeout_ms=10_000, topic_names=list(names))
    return broker.call(DELETE_TOPICS, request, DeleteTopicsResponse, version)


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_by_name(broker: AdminBroker, version: int) -> None:
    make(broker, "a")
    results = {result.name: result for result in delete(broker, version, "a", "b").responses}
    assert (results["a"].error_code, results["a"].error_message) == (0, None)
    assert results["b"].error_code == 3
    assert bool(results["b"].error_message) == (version >= 5)
    assert not broker.image.topics


def test_delete_by_id_names_the_topic(broker: AdminBroker) -> None:
    """Behaviour 16."""
    make(broker, "a")
    topic_id, stranger = broker.image.topics["a"].topic_id, uuid.UUID(int=5)
    request = DeleteTopicsRequest(
        timeout_ms=10_000, topics=[DeleteTopicState(topic_id=topic_id), DeleteTopicState(topic_id=stranger)]
    )
    results = {r.topic_id: r for r in broker.call(DELETE_TOPICS, request, DeleteTopicsResponse, 6).responses}
    assert (results[topic_id].error_code, results[topic_id].name) == (0, "a")
    assert (results[stranger].error_code, results[stranger].name) == (100, None)
    assert not broker.image.topics


def test_a_topic_made_again_has_another_id(broker: AdminBroker) -> None:
    """Behaviour 13."""
    make(broker, "a")
    before = broker.image.topics["a"].topic_id
    delete(broker, 6, "a")
    make(broker, "a")
    assert broker.image.topics["a"].topic_id not in (before, uuid.UUID(int=0))


def test_a_topic_to_delete_stands_once_and_has_a_name_or_an_id(broker: AdminBroker) -> None:
    make(broker, "a")
    topic_id = broker.image.topics["a"].topic_id
    request = DeleteTopicsRequest(
        timeout_ms=10_000,
        topics=[
            DeleteTopicState(name="b"),
            DeleteTopicState(name="b"),
            DeleteTopicState(name="a", topic_id=topic_id),
            DeleteTopicState(),
        ],
    )
    results = broker.call(DELETE_TOPICS, request, DeleteTopicsResponse, 6).responses
    assert [(result.name, result.error_code) for result in results] == [("b", 42), ("a", 42), (None, 42)]
    assert set(broker.image.topics) == {"a"}


@pytest.mark.parametrize(("version", "error"), [(1, 42), (2, 42), (3, 73), (6, 73)])
def test_deletion_can_be_forbidden(make_broker: Callable[..., AdminBroker], version: int, error: int) -> None:
    broker = make_broker("delete.topic.enable=false")
    make(broker, "a")
    assert [result.error_code for result in delete(broker, version, "a").responses] == [error]
    assert set(broker.image.topics) == {"a"}


def grow(
    broker: AdminBroker, version: int, *topics: CreatePartitionsTopic, validate_only: bool = False
) -> list[tuple[str, int, bool]]:
    request = CreatePartitionsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)
    response = broker.call(CREATE_PARTITIONS, request, CreatePartitionsResponse, version)
    return [(result.name, result.error_code, bool(result.error_message)) for result in response.results]


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_with_one_row_a_topic(broker: AdminBroker, version: int) -> None:
    """Behaviour 16."""
    for name in ("grow", "shrink", "same", "twice"):
        make(broker, name, 2)
    rows = grow(
        broker,
        version,
        CreatePartitionsTopic(name="grow", count=5, assignments=None),
        CreatePartitionsTopic(name="shrink", count=1, assignments=None),
        CreatePartitionsTopic(name="same", count=2, assignments=None),
        CreatePartitionsTopic(name="twice", count=3, assignments=None),
        CreatePartitionsTopic(name="twice", count=4, assignments=None),
        CreatePartitionsTopic(name="nowhere", count=4, assignments=None),
    )
    assert sorted(rows) == [
        ("grow", 0, False),
        ("nowhere", 3, True),
        ("same", 37, True),
        ("shrink", 37, True),
        ("twice", 42, True),
    ]
    assert {name: len(image.partitions) for name, image in broker.image.topics.items()} == {
        "grow": 5,
        "shrink": 2,
        "same": 2,
        "twice": 2,
    }


def test_added_partitions_may_be_assigned(broker: AdminBroker) -> None:
    make(broker, "a")
    one, unknown = CreatePartitionsAssignment(broker_ids=[1]), CreatePartitionsAssignment(broker_ids=[9])
    assert grow(broker, 3, CreatePartitionsTopic(name="a", count=2, assignments=[unknown])) == [("a", 39, True)]
    assert grow(broker, 3, CreatePartitionsTopic(name="a", count=3, assignments=[one])) == [("a", 39, True)]
    assert grow(broker, 3, CreatePartitionsTopic(name="a", count=2, assignments=[one])) == [("a", 0, False)]


def test_validate_only_adds_no_partition(broker: AdminBroker) -> None:
    make(broker, "a")
    assert grow(broker, 3, CreatePartitionsTopic(name="a", count=9, assignments=None), validate_only=True) == [
        ("a", 0, False)
    ]
    assert len(broker.image.topics["a"].partitions) == 1


Page = list[tuple[str | None, int, list[int]]]


def page(
    broker: AdminBroker, names: list[str], limit: int, cursor: tuple[str, int] | None = None
) -> tuple[Page, tuple[str, int] | None]:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else DescribeTopicPartitionsRequestCursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    response = broker.call(DESCRIBE_TOPIC_PARTITIONS, request, DescribeTopicPartitionsResponse, 0)
    rows = [
        (topic.name, topic.error_code, [partition.partition_index for partition in topic.partitions])
        for topic in response.topics
    ]
    following = response.next_cursor
    return rows, None if following is None else (following.topic_name, following.partition_index)


def test_partitions_come_in_pages(broker: AdminBroker) -> None:
    for name, partitions in (("b", 2), ("a", 3), ("c", 1)):
        make(broker, name, partitions)
    assert page(broker, [], 2) == ([("a", 0, [0, 1])], ("a", 2))
    assert page(broker, [], 2, ("a", 2)) == ([("a", 0, [2]), ("b", 0, [0])], ("b", 1))
    assert page(broker, [], 2, ("b", 1)) == ([("b", 0, [1]), ("c", 0, [0])], None)
    assert page(broker, [], 3) == ([("a", 0, [0, 1, 2])], ("b", 0))
    assert page(broker, [], 2000) == ([("a", 0, [0, 1, 2]), ("b", 0, [0, 1]), ("c", 0, [0])], None)


def test_a_page_of_chosen_topics_tells_those_that_do_not_exist(broker: AdminBroker) -> None:
    make(broker, "b", 2)
    assert page(broker, ["z", "b", "b", "a", "!"], 100) == (
        [("!", 17, []), ("a", 3, []), ("b", 0, [0, 1]), ("z", 3, [])],
        None,
    )


def test_a_cursor_into_a_topic_that_is_gone_goes_on_with_the_next(broker: AdminBroker) -> None:
    make(broker, "a")
    make(broker, "c", 2)
    assert page(broker, [], 100, ("b", 5)) == ([("c", 0, [0, 1])], None)
    assert page(broker, [], 100, ("a", 7)) == ([("a", 0, []), ("c", 0, [0, 1])], None)


def test_limits_of_a_page(make_broker: Callable[..., AdminBroker]) -> None:
    broker = make_broker("max.request.partition.size.limit=2")
    make(broker, "a", 4)
    assert page(broker, [], 100) == ([("a", 0, [0, 1])], ("a", 2))
    assert page(broker, [], 0) == ([("a", 0, [0])], ("a", 1))
    assert page(broker, [], 1, ("a", -1)) == ([("a", 42, [])], None)


def test_a_described_partition_is_complete(broker: AdminBroker) -> None:
    make(broker, "a")
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")])
    [described] = broker.call(DESCRIBE_TOPIC_PARTITIONS, request, DescribeTopicPartitionsResponse, 0).topics
    assert described.topic_id == broker.image.topics["a"].topic_id
    assert described.topic_authorized_operations == 0b1101_1111_1000
    [partition] = described.partitions
    assert (partition.leader_id, partition.leader_epoch, partition.replica_nodes, partition.isr_nodes) == (
        1,
        0,
        [1],
        [1],
    )
    assert (partition.eligible_leader_replicas, partition.last_known_elr, partition.offline_replicas) == ([], [], [])
