"""Spark's own `kafka` format, from Maven, reads and writes Tidelog; what it reads is row for row what ours reads."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.server.server import BrokerServer
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.compat

PARTITIONS = 3
FIRST_MS = int(time.time() * 1000) - 600_000
FORMATS = ("tidelog", "kafka")
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


@dataclass
class Topics:
    bootstrap: str
    mixed: str = "mixed"
    compacted: str = "compacted"


@pytest.fixture(scope="module")
def topics() -> Iterator[Topics]:
    """A topic with all that records can have and all kinds of transactions; one with gaps that compaction left."""
    # Its records are old.
    with Broker(settings={"log.retention.ms": -1}) as broker, Admin(bootstrap_servers=broker.bootstrap) as admin:
        topics = Topics(broker.bootstrap)
        admin.create_topics([NewTopic(topics.mixed, PARTITIONS, 1)]).raise_for_errors()
        compaction = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        admin.create_topics([NewTopic(topics.compacted, 1, 1, compaction)]).raise_for_errors()
        _write_mixed(broker.bootstrap, topics.mixed)
        _write_compacted(broker, topics.compacted)
        yield topics


def _write_mixed(bootstrap: str, topic: str) -> None:
    for number, compression in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        with Producer(bootstrap_servers=bootstrap, compression_type=compression) as producer:
            for row in range(200):
                moment_ms = FIRST_MS + number * 200 + row
                headers: list[tuple[str, bytes | None]] = [("n", b"%d" % row), ("n", None)] if row % 3 else []
                producer.send(
                    topic,
                    None if row % 17 == 0 else b"value %d of %s" % (row, compression.encode()),
                    key=None if row % 5 == 0 else b"key %d" % (row % 23),
                    headers=headers,
                    partition=row % PARTITIONS,
                    timestamp=moment_ms,
                )
    with Producer(bootstrap_servers=bootstrap, transactional_id="compat") as producer:
        producer.init_transactions()
        for number in range(12):
            producer.begin_transaction()
            for row in range(20):
                moment_ms = FIRST_MS + 2_000 + number * 20 + row
                producer.send(topic, b"in transaction %d" % number, partition=row % PARTITIONS, timestamp=moment_ms)
            producer.flush()  # so that aborted records are in the log, too
            if number % 3 == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


def _write_compacted(broker: Broker, topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for row in range(600):
            producer.send(topic, b"value %d" % row, key=b"key %d" % (row % 40))
            if row % 100 == 99:
                producer.flush()

    async def compact(server: BrokerServer) -> None:
        log = server.services.logs.get(topic, 0)
        assert log is not None
        log.roll()
        await asyncio.to_thread(log.flush)
        await server.services.logs.cleaner.run()

    broker.call(compact)


def options_read(topics: Topics) -> dict[str, dict[str, str]]:
    """Ways to say what is read, by what they are about."""
    mixed = topics.mixed
    some = {mixed: {"0": 100, "1": -2, "2": 333}}
    until = {mixed: {"0": 250, "1": 200, "2": -1}}
    times = {mixed: dict.fromkeys(("0", "1", "2"), FIRST_MS + 300)}
    time_range = {"startingTimestamp": str(FIRST_MS + 950), "endingTimestamp": str(FIRST_MS + 2_050)}
    return {
        "everything": {"subscribe": mixed},
        "a pattern": {"subscribePattern": "mi.*d|comp.*"},
        "partitions": {"assign": json.dumps({mixed: [0, 2]})},
        "offsets": {"subscribe": mixed, "startingOffsets": json.dumps(some), "endingOffsets": json.dumps(until)},
        "times": {"subscribe": mixed, "startingOffsetsByTimestamp": json.dumps(times)},
        "until times": {"subscribe": mixed, "endingOffsetsByTimestamp": json.dumps(times)},
        "one time": {"subscribe": mixed, **time_range},
        "many splits": {"subscribe": mixed, "minPartitions": "11"},
        "gaps": {"subscribe": topics.compacted},
    }  # fmt: skip


WAYS = tuple(options_read(Topics("")))


def batch(spark: SparkSession, format_name: str, bootstrap: str, options: dict[str, str]) -> DataFrame:
    reader = spark.read.format(format_name).option("kafka.bootstrap.servers", bootstrap)
    return reader.option("includeHeaders", "true").options(**options).load()


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    """All rows in the order of the log, as plain values."""
    rows = []
    for row in frame.select(*COLUMNS).collect():
        headers = row["headers"] and [(header["key"], _bytes(header["value"])) for header in row["headers"]]
        place = (row["topic"], row["partition"], row["offset"])
        rows.append((*place, _bytes(row["key"]), _bytes(row["value"]), row["timestamp"], row["timestampType"], headers))
    return sorted(rows, key=lambda row: row[:3])


def _bytes(value: bytearray | bytes | None) -> bytes | None:
    return None if value is None else bytes(value)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("way", WAYS)
def test_both_formats_read_the_same_rows(spark: SparkSession, topics: Topics, way: str, isolation: str) -> None:
    options = {**options_read(topics)[way], "kafka.isolation.level": isolation}
    ours, sparks = (rows_of(batch(spark, format_name, topics.bootstrap, options)) for format_name in FORMATS)
    assert ours == sparks
    assert ours
    if way == "gaps":
        assert len(ours) < ours[-1][2]
    if way == "everything":
        committed = [row for row in ours if row[4] is not None and row[4].startswith(b"in transaction")]
        assert len(committed) == (160 if isolation == "read_committed" else 240)


def test_both_formats_have_the_same_columns(spark: SparkSession, topics: Topics) -> None:
    for options in ({}, {"includeHeaders": "true"}):
        schemas = [
            spark.read.format(format_name)
            .option("kafka.bootstrap.servers", topics.bootstrap)
            .option("subscribe", topics.mixed)
            .options(**options)
            .load()
            .schema
            for format_name in FORMATS
        ]
        assert schemas[0] == schemas[1]


@pytest.mark.parametrize("limit", [None, "170"])
def test_both_formats_stream_the_same_rows(
    spark: SparkSession, topics: Topics, tmp_path: Path, limit: str | None
) -> None:
    found = []
    for format_name in FORMATS:
        reader = spark.readStream.format(format_name).option("kafka.bootstrap.servers", topics.bootstrap)
        reader = reader.option("subscribe", topics.mixed).option("startingOffsets", "earliest")
        reader = reader.option("includeHeaders", "true").option("kafka.isolation.level", "read_committed")
        if limit is not None:
            reader = reader.option("maxOffsetsPerTrigger", limit)
        place = tmp_path / format_name
        writer = reader.load().writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(place / "rows"))
        assert query.awaitTermination(120)
        found.append(rows_of(spark.read.parquet(str(place / "rows"))))
        if limit is not None:
            assert len(query.recentProgress) >= 5
    assert found[0] == found[1]
    assert len(found[0]) == 1160


@pytest.mark.parametrize(("first", "second"), [("kafka", "tidelog"), ("tidelog", "kafka")])
def test_a_query_goes_on_from_the_checkpoint_of_the_other_format(
    spark: SparkSession, broker: Broker, tmp_path: Path, first: str, second: str
) -> None:
    broker.create_topic("moving", partitions=2)
    expected = []
    for number, format_name in enumerate((first, second, first)):
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for row in range(100):
                value = b"%d of run %d" % (row, number)
                producer.send("moving", value, partition=row % 2)
                expected.append(value)
        reader = spark.readStream.format(format_name).option("kafka.bootstrap.servers", broker.bootstrap)
        rows = reader.option("subscribe", "moving").option("startingOffsets", "earliest").load().select("value")
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
        assert query.awaitTermination(120)
        found = [bytes(row["value"]) for row in spark.read.parquet(str(tmp_path / "rows")).collect()]
        assert sorted(found) == sorted(expected)


@pytest.fixture
def written(broker: Broker) -> str:
    broker.create_topic("written", partitions=2)
    return "written"


def consumed(bootstrap: str, topic: str, partitions: int = 2) -> list[tuple[Any, ...]]:
    """What our consumer reads of committed records until the end."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    rows = []
    with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        while any(consumer.position(place) < ends[place] for place in places):
            polled = consumer.poll(timeout=1.0)
            rows += [(record.partition, record.key, record.value, list(record.headers)) for record in polled]
    return rows


def test_sparks_sink_writes_batches(spark: SparkSession, broker: Broker, written: str) -> None:
    rows = spark.range(500).selectExpr(
        "CAST(id AS STRING) AS key",
        "CASE WHEN id % 10 = 0 THEN NULL ELSE concat('value ', id) END AS value",
        "array(named_struct('key', 'h', 'value', CAST(CAST(id AS STRING) AS BINARY))) AS headers",
        "CAST(id % 2 AS INT) AS partition",
        f"'{written}' AS topic",
    )
    writer = rows.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.option("includeHeaders", "true").save()
    expected = [
        (number % 2, b"%d" % number, None if number % 10 == 0 else b"value %d" % number, [("h", b"%d" % number)])
        for number in range(500)
    ]
    assert sorted(consumed(broker.bootstrap, written), key=lambda row: int(row[1])) == expected


@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("sink", FORMATS)
def test_streams_from_one_format_to_the_other(
    spark: SparkSession, topics: Topics, broker: Broker, written: str, tmp_path: Path, source: str, sink: str
) -> None:
    """What is written through either sink is what Spark's own format and our consumer read."""
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", topics.bootstrap)
    reader = reader.option("subscribe", topics.mixed).option("startingOffsets", "earliest")
    reader = reader.option("kafka.isolation.level", "read_committed").option("maxOffsetsPerTrigger", "400")
    writer = reader.load().select("key", "value").writeStream.format(sink)
    writer = writer.option("kafka.bootstrap.servers", broker.bootstrap).option("topic", written)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    options = {"subscribe": topics.mixed, "kafka.isolation.level": "read_committed"}
    expected = sorted((str(row[3]), str(row[4])) for row in rows_of(batch(spark, "kafka", topics.bootstrap, options)))
    assert sorted((str(key), str(value)) for _, key, value, _ in consumed(broker.bootstrap, written)) == expected
    read_again = {"subscribe": written, "kafka.isolation.level": "read_committed"}
    again = rows_of(batch(spark, "kafka", broker.bootstrap, read_again))
    assert sorted((str(row[3]), str(row[4])) for row in again) == expected
