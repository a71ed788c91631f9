"""Metadata and administration against a whole broker, over a raw connection (behaviours 12 to 17)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from tidelog.protocol.messages import k44_incremental_alter_configs as k44
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceRequest, ProduceResponse
from tidelog.protocol.messages.k01_fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.k03_metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tidelog.protocol.messages.k19_create_topics import (
    CREATE_TOPICS,
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
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.protocol.messages.k37_create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.testing import Broker
from tidelog.testing.raw_client import RawClient, produce_request

TOPIC, BROKER = 2, 4
DEADLINE_S = 20.0


@pytest.fixture
def client(tidelog_broker: Broker) -> Iterator[RawClient]:
    with RawClient(tidelog_broker.port) as connected:
        yield connected


def metadata(client: RawClient, *names: str, version: int = 12, create: bool = False) -> list[MetadataResponseTopic]:
    topics = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create)
    return client.ask(METADATA, request, MetadataResponse, version).topics


def create(client: RawClient, name: str, partitions: int = 1, **configs: str) -> tuple[int, uuid.UUID]:
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )
    [result] = client.ask(
        CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=10_000), CreateTopicsResponse, 7
    ).topics
    return result.error_code, result.topic_id


def delete(client: RawClient, **topic: str | uuid.UUID) -> int:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(**topic)], timeout_ms=1000)  # type: ignore[arg-type]  # one of
    [result] = client.ask(DELETE_TOPICS, request, DeleteTopicsResponse, 6).responses
    return result.error_code


def produce(client: RawClient, topic: str, *values: bytes, partition: int = 0) -> int:
    request = produce_request(topic, *values, partition=partition)
    answer = client.ask(PRODUCE, request, ProduceResponse, 9)
    return answer.responses[0].partition_responses[0].error_code


def alter(client: RawClient, kind: int, name: str, setting: str, value: str | None) -> int:
    change = k44.AlterableConfig(name=setting, config_operation=0 if value is not None else 1, value=value)
    resource = k44.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])
    request = k44.IncrementalAlterConfigsRequest(resources=[resource])
    answer = client.ask(k44.INCREMENTAL_ALTER_CONFIGS, request, k44.IncrementalAlterConfigsResponse, 1)
    return answer.responses[0].error_code


def test_asking_creates_a_topic_in_the_background_and_producing_does_not() -> None:
    """Behaviour 14: first 3 or 5, then a leader; num.partitions counts; produce never creates."""
    with Broker(settings={"num.partitions": 3}) as broker, RawClient(broker.port) as client:
        assert produce(client, "produced", b"x") == 3
        assert [topic.error_code for topic in metadata(client, "produced")] == [3]
        [first] = metadata(client, "asked", create=True)
        assert first.error_code in (3, 5)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            [topic] = metadata(client, "asked", create=True)
            if topic.error_code == 0 and all(partition.error_code == 0 for partition in topic.partitions):
                break
            assert time.monotonic() < deadline
        assert [partition.leader_id for partition in topic.partitions] == [1, 1, 1]
        assert [produce(client, "asked", b"x", partition=index) for index in range(3)] == [0, 0, 0]


def test_without_auto_creation_nothing_appears() -> None:
    """Behaviour 12."""
    with Broker(settings={"auto.create.topics.enable": False}) as broker, RawClient(broker.port) as client:
        assert [topic.error_code for topic in metadata(client, "asked", create=True)] == [3]
        assert [topic.error_code for topic in metadata(client, "bad name", create=True)] == [17]
        assert client.ask(METADATA, MetadataRequest(topics=None), MetadataResponse, 12).topics == []


def test_null_and_empty_lists_of_topics(client: RawClient) -> None:
    """Behaviour 12: null = all, empty = none; in version 0 empty = all."""
    create(client, "a")
    create(client, "b")
    for version in range(14):
        if version:
            everything = client.ask(METADATA, MetadataRequest(topics=None), MetadataResponse, version).topics
            assert {topic.name for topic in everything} == {"a", "b"}
        empty = client.ask(METADATA, MetadataRequest(topics=[]), MetadataResponse, version).topics
        assert {topic.name for topic in empty} == (set() if version else {"a", "b"})


@pytest.mark.parametrize("partitions", [1, 20])
def test_a_created_topic_can_be_used_at_once(client: RawClient, partitions: int) -> None:
    """The answer to CreateTopics comes after its partitions are there."""
    for number in range(10):
        name = f"t{number}"
        assert create(client, name, partitions)[0] == 0
        for partition in {0, partitions - 1}:
            assert produce(client, name, b"first", partition=partition) == 0
    grown = CreatePartitionsTopic(name="t0", count=partitions + 5, assignments=None)
    request = CreatePartitionsRequest(topics=[grown], timeout_ms=10_000)
    [row] = client.ask(CREATE_PARTITIONS, request, CreatePartitionsResponse, 3).results
    assert (row.name, row.error_code, row.error_message) == ("t0", 0, None)
    assert produce(client, "t0", b"new", partition=partitions + 4) == 0
    assert produce(client, "t0", b"none", partition=partitions + 5) == 3


def fetch_by_id(client: RawClient, topic_id: uuid.UUID) -> int:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic_id=topic_id, partitions=[partition])])
    answer = client.ask(FETCH, request, FetchResponse, 13)
    return answer.error_code or answer.responses[0].partitions[0].error_code


def test_topic_ids_live_as_long_as_their_topic(tidelog_broker: Broker) -> None:
    """Behaviour 13: stable over restarts, new after delete and create; the old id is unknown then."""
    with RawClient(tidelog_broker.port) as client:
        error, first_id = create(client, "a")
        assert error == 0
        assert first_id.int != 0
        assert produce(client, "a", b"old") == 0
    tidelog_broker.stop()
    tidelog_broker.start()
    with RawClient(tidelog_broker.port) as client:
        assert [topic.topic_id for topic in metadata(client, "a")] == [first_id]
        assert fetch_by_id(client, first_id) == 0
        assert delete(client, topic_id=first_id) == 0
        assert fetch_by_id(client, first_id) == 100
        error, second_id = create(client, "a")
        assert error == 0
        assert second_id not in (first_id, uuid.UUID(int=0))
        assert fetch_by_id(client, first_id) == 100
        produced = produce_request("", b"new")
        topic = produced.topic_data[0]
        topic.topic_id = first_id
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
        answer = client.ask(PRODUCE, request, ProduceResponse, 13)
        assert answer.responses[0].partition_responses[0].error_code == 100
        assert delete(client, topic_id=first_id) == 100
        assert delete(client, name="a") == 0
        assert delete(client, name="a") == 3
        assert produce(client, "a", b"gone") == 3


def test_one_request_creates_what_it_can(client: RawClient) -> None:
    """Behaviour 15."""
    create(client, "there")
    wanted = [
        CreatableTopic(name="there", num_partitions=1, replication_factor=1),
        CreatableTopic(name="no-partitions", num_partitions=0, replication_factor=1),
        CreatableTopic(name="many-replicas", num_partitions=1, replication_factor=3),
        CreatableTopic(
            name="bad-config",
            num_partitions=1,
            replication_factor=1,
            configs=[CreatableTopicConfig(name="retention.ms", value="x")],
        ),
        CreatableTopic(name="dotted.name", num_partitions=-1, replication_factor=-1),
        CreatableTopic(name="dotted_name", num_partitions=1, replication_factor=1),
        CreatableTopic(name="twice", num_partitions=1, replication_factor=1),
        CreatableTopic(name="twice", num_partitions=1, replication_factor=1),
    ]
    for validate_only in (True, False):
        request = CreateTopicsRequest(topics=wanted, timeout_ms=10_000, validate_only=validate_only)
        results = client.ask(CREATE_TOPICS, request, CreateTopicsResponse, 7).topics
        assert {result.name: result.error_code for result in results} == {
            "there": 36,
            "no-partitions": 37,
            "many-replicas": 38,
            "bad-config": 40,
            "dotted.name": 0,
            "dotted_name": 17,
            "twice": 42,
        }
        everything = client.ask(METADATA, MetadataRequest(topics=None), MetadataResponse, 12).topics
        assert {topic.name for topic in everything} == ({"there"} if validate_only else {"there", "dotted.name"})


def test_a_change_of_a_topic_s_settings_takes_effect_at_once(client: RawClient) -> None:
    """Behaviour 17."""
    create(client, "a")
    assert produce(client, "a", b"x" * 1000) == 0
    assert alter(client, TOPIC, "a", "max.message.bytes", "500") == 0
    assert produce(client, "a", b"x" * 1000) == 10
    assert alter(client, TOPIC, "a", "max.message.bytes", None) == 0
    assert produce(client, "a", b"x" * 1000) == 0


def test_a_change_for_all_brokers_or_one_takes_effect_at_once_and_stays(tidelog_broker: Broker) -> None:
    """Behaviour 17."""
    with RawClient(tidelog_broker.port) as client:
        create(client, "a")
        create(client, "own", max_message_bytes="2000")
        assert alter(client, BROKER, "", "message.max.bytes", "500") == 0
        assert [produce(client, name, b"x" * 1000) for name in ("a", "own")] == [10, 0]
        assert alter(client, BROKER, "1", "message.max.bytes", "5000") == 0
        assert produce(client, "a", b"x" * 1000) == 0
        assert alter(client, BROKER, "1", "message.max.bytes", None) == 0
    tidelog_broker.stop()
    tidelog_broker.start()
    with RawClient(tidelog_broker.port) as client:
        assert produce(client, "a", b"x" * 1000) == 10
        resource = DescribeConfigsResource(
            resource_type=TOPIC, resource_name="a", configuration_keys=["max.message.bytes"]
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        [config] = client.ask(DESCRIBE_CONFIGS, request, DescribeConfigsResponse, 4).results[0].configs
        assert (config.value, config.config_source) == ("500", 3)
        assert [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms] == [
            ("message.max.bytes", "500", 3),
            ("message.max.bytes", "1048588", 5),
        ]


def test_hundreds_of_partitions_are_created_described_and_used(client: RawClient) -> None:
    assert create(client, "wide", 200)[0] == 0
    assert create(client, "wider", 200)[0] == 0
    topics = client.ask(METADATA, MetadataRequest(topics=None), MetadataResponse, 12).topics
    assert sum(len(topic.partitions) for topic in topics) == 400
    assert {partition.leader_id for topic in topics for partition in topic.partitions} == {1}
    assert [produce(client, name, b"x", partition=199) for name in ("wide", "wider")] == [0, 0]
    assert delete(client, name="wide") == 0
    assert delete(client, name="wider") == 0
