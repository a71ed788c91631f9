"""DescribeCluster and FindCoordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k60_describe_cluster import (
    DESCRIBE_CLUSTER,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from tests.unit.broker.admin.conftest import AdminBroker


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_and_its_brokers(broker: AdminBroker, version: int) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=version > 0)
    answer = broker.call(DESCRIBE_CLUSTER, request, DescribeClusterResponse, version)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, broker.image.cluster_id, 1)
    assert answer.cluster_authorized_operations == (0b1_1111_1010_0000 if version > 0 else -(2**31))
    [described] = answer.brokers
    assert (described.broker_id, described.host, described.port, described.rack) == (1, "127.0.0.1", 9092, "rack-a")
    assert not described.is_fenced


@pytest.mark.parametrize(("endpoint_type", "error"), [(2, 114), (9, 115)])
def test_controllers_are_not_reached_through_a_broker(broker: AdminBroker, endpoint_type: int, error: int) -> None:
    request = DescribeClusterRequest(endpoint_type=endpoint_type)
    answer = broker.call(DESCRIBE_CLUSTER, request, DescribeClusterResponse, 1)
    assert answer.error_code == error
    assert answer.error_message


@pytest.mark.parametrize("version", range(7))
def test_the_first_look_for_a_groups_coordinator_makes_its_topic(broker: AdminBroker, version: int) -> None:
    keys = ["g1", "g2"]
    request = FindCoordinatorRequest(coordinator_keys=keys) if version >= 4 else FindCoordinatorRequest(key="g1")
    answer = broker.call(FIND_COORDINATOR, request, FindCoordinatorResponse, version)
    if version >= 4:
        assert [(each.key, each.error_code, each.node_id, each.host, each.port) for each in answer.coordinators] == [
            ("g1", 0, 1, "127.0.0.1", 9092),
            ("g2", 0, 1, "127.0.0.1", 9092),
        ]
    else:
        assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 1, "127.0.0.1", 9092)
    topic = broker.image.topics["__consumer_offsets"]
    assert (len(topic.partitions), topic.replication_factor, topic.is_internal) == (50, 1, True)
    assert broker.image.topic_configs(topic.name) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }


def test_a_replication_factor_that_was_set_is_waited_for(make_broker: Callable[..., AdminBroker]) -> None:
    broker = make_broker("offsets.topic.replication.factor=3")
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    [found] = broker.call(FIND_COORDINATOR, request, FindCoordinatorResponse, 4).coordinators
    assert (found.error_code, found.node_id, bool(found.error_message)) == (15, -1, True)
    assert "__consumer_offsets" not in broker.image.topics


@pytest.mark.parametrize(("key_type", "version", "error"), [(1, 6, 0), (2, 6, 15), (2, 5, 42), (7, 6, 42)])
def test_kinds_of_coordinators(broker: AdminBroker, key_type: int, version: int, error: int) -> None:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["k"])
    answer = broker.call(FIND_COORDINATOR, request, FindCoordinatorResponse, version)
    assert [each.error_code for each in answer.coordinators] == [error]


@pytest.mark.parametrize("key_type", [0, 1])
@pytest.mark.parametrize("version", range(1, 7))
def test_a_broker_that_is_cut_off_names_itself_no_more(broker: AdminBroker, version: int, key_type: int) -> None:
    """It doesn't hear who coordinates its groups now; clients that it sent to itself would never ask another one."""
    request = FindCoordinatorRequest(key_type=key_type)
    if version >= 4:
        request.coordinator_keys = ["g"]
    else:
        request.key = "g"
    for fenced, error in ((frozenset[int](), 0), (frozenset({1}), 15), (frozenset[int](), 0)):
        broker.replicas.fenced_node_ids = fenced
        answer = broker.call(FIND_COORDINATOR, request, FindCoordinatorResponse, version)
        found = answer.coordinators[0] if version >= 4 else answer
        where = (-1, "", -1) if error else (1, "127.0.0.1", 9092)
        assert (found.error_code, (found.node_id, found.host, found.port)) == (error, where)
