from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

from tidelog import Admin, Producer
from tidelog.bench.brokers import BrokerProcess
from tidelog.client.errors import BrokerError, ClientError, ConfigError, NoSuchPartitionError, UnsupportedVersionError
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode

FreshName = Callable[[str], str]
MakeTopic = Callable[..., str]
OpenTransaction = Callable[[], tuple[str, TopicPartition]]
FAR_FUTURE_MS = 2**52


@pytest.fixture
def open_transaction(
    make_topic: MakeTopic, fresh_name: FreshName, client_cluster: BrokerProcess
) -> Iterator[OpenTransaction]:
    """Opens transactions with one record each, which end with the test; gives their id and partition."""
    producers: list[Producer] = []

    def make() -> tuple[str, TopicPartition]:
        transactional_id, key = fresh_name("tx"), TopicPartition(make_topic(2), 1)
        producer = Producer(bootstrap_servers=client_cluster.bootstrap, transactional_id=transactional_id)
        producers.append(producer)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(key.topic, b"open", partition=key.partition).result(20)
        return transactional_id, key

    yield make
    for producer in producers:
        with contextlib.suppress(ClientError):  # what the test ended itself
            producer.abort_transaction()
        producer.close()


def test_transactions_are_listed_and_described(
    admin: Admin, open_transaction: OpenTransaction, fresh_name: FreshName
) -> None:
    transactional_id, key = open_transaction()
    missing = fresh_name("missing")
    described = admin.describe_transactions([missing, transactional_id])
    row = described[transactional_id]
    assert (row.transactional_id, row.state, row.partitions) == (transactional_id, "Ongoing", [key])
    assert row.start_time_ms is not None
    assert abs(row.start_time_ms - time.time_ns() // 1_000_000) < 60_000
    error = described.errors[missing]
    assert isinstance(error, BrokerError)
    assert error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    (listed,) = admin.list_transactions(producer_ids=[row.producer_id])
    assert (listed.transactional_id, listed.state, listed.producer_id) == (transactional_id, "Ongoing", row.producer_id)
    assert listed.coordinator_id == row.coordinator_id

    def is_listed(**filters: object) -> bool:
        listings = admin.list_transactions(**filters)  # type: ignore[arg-type]  # filters of several types
        return transactional_id in [listing.transactional_id for listing in listings]

    assert is_listed(states=["Ongoing", "Empty"])
    assert not is_listed(states=["CompleteCommit"])
    assert is_listed(older_than_ms=0)
    assert not is_listed(older_than_ms=3_600_000)
    with pytest.raises(ConfigError, match="knows no state Sleeping; there are Empty, Ongoing"):
        admin.list_transactions(states=["Sleeping"])


def test_transactional_ids_are_found_by_a_pattern(admin: Admin, open_transaction: OpenTransaction) -> None:
    transactional_id, _ = open_transaction()
    open_transaction()
    try:
        listed = admin.list_transactions(transactional_id_pattern=f"{transactional_id[:-1]}.")
    except UnsupportedVersionError:
        pytest.skip("this broker knows no patterns")
    assert [listing.transactional_id for listing in listed if listing.transactional_id == transactional_id]
    assert admin.list_transactions(transactional_id_pattern="no-such-id") == []


def test_producers_are_described(admin: Admin, open_transaction: OpenTransaction) -> None:
    transactional_id, key = open_transaction()
    empty, nowhere = TopicPartition(key.topic, 0), TopicPartition(key.topic, 7)
    described = admin.describe_producers([key, empty, nowhere])
    (producer,) = described[key]
    transaction = admin.describe_transactions(transactional_id)[transactional_id]
    assert (producer.producer_id, producer.producer_epoch) == (transaction.producer_id, transaction.producer_epoch)
    assert producer.last_sequence == 0
    assert producer.transaction_start_offset == 0
    assert described[empty] == []
    assert isinstance(described.errors[nowhere], NoSuchPartitionError)


def test_open_transactions_that_are_looked_after_do_not_hang(admin: Admin, open_transaction: OpenTransaction) -> None:
    _, key = open_transaction()
    (found,) = admin.list_open_transactions([key, TopicPartition(key.topic, 0)])
    assert (found.topic_partition, found.start_offset) == (key, 0)
    assert admin.find_hanging_transactions([key], written_before_ms=FAR_FUTURE_MS) == []
    with pytest.raises(NoSuchPartitionError):
        admin.list_open_transactions([TopicPartition(key.topic, 7)])


def test_fenced_producers_can_not_go_on(
    admin: Admin, make_topic: MakeTopic, fresh_name: FreshName, client_cluster: BrokerProcess
) -> None:
    topic, transactional_id = make_topic(), fresh_name("tx")
    with Producer(bootstrap_servers=client_cluster.bootstrap, transactional_id=transactional_id) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"lost").result(20)
        before = admin.describe_transactions(transactional_id)[transactional_id]
        fenced = admin.fence_producers(transactional_id)[transactional_id]
        assert (fenced.producer_id, fenced.producer_epoch) > (before.producer_id, before.producer_epoch)
        with pytest.raises(ClientError):
            producer.commit_transaction()
    assert admin.list_open_transactions([TopicPartition(topic, 0)]) == []
    assert admin.fence_producers([fresh_name("new")]).raise_for_errors()


def test_a_transaction_is_aborted_in_its_partition(admin: Admin, open_transaction: OpenTransaction) -> None:
    transactional_id, key = open_transaction()
    (found,) = admin.list_open_transactions([key])
    admin.abort_transaction(
        key,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        coordinator_epoch=found.coordinator_epoch,
    )
    assert admin.list_open_transactions([key]) == []
    # Its coordinator has not heard of it.
    assert admin.describe_transactions(transactional_id)[transactional_id].state == "Ongoing"
