"""The broker is killed with -9 in the middle of transactions: each is there as a whole, in all partitions, or not."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException, Producer

if TYPE_CHECKING:
    from tests.chaos.conftest import ReadCommitted, StartServed

TOPIC = "ledger"
PARTITIONS = 3
KILLS = 3
WAIT_S = 30.0


def test_transactions_are_whole_after_kills(serve: StartServed, read_committed: ReadCommitted) -> None:
    broker = serve({"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200})
    broker.create_topic(TOPIC, PARTITIONS, {"segment.bytes": "1048576"})
    rng = random.Random(7)
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "transactional.id": "teller",
        "transaction.timeout.ms": 10_000,
        "reconnect.backoff.max.ms": 200,
        "linger.ms": 0,
        "log_level": 0,
    }
    decided: dict[int, bool | None] = {}  # None: the broker was killed before anyone heard how it ended
    number = 0
    for round_number in range(KILLS + 1):
        producer = Producer(settings)
        producer.init_transactions(WAIT_S)
        dies_at = None if round_number == KILLS else number + rng.randint(5, 15)
        while dies_at is None or number <= dies_at:
            if dies_at is None and number % 10 == 0:
                break
            producer.begin_transaction()
            for index in range(PARTITIONS):
                producer.produce(TOPIC, b"%d" % number, partition=index)
            if number == dies_at:
                producer.flush(0.05 * rng.random())
                broker.kill()
                broker.start()
            commit = rng.random() < 0.6
            try:
                (producer.commit_transaction if commit else producer.abort_transaction)(WAIT_S)
                decided[number] = commit
            except KafkaException:
                decided[number] = None
            number += 1
        del producer
    found = read_committed(broker, TOPIC, PARTITIONS)
    for transaction, committed in decided.items():
        partitions = [index for index, value in found if value == b"%d" % transaction]
        assert partitions.count(0) == partitions.count(1) == partitions.count(2) <= 1, (transaction, partitions)
        if committed is not None:
            assert bool(partitions) is committed, transaction
    assert sum(committed is True for committed in decided.values()) > KILLS
