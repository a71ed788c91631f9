"""A streaming query copies from topic to topic on a cluster whose brokers die and restart: every row once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker_processes import BrokerProcesses, broker_processes
from tidelog import Admin, Consumer, Producer, TopicPartition
from tidelog.client.admin import NewTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SOURCE, TARGET = "source", "target"
PARTITIONS = 2
TOPICS = (SOURCE, TARGET, "__consumer_offsets", "__transaction_state")
SETTINGS = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}

WaitUntil = Callable[[Callable[[], bool], str], None]


class Feeder:
    """Writes numbers to the source all the time."""

    def __init__(self, bootstrap: str) -> None:
        self.written = 0
        self._bootstrap = bootstrap
        self._is_over = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="feeder")

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._is_over.set()
        self._thread.join()
        assert not self._failed, self._failed

    def _run(self) -> None:
        try:
            with Producer(bootstrap_servers=self._bootstrap) as producer:
                while not self._is_over.wait(0.02):
                    number = self.written
                    producer.send(SOURCE, b"%d" % number, partition=number % PARTITIONS).result()
                    self.written += 1
        except BaseException as failure:
            self._failed.append(failure)
            raise


class Copied:
    """What readers of committed records find in the target."""

    def __init__(self, bootstrap: str) -> None:
        self.values: list[int] = []
        partitions = [TopicPartition(TARGET, index) for index in range(PARTITIONS)]
        self._consumer = Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
        self._consumer.assign(partitions)
        self._consumer.seek_to_beginning()

    def read(self) -> int:
        self.values += [int(record.value or b"-1") for record in self._consumer.poll(0.1)]
        return len(self.values)

    def close(self) -> None:
        self._consumer.close()


class Copying:
    """The cluster, the query, and what goes in and comes out."""

    def __init__(self, cluster: BrokerProcesses, query: StreamingQuery, feeder: Feeder, wait: WaitUntil) -> None:
        self.cluster = cluster
        self.feeder = feeder
        self.copied = Copied(cluster.bootstrap)
        self._query = query
        self._wait = wait

    def wait_for_rows(self, more: int) -> None:
        goal = self.copied.read() + more
        self._wait(lambda: self._is_at(goal), f"{more} more rows to be copied")

    def wait_for_all(self) -> None:
        self._wait(lambda: self._is_at(self.feeder.written), "all rows to be copied")

    def _is_at(self, goal: int) -> bool:
        assert self._query.isActive, self._query.exception()
        return self.copied.read() >= goal


@contextmanager
def copying(cluster: BrokerProcesses, spark: SparkSession, checkpoint: Path, wait: WaitUntil) -> Iterator[Copying]:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in (SOURCE, TARGET)]).raise_for_errors()
    feeder = Feeder(cluster.bootstrap)
    rows = (
        spark.readStream.format("tidelog")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
    )
    query = (
        rows.writeStream.format("tidelog")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("topic", TARGET)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    here = Copying(cluster, query, feeder, wait)
    try:
        feeder.start()
        yield here
        feeder.finish()
        here.wait_for_all()
        # Nothing comes after the last one, either.
        query.processAllAvailable()
        here.copied.read()
    finally:
        query.stop()
        feeder.finish()
        here.copied.close()
    assert sorted(here.copied.values) == list(range(feeder.written))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "rounds", [1, pytest.param(8, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])], ids=["once", "for long"]
)
def test_every_row_is_copied_once(rounds: int, spark: SparkSession, tmp_path: Path, wait_until: WaitUntil) -> None:
    """The leader of a source partition is killed -9, then all brokers restart one after another."""
    with (
        broker_processes(tmp_path, settings=SETTINGS) as cluster,
        copying(cluster, spark, tmp_path / "checkpoint", wait_until) as here,
    ):
        here.wait_for_rows(10)
        for number in range(rounds):
            with Admin(bootstrap_servers=cluster.bootstrap) as admin:
                leader_id = admin.describe_topics([SOURCE])[SOURCE].partitions[number % PARTITIONS].leader_id
            leader = cluster.brokers[leader_id]
            leader.kill()
            here.wait_for_rows(20)
            leader.start()
            cluster.wait_until_in_sync(TOPICS)
            for broker in cluster.brokers.values():
                broker.stop()
                here.wait_for_rows(20)
                broker.start()
                cluster.wait_until_in_sync(TOPICS)
