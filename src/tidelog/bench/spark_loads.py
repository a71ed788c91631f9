"""The loads of `tidelog bench spark`: each runs one job with one format and gives its figure.

What always holds: whichever format it is, the job, its options and its data are the same; a load that counts or stores
rows checks that it has all of them, so that no format looks fast by reading less.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog import Consumer, Producer
from tidelog.bench.brokers import BrokerProcess
from tidelog.bench.errors import MeasurementError
from tidelog.bench.processes import cpu_s_of
from tidelog.bench.stage import led_topic
from tidelog.client.admin import Admin, OffsetSpec
from tidelog.client.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

OURS = "tidelog"
SPARKS = "kafka"
PARTITIONS = 4
VALUE_BYTES = 100
# Spark's own format is faster with this than with Kafka's 500; even more, or larger fetches, made it no faster.
SPARKS_POLL_RECORDS = "5000"
# Our sink's producer lets batches grow to 1 MB; Spark's own is given the same, and some time to fill them.
SPARKS_SINK_OPTIONS = {
    "kafka.batch.size": "1000000",
    "kafka.linger.ms": "5",
    "kafka.max.request.size": "1100000",
    "kafka.buffer.memory": str(64 << 20),
}
SINK_FILES = 8
SINK_FILES_A_BATCH = 2
SMALL_BATCHES = 120
_MEASURED_BATCHES = 60  # the last ones
_IDLE_S = 8.0
_ROWS_A_SEND = 100_000
# The events of a load are spread over the last hour, so that windows of a minute have something to count.
_SPREAD_MS = 3_600_000
_DEADLINE_S = 600.0


@dataclass
class SparkStage:
    """Where the loads run: a session, a broker, what is read and what is written."""

    spark: SparkSession
    broker: BrokerProcess
    work: Path
    records: int
    sink_rows: int
    topic: str = "read"
    few_topic: str = "few"
    batches: int = 5
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self, word: str) -> str:
        return f"{word}-{next(self.numbers)}"

    def read(self, format_name: str) -> DataFrame:
        return self.spark.read.format(format_name).options(**self._options(format_name, self.topic)).load()

    def read_stream(self, format_name: str, topic: str, rows_a_batch: int) -> DataStreamReader:
        reader = self.spark.readStream.format(format_name).options(**self._options(format_name, topic))
        return reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(rows_a_batch))

    def _options(self, format_name: str, topic: str) -> dict[str, Any]:
        best = {"kafka.max.poll.records": SPARKS_POLL_RECORDS} if format_name == SPARKS else {}
        return {"kafka.bootstrap.servers": self.broker.bootstrap, "subscribe": topic, **best}

    @property
    def sink_input(self) -> Path:
        return self.work / "sink-input"


def write_inputs(stage: SparkStage) -> None:
    """Fill the topic that is read, the one with a few records, and the files that sinks are fed from."""
    send_records(stage.broker, stage.topic, stage.records)
    with Producer(bootstrap_servers=stage.broker.bootstrap) as producer:
        for _ in range(SMALL_BATCHES):
            producer.send(stage.few_topic, bytes(VALUE_BYTES))
    rows = stage.spark.range(stage.sink_rows).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS key",
        f"CAST(lpad(CAST(id AS STRING), {VALUE_BYTES}, 'x') AS BINARY) AS value",
    )
    rows.repartition(SINK_FILES).write.mode("overwrite").parquet(str(stage.sink_input))


def send_records(broker: BrokerProcess, topic: str, records: int) -> None:
    import pyarrow as pa

    step = min(_ROWS_A_SEND, records)
    first_ms = int(time.time() * 1000) - _SPREAD_MS
    values = pa.array([b"%0*d" % (VALUE_BYTES, number) for number in range(step)], pa.binary())
    with Producer(bootstrap_servers=broker.bootstrap, batch_size=1_000_000, max_request_size=1_100_000) as producer:
        for number, begin in enumerate(range(0, records, step)):
            count = min(step, records - begin)
            times = [first_ms + _SPREAD_MS * (begin + row) // records for row in range(count)]
            batch = pa.record_batch({"value": values[:count], "at": pa.array(times, pa.int64())})
            producer.send_arrow(topic, batch, value="value", timestamp="at", partition=number % PARTITIONS)
        producer.flush()
        if producer.metrics().records_failed:
            raise MeasurementError("not all records to be read could be written")


# Reading


def batch_noop(stage: SparkStage, format_name: str) -> float:
    began = time.perf_counter()
    stage.read(format_name).write.format("noop").mode("overwrite").save()
    return stage.records / (time.perf_counter() - began)


def batch_window(stage: SparkStage, format_name: str) -> float:
    began = time.perf_counter()
    counts = _by_minute(stage.read(format_name)).collect()
    seconds = time.perf_counter() - began
    _check(format_name, sum(row["count"] for row in counts), stage.records)
    return stage.records / seconds


def batch_parquet(stage: SparkStage, format_name: str) -> float:
    place = stage.work / stage.fresh("parquet")
    began = time.perf_counter()
    stage.read(format_name).write.parquet(str(place))
    seconds = time.perf_counter() - began
    _check(format_name, stage.spark.read.parquet(str(place)).count(), stage.records)
    shutil.rmtree(place)
    return stage.records / seconds


def stream_noop(stage: SparkStage, format_name: str) -> float:
    rows = stage.read_stream(format_name, stage.topic, stage.records // stage.batches).load()
    return _stream(stage, format_name, rows, "noop", "append")


def stream_window(stage: SparkStage, format_name: str) -> float:
    rows = stage.read_stream(format_name, stage.topic, stage.records // stage.batches).load()
    return _stream(stage, format_name, _by_minute(rows), "noop", "update")


def stream_parquet(stage: SparkStage, format_name: str) -> float:
    place = stage.work / stage.fresh("stream-parquet")
    rows = stage.read_stream(format_name, stage.topic, stage.records // stage.batches).load()
    figure = _stream(stage, format_name, rows, "parquet", "append", path=place)
    _check(format_name, stage.spark.read.parquet(str(place)).count(), stage.records)
    shutil.rmtree(place)
    return figure


def _by_minute(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    return rows.groupBy(functions.window("timestamp", "1 minute")).count()


def _stream(
    stage: SparkStage, format_name: str, rows: DataFrame, sink: str, mode: str, path: Path | None = None
) -> float:
    checkpoint = stage.work / stage.fresh("checkpoint")
    writer = rows.writeStream.format(sink).outputMode(mode).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(checkpoint))
    began = time.perf_counter()
    query = writer.start(str(path)) if path is not None else writer.start()
    _await(query)
    seconds = time.perf_counter() - began
    _check(format_name, sum(progress["numInputRows"] for progress in query.recentProgress), stage.records)
    shutil.rmtree(checkpoint)
    return stage.records / seconds


def _await(query: StreamingQuery) -> None:
    if not query.awaitTermination(int(_DEADLINE_S)):
        query.stop()
        raise MeasurementError(f"a query did not end within {_DEADLINE_S:g} s")


def _check(format_name: str, rows: int, expected: int) -> None:
    if rows != expected:
        raise MeasurementError(f"{format_name} gave {rows} rows of {expected}")


# Writing


def _sink_options(format_name: str, delivery: str) -> dict[str, str]:
    return {"delivery": delivery} if format_name == OURS else SPARKS_SINK_OPTIONS


def batch_sink(stage: SparkStage, format_name: str, delivery: str = "at-least-once") -> float:
    rows = stage.spark.read.parquet(str(stage.sink_input))
    topic = stage.fresh("sink")
    with led_topic(stage.broker, topic, partitions=PARTITIONS):
        writer = rows.write.format(format_name).option("kafka.bootstrap.servers", stage.broker.bootstrap)
        writer = writer.options(**_sink_options(format_name, delivery))
        began = time.perf_counter()
        writer.option("topic", topic).mode("append").save()
        seconds = time.perf_counter() - began
        _check_stored(stage, topic, delivery)
    return stage.sink_rows / seconds


def stream_sink(stage: SparkStage, format_name: str, delivery: str = "at-least-once") -> float:
    reader = stage.spark.readStream.schema("key BINARY, value BINARY").option("maxFilesPerTrigger", SINK_FILES_A_BATCH)
    rows = reader.parquet(str(stage.sink_input))
    topic = stage.fresh("sink")
    checkpoint = stage.work / stage.fresh("checkpoint")
    with led_topic(stage.broker, topic, partitions=PARTITIONS):
        writer = rows.writeStream.format(format_name).option("kafka.bootstrap.servers", stage.broker.bootstrap)
        writer = writer.options(**_sink_options(format_name, delivery))
        writer = writer.option("topic", topic).option("checkpointLocation", str(checkpoint))
        began = time.perf_counter()
        _await(writer.trigger(availableNow=True).start())
        seconds = time.perf_counter() - began
        _check_stored(stage, topic, delivery)
    shutil.rmtree(checkpoint)
    return stage.sink_rows / seconds


def _check_stored(stage: SparkStage, topic: str, delivery: str) -> None:
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    if delivery == "exactly-once":
        _check(OURS, _committed_rows(stage, partitions), stage.sink_rows)
        return
    with Admin(bootstrap_servers=stage.broker.bootstrap) as admin:
        ends = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    _check(topic, sum(ends[partition].offset for partition in partitions), stage.sink_rows)


def _committed_rows(stage: SparkStage, partitions: list[TopicPartition]) -> int:
    """How many rows a reader of committed records gets until the end of all partitions."""
    with Consumer(
        bootstrap_servers=stage.broker.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        rows = 0
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            batch = consumer.poll_arrow(timeout=5.0)
            rows += 0 if batch is None else batch.num_rows
    return rows


# Next to nothing to do


def small_batch_ms(stage: SparkStage, format_name: str) -> float:
    """The median time of a micro-batch of one row, from the trigger to its commit."""
    rows = stage.read_stream(format_name, stage.few_topic, 1).load()
    checkpoint = stage.work / stage.fresh("checkpoint")
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    _await(query)
    shutil.rmtree(checkpoint)
    times = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
    return statistics.median_grouped(times[-_MEASURED_BATCHES:])  # Spark tells whole milliseconds


def idle_cpu_percent(stage: SparkStage, format_name: str) -> float:
    """How much of one core Spark uses for a query that has nothing to read, without a trigger interval."""
    reader = stage.read_stream(format_name, stage.few_topic, 1_000)
    checkpoint = stage.work / stage.fresh("checkpoint")
    query = reader.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
        before = _cpu_s_of_spark(stage)
        time.sleep(_IDLE_S)
        after = _cpu_s_of_spark(stage)
        return 100 * sum(after[pid] - before.get(pid, 0.0) for pid in after) / _IDLE_S
    finally:
        query.stop()
        shutil.rmtree(checkpoint)


def _cpu_s_of_spark(stage: SparkStage) -> dict[int, float]:
    """CPU time of the JVM and each of its Python processes: all that this process has started, but the broker.

    By process, as Spark ends Python workers that have had nothing to do for a minute: what they used must not be taken
    off what the others use.
    """
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
            parents[int(entry.name)] = int(fields[1])
    found, level = set[int](), {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level and pid != stage.broker.pid}
        found |= level
    used: dict[int, float] = {}
    for pid in found:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            used[pid] = cpu_s_of(pid)
    return used
