"""A sink of parallel tasks whose engine decides in a database of its own (KIP-939), and dies at every step.

As in a batch of Spark or a checkpoint of Flink, all tasks prepare, one commit in the database decides for all of them,
and then each is told. Every number is in every partition once, whenever the process was killed.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tidelog.testing import Broker

pytestmark = pytest.mark.tidelog_only

TOPIC = "sink"
TASKS = 2
DEADLINE_S = 60
SETTINGS = {"transaction.two.phase.commit.enable": "true", "unstable.api.versions.enable": "true"}
KILLED = 9

ENGINE = """
import os, sqlite3, sys
from contextlib import ExitStack
from tidelog import Producer

bootstrap, path, topic, tasks, last, dies_at = sys.argv[1:]
steps = 0


def step():
    global steps
    steps += 1
    if steps == int(dies_at):
        os._exit(9)


database = sqlite3.connect(path)
with ExitStack() as stack:
    producers = [
        stack.enter_context(
            Producer(
                bootstrap_servers=bootstrap,
                transactional_id=f"task-{task}",
                transaction_two_phase_commit_enable=True,
            )
        )
        for task in range(int(tasks))
    ]
    for task, producer in enumerate(producers):
        found = producer.init_transactions(keep_prepared=True)
        step()
        if found is not None:
            noted = database.execute("SELECT 1 FROM decided WHERE task = ? AND prepared = ?", (task, str(found)))
            if noted.fetchone():
                producer.commit_transaction()
            else:
                producer.abort_transaction()
            step()
    (done,) = database.execute("SELECT coalesce(max(number), 0) FROM decided").fetchone()
    for number in range(done + 1, int(last) + 1):
        for task, producer in enumerate(producers):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=task)
        prepared = []
        for producer in producers:
            prepared.append(str(producer.prepare_transaction()))
            step()
        with database:
            rows = [(number, task, name) for task, name in enumerate(prepared)]
            database.executemany("INSERT INTO decided VALUES (?, ?, ?)", rows)
        for producer in producers:
            step()
            producer.commit_transaction()
"""


def run_engine(broker: Broker, database: Path, last: int, dies_at: int) -> bool:
    """Run it up to a number, or to the step at which it dies; whether it did."""
    arguments = [broker.bootstrap, str(database), TOPIC, str(TASKS), str(last), str(dies_at)]
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, *arguments], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode in (0, KILLED), done.stderr
    return done.returncode == KILLED


def read_committed(broker: Broker, partition: int) -> list[int]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    found: list[int] = []
    try:
        while True:
            (message,) = consumer.consume(1, timeout=DEADLINE_S)
            if message.error() is not None:
                return found
            found.append(int(message.value() or b""))
    finally:
        consumer.close()


def test_all_tasks_count_or_none_wherever_the_engine_dies(tmp_path: Path, start_broker: Callable[..., Broker]) -> None:
    broker = start_broker(settings=SETTINGS)
    broker.create_topic(TOPIC, partitions=TASKS)
    database = tmp_path / "engine.db"
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE decided (number INTEGER, task INTEGER, prepared TEXT)")
    last = dies_at = 0
    # Of the first run that dies of nothing all steps have been tried.
    died = True
    while died:
        last, dies_at = last + 1, dies_at + 1
        died = run_engine(broker, database, last, dies_at)
    assert dies_at > 3 * TASKS, "each task begins, prepares and commits"
    assert not run_engine(broker, database, last, 0)
    for task in range(TASKS):
        assert read_committed(broker, task) == list(range(1, last + 1)), f"task {task}"
    connection.close()
