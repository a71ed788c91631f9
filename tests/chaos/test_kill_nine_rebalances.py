"""The broker is killed with -9 while a group rebalances: the group comes back, and no acknowledged offset goes back."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tidelog.client.admin import Admin

if TYPE_CHECKING:
    from tests.chaos.conftest import ServedBroker, StartServed

TOPIC = "read"
GROUP = "readers"
PARTITIONS = 6
ROUND_RECORDS = 3_000  # enough that members still read and commit them when the broker dies
WAIT_S = 60.0
BROKER = {
    "group.initial.rebalance.delay.ms": 100,
    "group.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.assignment.interval.ms": 0,
}
CLIENT: dict[str, dict[str, Any]] = {
    "classic": {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 300},
    "consumer": {"group.protocol": "consumer"},
}


class Ledger:
    """What all members were told: the records they read, and the offsets whose commit was acknowledged."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.read: set[tuple[int, int]] = set()
        self.acknowledged = dict.fromkeys(range(PARTITIONS), 0)

    def note_read(self, partition: int, offset: int) -> None:
        with self._guard:
            self.read.add((partition, offset))

    def note_commit(self, partition: int, offset: int) -> None:
        with self._guard:
            self.acknowledged[partition] = max(self.acknowledged[partition], offset)

    def offsets(self) -> dict[int, int]:
        with self._guard:
            return dict(self.acknowledged)


class Member(threading.Thread):
    """A consumer that commits after every few records, over every death of the broker, until it is told to leave."""

    def __init__(self, broker: ServedBroker, ledger: Ledger, settings: dict[str, Any]) -> None:
        super().__init__(name="member")
        self._ledger = ledger
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                **settings,
            }
        )
        self.is_over = threading.Event()
        self.owned: frozenset[int] = frozenset()

    def run(self) -> None:
        self._consumer.subscribe([TOPIC])
        while not self.is_over.is_set():
            messages = [message for message in self._consumer.consume(20, 0.05) if message.error() is None]
            for message in messages:
                self._ledger.note_read(message.partition() or 0, message.offset() or 0)
            if messages:
                self._commit()
            self.owned = frozenset(item.partition for item in self._consumer.assignment())
        self._consumer.close()

    def _commit(self) -> None:
        try:
            done = self._consumer.commit(asynchronous=False)
        except KafkaException:
            return  # the broker is dead, or the partitions are another's by now
        for item in done or ():
            if item.error is None and item.offset >= 0:
                self._ledger.note_commit(item.partition, item.offset)


def _produce(broker: ServedBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(ROUND_RECORDS):
        producer.produce(TOPIC, str(number), partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0


def _wait(what: str, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline_s, what
        pause.wait(0.02)


def _committed(broker: ServedBroker) -> dict[int, int]:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        committed = admin.list_consumer_group_offsets(GROUP)[GROUP]
    return {key.partition: row.offset for key, row in committed.items()}


def _check_nothing_went_back(broker: ServedBroker, acknowledged: dict[int, int]) -> None:
    stored = _committed(broker)
    assert all(stored.get(partition, 0) >= offset for partition, offset in acknowledged.items()), (
        f"{stored} is stored, {acknowledged} was acknowledged before"
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.soak)])
@pytest.mark.timeout(900)
def test_groups_come_back_and_offsets_do_not_go_back(serve: StartServed, kills: int, protocol: str) -> None:
    source = random.Random(kills)
    broker = serve(settings=BROKER)
    broker.create_topic(TOPIC, PARTITIONS)
    _produce(broker)
    ledger = Ledger()
    members = [Member(broker, ledger, CLIENT[protocol])]
    members[0].start()
    try:
        _wait("the first member commits nothing", lambda: any(ledger.offsets().values()))
        for _ in range(kills):
            # A member comes and, later, another goes: the kill falls into what the group makes of it.
            newcomer = Member(broker, ledger, CLIENT[protocol])
            members.append(newcomer)
            _produce(broker)
            newcomer.start()
            threading.Event().wait(source.uniform(0, 0.8))
            broker.kill()
            acknowledged = ledger.offsets()
            broker.start()
            _check_nothing_went_back(broker, acknowledged)
            if len(members) > 2:
                members.pop(0).is_over.set()
        _wait("the group does not come back", lambda: _is_shared_out(members))
        records = ROUND_RECORDS * (kills + 1)
        _wait("records are not read", lambda: len(ledger.read) == records)
        _wait("the end is not committed", lambda: sum(_committed(broker).values()) == records)
    finally:
        for thread in threading.enumerate():
            if isinstance(thread, Member):
                thread.is_over.set()
        for thread in threading.enumerate():
            if isinstance(thread, Member):
                thread.join(WAIT_S)
    assert not [thread for thread in threading.enumerate() if isinstance(thread, Member)]


def _is_shared_out(members: list[Member]) -> bool:
    owned = [number for member in members for number in member.owned]
    return sorted(owned) == list(range(PARTITIONS)) and all(member.owned for member in members)
