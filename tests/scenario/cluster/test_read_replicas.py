"""Consumers that read from a replica in their own rack (KIP-392): ours, librdkafka, and what the protocol says."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition

from tidelog import Consumer, Producer
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k01_fetch import FETCH, FetchResponse, PartitionData
from tidelog.server.server import BrokerServer
from tidelog.testing import Cluster
from tidelog.testing.raw_client import RawClient, fetch_request

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RACKS = ["east", "west", "north"]
WaitUntil = Callable[[Callable[[], bool], str], None]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(settings={"replica.selector.class": SELECTOR}, racks=RACKS) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """Led by broker 1, in the east; it has three records."""
    name = f"read-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, replicas=[(1, 2, 3)])
    produce(cluster, name, 3)
    return name


def produce(cluster: Cluster, topic: str, count: int) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number).result(30)


def waiting_at(cluster: Cluster, node_id: int, topic: str) -> int:
    """How many fetches of consumers wait at this broker."""

    async def count(server: BrokerServer) -> int:
        replicas = server.services.replicas
        return replicas.waiting(replicas.find(topic, 0))

    return cluster.brokers[node_id].call(count)


def high_watermark(cluster: Cluster, node_id: int, topic: str) -> int:
    async def read(server: BrokerServer) -> int:
        return server.services.replicas.find(topic, 0).log.high_watermark

    return cluster.brokers[node_id].call(read)


def read_all(consumer: Consumer, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    while len(values) < count:
        records = consumer.poll(30)
        assert records, f"nothing came for 30 s, after {values}"
        values += [record.value for record in records]
    return values


def fetch(
    cluster: Cluster, node_id: int, topic: str, offset: int, *, rack: str = "", version: int = 12
) -> PartitionData:
    request = fetch_request(topic, offset, max_wait_ms=0)
    request.rack_id = rack
    with RawClient(cluster.brokers[node_id].port) as client:
        response = client.ask(FETCH, request, FetchResponse, version)
    return response.responses[0].partitions[0]


def test_a_consumer_reads_in_its_rack_and_goes_back_to_the_leader_when_that_replica_dies(
    cluster: Cluster, topic: str, wait_until: WaitUntil
) -> None:
    with Consumer(bootstrap_servers=cluster.bootstrap, client_rack="north", auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert read_all(consumer, 3) == [b"0", b"1", b"2"]
        wait_until(lambda: waiting_at(cluster, 3, topic) == 1, "it waits at the broker in its rack")
        assert waiting_at(cluster, 1, topic) == 0
        produce(cluster, topic, 2)
        assert read_all(consumer, 2) == [b"0", b"1"]
        cluster.kill(3)
        try:
            produce(cluster, topic, 1)
            assert read_all(consumer, 1) == [b"0"]
            wait_until(lambda: waiting_at(cluster, 1, topic) == 1, "it waits at the leader")
        finally:
            cluster.start(3)
            cluster.wait_until_in_sync(topic)
        produce(cluster, topic, 1)
        assert read_all(consumer, 1) == [b"0"]


@pytest.mark.parametrize("rack", ["east", "nowhere", ""])
def test_the_leader_serves_those_who_are_near_it_and_those_who_are_near_nobody(
    cluster: Cluster, topic: str, rack: str, wait_until: WaitUntil
) -> None:
    with Consumer(bootstrap_servers=cluster.bootstrap, client_rack=rack, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert len(read_all(consumer, 3)) == 3
        wait_until(lambda: waiting_at(cluster, 1, topic) == 1, "it waits at the leader")


def test_a_consumer_follows_a_leader_that_moves_into_its_rack(
    cluster: Cluster, topic: str, wait_until: WaitUntil
) -> None:
    with Consumer(bootstrap_servers=cluster.bootstrap, client_rack="west", auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert len(read_all(consumer, 3)) == 3
        for leader_id in (2, 3, 1):
            cluster.move_leader(topic, 0, leader_id)
            produce(cluster, topic, 1)
            assert read_all(consumer, 1) == [b"0"]
        wait_until(lambda: waiting_at(cluster, 2, topic) == 1, "it waits at the broker in its rack")


def test_transactions_are_read_from_followers(cluster: Cluster, topic: str) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=f"id-{topic}") as producer:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            producer.send(topic, b"in %d" % number)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    with Consumer(
        bootstrap_servers=cluster.bootstrap,
        client_rack="north",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        consumer.assign([(topic, 0)])
        assert read_all(consumer, 5) == [b"0", b"1", b"2", b"in 0", b"in 2"]


def test_librdkafka_reads_in_its_rack(cluster: Cluster, topic: str, wait_until: WaitUntil) -> None:
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "client.rack": "west",
            "group.id": topic,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([ConfluentPartition(topic, 0, 0)])
        assert [message.value() for message in consumer.consume(3, 60)] == [b"0", b"1", b"2"]
        wait_until(lambda: waiting_at(cluster, 2, topic) == 1, "it waits at the broker in its rack")
        produce(cluster, topic, 2)
        assert [message.value() for message in consumer.consume(2, 60)] == [b"0", b"1"]
    finally:
        consumer.close()


def test_the_leader_names_a_replica_that_holds_the_offset(cluster: Cluster, topic: str) -> None:
    redirected = fetch(cluster, 1, topic, 1, rack="west")
    assert (redirected.error_code, redirected.preferred_read_replica, redirected.records) == (0, 2, b"")
    assert redirected.high_watermark == 3
    for rack in ("east", "nowhere", ""):
        served = fetch(cluster, 1, topic, 1, rack=rack)
        assert served.preferred_read_replica == -1
        assert served.records
    # No replica has this offset, so the leader says what is wrong with it.
    beyond = fetch(cluster, 1, topic, 9, rack="west")
    assert (beyond.error_code, beyond.preferred_read_replica) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_followers_answer_up_to_their_own_high_watermark(cluster: Cluster, topic: str, wait_until: WaitUntil) -> None:
    wait_until(lambda: high_watermark(cluster, 2, topic) == 3, "the follower hears of the high watermark")
    served = fetch(cluster, 2, topic, 1)
    assert (served.error_code, served.high_watermark, served.preferred_read_replica) == (0, 3, -1)
    assert served.records
    assert fetch(cluster, 2, topic, 3).records == b""
    # The leader may have what this follower lacks, so nobody must reset an offset because of it.
    assert fetch(cluster, 2, topic, 4).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert fetch(cluster, 2, topic, -5).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    # Before version 11 clients don't know that followers serve anyone.
    assert fetch(cluster, 2, topic, 1, version=10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_without_the_setting_the_leader_serves_everybody(tidelog_cluster: Cluster) -> None:
    name = f"read-{uuid.uuid4().hex[:8]}"
    tidelog_cluster.create_topic(name, replicas=[(1, 2, 3)])
    produce(tidelog_cluster, name, 1)
    assert fetch(tidelog_cluster, 1, name, 0, rack="west").records
