"""What the administrative requests answer, clause by clause, over a raw connection (behaviours 12 to 17)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from tidelog.common.settings import SettingScope
from tidelog.protocol.messages import k44_incremental_alter_configs as k44
from tidelog.protocol.messages.k00_produce import PRODUCE, ProduceResponse
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
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from tidelog.protocol.messages.k37_create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tidelog.server.settings_table import TABLE
from tidelog.testing import Broker
from tidelog.testing.raw_client import RawClient, produce_request

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC_SOURCE, DEFAULT_SOURCE = 1, 5


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[Broker]:
    with Broker(settings={"num.partitions": 3}) as broker:
        yield broker


@pytest.fixture
def client(shared_broker: Broker) -> Iterator[RawClient]:
    with RawClient(shared_broker.port) as connected:
        yield connected


@pytest.fixture
def topic(shared_broker: Broker) -> str:
    name = f"topic-{uuid.uuid4()}"
    shared_broker.create_topic(name)
    return name


def metadata(client: RawClient, *names: str | None, create: bool = False) -> list[MetadataResponseTopic]:
    topics = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create)
    return client.ask(METADATA, request, MetadataResponse, 12).topics


def all_names(client: RawClient) -> set[str | None]:
    return {each.name for each in client.ask(METADATA, MetadataRequest(topics=None), MetadataResponse, 12).topics}


def create(client: RawClient, *topics: CreatableTopic, version: int = 7) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=10_000)
    return client.ask(CREATE_TOPICS, request, CreateTopicsResponse, version).topics


def describe(client: RawClient, kind: int, name: str, *settings: str) -> dict[str, DescribeConfigsResourceResult]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=list(settings))
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = client.ask(DESCRIBE_CONFIGS, request, DescribeConfigsResponse, 4).results
    assert result.error_code == 0
    return {config.name: config for config in result.configs}


def alter(client: RawClient, topic: str, setting: str, operation: int, value: str | None) -> int:
    change = k44.AlterableConfig(name=setting, config_operation=operation, value=value)
    resource = k44.AlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=[change])
    request = k44.IncrementalAlterConfigsRequest(resources=[resource])
    answer = client.ask(k44.INCREMENTAL_ALTER_CONFIGS, request, k44.IncrementalAlterConfigsResponse, 1)
    return answer.responses[0].error_code


@pytest.mark.parametrize("name", ["bad name", "", ".", "..", "x" * 250, "größe", "a/b"])
def test_a_bad_name_is_told_and_never_created(client: RawClient, name: str) -> None:
    """Behaviour 12: though topics are created for those who ask."""
    before = all_names(client)
    for _ in range(2):
        assert [each.error_code for each in metadata(client, name, create=True)] == [17]
    assert all_names(client) == before


def test_an_unknown_id_is_told(client: RawClient) -> None:
    """Behaviour 13: metadata by an id that no topic has."""
    unknown = MetadataRequestTopic(name=None, topic_id=uuid.uuid4())
    request = MetadataRequest(topics=[unknown], allow_auto_topic_creation=True)
    (answer,) = client.ask(METADATA, request, MetadataResponse, 12).topics
    assert (answer.error_code, answer.topic_id) == (100, unknown.topic_id)


def test_asking_without_leave_to_create_creates_nothing(client: RawClient) -> None:
    """Behaviours 12 and 14: a client may say that it only wants to know."""
    for _ in range(2):
        assert [each.error_code for each in metadata(client, "never-wanted")] == [3]


@pytest.mark.parametrize("version", range(2, 8))
def test_numbers_of_partitions_and_replicas(client: RawClient, version: int) -> None:
    """Behaviour 15: none and negative ones are refused, -1 means the broker's defaults."""
    names = [f"t{version}-{index}" for index in range(5)]
    counts = [(0, 1), (-2, 1), (1, 0), (1, 2), (-1, -1)]
    wanted = [
        CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)
        for name, (partitions, replicas) in zip(names, counts, strict=True)
    ]
    errors = {result.name: result.error_code for result in create(client, *wanted, version=version)}
    assert [errors[name] for name in names] == [37, 37, 38, 38, 0]
    (made,) = metadata(client, names[-1])
    assert [partition.replica_nodes for partition in made.partitions] == [[1], [1], [1]]
    assert not set(names[:-1]) & all_names(client)


def test_a_name_that_differs_in_dots_and_underscores_collides(client: RawClient) -> None:
    """Behaviour 15: metrics would mix them up."""
    made = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("a.b_c", "a_b.c")]
    assert [create(client, each)[0].error_code for each in made] == [0, 17]


def test_every_topic_that_is_to_grow_has_its_row(client: RawClient, topic: str) -> None:
    """Behaviour 16: also those that shrink, stay, are unknown or stand twice."""
    grow = {topic: 4, "nowhere": 2}
    rows = client.ask(CREATE_PARTITIONS, _partitions(grow), CreatePartitionsResponse, 3).results
    assert {row.name: row.error_code for row in rows} == {topic: 0, "nowhere": 3}
    for count in (3, 4, 0, -1):
        (row,) = client.ask(CREATE_PARTITIONS, _partitions({topic: count}), CreatePartitionsResponse, 3).results
        assert (row.name, row.error_code) == (topic, 37)
        assert row.error_message
    twice = _partitions({topic: 9})
    twice.topics *= 2
    (row,) = client.ask(CREATE_PARTITIONS, twice, CreatePartitionsResponse, 3).results
    assert (row.name, row.error_code) == (topic, 42)
    trial = _partitions({topic: 9})
    trial.validate_only = True
    assert client.ask(CREATE_PARTITIONS, trial, CreatePartitionsResponse, 3).results[0].error_code == 0
    assert len(metadata(client, topic)[0].partitions) == 4


def _partitions(counts: dict[str, int]) -> CreatePartitionsRequest:
    topics = [CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in counts.items()]
    return CreatePartitionsRequest(topics=topics, timeout_ms=10_000)


def test_every_setting_is_listed(client: RawClient, topic: str) -> None:
    """Behaviour 17: with its value, where that comes from, and what would hold without it."""
    configs = describe(client, TOPIC, topic)
    assert set(configs) == {row.name for row in TABLE.rows(SettingScope.TOPIC)}
    assert {config.config_source for config in configs.values()} == {DEFAULT_SOURCE}
    assert alter(client, topic, "retention.ms", SET, "1000") == 0
    (retention,) = describe(client, TOPIC, topic, "retention.ms").values()
    assert (retention.value, retention.config_source) == ("1000", TOPIC_SOURCE)
    assert [(synonym.name, synonym.value, synonym.source) for synonym in retention.synonyms] == [
        ("retention.ms", "1000", TOPIC_SOURCE),
        ("log.retention.hours", "168", DEFAULT_SOURCE),
    ]
    broker_configs = describe(client, BROKER, "1")
    assert set(broker_configs) == {row.name for row in TABLE.rows(SettingScope.BROKER)}
    assert (broker_configs["num.partitions"].value, broker_configs["num.partitions"].config_source) == ("3", 4)


def test_settings_are_set_removed_and_lists_grow_and_shrink(client: RawClient, topic: str) -> None:
    """Behaviour 17: SET, DELETE, APPEND and SUBTRACT."""

    def value(setting: str) -> tuple[str | None, int]:
        (config,) = describe(client, TOPIC, topic, setting).values()
        return config.value, config.config_source

    for operation, given, expected in (
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SET, "compact,delete", "compact,delete"),
    ):
        assert alter(client, topic, "cleanup.policy", operation, given) == 0
        assert value("cleanup.policy") == (expected, TOPIC_SOURCE)
    assert alter(client, topic, "cleanup.policy", DELETE, None) == 0
    assert value("cleanup.policy") == ("delete", DEFAULT_SOURCE)
    assert alter(client, topic, "cleanup.policy", SET, "burn") == 40
    assert alter(client, topic, "no.such.setting", SET, "1") == 40
    assert alter(client, topic, "retention.ms", APPEND, "1") == 40
    assert alter(client, "nowhere", "retention.ms", SET, "1") == 3
    assert value("cleanup.policy") == ("delete", DEFAULT_SOURCE)


def test_another_timestamp_type_holds_for_the_next_batch(client: RawClient, topic: str) -> None:
    """Behaviours 17 and 27: changed and changed back while the broker runs."""

    def append_time() -> int:
        answer = client.ask(PRODUCE, produce_request(topic, b"x"), ProduceResponse, 9)
        return answer.responses[0].partition_responses[0].log_append_time_ms

    started_ms = time.time_ns() // 1_000_000
    assert append_time() == -1
    assert alter(client, topic, "message.timestamp.type", SET, "LogAppendTime") == 0
    assert append_time() >= started_ms
    assert alter(client, topic, "message.timestamp.type", DELETE, None) == 0
    assert append_time() == -1
