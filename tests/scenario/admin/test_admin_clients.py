"""The admin clients people use, through the life of a topic: confluent-kafka (librdkafka) and aiokafka."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tidelog.testing import Broker

TIMEOUT_S = 20


@pytest.fixture
def confluent(tidelog_broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": tidelog_broker.bootstrap, "log_level": 3})


def results(futures: dict[Any, Any]) -> dict[Any, Any]:
    """Every future's value, or the code of the error it failed with."""
    values: dict[Any, Any] = {}
    for key, future in futures.items():
        try:
            values[key] = future.result(TIMEOUT_S)
        except KafkaException as error:
            values[key] = error.args[0].code()
    return values


def test_confluent_topics(confluent: AdminClient) -> None:
    wanted = [NewTopic("a", 3, 1, config={"retention.ms": "1000"}), NewTopic("b"), NewTopic("c", 1, 5)]
    assert results(confluent.create_topics(wanted)) == {"a": None, "b": None, "c": 38}
    assert results(confluent.create_topics([NewTopic("a")])) == {"a": 36}
    listed = confluent.list_topics(timeout=TIMEOUT_S)
    assert {name: len(topic.partitions) for name, topic in listed.topics.items()} == {"a": 3, "b": 1}
    assert {broker.id for broker in listed.brokers.values()} == {1}
    assert listed.controller_id == 1

    assert results(confluent.create_partitions([NewPartitions("a", 5), NewPartitions("b", 1)])) == {"a": None, "b": 37}
    described = results(
        confluent.describe_topics(TopicCollection(["a", "nowhere"]), include_authorized_operations=True)
    )
    assert len(described["a"].partitions) == 5
    assert described["a"].authorized_operations
    assert described["nowhere"] == 3

    assert results(confluent.delete_topics(["a", "nowhere"])) == {"a": None, "nowhere": 3}
    assert set(confluent.list_topics(timeout=TIMEOUT_S).topics) == {"b"}


def test_confluent_configs(confluent: AdminClient) -> None:
    results(confluent.create_topics([NewTopic("a", 1, 1)]))
    topic = ConfigResource(ResourceType.TOPIC, "a")
    [configs] = results(confluent.describe_configs([topic])).values()
    assert (configs["retention.ms"].value, configs["retention.ms"].is_default) == ("604800000", True)
    assert configs["retention.ms"].source == ConfigSource.DEFAULT_CONFIG.value

    changes = [
        ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
    ]
    changed = ConfigResource(ResourceType.TOPIC, "a", incremental_configs=changes)
    assert list(results(confluent.incremental_alter_configs([changed])).values()) == [None]
    [configs] = results(confluent.describe_configs([topic])).values()
    assert (configs["retention.ms"].value, configs["retention.ms"].source) == (
        "5000",
        ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
    )
    assert configs["cleanup.policy"].value == "delete,compact"

    replaced = ConfigResource(ResourceType.TOPIC, "a", set_config={"segment.ms": "7000"})
    with pytest.warns(DeprecationWarning, match="incremental_alter_configs"):
        futures = confluent.alter_configs([replaced])
    assert list(results(futures).values()) == [None]
    [configs] = results(confluent.describe_configs([topic])).values()
    assert (configs["retention.ms"].value, configs["segment.ms"].value) == ("604800000", "7000")

    wrong = ConfigResource(
        ResourceType.TOPIC,
        "a",
        incremental_configs=[ConfigEntry("retention.ms", "x", incremental_operation=AlterConfigOpType.SET)],
    )
    assert list(results(confluent.incremental_alter_configs([wrong])).values()) == [40]
    [configs] = results(confluent.describe_configs([ConfigResource(ResourceType.BROKER, "1")])).values()
    assert configs["node.id"].is_read_only
    assert not configs["message.max.bytes"].is_read_only


def test_confluent_cluster(confluent: AdminClient) -> None:
    cluster = confluent.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
    assert cluster.controller.id == 1
    assert [node.id for node in cluster.nodes] == [1]
    assert cluster.cluster_id
    assert cluster.authorized_operations


def test_aiokafka(tidelog_broker: Broker) -> None:
    async def scenario() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=tidelog_broker.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([AioNewTopic("a", num_partitions=2, replication_factor=1)])
            assert await admin.list_topics() == ["a"]
            [described] = await admin.describe_topics(["a"])
            assert len(described["partitions"]) == 2
            assert (await admin.describe_cluster())["controller_id"] == 1
            [response] = await admin.describe_configs([AioConfigResource(AioConfigResourceType.TOPIC, "a")])
            assert "retention.ms" in str(response)
            await admin.delete_topics(["a"])
            assert await admin.list_topics() == []
        finally:
            await admin.close()

    asyncio.run(scenario())
