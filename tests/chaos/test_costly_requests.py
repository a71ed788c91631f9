"""Sound requests that ask for as much work as the protocol lets them, beside a client that must not feel it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.protocol import Api, ErrorCode
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k01_fetch import FETCH, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.protocol.messages.k02_list_offsets import (
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.k03_metadata import METADATA, MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidelog.protocol.messages.k32_describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.protocol.messages.k61_describe_producers import (
    DESCRIBE_PRODUCERS,
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tidelog.protocol.wire import ELEMENTS_MAX
from tidelog.records import Compression, encode_batch
from tidelog.testing.raw_client import RawClient

if TYPE_CHECKING:
    from tests.chaos.conftest import GoodClient, ServedBroker, StartServed

# Tests that measure run one after another, also where others run beside them.
pytestmark = pytest.mark.xdist_group("measured")

TOPIC = "plain"
MANY = ELEMENTS_MAX - 1


def metadata() -> tuple[Api, object, type, int]:
    names = [MetadataRequestTopic(name=f"missing-{number}") for number in range(MANY)]
    return METADATA, MetadataRequest(topics=names, allow_auto_topic_creation=False), MetadataResponse, 9


def fetch() -> tuple[Api, object, type, int]:
    partitions = [FetchPartition(partition=number, partition_max_bytes=1) for number in range(MANY)]
    request = FetchRequest(max_wait_ms=10, min_bytes=1, topics=[FetchTopic(topic=TOPIC, partitions=partitions)])
    return FETCH, request, FetchResponse, 11


def describe_configs() -> tuple[Api, object, type, int]:
    resources = [DescribeConfigsResource(resource_type=2, resource_name=TOPIC, configuration_keys=None)] * MANY
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    return DESCRIBE_CONFIGS, request, DescribeConfigsResponse, 4


def list_offsets() -> tuple[Api, object, type, int]:
    partitions = [ListOffsetsPartition(partition_index=0, timestamp=1)] * MANY
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=partitions)])
    return LIST_OFFSETS, request, ListOffsetsResponse, 6


def describe_producers() -> tuple[Api, object, type, int]:
    request = DescribeProducersRequest(topics=[TopicRequest(name=TOPIC, partition_indexes=[0] * MANY * 7)])
    return DESCRIBE_PRODUCERS, request, DescribeProducersResponse, 0


def produce_nowhere() -> tuple[Api, object, type, int]:
    topics = [TopicProduceData(name="x", partition_data=[]) for _ in range(MANY)]
    return PRODUCE, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics), ProduceResponse, 9


@pytest.fixture
def bystander(serve: StartServed, good_client: Callable[[ServedBroker], GoodClient]) -> tuple[ServedBroker, GoodClient]:
    """A broker with one topic, and a client of it that is busy already."""
    broker = serve()
    broker.create_topic(TOPIC)
    client = good_client(broker)
    while not client.report().round_trips:
        pass
    return broker, client


@pytest.mark.parametrize("make", [metadata, fetch, describe_configs, list_offsets, describe_producers, produce_nowhere])
def test_the_largest_requests_hold_nobody_up(
    bystander: tuple[ServedBroker, GoodClient], make: Callable[[], tuple[Api, Any, type, int]]
) -> None:
    broker, client = bystander
    api, request, response, version = make()
    with RawClient(broker.port) as greedy:
        # The first of its kind compiles its codec; all are pipelined, so that the broker has them at hand together.
        for _ in range(4):
            greedy.send(api, request, version)
        for _ in range(4):
            greedy.receive(api, response, version)
    client.finish().check()


def test_many_batches_to_be_opened_take_turns_with_others(bystander: tuple[ServedBroker, GoodClient]) -> None:
    """They have some hundred bytes each and open to 15 MiB, which threads do."""
    broker, client = bystander
    partitions = 20
    broker.create_topic("forced", partitions, {"compression.type": "gzip"})
    batch = encode_batch([(b"k", bytes(15 << 20), (), time.time_ns() // 1_000_000)], compression=Compression.ZSTD)
    data = [PartitionProduceData(index=index, records=batch) for index in range(partitions)]
    topic = TopicProduceData(name="forced", partition_data=data)
    with RawClient(broker.port) as greedy:
        request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
        answers = greedy.ask(PRODUCE, request, ProduceResponse, 9).responses[0].partition_responses
    assert [(answer.index, answer.error_code) for answer in answers] == [(index, 0) for index in range(partitions)]
    client.finish().check()


def test_a_partition_asked_for_twice_has_no_offset(bystander: tuple[ServedBroker, GoodClient]) -> None:
    broker, _ = bystander
    api, request, response, version = list_offsets()
    with RawClient(broker.port) as greedy:
        answer: ListOffsetsResponse = greedy.ask(api, request, response, version)
    assert {partition.error_code for partition in answer.topics[0].partitions} == {ErrorCode.INVALID_REQUEST}


def test_a_time_is_looked_for_in_bombs_without_a_stall(bystander: tuple[ServedBroker, GoodClient]) -> None:
    """A batch may hold much more than its size: a million records here, or as many headers, or 60 MiB."""
    broker, client = bystander
    now_ms = time.time_ns() // 1_000_000
    headers = (("", None),) * 1_000_000
    bombs: list[list[tuple[bytes | None, bytes | None, Any, int]]] = [
        [(None, b"", (), now_ms)] * 1_000_000,
        [(None, b"", headers, now_ms)] * 2,
        [(None, bytes(60 << 20), (), now_ms)],
    ]
    with RawClient(broker.port) as greedy:
        for number, records in enumerate(bombs, start=1):
            # The time that is looked for stands behind all that makes the batch large.
            batch = encode_batch([*records, (None, b"", (), now_ms + number)], compression=Compression.ZSTD)
            assert len(batch) < 1 << 20
            topic = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
            request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
            produced = greedy.ask(PRODUCE, request, ProduceResponse, 9)
            assert produced.responses[0].partition_responses[0].error_code == 0
            wanted = ListOffsetsPartition(partition_index=0, timestamp=now_ms + number)
            by_time = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=[wanted])])
            found = greedy.ask(LIST_OFFSETS, by_time, ListOffsetsResponse, 6)
            assert found.topics[0].partitions[0].error_code == 0
            assert found.topics[0].partitions[0].timestamp == now_ms + number
    client.finish().check()
