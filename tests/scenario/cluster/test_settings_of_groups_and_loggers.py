"""Settings of groups count on every broker and after restarts; levels of loggers are changed by the broker asked."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import pytest

from tidelog import Admin
from tidelog.client.admin import ConfigResource, ResourceType
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages import k44_incremental_alter_configs as k44
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k68_consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.testing.broker import Broker
from tidelog.testing.raw_client import RawClient

if TYPE_CHECKING:
    from tests.scenario.cluster.conftest import SmallCluster

MakeCluster = Callable[..., "SmallCluster"]

DEADLINE_S = 60.0
GROUP = "readers"
LOGGERS, ALL_GROUPS = 8, 32
HEARTBEAT = "consumer.heartbeat.interval.ms"
NAME = "tidelog.broker.forwarding"
PASSING = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
SETTINGS = {"offsets.topic.num.partitions": 2, "offsets.topic.replication.factor": 1}


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> SmallCluster:
    cluster = make_cluster(SETTINGS)
    cluster.start(1, 2)
    cluster.wait(lambda image: set(image.brokers) == {1, 2})
    return cluster


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """It is the test process's own, so it is put back."""
    before = logging.getLogger(NAME).level
    yield
    logging.getLogger(NAME).setLevel(before)


def other_than_controller(cluster: SmallCluster) -> int:
    (node_id,) = cluster.running_ids - {cluster.controller_id()}
    return node_id


AnswerT = TypeVar("AnswerT", ConsumerGroupHeartbeatResponse, Coordinator)


def until_settled(ask: Callable[[], AnswerT]) -> AnswerT:
    """The first answer that doesn't say that the coordinator is only just starting."""
    give_up_s = time.monotonic() + DEADLINE_S
    while (answer := ask()).error_code in PASSING:
        assert time.monotonic() < give_up_s, answer
        time.sleep(0.02)
    assert answer.error_code == 0, answer
    return answer


class Member:
    """A member of a group of the new protocol."""

    def __init__(self, cluster: SmallCluster) -> None:
        self.cluster = cluster
        self.epoch = 0

    def beat(self) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="member", member_epoch=self.epoch)
        if not self.epoch:
            request.rebalance_timeout_ms = 20_000
            request.subscribed_topic_names = ["t"]
            request.topic_partitions = []

        def ask() -> ConsumerGroupHeartbeatResponse:
            with RawClient(self._coordinator().port) as client:
                return client.ask(CONSUMER_GROUP_HEARTBEAT, request, ConsumerGroupHeartbeatResponse, 1)

        answer = until_settled(ask)
        self.epoch = answer.member_epoch
        return answer

    def _coordinator(self) -> Broker:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])

        def ask() -> Coordinator:
            with RawClient(self.cluster.running[0].port) as client:
                return client.ask(FIND_COORDINATOR, request, FindCoordinatorResponse, 4).coordinators[0]

        return self.cluster[until_settled(ask).node_id]


def test_settings_of_a_group_count_everywhere_and_stay(cluster: SmallCluster) -> None:
    member = Member(cluster)
    assert member.beat().heartbeat_interval_ms == 5_000
    group = ConfigResource.group(GROUP)
    with Admin(bootstrap_servers=cluster[other_than_controller(cluster)].bootstrap) as admin:
        admin.incremental_alter_configs({group: {HEARTBEAT: 7_000}}).raise_for_errors()
    cluster.wait(lambda image: bool(image.group_configs(GROUP)))
    assert member.beat().heartbeat_interval_ms == 7_000
    for node_id in (1, 2):
        cluster[node_id].stop()
    cluster.start(1, 2)
    cluster.wait(lambda image: image.group_configs(GROUP) == {HEARTBEAT: "7000"})
    assert member.beat().heartbeat_interval_ms == 7_000
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert admin.list_config_resources([ResourceType.GROUP]) == [group]
        admin.incremental_alter_configs({group: {HEARTBEAT: None}}).raise_for_errors()
        assert admin.list_config_resources([ResourceType.GROUP]) == []
    cluster.wait(lambda image: not image.group_configs(GROUP))
    assert member.beat().heartbeat_interval_ms == 5_000


def test_a_broker_answers_for_its_loggers_and_passes_on_the_rest(cluster: SmallCluster) -> None:
    asked = other_than_controller(cluster)

    def resource(kind: int, name: str, setting: str, value: str) -> k44.AlterConfigsResource:
        config = k44.AlterableConfig(name=setting, config_operation=0, value=value)
        return k44.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])

    def alter(*resources: k44.AlterConfigsResource) -> list[tuple[int, str, int]]:
        request = k44.IncrementalAlterConfigsRequest(resources=list(resources))
        with RawClient(cluster[asked].port) as client:
            response = client.ask(k44.INCREMENTAL_ALTER_CONFIGS, request, k44.IncrementalAlterConfigsResponse, 1)
        return [(row.resource_type, row.resource_name, row.error_code) for row in response.responses]

    rows = alter(
        resource(ALL_GROUPS, GROUP, HEARTBEAT, "6000"),
        resource(LOGGERS, str(asked), NAME, "ERROR"),
        resource(LOGGERS, str(cluster.controller_id()), NAME, "FATAL"),
        resource(ALL_GROUPS, "others", HEARTBEAT, "1"),
    )
    assert rows == [
        (ALL_GROUPS, GROUP, 0),
        (LOGGERS, str(asked), 0),
        (LOGGERS, str(cluster.controller_id()), ErrorCode.INVALID_REQUEST),
        (ALL_GROUPS, "others", ErrorCode.INVALID_CONFIG),
    ]
    assert logging.getLogger(NAME).level == logging.ERROR
    cluster.wait(lambda image: image.group_configs(GROUP) == {HEARTBEAT: "6000"})
    assert alter(resource(LOGGERS, str(asked), NAME, "INFO")) == [(LOGGERS, str(asked), 0)]
    assert logging.getLogger(NAME).level == logging.INFO
