"""The records of __transaction_state beside Kafka's own: the same bytes, and Kafka's tools read what a broker wrote."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tidelog.bench.brokers import kafka_jars
from tidelog.coordinator.actions import GroupRecord
from tidelog.coordinator.transaction import Transaction, TransactionState
from tidelog.coordinator.txn_records import decode_transaction, encode_tombstone, encode_transaction
from tidelog.testing import Broker

pytestmark = pytest.mark.compat

ID = "where ü"
STATES = TransactionState
ONE, TWO = frozenset({("t", 0)}), frozenset({("t", 0), ("t", 1)})


def made(state: TransactionState, **others: object) -> Transaction:
    fields: dict[str, object] = {
        "transactional_id": ID,
        "producer_id": 5,
        "producer_epoch": 7,
        "timeout_ms": 60_000,
        "state": state,
        "start_ms": 1000,
        "last_update_ms": 2000,
    }
    return Transaction(**(fields | others))  # type: ignore[arg-type]  # the fields' own types


OURS = {
    "empty": made(STATES.EMPTY, start_ms=-1),
    "ongoing": made(STATES.ONGOING, partitions=ONE, client_version=2),
    "prepared-with-next-id": made(
        STATES.PREPARE_COMMIT, partitions=ONE, client_version=2, previous_producer_id=3, next_producer_id=9
    ),
    "aborting": made(STATES.PREPARE_ABORT, partitions=ONE, previous_producer_id=3),
    "kept": made(STATES.ONGOING, partitions=TWO, client_version=2, next_producer_id=5, next_producer_epoch=9),
    "complete": made(STATES.COMPLETE_COMMIT, client_version=2, previous_producer_id=3),
}


def java(*arguments: str | Path) -> str:
    command = ["java", "-Xmx256m", "-cp", f"{kafka_jars()}/*", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_records_have_the_bytes_that_kafka_writes() -> None:
    theirs = {}
    for line in java(Path(__file__).parent / "java" / "TransactionRecords.java").splitlines():
        name, key, value = line.split()
        theirs[name] = GroupRecord(bytes.fromhex(key), None if value == "-" else bytes.fromhex(value))
    # One that this broker never writes, but reads.
    assert decode_transaction(theirs.pop("of-version-0")) == (ID, made(STATES.ONGOING, partitions=TWO))
    assert theirs == {name: encode_transaction(transaction) for name, transaction in OURS.items()} | {
        "tombstone": encode_tombstone(ID)
    }
    # Who ends a transaction and gets a fresh id has had this one before, which Kafka writes later than this broker.
    read = OURS | {"prepared-with-next-id": replace(OURS["prepared-with-next-id"], previous_producer_id=5)}
    for name, transaction in read.items():
        assert decode_transaction(theirs[name]) == (ID, transaction)


def test_kafkas_own_tools_read_transactions() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tx"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("t", b"a")
        producer.commit_transaction(30)
        written = java(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            "--bootstrap-server",
            broker.bootstrap,
            "--topic",
            "__transaction_state",
            "--formatter",
            "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter",
            "--from-beginning",
            "--max-messages",
            "4",
            "--timeout-ms",
            "30000",
        )
        listed = java("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", broker.bootstrap, "list")
    decoder, states, position = json.JSONDecoder(), [], written.find("{")
    while position >= 0:
        row, position = decoder.raw_decode(written, position)
        assert row["key"]["data"]["transactionalId"] == "tx"
        states.append(TransactionState(row["value"]["data"]["transactionStatus"]))
        position = written.find("{", position)
    assert states == [STATES.EMPTY, STATES.ONGOING, STATES.PREPARE_COMMIT, STATES.COMPLETE_COMMIT]
    assert [line.split()[0::3] for line in listed.splitlines()[1:]] == [["tx", "CompleteCommit"]]
