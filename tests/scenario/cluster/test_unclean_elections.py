"""A partition of which only a replica with less is left: offline by default, led by it where unclean elections are on.

The records are written and read by librdkafka.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tidelog.controller.image import NO_LEADER
from tidelog.testing import Cluster

TOPIC = "orders"
SETTING = "unclean.leader.election.enable"
WAIT_S = 60.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three brokers, so that one that has no replica of the topic is the controller while the others are gone."""
    with Cluster() as cluster:
        yield cluster


def send(cluster: Cluster, value: bytes, wait_s: float = WAIT_S) -> KafkaError | None:
    """Send a record with acks=all; the error that it ended with, or None."""
    errors: list[KafkaError | None] = []
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": cluster.bootstrap,
        "acks": "all",
        "delivery.timeout.ms": int(wait_s * 1000),
        "log_level": 0,
    }
    producer = Producer(settings)
    producer.produce(TOPIC, value, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    return errors[0]


def read(cluster: Cluster, count: int) -> list[bytes | None]:
    """So many records from the beginning on; nothing may come after them."""
    ends: list[Message] = []
    values: list[bytes | None] = []
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while not ends:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"only {values} came"
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                ends.append(message)
            else:
                assert error.retriable(), error
    finally:
        consumer.close()
    assert len(values) == count
    return values


def leave_the_replica_with_less(cluster: Cluster) -> tuple[int, int]:
    """Write a record to both replicas and one to the leader only, which then dies; the one that left, and the other."""
    controller = cluster.wait(lambda image: image.controller_id in image.brokers).controller_id
    ahead, behind = (node_id for node_id in cluster.brokers if node_id != controller)
    cluster.create_topic(TOPIC, replicas=[(ahead, behind)])
    assert send(cluster, b"to both") is None
    cluster.kill(behind)
    cluster.wait(lambda image: image.topics[TOPIC].partitions[0].isr == (ahead,), "the follower to leave the ISR")
    assert send(cluster, b"to one") is None
    cluster.kill(ahead)
    cluster.wait(lambda image: image.topics[TOPIC].partitions[0].leader == NO_LEADER, "the leader to be gone")
    cluster.start(behind)
    cluster.wait(lambda image: image.brokers[behind].is_active, "the follower to be back")
    return ahead, behind


def test_a_replica_that_lacks_records_does_not_lead_by_default(cluster: Cluster) -> None:
    ahead, behind = leave_the_replica_with_less(cluster)
    error = send(cluster, b"refused", wait_s=2.0)
    assert error is not None
    assert error.code() == KafkaError._MSG_TIMED_OUT
    cluster.wait(lambda image: image.topics[TOPIC].partitions[0].leader == NO_LEADER)
    cluster.start(ahead)
    cluster.wait(lambda image: image.topics[TOPIC].partitions[0].leader == ahead, "the one with all records to lead")
    assert read(cluster, 2) == [b"to both", b"to one"]
    assert send(cluster, b"after") is None
    cluster.wait_until_in_sync(TOPIC)
    cluster.kill(ahead)
    cluster.wait(lambda image: image.topics[TOPIC].partitions[0].leader == behind, "the other one to lead")
    assert read(cluster, 3) == [b"to both", b"to one", b"after"]


def test_a_replica_that_lacks_records_leads_where_that_is_allowed() -> None:
    """What it lacks is lost, and the broker that had it forgets it when it is back."""
    with Cluster(settings={SETTING: "true"}) as cluster:
        ahead, behind = leave_the_replica_with_less(cluster)
        cluster.wait(lambda image: image.topics[TOPIC].partitions[0].leader == behind, "the one with less to lead")
        assert send(cluster, b"instead") is None
        cluster.start(ahead)
        cluster.wait_until_in_sync(TOPIC)
        cluster.move_leader(TOPIC, 0, ahead)
        assert read(cluster, 2) == [b"to both", b"instead"]
