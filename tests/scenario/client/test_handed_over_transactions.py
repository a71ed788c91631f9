"""Transactions that a producer leaves open and somebody else ends, as the tasks and the driver of an engine do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tidelog import Admin, Consumer, NewTopic, TopicPartition
from tidelog.client.errors import BrokerError, NoSuchPartitionError, ProducerFencedError, TransactionStateError
from tidelog.client.network.cluster import Cluster, ClusterSettings
from tidelog.client.network.loop_thread import LoopThread
from tidelog.client.producer.foreign_transactions import Outcome, end_transactions, fence, fence_all
from tidelog.client.producer.handover import HandedOver, HandoverProducer
from tidelog.client.producer.settings import PRODUCER_TABLE

WAIT_S = 30.0


@pytest.fixture
def topic(client_cluster: Any, fresh_name: Callable[[str], str]) -> str:
    name = fresh_name("handed-over")
    with Admin(bootstrap_servers=client_cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 2)]).raise_for_errors()
        admin.wait_for_topics(name)
    return name


@pytest.fixture
def producer(client_cluster: Any, fresh_name: Callable[[str], str]) -> Iterator[HandoverProducer]:
    with HandoverProducer(
        bootstrap_servers=client_cluster.bootstrap, transactional_id=fresh_name("unused")
    ) as producer:
        yield producer


class Driver:
    """Ends transactions that it has not begun."""

    def __init__(self, bootstrap: str) -> None:
        self._thread = LoopThread("driver")
        self.cluster = Cluster(ClusterSettings.read(PRODUCER_TABLE.read({"bootstrap.servers": bootstrap}, {})))

    def run(self, work: Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await work

        return self._thread.run(awaited())

    def end(self, *transactions: HandedOver, committed: bool) -> list[Outcome]:
        outcomes = self.run(end_transactions(self.cluster, transactions, committed=committed, timeout_s=WAIT_S))
        return [outcomes[transaction] for transaction in transactions]

    def close(self) -> None:
        self.run(self.cluster.close())
        self._thread.close()


@pytest.fixture
def driver(client_cluster: Any) -> Iterator[Driver]:
    driver = Driver(client_cluster.bootstrap)
    yield driver
    driver.close()


@pytest.fixture
def committed(client_cluster: Any, topic: str) -> Callable[[], list[bytes | None]]:
    def read() -> list[bytes | None]:
        partitions = [TopicPartition(topic, number) for number in range(2)]
        found: list[bytes | None] = []
        with Consumer(
            bootstrap_servers=client_cluster.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                found += [record.value for record in consumer.poll(0.1)]
        return sorted(found, key=lambda value: value or b"")

    return read


def _hand_over(producer: HandoverProducer, transactional_id: str, topic: str, value: bytes) -> HandedOver:
    producer.start(transactional_id)
    producer.send_nowait(topic, value, partition=0)
    producer.send_nowait(topic, value, partition=1)
    handed_over = producer.hand_over()
    assert handed_over is not None
    assert handed_over.transactional_id == transactional_id
    return handed_over


def test_several_stay_open_and_are_ended_by_another(
    producer: HandoverProducer,
    driver: Driver,
    topic: str,
    committed: Callable[[], list[bytes | None]],
    fresh_name: Callable[[str], str],
    wait_until: Callable[[Callable[[], bool], str], None],
) -> None:
    first, second, third = (_hand_over(producer, fresh_name("id"), topic, b"%d" % number) for number in range(3))
    assert committed() == []
    assert driver.end(first, third, committed=True) == [Outcome.ENDED, Outcome.ENDED]
    assert driver.end(second, committed=False) == [Outcome.ENDED]
    wait_until(lambda: committed() == [b"0", b"0", b"2", b"2"], "markers")


def test_the_same_end_twice_is_answered_alike_and_the_other_is_not_to_be_had(
    producer: HandoverProducer, driver: Driver, topic: str, fresh_name: Callable[[str], str]
) -> None:
    kept, undone = (_hand_over(producer, fresh_name("id"), topic, b"x") for _ in range(2))
    for _ in range(3):
        assert driver.end(kept, committed=True) == [Outcome.ENDED]
        assert driver.end(undone, committed=False) == [Outcome.ENDED]
    assert driver.end(kept, committed=False) == [Outcome.LOST]
    assert driver.end(undone, committed=True) == [Outcome.LOST]


def test_one_that_was_fenced_is_lost(
    producer: HandoverProducer,
    driver: Driver,
    topic: str,
    committed: Callable[[], list[bytes | None]],
    fresh_name: Callable[[str], str],
) -> None:
    handed_over = _hand_over(producer, fresh_name("id"), topic, b"x")
    driver.run(
        fence_all(driver.cluster, [handed_over.transactional_id], transaction_timeout_ms=10_000, timeout_s=WAIT_S)
    )
    assert driver.end(handed_over, committed=True) == [Outcome.LOST]
    assert committed() == []


def test_an_id_can_be_used_again_after_its_end(
    producer: HandoverProducer,
    driver: Driver,
    topic: str,
    committed: Callable[[], list[bytes | None]],
    fresh_name: Callable[[str], str],
    wait_until: Callable[[Callable[[], bool], str], None],
) -> None:
    name = fresh_name("id")
    for number in range(3):
        handed_over = _hand_over(producer, name, topic, b"%d" % number)
        assert driver.end(handed_over, committed=True) == [Outcome.ENDED]
    _hand_over(producer, name, topic, b"left")
    last = _hand_over(producer, name, topic, b"last")  # which aborts what was left
    assert driver.end(last, committed=True) == [Outcome.ENDED]
    wait_until(lambda: committed() == [b"0", b"0", b"1", b"1", b"2", b"2", b"last", b"last"], "markers")


def test_nothing_written_leaves_nothing_open(producer: HandoverProducer, fresh_name: Callable[[str], str]) -> None:
    producer.start(fresh_name("id"))
    assert producer.hand_over() is None
    producer.start(fresh_name("id"))
    assert producer.hand_over() is None


def test_one_at_a_time(producer: HandoverProducer, topic: str, fresh_name: Callable[[str], str]) -> None:
    producer.start(fresh_name("id"))
    with pytest.raises(TransactionStateError, match="commit or abort the open one first"):
        producer.start(fresh_name("id"))
    producer.send_nowait(topic, b"x")
    producer.give_up()
    with pytest.raises(TransactionStateError):
        producer.send_nowait(topic, b"x")
    producer.start(fresh_name("id"))


def test_a_producer_that_was_fenced_can_go_on_nowhere(
    producer: HandoverProducer, driver: Driver, topic: str, fresh_name: Callable[[str], str]
) -> None:
    name = fresh_name("id")
    producer.start(name)
    producer.send(topic, b"x", partition=0).result()
    driver.run(fence(driver.cluster, name, transaction_timeout_ms=10_000, timeout_s=WAIT_S))
    producer.send_nowait(topic, b"x", partition=0)
    with pytest.raises(ProducerFencedError):
        producer.hand_over()
    with pytest.raises(ProducerFencedError):
        producer.start(fresh_name("id"))


def test_a_topic_is_looked_for_before_it_is_written_to(
    producer: HandoverProducer, topic: str, fresh_name: Callable[[str], str]
) -> None:
    producer.check_topic(topic, 10)
    with pytest.raises(BrokerError, match="INVALID_TOPIC"):
        producer.check_topic("no such topic!", 10)


@pytest.mark.tidelog_only
def test_a_topic_that_is_not_there_is_not_waited_for_long(start_broker: Callable[..., Any]) -> None:
    broker = start_broker(settings={"auto.create.topics.enable": False})
    with (
        HandoverProducer(bootstrap_servers=broker.bootstrap, transactional_id="id") as producer,
        pytest.raises(NoSuchPartitionError, match="tidelog topics create nowhere"),
    ):
        producer.check_topic("nowhere", 0.2)
