"""A transactional producer as a process of its own, to be killed, stopped and woken too late.

It counts: transaction N writes N to some partitions and commits N + 1 as an offset of its group, so that whoever comes
after it with the same transactional id goes on where the last commit left off. What it knows of its transactions it
notes in a journal, a line each, before and after the fact: `abort TAG` is written before it aborts, `commit N` once the
commit is answered. It ends with FENCED when a successor took its place, and with BROKEN on anything that it can't mend.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

FENCED = 3
BROKEN = 4
PARTITIONS = 4
RECORDS = 2
WAIT_S = 60.0
FENCING = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
CLIENT = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    # Once it has started all over with the bootstrap address, librdkafka 2.16 was seen to hang while it sent offsets
    # of a transaction, on a connection that it had given up by its own log.
    "metadata.recovery.strategy": "none",
}


class Writer:
    def __init__(self, bootstrap: str, name: str, index: int, journal: str, seed: int) -> None:
        self.name = name
        self.source = random.Random(f"{name} {seed}")
        self.incarnation = seed
        self.attempts = 0
        self.counted = TopicPartition("source", index)
        self.journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": name, "enable.auto.commit": False} | CLIENT
        )
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0}
            # An abort waits for records whose connection broke, for as long as they have to live.
            | {"message.timeout.ms": 5_000}
            | CLIENT
        )

    def note(self, line: str) -> None:
        os.write(self.journal, line.encode() + b"\n")

    def run(self) -> None:
        self.patiently(self.producer.init_transactions)
        self.note("ready")
        number = self.committed()
        while True:
            try:
                is_committed = self.transact(number)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                self.patiently(self.producer.abort_transaction)
                is_committed = False
            if is_committed:
                self.note(f"commit {number}")
            number = self.committed() if not is_committed else number + 1

    def committed(self) -> int:
        while True:
            try:
                [stored] = self.consumer.committed([self.counted], timeout=WAIT_S)
                return max(0, stored.offset)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def transact(self, number: int) -> bool:
        self.attempts += 1
        tag = f"{self.incarnation}-{self.attempts}"
        partitions = self.source.sample(range(PARTITIONS), self.source.randrange(2, PARTITIONS + 1))
        self.producer.begin_transaction()
        for record in range(RECORDS):
            for partition in partitions:
                value = [self.name, number, tag, record, partitions]
                self.producer.produce("written", json.dumps(value), partition=partition)
        if self.source.random() < 0.3:
            self.producer.flush(WAIT_S)  # so that more of the transaction lies in the log when it ends
        stored = TopicPartition(self.counted.topic, self.counted.partition, number + 1)
        group = self.consumer.consumer_group_metadata()
        self.patiently(lambda wait_s: self.producer.send_offsets_to_transaction([stored], group, wait_s))
        if self.source.random() < 0.25:
            self.note(f"abort {self.name} {number} {tag}")
            self.patiently(self.producer.abort_transaction)
            return False
        self.patiently(self.producer.commit_transaction)
        return True

    def patiently(self, ask: Callable[[float], object]) -> None:
        while True:
            try:
                ask(WAIT_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise


def main(writer: Writer) -> int:
    try:
        writer.run()
    except KafkaException as error:
        if error.args[0].code() in FENCING:
            return FENCED
        writer.note(f"broken {error}")
    return BROKEN


if __name__ == "__main__":
    bootstrap, name, index, journal, seed = sys.argv[1:]
    running = Writer(bootstrap, name, int(index), journal, int(seed))
    # The client's threads are not waited for: they may be in the middle of a request that nobody wants any more.
    os._exit(main(running))
