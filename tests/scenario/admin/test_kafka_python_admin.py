"""kafka-python's admin client through the life of a topic."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidelog.testing import Broker

# It loads its message definitions when they are first used, by a function that Python has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def kafka() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka
        import kafka.admin
        import kafka.errors
    return kafka  # type: ignore[no-any-return]  # the library has no types


def test_kafka_python(tidelog_broker: Broker, kafka: ModuleType) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=tidelog_broker.bootstrap)
    try:
        admin.create_topics(
            [kafka.admin.NewTopic("a", num_partitions=2, replication_factor=1, topic_configs={"retention.ms": "9"})]
        )
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            admin.create_topics([kafka.admin.NewTopic("a", num_partitions=2, replication_factor=1)])
        assert admin.list_topics() == ["a"]
        admin.create_partitions({"a": kafka.admin.NewPartitions(4)})
        [described] = admin.describe_topics(["a"])
        assert len(described["partitions"]) == 4
        assert [broker["broker_id"] for broker in admin.describe_cluster()["brokers"]] == [1]
        topic = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, "a")
        assert "retention.ms" in str(admin.describe_configs([topic]))
        admin.alter_configs(
            [kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, "a", configs={"segment.ms": "7000"})]
        )
        assert "7000" in str(admin.describe_configs([topic]))
        admin.delete_topics(["a"])
        assert admin.list_topics() == []
    finally:
        admin.close()
