"""DataFrames written to topics in one go: columns, partitions, errors, and what a name makes of a repetition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog import Consumer, ConsumerRecord, Producer, TopicPartition
from tidelog.bench.brokers import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEADERS = "array(struct('a' AS key, CAST('1' AS BINARY) AS value), struct('b' AS key, CAST(NULL AS BINARY) AS value))"
Save = Callable[..., None]
Read = Callable[..., list[ConsumerRecord]]


@pytest.fixture
def save(cluster: BrokerProcess) -> Save:
    def save(frame: DataFrame, **options: str) -> None:
        writer = frame.write.format("tidelog").mode("append").option("kafka.bootstrap.servers", cluster.bootstrap)
        for name, value in options.items():
            writer = writer.option(name, value)
        writer.save()

    return save


@pytest.fixture
def read(cluster: BrokerProcess) -> Read:
    """All records of a topic that readers of committed ones see."""

    def read(topic: str, isolation_level: str = "read_committed") -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        with Consumer(
            bootstrap_servers=cluster.bootstrap, isolation_level=isolation_level, auto_offset_reset="earliest"
        ) as consumer:
            partitions = [TopicPartition(topic, row.partition) for row in consumer.partitions_for(topic)]
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                found += consumer.poll(0.1)
        return found

    return read


def _values(records: list[ConsumerRecord]) -> list[bytes | None]:
    return sorted((record.value for record in records), key=lambda value: value or b"")


def test_every_column_arrives(spark: SparkSession, save: Save, read: Read, new_topic: Callable[..., str]) -> None:
    topic = new_topic("columns", 3)
    frame = spark.range(4).selectExpr(
        "IF(id = 0, NULL, CONCAT('k', id)) AS key",
        "CAST(IF(id = 1, NULL, CONCAT('v', id)) AS BINARY) AS value",
        "CAST(2 AS INT) AS partition",
        f"IF(id = 3, NULL, {HEADERS}) AS headers",
        "id AS not_written",
    )
    save(frame.coalesce(1), topic=topic)
    found = read(topic)
    assert [(record.partition, record.key, record.value) for record in found] == [
        (2, None, b"v0"),
        (2, b"k1", None),
        (2, b"k2", b"v2"),
        (2, b"k3", b"v3"),
    ]
    assert [list(record.headers) for record in found] == [[("a", b"1"), ("b", None)]] * 3 + [[]]


def test_keys_go_where_other_clients_send_them(
    spark: SparkSession, save: Save, read: Read, new_topic: Callable[..., str], cluster: BrokerProcess
) -> None:
    ours, theirs = new_topic("ours", 5), new_topic("theirs", 5)
    save(spark.range(200).selectExpr("CAST(id AS STRING) AS key", "'x' AS value"), topic=ours)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in range(200):
            producer.send_nowait(theirs, b"x", key=b"%d" % number)
    places = [{record.key: record.partition for record in read(topic)} for topic in (ours, theirs)]
    assert places[0] == places[1]
    assert len(set(places[0].values())) == 5


def test_a_null_partition_is_left_to_the_key(
    spark: SparkSession, save: Save, read: Read, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("nulls", 4)
    columns = ("CAST(id AS STRING) AS key", "'x' AS value")
    save(spark.range(40).selectExpr(*columns), topic=topic)
    by_key = {record.key: record.partition for record in read(topic)}
    again = new_topic("nulls", 4)
    save(spark.range(40).selectExpr(*columns, "IF(id < 10, 3, NULL) AS partition"), topic=again)
    for record in read(again):
        assert record.key is not None
        assert record.partition == (3 if int(record.key) < 10 else by_key[record.key])


def test_the_column_names_the_topic_unless_the_option_does(
    spark: SparkSession, save: Save, read: Read, new_topic: Callable[..., str]
) -> None:
    even, odd, third = new_topic("even"), new_topic("odd"), new_topic("third")
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value", f"IF(id % 2 = 0, '{even}', '{odd}') AS topic")
    save(frame, delivery="exactly-once")
    assert _values(read(even)) == [b"0", b"2", b"4", b"6", b"8"]
    assert _values(read(odd)) == [b"1", b"3", b"5", b"7", b"9"]
    save(frame, topic=third)
    assert len(read(third)) == 10
    assert len(read(even)) == 5


def test_what_is_wrong_with_columns_is_said_before_anything_runs(
    spark: SparkSession, save: Save, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    with pytest.raises(Exception, match="no 'value' column to write; the columns are: id"):
        save(spark.range(1), topic=topic)
    with pytest.raises(Exception, match="must be string or binary"):
        save(spark.range(1).selectExpr("id AS value"), topic=topic)
    with pytest.raises(Exception, match="no topic to write to"):
        save(spark.range(1).selectExpr("'x' AS value"))
    with pytest.raises(Exception, match="did you mean 'delivery'"):
        save(spark.range(1).selectExpr("'x' AS value"), topic=topic, delivry="exactly-once")


def test_rows_without_a_topic_or_with_one_that_cant_be_fail(
    spark: SparkSession, save: Save, new_topic: Callable[..., str]
) -> None:
    with pytest.raises(Exception, match="column 'topic' is null in 1 of 1 rows"):
        save(spark.range(1).selectExpr("'x' AS value", "CAST(NULL AS STRING) AS topic"))
    with pytest.raises(Exception, match="INVALID_TOPIC"):
        save(spark.range(1).selectExpr("'x' AS value"), topic="no such topic!")
    topic = new_topic("two", 2)
    with pytest.raises(Exception, match="has no partition 7"):
        save(spark.range(1).selectExpr("'x' AS value", "7 AS partition"), topic=topic)


def test_a_topic_cant_be_overwritten(spark: SparkSession, cluster: BrokerProcess) -> None:
    writer = spark.range(1).selectExpr("'x' AS value").write.format("tidelog").mode("overwrite")
    with pytest.raises(Exception, match="overwrit"):
        writer.option("kafka.bootstrap.servers", cluster.bootstrap).option("topic", "t").save()


def test_a_job_that_fails_leaves_nothing_visible(
    spark: SparkSession, save: Save, read: Read, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("failing")
    # One task, and many rows before the bad one: most of them are stored by then.
    frame = spark.range(0, 300_000, 1, 1).selectExpr(
        "IF(id = 299999, CAST(raise_error('the last row is bad') AS STRING), repeat('x', 100)) AS value"
    )
    with pytest.raises(Exception, match="the last row is bad"):
        save(frame, topic=topic, delivery="exactly-once")
    assert read(topic) == []
    assert read(topic, "read_uncommitted") != []  # it was written, and aborted


def test_a_named_write_is_written_once(
    spark: SparkSession, save: Save, read: Read, new_topic: Callable[..., str], fresh_name: Callable[[str], str]
) -> None:
    topic, app = new_topic("named", 2), fresh_name("app")
    frame = spark.range(50).selectExpr("CAST(id AS STRING) AS value").repartition(3)
    for version in ("4", "4", "3", "5", "5"):
        save(frame, topic=topic, txnAppId=app, txnVersion=version)
    assert len(read(topic)) == 100
    save(frame, topic=topic, txnAppId=fresh_name("another"), txnVersion="4")
    assert len(read(topic)) == 150


def test_a_named_write_that_failed_can_be_repeated(
    spark: SparkSession, save: Save, read: Read, new_topic: Callable[..., str], fresh_name: Callable[[str], str]
) -> None:
    topic, app = new_topic("repeated"), fresh_name("app")
    good = spark.range(0, 20, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    bad = good.selectExpr("IF(value = '19', CAST(raise_error('bad row') AS STRING), value) AS value")
    with pytest.raises(Exception, match="bad row"):
        save(bad, topic=topic, txnAppId=app, txnVersion="1")
    save(good, topic=topic, txnAppId=app, txnVersion="1")
    assert len(read(topic)) == 20


def test_many_tasks_share_a_worker(
    spark: SparkSession, save: Save, read: Read, new_topic: Callable[..., str], fresh_name: Callable[[str], str]
) -> None:
    topic = new_topic("many", 3)
    frame = spark.range(0, 1000, 1, 100).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    save(frame, topic=topic, txnAppId=fresh_name("app"), txnVersion="0")
    assert _values(read(topic)) == sorted(b"%d" % number for number in range(1000))


def test_a_time_out_that_the_broker_does_not_allow_is_explained(
    spark: SparkSession, save: Save, new_topic: Callable[..., str]
) -> None:
    frame = spark.range(1).selectExpr("'x' AS value")
    with pytest.raises(Exception, match=r"transaction\.max\.timeout\.ms"):
        save(frame, topic=new_topic(), delivery="exactly-once", **{"kafka.transaction.timeout.ms": "86400000"})
