"""What readers of committed and of all records see of transactions that another client wrote."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import confluent_kafka
import pytest

from tidelog import Consumer, TopicPartition

if TYPE_CHECKING:
    from tidelog.bench.brokers import BrokerProcess

DEADLINE_S = 60.0
MakeTopic = Callable[..., str]
FreshName = Callable[[str], str]


def values(consumer: Consumer, end: int, *, arrow: bool) -> list[bytes]:
    """All values up to the offset, which may be that of a marker."""
    (partition,) = consumer.assignment()
    found: list[bytes] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while consumer.position(partition) < end:
        assert time.monotonic() < deadline_s, f"stands at {consumer.position(partition)} of {end}"
        if arrow:
            table = consumer.poll_arrow(0.2)
            found += [] if table is None else table.column("value").to_pylist()
        else:
            found += [record.value for record in consumer.poll(0.2)]
    return found


@pytest.fixture
def transactions(
    client_cluster: BrokerProcess, fresh_name: FreshName
) -> Iterator[Callable[[], confluent_kafka.Producer]]:
    made: list[confluent_kafka.Producer] = []

    def make() -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": client_cluster.bootstrap, "transactional.id": fresh_name("writer")}
        )
        producer.init_transactions(30)
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.flush(10)


@pytest.mark.parametrize("arrow", [False, True])
def test_aborted_transactions_are_left_out(
    client_cluster: BrokerProcess,
    make_topic: MakeTopic,
    transactions: Callable[[], confluent_kafka.Producer],
    arrow: bool,
) -> None:
    topic = make_topic()
    partition = TopicPartition(topic, 0)
    one, two = transactions(), transactions()
    expected: list[bytes] = []
    # Two writers whose transactions overlap in the log, ending in every way.
    for number in range(8):
        one.begin_transaction()
        two.begin_transaction()
        for step in range(3):
            one.produce(topic, b"one-%d-%d" % (number, step), partition=0)
            one.flush(10)
            two.produce(topic, b"two-%d-%d" % (number, step), partition=0)
            two.flush(10)
        for producer, commits, name in ((one, number % 2 == 0, b"one"), (two, number % 3 == 0, b"two")):
            if commits:
                producer.commit_transaction(30)
                expected += [b"%s-%d-%d" % (name, number, step) for step in range(3)]
            else:
                producer.abort_transaction(30)
    options = {"bootstrap.servers": client_cluster.bootstrap, "auto.offset.reset": "earliest"}
    with Consumer(options, isolation_level="read_committed") as consumer:
        consumer.assign([partition])
        end = 8 * 8  # six records and two markers a round
        deadline_s = time.monotonic() + DEADLINE_S
        while consumer.end_offsets([partition]) != {partition: end}:  # markers may be written after the commit's answer
            assert time.monotonic() < deadline_s
        assert sorted(values(consumer, end, arrow=arrow)) == sorted(expected)
        assert consumer.position(partition) == end
        consumer.seek(partition, 4 * 8 + 2)  # within a transaction that was aborted
        later = [value for value in expected if int(value.split(b"-")[1]) > 4]
        found = values(consumer, end, arrow=arrow)
        assert sorted(value for value in found if int(value.split(b"-")[1]) > 4) == sorted(later)
        assert not [value for value in found if value.startswith(b"two-4")]
    with Consumer(options) as consumer:
        consumer.assign([partition])
        assert len(values(consumer, end, arrow=arrow)) == 8 * 6


def test_open_transactions_are_waited_for(
    client_cluster: BrokerProcess, make_topic: MakeTopic, transactions: Callable[[], confluent_kafka.Producer]
) -> None:
    topic = make_topic()
    partition = TopicPartition(topic, 0)
    producer = transactions()
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(10)
    options = {"bootstrap.servers": client_cluster.bootstrap, "auto.offset.reset": "earliest"}
    with Consumer(options, isolation_level="read_committed") as consumer, Consumer(options) as eager:
        consumer.assign([partition])
        eager.assign([partition])
        assert [record.value for record in eager.poll(10)] == [b"open"]
        assert consumer.poll(0.7) == []
        assert consumer.end_offsets([partition]) == {partition: 0}
        producer.commit_transaction(30)
        assert [record.value for record in consumer.poll(10)] == [b"open"]
