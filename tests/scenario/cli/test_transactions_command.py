from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidelog.protocol.messages.k24_add_partitions_to_txn import (
    ADD_PARTITIONS_TO_TXN,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tidelog.records import encode_batch
from tidelog.testing.broker import Broker
from tidelog.testing.raw_client import RawClient

if TYPE_CHECKING:
    from tests.scenario.cli.conftest import Command

DEADLINE_S = 30.0
HANGING_PRODUCER_ID = 4711
AN_HOUR_AGO_MS = round((time.time() - 3600) * 1000)
BEFORE_IMPLICIT_PARTITIONS = 11  # from the next version on a coordinator is told of the partition


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[Broker]:
    """Here producers can leave a transaction that no coordinator knows, as they could before it was verified.

    They can have transactions without a time-out, too.
    """
    settings = {
        "transaction.partition.verification.enable": "false",
        "transaction.two.phase.commit.enable": "true",
        "unstable.api.versions.enable": "true",
    }
    with Broker(settings=settings) as broker:
        yield broker


@contextmanager
def _open_transaction(bootstrap: str, transactional_id: str, topic: str) -> Iterator[Producer]:
    """A producer with a record in each of two partitions of the topic, not yet committed."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 600_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for partition in (0, 2):
        producer.produce(topic, b"open", partition=partition)
    assert producer.flush(DEADLINE_S) == 0
    yield producer
    producer.abort_transaction(DEADLINE_S)


def _leave_hanging(bootstrap: str, topic: str, *values: bytes) -> None:
    """Records of a transaction whose producer has no transactional id that a coordinator knows."""
    batch = encode_batch(
        [(None, value, (), AN_HOUR_AGO_MS) for value in values],
        producer_id=HANGING_PRODUCER_ID,
        producer_epoch=3,
        base_sequence=0,
        is_transactional=True,
    )
    request = ProduceRequest(
        transactional_id="forgotten",
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=1, records=batch)])],
    )
    with RawClient(int(bootstrap.rpartition(":")[2])) as client:
        response = client.ask(PRODUCE, request, ProduceResponse, BEFORE_IMPLICIT_PARTITIONS)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def _read_committed(bootstrap: str, topic: str, partition: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[bytes | None] = []
    deadline_s = time.monotonic() + DEADLINE_S
    try:
        while True:
            assert time.monotonic() < deadline_s
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:  # the end, as far as it may be read
                return found
            found.append(message.value())
    finally:
        consumer.close()


def test_list_and_describe(tidelog: Command, topic: str, wait_until: Callable[[Callable[[], bool], str], None]) -> None:
    with _open_transaction(tidelog.bootstrap, "shown", topic) as producer:
        [document] = tidelog("transactions", "describe", "shown", "--json").ok().json()
        assert document["state"] == "Ongoing"
        assert document["timeout_ms"] == 600_000
        assert abs(document["start_time_ms"] - time.time() * 1000) < 2 * DEADLINE_S * 1000
        assert document["partitions"] == [[topic, 0], [topic, 2]]
        listed = {row["transactional_id"]: row for row in tidelog("transactions", "list", "--json").ok().json()}
        assert listed["shown"] == {
            "transactional_id": "shown",
            "producer_id": document["producer_id"],
            "state": "Ongoing",
            "is_two_phase": False,
            "coordinator": 1,
        }
        text = tidelog("transactions", "describe", "shown").ok().text
        assert text.startswith("shown  Ongoing, producer ")
        assert text.splitlines()[-1].split() == [topic, "2"]

        def shown(*filters: str) -> bool:
            return "shown" in tidelog("transactions", "list", *filters).ok().text

        assert shown("--state", "Empty", "--state", "Ongoing", "--producer-id", str(document["producer_id"]))
        assert shown("--older-than", "0s")
        assert not shown("--producer-id", "999999")
        assert not shown("--older-than", "1h")
        producer.commit_transaction(DEADLINE_S)
        wait_until(lambda: shown("--state", "CompleteCommit"), "the markers are written")
        assert not shown("--older-than", "0s"), "it has ended"
        [document] = tidelog("transactions", "describe", "shown", "--json").ok().json()
        assert document["partitions"] == []
        producer.begin_transaction()
    assert "TRANSACTIONAL_ID_NOT_FOUND" in tidelog("transactions", "describe", "nobody").refused()


def test_a_hanging_transaction_is_found_and_aborted(tidelog: Command, topic: str) -> None:
    def find(*arguments: str) -> list[tuple[str, int, int]]:
        found = tidelog("transactions", "find-hanging", *arguments, "--json").ok().json()
        return [(row["topic"], row["partition"], row["start_offset"]) for row in found]

    tidelog("produce", topic, "--partition", "1", stdin=b"before\n").ok()
    _leave_hanging(tidelog.bootstrap, topic, b"x", b"y")
    tidelog("produce", topic, "--partition", "1", stdin=b"behind\n").ok()
    assert _read_committed(tidelog.bootstrap, topic, 1) == [b"before"]
    with _open_transaction(tidelog.bootstrap, "healthy", topic):
        now = ("--max-transaction-timeout", "0")
        hanging = [(topic, 1, 1)]
        assert find() == hanging, "its records are older than the default"
        assert find(*now) == hanging, "one that its coordinator knows does not hang"
        assert find("--topic", topic, "--broker", "1") == hanging
        assert find("--topic", topic, "--partition", "0", *now) == []
        text = tidelog("transactions", "find-hanging").ok().text
        assert text.splitlines()[1].split()[:6] == [topic, "1", str(HANGING_PRODUCER_ID), "3", "-1", "1"]

    where = ("--topic", topic, "--partition", "1")
    assert "no open transaction" in tidelog("transactions", "abort", *where, "--start-offset", "0").refused()
    aborted = tidelog("transactions", "abort", *where, "--start-offset", "1", "--yes").ok().text
    assert aborted == f"aborted the transaction of producer {HANGING_PRODUCER_ID} in {topic}-1\n"
    assert find() == []
    assert _read_committed(tidelog.bootstrap, topic, 1) == [b"before", b"behind"]


def _prepare(port: int, transactional_id: str, topic: str) -> tuple[int, int]:
    """A producer leaves a record in a transaction without a time-out, and is gone; its id and epoch."""
    with RawClient(port) as client:
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
        client.ask(FIND_COORDINATOR, find, FindCoordinatorResponse, 5)
        init = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000, enable2_pc=True)
        given = client.ask(INIT_PRODUCER_ID, init, InitProducerIdResponse, 6)
        assert given.error_code == ErrorCode.NONE
        batch = encode_batch(
            [(None, b"prepared", (), AN_HOUR_AGO_MS)],
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
            base_sequence=0,
            is_transactional=True,
        )
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])],
        )
        add = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
            topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )
        client.ask(ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest(transactions=[add]), AddPartitionsToTxnResponse, 5)
        answer = client.ask(PRODUCE, request, ProduceResponse, BEFORE_IMPLICIT_PARTITIONS)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    return given.producer_id, given.producer_epoch


def test_a_transaction_without_a_time_out_is_shown_as_such_and_ends_by_its_id(
    tidelog: Command, topic: str, shared_broker: Broker
) -> None:
    producer_id, epoch = _prepare(shared_broker.port, "engine", topic)
    tidelog("produce", topic, "--partition", "0", stdin=b"behind\n").ok()
    [document] = tidelog("transactions", "describe", "engine", "--json").ok().json()
    assert (document["state"], document["timeout_ms"]) == ("Ongoing", None)
    assert "timeout none (two-phase)" in tidelog("transactions", "describe", "engine").ok().text
    listed = {row["transactional_id"]: row for row in tidelog("transactions", "list", "--json").ok().json()}
    assert listed["engine"]["is_two_phase"]
    assert "none (two-phase)" in tidelog("transactions", "list", "--state", "Ongoing").ok().text
    hanging = tidelog("transactions", "find-hanging", "--topic", topic, "--json").ok().json()
    assert hanging == [], "its coordinator knows it, however long it takes"
    assert _read_committed(tidelog.bootstrap, topic, 0) == []

    done = tidelog("transactions", "abort", "--transactional-id", "engine", "--yes", "--json").ok().json()
    assert done == {
        "transactional_id": "engine",
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "partitions": [[topic, 0]],
    }
    assert _read_committed(tidelog.bootstrap, topic, 0) == [b"behind"]
    again = tidelog("transactions", "abort", "--transactional-id", "engine", "--yes").refused()
    assert "has no open transaction" in again


def test_a_transaction_is_aborted_by_its_producer(tidelog: Command, topic: str) -> None:
    _leave_hanging(tidelog.bootstrap, topic, b"x")
    which = ("--topic", topic, "--partition", "1", "--producer-id", str(HANGING_PRODUCER_ID))
    old = tidelog("transactions", "abort", *which, "--producer-epoch", "2", "--coordinator-epoch", "-1", "--yes")
    assert "INVALID_PRODUCER_EPOCH" in old.refused()
    current = (*which, "--producer-epoch", "3", "--coordinator-epoch", "-1")
    assert "add --yes to confirm" in tidelog("transactions", "abort", *current).refused(2)
    done = tidelog("transactions", "abort", *current, "--yes", "--json")
    assert done.ok().json()["producer_id"] == HANGING_PRODUCER_ID
    assert tidelog("transactions", "find-hanging", "--topic", topic, "--json").ok().json() == []


def test_what_makes_no_sense_is_refused(tidelog: Command, topic: str) -> None:
    where = ("abort", "--topic", topic, "--partition", "0")
    for arguments in (
        ("list", "--older-than", "soon"),
        ("find-hanging", "--partition", "0"),
        ("abort",),
        ("abort", "--topic", topic, "--start-offset", "0"),
        ("abort", "--transactional-id", "engine", "--topic", topic),
        where,
        (*where, "--producer-id", "1", "--producer-epoch", "0"),
        (*where, "--start-offset", "0", "--producer-id", "1", "--producer-epoch", "0", "--coordinator-epoch", "0"),
    ):
        assert tidelog("transactions", *arguments).code == 2, arguments
    assert "knows no state Sleeping" in tidelog("transactions", "list", "--state", "Sleeping").refused()
    assert "no partition 9" in tidelog("transactions", "find-hanging", "--topic", topic, "--partition", "9").refused()
    assert "no broker 9" in tidelog("transactions", "find-hanging", "--broker", "9").refused()
    assert "there is no topic" in tidelog("transactions", "find-hanging", "--topic", "nowhere").refused()


def test_the_states_of_a_fenced_producer(tidelog: Command, topic: str) -> None:
    """The second producer with an id aborts what the first has open and shuts it out."""
    settings = {"bootstrap.servers": tidelog.bootstrap, "transactional.id": "twice", "log_level": 0}
    first = Producer(settings)
    first.init_transactions(DEADLINE_S)
    first.begin_transaction()
    first.produce(topic, b"never seen", partition=0)
    assert first.flush(DEADLINE_S) == 0
    [before] = tidelog("transactions", "describe", "twice", "--json").ok().json()
    second = Producer(settings)
    second.init_transactions(DEADLINE_S)
    [after] = tidelog("transactions", "describe", "twice", "--json").ok().json()
    assert after["producer_id"] == before["producer_id"]
    assert after["producer_epoch"] > before["producer_epoch"]
    assert (after["state"], after["partitions"]) == ("Empty", [])
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(DEADLINE_S)
    assert fenced.value.args[0].fatal()
    assert _read_committed(tidelog.bootstrap, topic, 0) == []
