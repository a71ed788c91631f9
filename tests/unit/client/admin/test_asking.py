"""Whom admin calls ask, how often, and what becomes of each thing asked about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.client.admin import OffsetSpec
from tidelog.client.admin.groups import delete_consumer_groups, list_groups
from tidelog.client.admin.offsets import delete_records, list_offsets
from tidelog.client.admin.topics import create_topics
from tidelog.client.errors import (
    BrokerError,
    ConnectError,
    ConnectionLostError,
    InvalidResponseError,
    NoSuchPartitionError,
)
from tidelog.client.network.cluster import Cluster
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k02_list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.protocol.messages.k03_metadata import METADATA
from tidelog.protocol.messages.k10_find_coordinator import FIND_COORDINATOR
from tidelog.protocol.messages.k16_list_groups import LIST_GROUPS, ListedGroup, ListGroupsRequest, ListGroupsResponse
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.k21_delete_records import DELETE_RECORDS, DeleteRecordsRequest
from tidelog.protocol.messages.k42_delete_groups import (
    DELETE_GROUPS,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from tests.unit.client.admin.conftest import FakeBrokers

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def latest(cluster: Cluster, *keys: TopicPartition) -> dict[TopicPartition, int | str]:
    """The offset, or the name of the error, of each."""
    results = asyncio.run(
        list_offsets(cluster, dict.fromkeys(keys, OffsetSpec.LATEST), isolation_level="read_uncommitted")
    )
    errors = {key: type(error).__name__ for key, error in results.errors.items()}
    return {key: errors[key] if key in errors else results[key].offset for key in results}


def offsets(codes: dict[TopicPartition, list[ErrorCode]]) -> Callable[[int, Any], object]:
    """Answers to ListOffsets: the offset is the broker's id; codes are told one after the other, then all is well."""

    def answer(node_id: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            rows = []
            for wanted in topic.partitions:
                left = codes.get(TopicPartition(topic.name, wanted.partition_index), [])
                code = left.pop(0) if left else ErrorCode.NONE
                rows.append(
                    ListOffsetsPartitionResponse(
                        partition_index=wanted.partition_index, error_code=code, offset=node_id
                    )
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        return ListOffsetsResponse(topics=topics)

    return answer


def test_leaders_are_asked_for_what_they_lead(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.leaders = {A: 1, B: 2, C: 2}
    brokers.answers = {LIST_OFFSETS: offsets({})}
    assert latest(cluster, A, B, C) == {A: 1, B: 2, C: 2}
    assert sorted(node_id for node_id, _ in brokers.requests(LIST_OFFSETS)) == [1, 2]
    assert len(brokers.requests(METADATA)) == 1


def test_only_what_has_moved_is_asked_again(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.leaders = {A: 1, B: 1}
    moved = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE]
    brokers.answers = {LIST_OFFSETS: offsets({B: moved})}
    assert latest(cluster, A, B) == {A: 1, B: 1}
    asked = [
        [row.partition_index for row in request.topics[0].partitions] for _, request in brokers.requests(LIST_OFFSETS)
    ]
    assert asked == [[0, 1], [1], [1]]


def test_a_refusal_is_the_error_of_one_partition(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.leaders = {A: 1, B: 1}
    refused = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    brokers.answers = {LIST_OFFSETS: offsets({A: refused})}
    assert latest(cluster, A, B, C) == {A: "AuthorizationError", B: 1, C: "NoSuchPartitionError"}


def test_an_unknown_code_of_a_newer_broker_is_an_error_too(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.leaders = {A: 1}
    brokers.answers = {LIST_OFFSETS: offsets({A: [9999]})}  # type: ignore[list-item]  # on purpose
    assert latest(cluster, A) == {A: "BrokerError"}


def test_what_does_not_pass_in_time_is_an_error(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.leaders = {A: 1, B: 1}
    forever = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 100_000
    object.__setattr__(cluster.settings, "api_timeout_s", 0.02)
    brokers.answers = {LIST_OFFSETS: offsets({B: forever})}
    assert latest(cluster, A, B) == {A: 1, B: "RetriableBrokerError"}


def test_a_leader_that_is_out_of_reach_hurts_its_partitions_only(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.leaders = {A: 1, B: 2}
    brokers.unreachable = {2}
    object.__setattr__(cluster.settings, "api_timeout_s", 0.02)
    brokers.answers = {LIST_OFFSETS: offsets({})}
    assert latest(cluster, A, B) == {A: 1, B: "ConnectError"}


def test_when_nobody_can_be_reached_the_call_raises(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.unreachable = {1, 2}
    with pytest.raises(ConnectError):
        latest(cluster, A)


def test_a_partition_that_the_answer_leaves_out(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.leaders = {A: 1}
    brokers.answers = {LIST_OFFSETS: lambda *_: ListOffsetsResponse()}
    assert latest(cluster, A) == {A: "InvalidResponseError"}


def test_a_lost_connection_is_tried_again_where_that_does_no_harm(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.leaders = {A: 1}
    lost = [ConnectionLostError("lost")]
    answer = offsets({})
    brokers.answers = {LIST_OFFSETS: lambda *asked: lost.pop() if lost else answer(*asked)}
    assert latest(cluster, A) == {A: 1}


def test_deletion_of_records_may_be_repeated(cluster: Cluster, brokers: FakeBrokers) -> None:
    """Twice is the same as once, so a lost connection is no reason to give up."""
    from tidelog.protocol.messages.k21_delete_records import (
        DeleteRecordsPartitionResult,
        DeleteRecordsResponse,
        DeleteRecordsTopicResult,
    )

    brokers.leaders = {A: 1}
    lost = [ConnectionLostError("lost")]

    def answer(node_id: int, request: DeleteRecordsRequest) -> object:
        if lost:
            return lost.pop()
        rows = [DeleteRecordsPartitionResult(partition_index=0, low_watermark=5)]
        return DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name="t", partitions=rows)])

    brokers.answers = {DELETE_RECORDS: answer}
    assert asyncio.run(delete_records(cluster, {A: 5}))[A].low_watermark == 5


# The controller


def created(node_id: int, request: CreateTopicsRequest) -> CreateTopicsResponse:
    code = ErrorCode.NONE if node_id == 2 else ErrorCode.NOT_CONTROLLER
    return CreateTopicsResponse(
        topics=[CreatableTopicResult(name=topic.name, error_code=code) for topic in request.topics]
    )


def test_the_controller_is_asked_when_another_broker_says_so(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.answers = {CREATE_TOPICS: created}
    assert asyncio.run(create_topics(cluster, ["a", "b"], validate_only=False))["a"].name == "a"
    assert [node_id for node_id, _ in brokers.requests(CREATE_TOPICS)] == [1, 2]


def test_a_change_is_not_repeated_after_a_lost_connection(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.answers = {CREATE_TOPICS: lambda *_: ConnectionLostError("lost")}
    with pytest.raises(ConnectionLostError):
        asyncio.run(create_topics(cluster, ["a"], validate_only=False))
    assert len(brokers.requests(CREATE_TOPICS)) == 1


def test_a_topic_that_the_answer_leaves_out(cluster: Cluster, brokers: FakeBrokers) -> None:
    brokers.answers = {CREATE_TOPICS: lambda *_: CreateTopicsResponse(topics=[CreatableTopicResult(name="b")])}
    results = asyncio.run(create_topics(cluster, ["a", "b"], validate_only=False))
    assert results["b"].name == "b"
    with pytest.raises(InvalidResponseError, match="is missing 'a'"):
        results["a"]


# Coordinators


def test_a_coordinator_that_moved_is_looked_up_again(cluster: Cluster, brokers: FakeBrokers) -> None:
    def deleted(node_id: int, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        code = ErrorCode.NONE if node_id == 2 else ErrorCode.NOT_COORDINATOR
        rows = [DeletableGroupResult(group_id=name, error_code=code) for name in request.groups_names]
        return DeleteGroupsResponse(results=rows)

    brokers.coordinators = [1, 1, 2]
    brokers.answers = {DELETE_GROUPS: deleted}
    assert asyncio.run(delete_consumer_groups(cluster, ["g"])) == {"g": None}
    assert [node_id for node_id, _ in brokers.requests(DELETE_GROUPS)] == [1, 1, 2]
    assert len(brokers.requests(FIND_COORDINATOR)) == 3


def test_each_group_has_its_own_error(cluster: Cluster, brokers: FakeBrokers) -> None:
    def deleted(node_id: int, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        (name,) = request.groups_names
        code = ErrorCode.NON_EMPTY_GROUP if name == "busy" else ErrorCode.NONE
        return DeleteGroupsResponse(results=[DeletableGroupResult(group_id=name, error_code=code)])

    brokers.answers = {DELETE_GROUPS: deleted}
    results = asyncio.run(delete_consumer_groups(cluster, ["busy", "idle", "busy"]))
    assert results.succeeded == {"idle": None}
    with pytest.raises(BrokerError, match=r"group busy: .*NON_EMPTY_GROUP"):
        results["busy"]


# All brokers


def test_a_list_that_would_not_be_whole_raises(cluster: Cluster, brokers: FakeBrokers) -> None:
    def listed(node_id: int, request: ListGroupsRequest) -> object:
        if node_id == 2:
            return ListGroupsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return ListGroupsResponse(groups=[ListedGroup(group_id="g")])

    brokers.answers = {LIST_GROUPS: listed}
    with pytest.raises(BrokerError, match="broker 2: "):
        asyncio.run(list_groups(cluster, states=(), types=(), protocol_types=()))


def test_missing_topics_are_told_without_waiting(cluster: Cluster, brokers: FakeBrokers) -> None:
    with pytest.raises(NoSuchPartitionError, match="there is no topic 'u'"):
        asyncio.run(list_offsets(cluster, {C: 0}, isolation_level="read_committed"))[C]
    assert len(brokers.requests(METADATA)) <= 2
