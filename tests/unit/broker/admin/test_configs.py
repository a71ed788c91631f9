"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.broker.topic_config import effective_log_config
from tidelog.common.settings import SettingScope
from tidelog.controller import NewTopic
from tidelog.protocol.messages import k33_alter_configs as k33
from tidelog.protocol.messages import k44_incremental_alter_configs as k44
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tidelog.protocol.messages.k74_list_config_resources import (
    LIST_CONFIG_RESOURCES,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tidelog.server.settings_table import TABLE

if TYPE_CHECKING:
    from tests.unit.broker.admin.conftest import AdminBroker

TOPIC, BROKER, LOGGERS, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
Row = tuple[int, str, int]


def make(broker: AdminBroker, name: str = "orders", **configs: str) -> None:
    named: dict[str, str | None] = {key.replace("_", "."): value for key, value in configs.items()}
    [result] = broker.run(broker.controller.create_topics([NewTopic(name, configs=named)]))
    assert result.error == 0


def describe(
    broker: AdminBroker, kind: int, name: str, keys: list[str] | None = None, version: int = 4, **more: bool
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = DescribeConfigsRequest(resources=[resource], **more)
    [result] = broker.call(DESCRIBE_CONFIGS, request, DescribeConfigsResponse, version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def described(broker: AdminBroker, kind: int, name: str) -> dict[str, DescribeConfigsResourceResult]:
    result = describe(broker, kind, name, include_synonyms=True, include_documentation=True)
    assert (result.error_code, result.error_message) == (0, "")
    return {config.name: config for config in result.configs}


def synonyms(config: DescribeConfigsResourceResult) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


def alter(
    broker: AdminBroker, *changes: tuple[int, str, str, int, str | None], validate_only: bool = False
) -> list[Row]:
    """IncrementalAlterConfigs with (resource type, resource name, setting, operation, value)."""
    resources: dict[tuple[int, str], k44.AlterConfigsResource] = {}
    for kind, name, setting, operation, value in changes:
        resource = resources.setdefault((kind, name), k44.AlterConfigsResource(resource_type=kind, resource_name=name))
        resource.configs.append(k44.AlterableConfig(name=setting, config_operation=operation, value=value))
    request = k44.IncrementalAlterConfigsRequest(resources=list(resources.values()), validate_only=validate_only)
    response = broker.call(k44.INCREMENTAL_ALTER_CONFIGS, request, k44.IncrementalAlterConfigsResponse, version=1)
    for row in response.responses:
        assert bool(row.error_message) == (row.error_code != 0)
    return [(row.resource_type, row.resource_name, row.error_code) for row in response.responses]


@pytest.mark.parametrize("version", range(1, 5))
def test_every_topic_setting_is_described(broker: AdminBroker, version: int) -> None:
    """Behaviour 17."""
    make(broker, retention_ms="1000")
    result = describe(broker, TOPIC, "orders", version=version)
    configs = {config.name: config for config in result.configs}
    assert set(configs) == {row.name for row in TABLE.rows(SettingScope.TOPIC)}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == ("delete", 5)
    assert configs["preallocate"].value == "false"
    for config in result.configs:
        assert not config.read_only
        assert not config.is_sensitive
        assert config.synonyms == []
        assert not config.documentation
        assert bool(config.config_type) == (version >= 3)


def test_values_come_from_topic_then_broker_then_all_brokers_then_start_then_default(
    make_broker: Callable[..., AdminBroker],
) -> None:
    """Behaviour 17: sources, and the chain of synonyms with the value in force first."""
    broker = make_broker("log.retention.ms=4")
    make(broker)
    default = ("log.retention.hours", "168", 5)
    static = ("log.retention.ms", "4", 4)
    chain = [static, default]
    assert synonyms(described(broker, TOPIC, "orders")["retention.ms"]) == chain

    for change, link in (
        ((BROKER, "", "log.retention.ms", SET, "3"), ("log.retention.ms", "3", 3)),
        ((BROKER, "1", "log.retention.ms", SET, "2"), ("log.retention.ms", "2", 2)),
        ((TOPIC, "orders", "retention.ms", SET, "1"), ("retention.ms", "1", 1)),
    ):
        assert [row[2] for row in alter(broker, change)] == [0]
        chain.insert(0, link)
        config = described(broker, TOPIC, "orders")["retention.ms"]
        assert synonyms(config) == chain
        assert (config.value, config.config_source) == (link[1], link[2])
        log_config = effective_log_config(broker.settings, TABLE, broker.image, "orders")
        assert log_config.retention_ms == int(link[1])

    assert alter(broker, (TOPIC, "orders", "retention.ms", DELETE, None)) == [(TOPIC, "orders", 0)]
    assert described(broker, TOPIC, "orders")["retention.ms"].value == "2"


def test_a_static_setting_in_another_unit_is_shown_in_its_own(make_broker: Callable[..., AdminBroker]) -> None:
    broker = make_broker("log.retention.minutes=2", "log.retention.hours=1")
    make(broker)
    config = described(broker, TOPIC, "orders")["retention.ms"]
    assert (config.value, config.config_source) == ("120000", 4)
    assert synonyms(config) == [
        ("log.retention.minutes", "2", 4),
        ("log.retention.hours", "1", 4),
        ("log.retention.hours", "168", 5),
    ]


def test_a_broker_describes_itself(make_broker: Callable[..., AdminBroker]) -> None:
    """Behaviour 17."""
    broker = make_broker("num.partitions=3")
    configs = described(broker, BROKER, "1")
    assert set(configs) == {row.name for row in TABLE.rows(SettingScope.BROKER)}
    partitions = configs["num.partitions"]
    assert (partitions.value, partitions.config_source, partitions.read_only) == ("3", 4, True)
    assert synonyms(partitions) == [("num.partitions", "3", 4), ("num.partitions", "1", 5)]
    assert (configs["message.max.bytes"].value, configs["message.max.bytes"].read_only) == ("1048588", False)
    assert configs["broker.rack"].value is None
    assert configs["log.retention.ms"].value == "604800000"
    assert all(config.documentation for config in configs.values())
    assert configs["listeners"].config_type == 7


def test_the_defaults_of_all_brokers_show_only_what_was_set_for_all(make_broker: Callable[..., AdminBroker]) -> None:
    broker = make_broker("log.segment.bytes=1000")
    alter(broker, (BROKER, "1", "log.segment.bytes", SET, "2000"), (BROKER, "", "message.max.bytes", SET, "3000"))
    configs = described(broker, BROKER, "")
    assert (configs["message.max.bytes"].value, configs["message.max.bytes"].config_source) == ("3000", 3)
    assert synonyms(configs["message.max.bytes"]) == [("message.max.bytes", "3000", 3)]
    assert list(configs) == ["message.max.bytes"]


def test_only_the_settings_asked_for(broker: AdminBroker) -> None:
    make(broker)
    names = {config.name for config in describe(broker, TOPIC, "orders", ["retention.ms", "no.such"]).configs}
    assert names == {"retention.ms"}
    assert len(describe(broker, TOPIC, "orders", []).configs) == len(list(TABLE.rows(SettingScope.TOPIC)))


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "nowhere", 3),
        (TOPIC, "bad name", 17),
        (BROKER, "2", 42),
        (BROKER, "x", 42),
        (LOGGERS, "2", 42),
        (LOGGERS, "", 42),
        (0, "", 42),
    ],
)
def test_what_cannot_be_described(broker: AdminBroker, kind: int, name: str, error: int) -> None:
    result = describe(broker, kind, name)
    assert result.error_code == error
    assert result.error_message
    assert result.configs == []


def test_lists_grow_and_shrink(broker: AdminBroker) -> None:
    """Behaviour 17: APPEND and SUBTRACT start from the value in force."""
    make(broker)
    policy = (TOPIC, "orders", "cleanup.policy")
    for operation, value, expected in (
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SET, "delete", "delete"),
    ):
        assert [row[2] for row in alter(broker, (*policy, operation, value))] == [0]
        assert described(broker, TOPIC, "orders")["cleanup.policy"].value == expected


@pytest.mark.parametrize(
    ("kind", "name", "setting", "operation", "value", "error"),
    [
        (TOPIC, "orders", "retention.mss", SET, "1", 40),
        (TOPIC, "orders", "retention.ms", SET, "soon", 40),
        (TOPIC, "orders", "retention.ms", SET, None, 42),
        (TOPIC, "orders", "retention.ms", APPEND, "1", 40),
        (TOPIC, "orders", "cleanup.policy", APPEND, "burn", 40),
        (TOPIC, "orders", "retention.ms", 9, "1", 42),
        (TOPIC, "nowhere", "retention.ms", SET, "1", 3),
        (TOPIC, "", "retention.ms", SET, "1", 42),
        (TOPIC, "bad name!", "retention.ms", SET, "1", 17),
        (BROKER, "1", "num.partitions", SET, "2", 42),
        (BROKER, "1", "no.such.setting", SET, "1", 40),
        (BROKER, "x", "message.max.bytes", SET, "1", 42),
        (BROKER, "7", "message.max.bytes", SET, "1", 42),
        (LOGGERS, "1", "no.such.logger", SET, "DEBUG", 40),
        (LOGGERS, "1", "kafka", SET, "DEBUG", 40),
        (LOGGERS, "1", "root", SET, "debug", 40),
        (LOGGERS, "1", "root", SET, None, 42),
        (LOGGERS, "1", "root", DELETE, None, 42),
        (LOGGERS, "1", "root", APPEND, "DEBUG", 42),
        (LOGGERS, "2", "root", SET, "DEBUG", 42),
        (LOGGERS, "", "root", SET, "DEBUG", 42),
    ],
)
def test_refused_changes_leave_others_alone(
    broker: AdminBroker, kind: int, name: str, setting: str, operation: int, value: str | None, error: int
) -> None:
    make(broker)
    make(broker, "other")
    rows = alter(broker, (kind, name, setting, operation, value), (TOPIC, "other", "retention.ms", SET, "5"))
    assert rows == [(kind, name, error), (TOPIC, "other", 0)]
    assert broker.image.topic_configs("orders") == {}
    assert broker.image.topic_configs("other") == {"retention.ms": "5"}


@pytest.mark.parametrize("setting", ["node.id", "num.partitions", "log.dirs"])
def test_what_a_broker_reads_only_at_its_start_is_not_changed(broker: AdminBroker, setting: str) -> None:
    [(_, _, error)] = alter(broker, (BROKER, "1", setting, SET, "2"))
    assert error in (40, 42)
    assert broker.image.broker_configs(1) == {}


def test_a_setting_or_resource_that_stands_twice_is_refused(broker: AdminBroker) -> None:
    make(broker)
    setting = (TOPIC, "orders", "retention.ms")
    assert alter(broker, (*setting, SET, "1"), (*setting, DELETE, None)) == [(TOPIC, "orders", 42)]
    resource = k44.AlterConfigsResource(resource_type=TOPIC, resource_name="orders")
    request = k44.IncrementalAlterConfigsRequest(resources=[resource, resource])
    response = broker.call(k44.INCREMENTAL_ALTER_CONFIGS, request, k44.IncrementalAlterConfigsResponse, 1)
    assert [row.error_code for row in response.responses] == [42, 42]


def test_validate_only_changes_nothing(broker: AdminBroker) -> None:
    make(broker)
    assert alter(broker, (TOPIC, "orders", "retention.ms", SET, "1"), validate_only=True) == [(TOPIC, "orders", 0)]
    assert broker.image.topic_configs("orders") == {}


def replace(broker: AdminBroker, version: int, **configs: str | None) -> int:
    resource = k33.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="orders",
        configs=[k33.AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )
    request = k33.AlterConfigsRequest(resources=[resource])
    [row] = broker.call(k33.ALTER_CONFIGS, request, k33.AlterConfigsResponse, version).responses
    assert (row.resource_type, row.resource_name) == (TOPIC, "orders")
    return row.error_code


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_puts_back_what_it_does_not_name(broker: AdminBroker, version: int) -> None:
    make(broker, retention_ms="1", segment_bytes="100")
    assert replace(broker, version, retention_ms="2") == 0
    assert broker.image.topic_configs("orders") == {"retention.ms": "2"}
    assert replace(broker, version, retention_ms="x") == 40
    assert replace(broker, version, retention_ms=None) == 42
    assert broker.image.topic_configs("orders") == {"retention.ms": "2"}
    assert replace(broker, version) == 0
    assert broker.image.topic_configs("orders") == {}


def test_deleting_a_topic_forgets_its_settings(broker: AdminBroker) -> None:
    make(broker, retention_ms="1")
    broker.run(broker.controller.delete_topics(["orders"]))
    make(broker)
    assert described(broker, TOPIC, "orders")["retention.ms"].config_source == 5


def list_resources(broker: AdminBroker, version: int, *types: int) -> tuple[int, set[tuple[int, str]]]:
    request = ListConfigResourcesRequest(resource_types=list(types))
    response = broker.call(LIST_CONFIG_RESOURCES, request, ListConfigResourcesResponse, version)
    return response.error_code, {(each.resource_type, each.resource_name) for each in response.config_resources}


def test_what_has_settings_is_listed(broker: AdminBroker) -> None:
    make(broker)
    assert list_resources(broker, 1) == (0, {(TOPIC, "orders"), (BROKER, "1"), (LOGGERS, "1")})
    assert list_resources(broker, 1, TOPIC, TOPIC) == (0, {(TOPIC, "orders")})
    assert list_resources(broker, 1, 16, GROUP) == (0, set())
    assert list_resources(broker, 1, 99) == (35, set())
    assert list_resources(broker, 0) == (0, set())
