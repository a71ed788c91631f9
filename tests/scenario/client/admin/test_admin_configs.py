from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog import Admin
from tidelog.client.admin import AlterOperation, ConfigChange, ConfigResource, ConfigSource, ResourceType
from tidelog.client.errors import BrokerError, ConfigError, UnsupportedVersionError
from tidelog.protocol import ErrorCode

FreshName = Callable[[str], str]
MakeTopic = Callable[..., str]
WaitUntil = Callable[[Callable[[], bool], str], None]


def value_of(admin: Admin, resource: ConfigResource, name: str) -> str | None:
    return admin.describe_configs(resource, [name])[resource][name].value


def test_settings_of_a_topic(admin: Admin, make_topic: MakeTopic, wait_until: WaitUntil) -> None:
    resource = ConfigResource.topic(make_topic(configs={"cleanup.policy": "compact"}))
    configs = admin.describe_configs(resource)[resource]
    assert list(configs) == sorted(configs)
    assert configs["cleanup.policy"].value == "compact"
    assert configs["cleanup.policy"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert configs["retention.ms"].is_default
    assert not configs["retention.ms"].read_only
    assert not configs["retention.ms"].sensitive
    assert admin.incremental_alter_configs({resource: {"retention.ms": 5000, "cleanup.policy": None}}) == {
        resource: None
    }
    wait_until(lambda: value_of(admin, resource, "retention.ms") == "5000", "the change is told")
    assert value_of(admin, resource, "cleanup.policy") == "delete"


def test_lists_are_added_to_and_taken_from(admin: Admin, make_topic: MakeTopic, wait_until: WaitUntil) -> None:
    resource = ConfigResource.topic(make_topic())
    admin.incremental_alter_configs(
        {resource: [ConfigChange("cleanup.policy", AlterOperation.APPEND, "compact")]}
    ).raise_for_errors()
    wait_until(lambda: value_of(admin, resource, "cleanup.policy") == "delete,compact", "the policy is added")
    admin.incremental_alter_configs(
        {resource: [ConfigChange("cleanup.policy", AlterOperation.SUBTRACT, "delete")]}
    ).raise_for_errors()
    wait_until(lambda: value_of(admin, resource, "cleanup.policy") == "compact", "the policy is taken away")


def test_validation_changes_nothing(admin: Admin, make_topic: MakeTopic) -> None:
    resource = ConfigResource.topic(make_topic())
    checked = admin.incremental_alter_configs({resource: {"retention.ms": 7}}, validate_only=True)
    assert checked == {resource: None}
    assert value_of(admin, resource, "retention.ms") != "7"
    refused = admin.incremental_alter_configs({resource: {"retention.ms": "soon"}}, validate_only=True)
    with pytest.raises(BrokerError, match="INVALID_CONFIG"):
        refused.raise_for_errors()


def test_what_is_refused_does_not_hurt_the_others(
    admin: Admin, make_topic: MakeTopic, fresh_name: FreshName, wait_until: WaitUntil
) -> None:
    good, missing = ConfigResource.topic(make_topic()), ConfigResource.topic(fresh_name("missing"))
    changed = admin.incremental_alter_configs({missing: {"retention.ms": 1}, good: {"retention.ms": 60_000}})
    assert changed.succeeded == {good: None}
    error = changed.errors[missing]
    assert isinstance(error, BrokerError)
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    described = admin.describe_configs([missing, good], ["retention.ms"])
    assert list(described.errors) == [missing]
    wait_until(lambda: value_of(admin, good, "retention.ms") == "60000", "the change is told")


def test_only_the_settings_named_are_told(admin: Admin, make_topic: MakeTopic) -> None:
    resource = ConfigResource.topic(make_topic())
    named = admin.describe_configs(
        resource, ["retention.ms", "segment.bytes"], include_documentation=True, include_synonyms=True
    )[resource]
    assert list(named) == ["retention.ms", "segment.bytes"]
    assert named["retention.ms"].documentation
    assert [synonym.name for synonym in named["segment.bytes"].synonyms][-1] == "log.segment.bytes"
    bare = admin.describe_configs(resource, ["segment.bytes"])[resource]["segment.bytes"]
    assert not bare.synonyms
    assert not bare.documentation


def test_settings_of_brokers(admin: Admin, wait_until: WaitUntil) -> None:
    node, *_ = admin.describe_cluster().nodes
    one, everyone = ConfigResource.broker(node.node_id), ConfigResource.broker()
    described = admin.describe_configs([one, everyone])
    assert described[one]["log.retention.ms"].name == "log.retention.ms"
    assert described[one]["node.id"].read_only
    admin.incremental_alter_configs({everyone: {"message.max.bytes": 1_000_000}}).raise_for_errors()
    wait_until(lambda: value_of(admin, one, "message.max.bytes") == "1000000", "the default of all holds for one")
    admin.incremental_alter_configs({everyone: {"message.max.bytes": None}}).raise_for_errors()
    wait_until(lambda: value_of(admin, one, "message.max.bytes") == "1048588", "the default is back")


def test_brokers_that_are_not_there(admin: Admin) -> None:
    node, *_ = admin.describe_cluster().nodes
    here, gone = ConfigResource.broker(node.node_id), ConfigResource.broker(node.node_id + 1000)
    described = admin.describe_configs([gone, here])
    assert list(described.succeeded) == [here]
    assert f"broker {node.node_id + 1000} is not in the cluster" in str(described.errors[gone])
    with pytest.raises(ConfigError, match="a broker is named by its id, a number, not 'first'"):
        admin.describe_configs(ConfigResource(ResourceType.BROKER, "first"))


def test_what_has_settings_is_listed(admin: Admin, make_topic: MakeTopic) -> None:
    name = make_topic()
    node, *_ = admin.describe_cluster().nodes
    try:
        listed = admin.list_config_resources()
    except UnsupportedVersionError:
        pytest.skip("this broker lists subscriptions of client metrics only")
    assert {ConfigResource.topic(name), ConfigResource.broker(node.node_id)} <= set(listed)
    assert {resource.type for resource in admin.list_config_resources([ResourceType.TOPIC])} == {ResourceType.TOPIC}
    assert admin.list_config_resources([ResourceType.CLIENT_METRICS]) == []
