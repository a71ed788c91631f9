"""Settings of groups: kept like those of topics, within the broker's bounds, and what counts of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.controller import group_configs
from tidelog.controller.group_configs import group_values
from tidelog.protocol import ErrorCode
from tidelog.protocol.config_values import ConfigSource
from tidelog.protocol.messages import k33_alter_configs as k33
from tidelog.protocol.messages import k44_incremental_alter_configs as k44
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tidelog.protocol.messages.k74_list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from tests.unit.broker.admin.conftest import AdminBroker

GROUP = 32
SET, DELETE, APPEND = 0, 1, 2
SESSION, HEARTBEAT, INTERVAL = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
)


def alter(broker: AdminBroker, *changes: tuple[str, int, str | None], group: str = "readers") -> int:
    configs = [k44.AlterableConfig(name=name, config_operation=op, value=value) for name, op, value in changes]
    resource = k44.AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=configs)
    request = k44.IncrementalAlterConfigsRequest(resources=[resource])
    (row,) = broker.call(k44.INCREMENTAL_ALTER_CONFIGS, request, k44.IncrementalAlterConfigsResponse, 1).responses
    assert (row.resource_type, row.resource_name) == (GROUP, group)
    return row.error_code


def describe(broker: AdminBroker, group: str = "readers") -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=GROUP, resource_name=group, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = broker.call(DESCRIBE_CONFIGS, request, DescribeConfigsResponse, 4).results
    return result


def overrides(broker: AdminBroker, group: str = "readers") -> dict[str, str]:
    return dict(broker.image.group_configs(group))


def test_a_group_shows_its_own_settings_and_the_defaults(make_broker: Callable[..., AdminBroker]) -> None:
    broker = make_broker("group.consumer.heartbeat.interval.ms=3000")
    assert alter(broker, (SESSION, SET, " 050000")) == 0
    rows = {row.name: row for row in describe(broker).configs}
    assert {name: row.value for name, row in rows.items()} == {SESSION: "50000", HEARTBEAT: "3000", INTERVAL: "1000"}
    assert not any(row.read_only for row in rows.values())
    broker_name = f"group.{SESSION}"
    assert [(each.name, each.value, each.source) for each in rows[SESSION].synonyms] == [
        (SESSION, "50000", ConfigSource.GROUP_CONFIG),
        (broker_name, "45000", ConfigSource.DEFAULT_CONFIG),
    ]
    assert rows[SESSION].config_source == ConfigSource.GROUP_CONFIG
    assert rows[HEARTBEAT].config_source == ConfigSource.STATIC_BROKER_CONFIG
    assert rows[INTERVAL].config_source == ConfigSource.DEFAULT_CONFIG
    # Groups have settings whether they exist or not.
    assert describe(broker, "nobody").error_code == 0


@pytest.mark.parametrize(
    ("name", "operation", "value", "error"),
    [
        (SESSION, SET, "44999", ErrorCode.INVALID_CONFIG),
        (SESSION, SET, "60001", ErrorCode.INVALID_CONFIG),
        (HEARTBEAT, SET, "4999", ErrorCode.INVALID_CONFIG),
        (HEARTBEAT, SET, "15001", ErrorCode.INVALID_CONFIG),
        (INTERVAL, SET, "15001", ErrorCode.INVALID_CONFIG),
        (SESSION, SET, "soon", ErrorCode.INVALID_CONFIG),
        (SESSION, SET, None, ErrorCode.INVALID_REQUEST),
        (SESSION, APPEND, "50000", ErrorCode.INVALID_CONFIG),
        ("group.consumer.session.timeout.ms", SET, "50000", ErrorCode.INVALID_CONFIG),
        ("retention.ms", SET, "50000", ErrorCode.INVALID_CONFIG),
    ],
)
def test_what_is_refused(broker: AdminBroker, name: str, operation: int, value: str | None, error: int) -> None:
    assert alter(broker, (name, operation, value)) == error
    assert overrides(broker) == {}


@pytest.mark.parametrize("group", ["", "g" * 1001])
def test_groups_that_can_have_no_settings(broker: AdminBroker, group: str) -> None:
    assert alter(broker, (SESSION, SET, "50000"), group=group) == ErrorCode.INVALID_REQUEST


def test_a_session_is_longer_than_the_time_between_heartbeats(make_broker: Callable[..., AdminBroker]) -> None:
    broker = make_broker("group.consumer.min.session.timeout.ms=6000")
    assert alter(broker, (SESSION, SET, "6000"), (HEARTBEAT, SET, "6000")) == ErrorCode.INVALID_CONFIG
    assert alter(broker, (SESSION, SET, "6000"), (HEARTBEAT, SET, "5999")) == 0
    assert alter(broker, (HEARTBEAT, SET, "7000")) == ErrorCode.INVALID_CONFIG
    assert overrides(broker) == {SESSION: "6000", HEARTBEAT: "5999"}


def test_alter_configs_replaces_what_a_group_has(broker: AdminBroker) -> None:
    assert alter(broker, (SESSION, SET, "50000")) == 0
    configs = [k33.AlterableConfig(name=HEARTBEAT, value="6000")]
    resource = k33.AlterConfigsResource(resource_type=GROUP, resource_name="readers", configs=configs)
    request = k33.AlterConfigsRequest(resources=[resource])
    (row,) = broker.call(k33.ALTER_CONFIGS, request, k33.AlterConfigsResponse, 2).responses
    assert row.error_code == 0
    assert overrides(broker) == {HEARTBEAT: "6000"}
    assert alter(broker, (HEARTBEAT, DELETE, None)) == 0
    assert overrides(broker) == {}


def test_groups_with_settings_are_listed(broker: AdminBroker) -> None:
    for group in ("b", "a"):
        assert alter(broker, (SESSION, SET, "50000"), group=group) == 0

    def listed(*types: int) -> set[tuple[int, str]]:
        request = ListConfigResourcesRequest(resource_types=list(types))
        response = broker.call(LIST_CONFIG_RESOURCES, request, ListConfigResourcesResponse, 1)
        return {(row.resource_type, row.resource_name) for row in response.config_resources}

    assert listed(GROUP) == {(GROUP, "a"), (GROUP, "b")}
    assert listed(GROUP) < listed()
    assert alter(broker, (SESSION, DELETE, None), group="a") == 0
    assert listed(GROUP) == {(GROUP, "b")}


def test_groups_with_settings_are_limited(broker: AdminBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_configs, "GROUPS_MAX", 2)
    resources = [
        k44.AlterConfigsResource(
            resource_type=GROUP,
            resource_name=name,
            configs=[k44.AlterableConfig(name=SESSION, config_operation=SET, value="50000")],
        )
        for name in "abc"
    ]
    request = k44.IncrementalAlterConfigsRequest(resources=resources)
    response = broker.call(k44.INCREMENTAL_ALTER_CONFIGS, request, k44.IncrementalAlterConfigsResponse, 1)
    assert [row.error_code for row in response.responses] == [0, 0, ErrorCode.POLICY_VIOLATION]
    # Those that have settings can go on changing them.
    assert alter(broker, (HEARTBEAT, SET, "6000"), group="a") == 0
    assert alter(broker, (SESSION, DELETE, None), group="b") == 0
    assert alter(broker, (SESSION, SET, "50000"), group="c") == 0


def test_values_out_of_new_bounds_count_as_the_nearest(make_broker: Callable[..., AdminBroker]) -> None:
    stored = {SESSION: "50000", HEARTBEAT: "6000"}
    stricter = make_broker(
        "group.consumer.max.session.timeout.ms=46000", "group.consumer.min.heartbeat.interval.ms=7000"
    )
    assert group_values(stored, stricter.settings) == {f"group.{SESSION}": 46_000, f"group.{HEARTBEAT}": 7_000}
    useless = make_broker("group.consumer.max.session.timeout.ms=5000", "group.consumer.min.session.timeout.ms=1")
    assert group_values({**stored, INTERVAL: "7"}, useless.settings) == {f"group.{INTERVAL}": 7}
