"""Transactions of the producer: what readers see, fencing, errors, offsets in the transaction; sync and async."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tidelog import (
    Admin,
    AsyncProducer,
    Consumer,
    ConsumerRecord,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from tidelog.client.errors import (
    AbortableError,
    FatalError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionStateError,
)

if TYPE_CHECKING:
    from tidelog.bench.brokers import BrokerProcess

DEADLINE_S = 60.0
PARTITIONS = 3
FreshName = Callable[[str], str]


@pytest.fixture
def topic(client_cluster: BrokerProcess, fresh_name: FreshName) -> str:
    name = fresh_name("transactions")
    make_topic(client_cluster, name)
    return name


def make_topic(cluster: BrokerProcess, name: str) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 1)]).raise_for_errors()


@pytest.fixture
def producer(client_cluster: BrokerProcess, fresh_name: FreshName) -> Iterator[Producer]:
    with Producer(bootstrap_servers=client_cluster.bootstrap, transactional_id=fresh_name("id")) as made:
        yield made


def read(cluster: BrokerProcess, topic: str, isolation_level: str = "read_committed") -> list[bytes]:
    """The values of the whole topic as this kind of reader sees it, in the order of partitions and offsets."""
    with Consumer(
        bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", isolation_level=isolation_level
    ) as consumer:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: list[tuple[int, int, bytes]] = []
        deadline_s = time.monotonic() + DEADLINE_S
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            assert time.monotonic() < deadline_s, "the topic could not be read in time"
            found += [(record.partition, record.offset, record.value) for record in consumer.poll(0.2)]
    return [value for _, _, value in sorted(found)]


def send_to_all(producer: Producer, topic: str, word: str) -> None:
    for partition in range(PARTITIONS):
        producer.send(topic, f"{word}-{partition}".encode(), partition=partition)


@pytest.mark.on_three_brokers
def test_committed_is_seen_and_aborted_never(client_cluster: BrokerProcess, producer: Producer, topic: str) -> None:
    producer.init_transactions()
    for number, commits in enumerate([True, False, True, True, False]):
        producer.begin_transaction()
        send_to_all(producer, topic, f"{number}")
        if commits:
            producer.commit_transaction()
        else:
            producer.flush(DEADLINE_S)  # so that the records are in the log, with an abort marker behind them
            producer.abort_transaction()
    expected = [f"{number}-{partition}".encode() for partition in range(PARTITIONS) for number in (0, 2, 3)]
    assert read(client_cluster, topic) == expected
    assert len(read(client_cluster, topic, "read_uncommitted")) == 5 * PARTITIONS


def test_the_context_manager_commits_and_aborts(client_cluster: BrokerProcess, producer: Producer, topic: str) -> None:
    with producer.transaction():
        producer.send(topic, b"kept", partition=0)

    def fail() -> None:
        with producer.transaction():
            producer.send(topic, b"dropped", partition=0)
            raise ValueError("the application changed its mind")

    with pytest.raises(ValueError, match="changed its mind"):
        fail()
    with producer.transaction():
        producer.send_nowait(topic, b"kept too", partition=0)
    assert read(client_cluster, topic) == [b"kept", b"kept too"]


def test_an_empty_transaction_ends_both_ways(client_cluster: BrokerProcess, producer: Producer, topic: str) -> None:
    with producer.transaction():
        pass
    producer.begin_transaction()
    producer.abort_transaction()
    with pytest.raises(TransactionStateError):
        producer.send(topic, b"in no transaction", partition=0)
    with producer.transaction():
        producer.send(topic, b"kept", partition=0)
    # No marker of the empty ones was written, and the transaction after them is whole.
    assert read(client_cluster, topic) == [b"kept"]
    with Consumer(bootstrap_servers=client_cluster.bootstrap) as consumer:
        partition = TopicPartition(topic, 0)
        assert consumer.end_offsets([partition]) == {partition: 2}


def test_open_transactions_are_invisible_until_the_commit(
    client_cluster: BrokerProcess, producer: Producer, topic: str
) -> None:
    producer.init_transactions()
    producer.begin_transaction()
    send_to_all(producer, topic, "open")
    producer.flush(DEADLINE_S)
    assert read(client_cluster, topic) == []
    assert len(read(client_cluster, topic, "read_uncommitted")) == PARTITIONS
    producer.commit_transaction()
    assert len(read(client_cluster, topic)) == PARTITIONS


def test_a_second_producer_shuts_out_the_first(
    client_cluster: BrokerProcess, topic: str, fresh_name: FreshName
) -> None:
    transactional_id = fresh_name("id")
    first = Producer(bootstrap_servers=client_cluster.bootstrap, transactional_id=transactional_id)
    second = Producer(bootstrap_servers=client_cluster.bootstrap, transactional_id=transactional_id)
    try:
        first.init_transactions()
        first.begin_transaction()
        first.send(topic, b"zombie", partition=0)
        first.flush(DEADLINE_S)
        second.init_transactions()
        first.send(topic, b"zombie again", partition=0)
        with pytest.raises((ProducerFencedError, AbortableError)):
            first.commit_transaction()
        with second.transaction():
            second.send(topic, b"new", partition=0)
        with pytest.raises((FatalError, AbortableError)):
            first.send(topic, b"still there", partition=0)
    finally:
        first.close(5)
        second.close(5)
    assert read(client_cluster, topic) == [b"new"]


def test_a_failed_record_leaves_only_the_abort(
    client_cluster: BrokerProcess, topic: str, fresh_name: FreshName
) -> None:
    too_large = fresh_name("small")
    with Admin(bootstrap_servers=client_cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(too_large, 1, 1, {"max.message.bytes": "2000"})]).raise_for_errors()
    with Producer(bootstrap_servers=client_cluster.bootstrap, transactional_id=fresh_name("id")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"with it", partition=0)
        future = producer.send(too_large, bytes(5_000))
        assert future.exception(DEADLINE_S) is not None
        with pytest.raises(AbortableError):
            producer.commit_transaction()
        with pytest.raises(AbortableError):
            producer.send(topic, b"too late", partition=0)
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"next", partition=0)
    assert read(client_cluster, topic) == [b"next"]


def test_calls_at_wrong_moments_say_what_to_do(client_cluster: BrokerProcess, producer: Producer, topic: str) -> None:
    with pytest.raises(TransactionStateError, match="init_transactions first"):
        producer.send(topic, b"x")
    with pytest.raises(TransactionStateError, match="init_transactions first"):
        producer.begin_transaction()
    producer.init_transactions()
    with pytest.raises(TransactionStateError, match="begin_transaction first"):
        producer.send_nowait(topic, b"x")
    with pytest.raises(TransactionStateError, match="begin_transaction first"):
        producer.commit_transaction()
    with (
        Producer(bootstrap_servers=client_cluster.bootstrap) as plain,
        pytest.raises(TransactionStateError, match="no transactional_id"),
    ):
        plain.begin_transaction()


def test_a_record_that_is_refused_at_once_does_not_spoil_the_transaction(
    client_cluster: BrokerProcess, producer: Producer, topic: str
) -> None:
    with producer.transaction():
        producer.send(topic, b"before", partition=0)
        with pytest.raises(RecordTooLargeError):
            producer.send(topic, bytes(2_000_000), partition=0)
    assert read(client_cluster, topic) == [b"before"]


@pytest.mark.on_three_brokers
@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_consume_transform_produce_once(
    client_cluster: BrokerProcess, producer: Producer, topic: str, fresh_name: FreshName, group_protocol: str
) -> None:
    if group_protocol == "consumer" and not supports_new_groups():
        pytest.skip("Kafka 3.9 has the new group protocol only as a preview")
    target, group, count = fresh_name("target"), fresh_name("group"), 200
    make_topic(client_cluster, target)
    with Producer(bootstrap_servers=client_cluster.bootstrap) as plain:
        for number in range(count):
            plain.send_nowait(topic, b"%d" % number, key=b"%d" % (number % 7))
        plain.flush(DEADLINE_S)
    done = rounds = 0
    while done < count:
        # A new member each time, as after a crash: it goes on where the last commit was.
        with Consumer(
            bootstrap_servers=client_cluster.bootstrap,
            group_id=group,
            group_protocol=group_protocol,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_records=40,
        ) as consumer:
            consumer.subscribe([topic])
            for _ in range(3):
                records = poll_until_some(consumer) if done < count else []
                if not records:
                    break
                rounds += 1
                try:
                    with producer.transaction():
                        for record in records:
                            producer.send(target, record.value.upper(), key=record.key)
                        offsets = {
                            TopicPartition(record.topic, record.partition): OffsetAndMetadata(record.offset + 1)
                            for record in records
                        }
                        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
                        if rounds % 4 == 0:
                            raise InterruptedError("as if something had failed here")
                    done += len(records)
                except InterruptedError:
                    break  # what was read is read again by the next member
    assert sorted(read(client_cluster, target), key=int) == [b"%d" % number for number in range(count)]


def poll_until_some(consumer: Consumer) -> list[ConsumerRecord]:
    deadline_s = time.monotonic() + DEADLINE_S
    while not (records := consumer.poll(0.2)):
        assert time.monotonic() < deadline_s, "no record came in time"
    return records


def supports_new_groups() -> bool:
    return not os.environ.get("COMPAT_CLIENT_PEER", "").startswith("3.")


def test_the_asynchronous_producer(client_cluster: BrokerProcess, topic: str, fresh_name: FreshName) -> None:
    async def fail(producer: AsyncProducer) -> None:
        async with producer.transaction():
            await producer.send(topic, b"two", partition=0)
            raise ValueError("the application changed its mind")

    async def run() -> None:
        async with AsyncProducer(
            bootstrap_servers=client_cluster.bootstrap, transactional_id=fresh_name("id")
        ) as producer:
            async with producer.transaction():
                await producer.send(topic, b"one", partition=0)
            with pytest.raises(ValueError, match="changed its mind"):
                await fail(producer)
            async with producer.transaction():
                await producer.send(topic, b"three", partition=0)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    assert read(client_cluster, topic) == [b"one", b"three"]
