"""At most once, at least once, exactly once: the failure that tells them apart, with a real client.

A copier reads numbers from `in` and writes them to `out`. It fails at one and the same place, between the two halves of
its work, and another one of its group takes over. What `out` then holds is what each way promises.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tidelog.testing import Broker

COUNT = 20
CHUNK = 5
FAILS_IN_CHUNK = 2
WAIT_S = 30.0
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


class CopierFailedError(Exception):
    """The copier fails here, as if its process had been killed."""


class Copier:
    """One of a group that copies; `fails` stops it in the middle of a chunk, with nothing tidied up."""

    def __init__(self, broker: Broker, *, fails: bool, transactional_id: str | None = None) -> None:
        self.fails = fails
        self.consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "copiers", "enable.auto.commit": False}
        )
        [committed] = self.consumer.committed([TopicPartition("in", 0)], timeout=WAIT_S)
        self.position = max(0, committed.offset)
        self.consumer.assign([TopicPartition("in", 0, self.position)])
        self.producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "acks": "all"}
            | ({"transactional.id": transactional_id} if transactional_id else {})
        )

    def chunks(self) -> list[list[Message]]:
        """What is left to read, in pieces."""
        read: list[Message] = []
        deadline_s = time.monotonic() + WAIT_S
        while self.position + len(read) < COUNT:
            assert time.monotonic() < deadline_s
            read += [message for message in self.consumer.consume(COUNT, timeout=0.1) if message.error() is None]
        return [read[start : start + CHUNK] for start in range(0, len(read), CHUNK)]

    def write(self, chunk: list[Message]) -> None:
        for message in chunk:
            self.producer.produce("out", message.value())
        assert self.producer.flush(WAIT_S) == 0

    def offsets(self, chunk: list[Message]) -> list[TopicPartition]:
        last = chunk[-1].offset()
        assert last is not None
        return [TopicPartition("in", 0, last + 1)]

    def commit(self, chunk: list[Message]) -> None:
        self.consumer.commit(offsets=self.offsets(chunk), asynchronous=False)

    def fail_if_it_is_time(self, number: int) -> None:
        if self.fails and number == FAILS_IN_CHUNK:
            raise CopierFailedError


def copy_at_most_once(copier: Copier) -> None:
    for number, chunk in enumerate(copier.chunks()):
        copier.commit(chunk)
        copier.fail_if_it_is_time(number)
        copier.write(chunk)


def copy_at_least_once(copier: Copier) -> None:
    for number, chunk in enumerate(copier.chunks()):
        copier.write(chunk)
        copier.fail_if_it_is_time(number)
        copier.commit(chunk)


def copy_exactly_once(copier: Copier) -> None:
    copier.producer.init_transactions(WAIT_S)
    for number, chunk in enumerate(copier.chunks()):
        copier.producer.begin_transaction()
        copier.write(chunk)
        copier.fail_if_it_is_time(number)
        group = copier.consumer.consumer_group_metadata()
        copier.producer.send_offsets_to_transaction(copier.offsets(chunk), group, WAIT_S)
        copier.producer.commit_transaction(WAIT_S)


def copied(broker: Broker, isolation_level: str) -> list[int]:
    """What `out` holds for such a reader."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
        }
    )
    consumer.assign([TopicPartition("out", 0, 0)])
    numbers: list[int] = []
    while True:
        message = consumer.poll(WAIT_S)
        assert message is not None
        if message.error() is not None:  # it is at the end of the partition
            consumer.close()
            return numbers
        value = message.value()
        assert value is not None
        numbers.append(int(value))


@pytest.fixture
def broker_with_numbers(start_broker: Callable[..., Broker]) -> Broker:
    broker = start_broker(settings=SETTINGS)
    broker.create_topic("in")
    broker.create_topic("out")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(COUNT):
        producer.produce("in", str(number))
    assert producer.flush(WAIT_S) == 0
    return broker


def run(broker: Broker, copy: Callable[[Copier], None], transactional_id: str | None = None) -> None:
    """One copier that fails, and one that takes over and comes to the end."""
    failing = Copier(broker, fails=True, transactional_id=transactional_id)
    with pytest.raises(CopierFailedError):
        copy(failing)
    copy(Copier(broker, fails=False, transactional_id=transactional_id))


LOST_OR_DOUBLED = list(range(FAILS_IN_CHUNK * CHUNK, (FAILS_IN_CHUNK + 1) * CHUNK))


def test_at_most_once_loses_and_never_doubles(broker_with_numbers: Broker) -> None:
    run(broker_with_numbers, copy_at_most_once)
    expected = [number for number in range(COUNT) if number not in LOST_OR_DOUBLED]
    assert copied(broker_with_numbers, "read_committed") == expected


def test_at_least_once_doubles_and_never_loses(broker_with_numbers: Broker) -> None:
    run(broker_with_numbers, copy_at_least_once)
    numbers = copied(broker_with_numbers, "read_committed")
    assert numbers == [*range(LOST_OR_DOUBLED[-1] + 1), *range(LOST_OR_DOUBLED[0], COUNT)]


def test_exactly_once_does_neither(broker_with_numbers: Broker) -> None:
    run(broker_with_numbers, copy_exactly_once, transactional_id="copier")
    assert copied(broker_with_numbers, "read_committed") == list(range(COUNT))
    # What the copier that failed had written is there, and only hidden.
    everything = copied(broker_with_numbers, "read_uncommitted")
    assert everything == [*range(LOST_OR_DOUBLED[-1] + 1), *range(LOST_OR_DOUBLED[0], COUNT)]


def test_acks_0_loses_and_does_not_hear_of_it(start_broker: Callable[..., Broker]) -> None:
    """The broker refuses the large record: whoever waits for an answer is told, whoever does not is not."""
    broker = start_broker(settings=SETTINGS)
    broker.create_topic("out", configs={"max.message.bytes": "1000"})
    told: list[tuple[str, bool]] = []
    for acks in ("0", "all"):

        def note(error: KafkaError | None, _: Message, acks: str = acks) -> None:
            told.append((acks, error is None))

        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": acks, "log_level": 0})
        for value in ("1", "2" * 5000):
            producer.produce("out", value, on_delivery=note)
            assert producer.flush(WAIT_S) == 0
    assert told == [("0", True), ("0", True), ("all", True), ("all", False)]
    assert copied(broker, "read_uncommitted") == [1, 1]
