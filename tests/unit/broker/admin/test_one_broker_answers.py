"""APIs that have short answers here: access rules, elections, moves of partitions, quotas, credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidelog.controller import NewTopic, Reassignment
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.messages import (
    k29_describe_acls,
    k30_create_acls,
    k31_delete_acls,
    k43_elect_leaders,
    k45_alter_partition_reassignments,
    k46_list_partition_reassignments,
    k48_describe_client_quotas,
    k50_describe_user_scram_credentials,
    k64_unregister_broker,
)

if TYPE_CHECKING:
    from tests.unit.broker.admin.conftest import AdminBroker


@pytest.fixture(autouse=True)
def topic(broker: AdminBroker) -> None:
    broker.run(broker.controller.create_topics([NewTopic("a", 2)]))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_access_rules_are_refused_where_there_is_no_authorizer(broker: AdminBroker, version: int) -> None:
    described = broker.call(
        k29_describe_acls.DESCRIBE_ACLS,
        k29_describe_acls.DescribeAclsRequest(),
        k29_describe_acls.DescribeAclsResponse,
        version,
    )
    assert (described.error_code, described.resources) == (ErrorCode.SECURITY_DISABLED, [])
    creations = [k30_create_acls.AclCreation(), k30_create_acls.AclCreation()]
    created = broker.call(
        k30_create_acls.CREATE_ACLS,
        k30_create_acls.CreateAclsRequest(creations=creations),
        k30_create_acls.CreateAclsResponse,
        version,
    )
    assert [row.error_code for row in created.results] == [ErrorCode.SECURITY_DISABLED] * 2
    deleted = broker.call(
        k31_delete_acls.DELETE_ACLS,
        k31_delete_acls.DeleteAclsRequest(filters=[k31_delete_acls.DeleteAclsFilter()]),
        k31_delete_acls.DeleteAclsResponse,
        version,
    )
    assert [row.error_code for row in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED]


def elect(
    broker: AdminBroker, *partitions: int, topic: str = "a", election_type: int = 0, timeout_ms: int = 1_000
) -> tuple[int, dict[int, int]]:
    request = k43_elect_leaders.ElectLeadersRequest(
        election_type=election_type,
        topic_partitions=[k43_elect_leaders.TopicPartitions(topic=topic, partitions=list(partitions))],
        timeout_ms=timeout_ms,
    )
    answer = broker.call(k43_elect_leaders.ELECT_LEADERS, request, k43_elect_leaders.ElectLeadersResponse, 2)
    [row] = answer.replica_election_results
    return answer.error_code, {each.partition_id: each.error_code for each in row.partition_result}


@pytest.mark.parametrize("election_type", [0, 1])
def test_no_partition_needs_an_election(broker: AdminBroker, election_type: int) -> None:
    unknown, not_needed = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.ELECTION_NOT_NEEDED
    assert elect(broker, 0, 1, 2, election_type=election_type) == (0, {0: not_needed, 1: not_needed, 2: unknown})
    assert elect(broker, 0, topic="none", election_type=election_type) == (0, {0: unknown})


def test_elections_that_cannot_be(broker: AdminBroker) -> None:
    assert elect(broker, 0, election_type=7) == (ErrorCode.INVALID_REQUEST, {0: ErrorCode.INVALID_REQUEST})
    assert elect(broker, 0, timeout_ms=0) == (ErrorCode.REQUEST_TIMED_OUT, {0: ErrorCode.REQUEST_TIMED_OUT})
    broker.run(broker.controller.fence_brokers([1]))
    assert elect(broker, 0) == (0, {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE})
    assert elect(broker, 0, election_type=1) == (0, {0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE})


def test_the_first_version_has_errors_of_partitions_only(broker: AdminBroker) -> None:
    asked = [k43_elect_leaders.TopicPartitions(topic="a", partitions=[0])]
    request = k43_elect_leaders.ElectLeadersRequest(topic_partitions=asked, timeout_ms=0)
    answer = broker.call(k43_elect_leaders.ELECT_LEADERS, request, k43_elect_leaders.ElectLeadersResponse, 0)
    [row] = answer.replica_election_results
    assert [each.error_code for each in row.partition_result] == [ErrorCode.REQUEST_TIMED_OUT]


def test_an_election_for_all_names_every_topic_and_no_partition(broker: AdminBroker) -> None:
    request = k43_elect_leaders.ElectLeadersRequest(topic_partitions=None)
    answer = broker.call(k43_elect_leaders.ELECT_LEADERS, request, k43_elect_leaders.ElectLeadersResponse, 2)
    assert [(row.topic, row.partition_result) for row in answer.replica_election_results] == [("a", [])]


@pytest.mark.parametrize(
    ("partition", "replicas", "timeout_ms", "error"),
    [
        (0, [1], 1_000, ErrorCode.NONE),
        (0, None, 1_000, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (0, [2], 1_000, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [], 1_000, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (9, [1], 1_000, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, [1], 0, ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_a_partition_stays_where_it_is(
    broker: AdminBroker, partition: int, replicas: list[int] | None, timeout_ms: int, error: ErrorCode
) -> None:
    api = k45_alter_partition_reassignments
    asked = api.ReassignablePartition(partition_index=partition, replicas=replicas)
    request = api.AlterPartitionReassignmentsRequest(
        timeout_ms=timeout_ms, topics=[api.ReassignableTopic(name="a", partitions=[asked])]
    )
    answer = broker.call(api.ALTER_PARTITION_REASSIGNMENTS, request, api.AlterPartitionReassignmentsResponse, 1)
    [row] = answer.responses
    assert [(each.partition_index, each.error_code) for each in row.partitions] == [(partition, error)]
    assert answer.error_code == (error if timeout_ms <= 0 else 0)


Listing = list[tuple[str, list[tuple[int, list[int], list[int], list[int]]]]]


def moving(broker: AdminBroker, *topics: tuple[str, list[int]]) -> Listing:
    api = k46_list_partition_reassignments
    asked = [api.ListPartitionReassignmentsTopics(name=name, partition_indexes=each) for name, each in topics]
    request = api.ListPartitionReassignmentsRequest(topics=asked or None)
    answer = broker.call(api.LIST_PARTITION_REASSIGNMENTS, request, api.ListPartitionReassignmentsResponse, 0)
    assert answer.error_code == 0
    return [
        (
            row.name,
            [
                (each.partition_index, each.replicas, each.adding_replicas, each.removing_replicas)
                for each in row.partitions
            ],
        )
        for row in answer.topics
    ]


def test_what_is_moving_is_listed(broker: AdminBroker) -> None:
    assert moving(broker) == []
    broker.register(2)
    broker.run(broker.controller.alter_reassignments([Reassignment("a", 1, [2])]))
    assert moving(broker) == [("a", [(1, [2, 1], [2], [1])])]
    assert moving(broker, ("a", [0, 1, 7]), ("none", [0])) == [("a", [(1, [2, 1], [2], [1])])]
    assert moving(broker, ("a", [0])) == []


def test_brokers_that_are_gone_can_be_unregistered(broker: AdminBroker) -> None:
    api = k64_unregister_broker

    def unregister(node_id: int) -> int:
        request = api.UnregisterBrokerRequest(broker_id=node_id)
        return broker.call(api.UNREGISTER_BROKER, request, api.UnregisterBrokerResponse, 0).error_code

    broker.register(2)
    for node_id, code in ((2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.BROKER_ID_NOT_REGISTERED)):
        with pytest.raises(KafkaError) as caught:
            unregister(node_id)
        assert caught.value.code is code
    broker.run(broker.controller.fence_brokers([2]))
    assert unregister(2) == ErrorCode.NONE
    assert set(broker.image.brokers) == {1}


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([], 0),
        ([("user", 0, "somebody")], 0),
        ([("user", 1, None), ("client-id", 2, None)], 0),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 1, "somebody")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("", 0, "somebody")], ErrorCode.INVALID_REQUEST),
        ([("user", 1, None), ("user", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", 1, None), ("user", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("planet", 1, None)], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_there_are_no_quotas(broker: AdminBroker, components: list[tuple[str, int, str | None]], error: int) -> None:
    api = k48_describe_client_quotas
    request = api.DescribeClientQuotasRequest(
        components=[api.ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    )
    answer = broker.call(api.DESCRIBE_CLIENT_QUOTAS, request, api.DescribeClientQuotasResponse, 1)
    assert (answer.error_code, answer.entries) == (error, None if error else [])


def test_there_are_no_credentials(broker: AdminBroker) -> None:
    api = k50_describe_user_scram_credentials
    everyone = api.DescribeUserScramCredentialsRequest(users=None)
    answer = broker.call(api.DESCRIBE_USER_SCRAM_CREDENTIALS, everyone, api.DescribeUserScramCredentialsResponse, 0)
    assert (answer.error_code, answer.results) == (0, [])
    some = api.DescribeUserScramCredentialsRequest(users=[api.UserName(name=name) for name in ("x", "y", "y")])
    answer = broker.call(api.DESCRIBE_USER_SCRAM_CREDENTIALS, some, api.DescribeUserScramCredentialsResponse, 0)
    assert [(row.user, row.error_code) for row in answer.results] == [
        ("x", ErrorCode.RESOURCE_NOT_FOUND),
        ("y", ErrorCode.DUPLICATE_RESOURCE),
    ]
