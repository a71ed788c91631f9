"""The broker restarts, records are deleted, a topic is made anew: reading goes on where it should."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import confluent_kafka
import pytest

from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.client.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    from tidelog.bench.brokers import BrokerProcess

DEADLINE_S = 60.0
FreshName = Callable[[str], str]
MakeTopic = Callable[..., str]
Write = Callable[..., None]


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def read(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(values) < count:
        assert time.monotonic() < deadline_s, f"only {len(values)} of {count} records came"
        values += [record.value for record in consumer.poll(0.5)]
    return values


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_broker_that_restarts_is_read_on(own_cluster: BrokerProcess, fresh_name: FreshName, how: str) -> None:
    """It comes back with a new leader epoch, which the consumer has checked before it reads on."""
    topic = fresh_name("topic")
    bootstrap = own_cluster.bootstrap
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)]).raise_for_errors()
    options = {"bootstrap.servers": bootstrap, "auto.offset.reset": "none", "retry.backoff.ms": 20}
    with Consumer(options) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end = 0
        for _ in range(2):
            with Producer(bootstrap_servers=bootstrap) as producer:
                for value in numbers(end, end + 100):
                    producer.send(topic, value, partition=0)
                producer.flush()
            assert read(consumer, 100) == numbers(end, end + 100)
            end += 100
            own_cluster.stop() if how == "stop" else own_cluster.kill()
            assert consumer.poll(0.1) == []
            own_cluster.start()
        assert consumer.position(partition) == end
        with Producer(bootstrap_servers=bootstrap) as producer:
            producer.send(topic, b"last", partition=0).result(30)
        assert read(consumer, 1) == [b"last"]


def test_a_consumer_waits_for_a_broker_that_is_not_there_yet(own_cluster: BrokerProcess, fresh_name: FreshName) -> None:
    topic = fresh_name("topic")
    with Producer(bootstrap_servers=own_cluster.bootstrap) as producer:
        producer.send(topic, b"x", partition=0).result(30)
    own_cluster.stop()
    with Consumer(bootstrap_servers=own_cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.poll(0.3) == []
        own_cluster.start()
        assert read(consumer, 1) == [b"x"]


def test_deleted_records(
    client_cluster: BrokerProcess, make_topic: MakeTopic, write: Write, fresh_name: FreshName
) -> None:
    topic = make_topic()
    partition = TopicPartition(topic, 0)
    write(topic, numbers(0, 50))
    with Admin(bootstrap_servers=client_cluster.bootstrap) as admin:
        admin.delete_records({partition: 30}).raise_for_errors()
    options = {"bootstrap.servers": client_cluster.bootstrap}
    with Consumer(options, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        assert consumer.beginning_offsets([partition]) == {partition: 30}
        consumer.seek(partition, 10)
        assert read(consumer, 20) == numbers(30, 50)
        assert consumer.position(partition) == 50
    with Consumer(options, auto_offset_reset="none") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 10)
        with pytest.raises(OffsetOutOfRangeError):
            read(consumer, 20)


def test_a_topic_that_is_made_anew_is_read_from_its_beginning(
    client_cluster: BrokerProcess, make_topic: MakeTopic, write: Write
) -> None:
    """The new topic has another id under the same name; its offsets begin at 0 again."""
    topic = make_topic()
    write(topic, numbers(0, 10))
    # Whoever asks for metadata would otherwise make the topic anew before the test does.
    options = {"bootstrap.servers": client_cluster.bootstrap, "allow.auto.create.topics": False}
    with (
        Consumer(options, auto_offset_reset="earliest") as consumer,
        Admin(bootstrap_servers=client_cluster.bootstrap) as admin,
    ):
        consumer.assign([(topic, 0)])
        assert read(consumer, 10) == numbers(0, 10)
        admin.delete_topics([topic]).raise_for_errors()
        assert consumer.poll(0.1) == []
        admin.create_topics([NewTopic(topic, 1, 1)]).raise_for_errors()
        write(topic, numbers(100, 105))
        assert read(consumer, 5) == numbers(100, 105)


def test_compacted_gaps(client_cluster: BrokerProcess, make_topic: MakeTopic) -> None:
    """Records that a transaction's marker or an idempotent retry leaves between offsets are passed over.

    A compacted log has gaps between and within batches; markers of transactions make the same gaps at once.
    """
    topic = make_topic()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": client_cluster.bootstrap, "transactional.id": f"gaps-{topic}"}
    )
    producer.init_transactions(30)
    for number in range(5):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.commit_transaction(30)
    with Consumer(bootstrap_servers=client_cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        records = []
        deadline_s = time.monotonic() + DEADLINE_S
        while consumer.position(partition) < 10:
            assert time.monotonic() < deadline_s
            records += consumer.poll(0.5)
        assert [(record.offset, record.value) for record in records] == [(2 * n, b"%d" % n) for n in range(5)]
        consumer.seek(partition, 3)  # a marker
        assert consumer.poll(10)[0].offset == 4
