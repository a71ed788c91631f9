"""Streams written to topics: restarts, replays of batches that were committed, and writes inside foreachBatch."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog import Admin, Consumer, Producer, TopicPartition
from tidelog.bench.brokers import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_A_BATCH = 10


class Copying:
    """Queries from one topic to another, each from its checkpoint."""

    def __init__(self, spark: SparkSession, cluster: BrokerProcess, directory: Path, source: str) -> None:
        self._spark = spark
        self._bootstrap = cluster.bootstrap
        self._directory = directory
        self._source = source

    def write_source(self, count: int) -> None:
        with Producer(bootstrap_servers=self._bootstrap) as producer:
            for number in range(count):
                producer.send_nowait(self._source, b"%d" % number, key=b"%d" % number)

    def rows(self) -> DataFrame:
        return (
            self._spark.readStream.format("tidelog")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", self._source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(ROWS_A_BATCH))
            .load()
            .select("key", "value")
        )

    def run(self, checkpoint: str, target: str, **options: str) -> None:
        """Copy all that is there, and end."""
        writer = self.rows().writeStream.format("tidelog").option("kafka.bootstrap.servers", self._bootstrap)
        for name, value in {"topic": target, "checkpointLocation": self._place(checkpoint), **options}.items():
            writer = writer.option(name, value)
        self._await(writer.trigger(availableNow=True).start())

    def run_for_each(self, checkpoint: str, write: Callable[[DataFrame, int], None]) -> None:
        writer = self.rows().writeStream.foreachBatch(write).option("checkpointLocation", self._place(checkpoint))
        self._await(writer.trigger(availableNow=True).start())

    def _await(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination(120)
        finally:
            query.stop()

    def _place(self, checkpoint: str) -> str:
        return str(self._directory / checkpoint)

    def forget_commits(self, checkpoint: str, count: int = 1) -> None:
        """As if the driver had died after the sink's commit, before Spark noted it."""
        place = self._directory / checkpoint / "commits"
        for path in sorted(place.glob("[0-9]*"), key=lambda path: int(path.name))[-count:]:
            path.unlink()
            place.joinpath(f".{path.name}.crc").unlink(missing_ok=True)

    def _settled_ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the partitions end, once the markers of the last commits are written."""
        deadline_s = time.monotonic() + 30
        with (
            Consumer(bootstrap_servers=self._bootstrap, isolation_level="read_committed") as committed,
            Consumer(bootstrap_servers=self._bootstrap, isolation_level="read_uncommitted") as all_of_it,
        ):
            while committed.end_offsets(partitions) != all_of_it.end_offsets(partitions):
                assert time.monotonic() < deadline_s, "a transaction is open"
            return dict(all_of_it.end_offsets(partitions))

    def read(self, topic: str) -> list[bytes]:
        found: list[Any] = []
        with Consumer(
            bootstrap_servers=self._bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            partitions = [TopicPartition(topic, row.partition) for row in consumer.partitions_for(topic)]
            consumer.assign(partitions)
            ends = self._settled_ends(partitions)
            assert consumer.end_offsets(partitions) == ends
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                found += [record.value for record in consumer.poll(0.1)]
        return sorted(found)


@pytest.fixture
def copying(spark: SparkSession, cluster: BrokerProcess, tmp_path: Path, new_topic: Callable[..., str]) -> Copying:
    return Copying(spark, cluster, tmp_path, new_topic("source", 2))


def _expected(count: int, times: int = 1) -> list[bytes]:
    return sorted([b"%d" % number for number in range(count)] * times)


def test_a_replayed_batch_is_passed_over(copying: Copying, new_topic: Callable[..., str]) -> None:
    target = new_topic("target", 2)
    copying.write_source(35)
    copying.run("checkpoint", target)
    assert copying.read(target) == _expected(35)
    copying.forget_commits("checkpoint")
    copying.run("checkpoint", target)
    assert copying.read(target) == _expected(35)


def test_at_least_once_writes_a_replayed_batch_again(copying: Copying, new_topic: Callable[..., str]) -> None:
    target = new_topic("target", 2)
    copying.write_source(ROWS_A_BATCH)
    copying.run("checkpoint", target, delivery="at-least-once")
    copying.forget_commits("checkpoint")
    copying.run("checkpoint", target, delivery="at-least-once")
    assert copying.read(target) == _expected(ROWS_A_BATCH, times=2)


def test_a_query_goes_on_after_a_restart(copying: Copying, new_topic: Callable[..., str]) -> None:
    target = new_topic("target", 2)
    for count in (15, 3, 22):
        copying.write_source(count)
        copying.run("checkpoint", target)
    assert copying.read(target) == sorted(_expected(15) + _expected(3) + _expected(22))


def test_two_queries_write_to_one_topic(copying: Copying, new_topic: Callable[..., str]) -> None:
    target = new_topic("target", 2)
    copying.write_source(25)
    for checkpoint in ("first", "second"):
        copying.run(checkpoint, target)
        copying.forget_commits(checkpoint)
    for checkpoint in ("second", "first"):
        copying.run(checkpoint, target)
    assert copying.read(target) == _expected(25, times=2)


def test_nothing_is_left_open(copying: Copying, new_topic: Callable[..., str], cluster: BrokerProcess) -> None:
    target = new_topic("target", 2)
    copying.write_source(25)
    copying.run("checkpoint", target, transactionalIdPrefix="left-open")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        listed = admin.list_transactions(states=["Ongoing"])
        assert [row.transactional_id for row in listed if row.transactional_id.startswith("left-open")] == []
        assert any(group.group_id.startswith("left-open") for group in admin.list_groups())


def test_writes_inside_foreach_batch_are_exactly_once(
    copying: Copying, new_topic: Callable[..., str], cluster: BrokerProcess, fresh_name: Callable[[str], str]
) -> None:
    first, second, app = new_topic("first"), new_topic("second"), fresh_name("app")

    def write(frame: DataFrame, _: int) -> None:
        plain = frame.write.format("tidelog").mode("append").option("kafka.bootstrap.servers", cluster.bootstrap)
        plain.option("topic", first).save()
        named = frame.write.format("tidelog").mode("append").option("kafka.bootstrap.servers", cluster.bootstrap)
        named.option("topic", second).option("txnAppId", app).save()

    copying.write_source(25)
    copying.run_for_each("checkpoint", write)
    copying.forget_commits("checkpoint")
    copying.run_for_each("checkpoint", write)
    assert copying.read(first) == copying.read(second) == _expected(25)


def test_two_writes_of_one_batch_under_one_name_are_refused(
    copying: Copying, new_topic: Callable[..., str], cluster: BrokerProcess
) -> None:
    target = new_topic("target")

    def write(frame: DataFrame, _: int) -> None:
        for _ in range(2):
            plain = frame.write.format("tidelog").mode("append").option("kafka.bootstrap.servers", cluster.bootstrap)
            plain.option("topic", target).save()

    copying.write_source(5)
    with pytest.raises(Exception, match="its own txnAppId"):
        copying.run_for_each("checkpoint", write)
    assert copying.read(target) == _expected(5)


def test_complete_output_is_refused(copying: Copying, new_topic: Callable[..., str], cluster: BrokerProcess) -> None:
    copying.write_source(1)
    counts = copying.rows().groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")
    writer = counts.writeStream.format("tidelog").outputMode("complete")
    query = (
        writer.option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("topic", new_topic("counts"))
        .option("checkpointLocation", copying._place("complete"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="can't be overwritten"):
        query.awaitTermination(60)
