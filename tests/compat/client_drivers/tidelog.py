"""Tidelog's own client: record by record, and in Arrow tables, which must come to the same."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa

from client_drivers.model import ProduceOptions, ReadRecord, SentRecord
from tidelog import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidelog.client.admin import ConfigResource, OffsetSpec, ResourceType
from tidelog.records.arrow import HEADERS_TYPE

WAIT_S = 30.0


class TidelogDriver:
    name = "tidelog"
    sets_timestamps = True
    sends_null_headers = True
    sends_empty_records = True
    has_transactions = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = Admin(bootstrap_servers=bootstrap)

    def create_topic(self, topic: str, partitions: int, configs: dict[str, str], replicas: int = 1) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, replicas, configs=configs)]).raise_for_errors()

    def produce(
        self, topic: str, partition: int, records: Sequence[SentRecord], options: ProduceOptions
    ) -> list[int | None]:
        settings: dict[str, object] = {
            "bootstrap.servers": self._bootstrap,
            "compression.type": options.compression,
            "acks": options.acks,
            "enable.idempotence": options.idempotent or options.transactional_id is not None,
        }
        if options.linger_ms is not None:
            settings["linger.ms"] = options.linger_ms
        if options.transactional_id is None:
            with Producer(settings) as producer:
                return self._send(producer, topic, partition, records)
        with Producer({**settings, "transactional.id": options.transactional_id}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            offsets = self._send(producer, topic, partition, records)
            (producer.commit_transaction if options.commits else producer.abort_transaction)()
            return offsets

    def _send(self, producer: Producer, topic: str, partition: int, records: Sequence[SentRecord]) -> list[int | None]:
        futures = [
            producer.send(
                topic,
                record.value,
                key=record.key,
                headers=list(record.headers),
                partition=partition,
                timestamp=record.timestamp_ms,
            )
            for record in records
        ]
        producer.flush(WAIT_S)
        return [None if offset < 0 else offset for offset in (future.result(WAIT_S).offset for future in futures)]

    def consume(
        self, topic: str, partition: int, offset: int, count: int, isolation: str | None = None
    ) -> list[ReadRecord]:
        read: list[ReadRecord] = []
        with self._consumer(isolation) as consumer:
            consumer.assign([TopicPartition(topic, partition)])
            consumer.seek(TopicPartition(topic, partition), offset)
            deadline_s = time.monotonic() + WAIT_S
            while len(read) < count:
                assert time.monotonic() < deadline_s, f"only {len(read)} of {count} records arrived within {WAIT_S} s"
                read += self._poll(consumer)
        return read[:count]

    def _poll(self, consumer: Consumer) -> list[ReadRecord]:
        return [
            ReadRecord(record.offset, record.key, record.value, tuple(record.headers), record.timestamp)
            for record in consumer.poll(1.0)
        ]

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        asked = TopicPartition(topic, partition)
        low = self._admin.list_offsets({asked: OffsetSpec.EARLIEST})[asked].offset
        return low, self._admin.list_offsets({asked: OffsetSpec.LATEST})[asked].offset

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        asked = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            found = consumer.offsets_for_times({asked: timestamp_ms})[asked]
        return None if found is None else found.offset

    def topic_config(self, topic: str, name: str) -> str:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return str(self._admin.describe_configs(resource)[resource][name].value)

    def alter_topic_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        self._admin.incremental_alter_configs({resource: {name: value}}).raise_for_errors()

    def grow_partitions(self, topic: str, count: int) -> None:
        self._admin.create_partitions({topic: count}).raise_for_errors()

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._admin.delete_records({TopicPartition(topic, partition): before}).raise_for_errors()

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics(topic).raise_for_errors()

    def topics(self) -> dict[str, int]:
        return {topic.name: len(topic.partitions) for topic in self._admin.list_topics()}

    def close(self) -> None:
        self._admin.close()

    def _consumer(self, isolation: str | None = None) -> Consumer:
        settings: dict[str, object] = {"bootstrap.servers": self._bootstrap, "auto.offset.reset": "none"}
        if isolation is not None:
            settings["isolation.level"] = isolation
        return Consumer(settings)


class TidelogArrowDriver(TidelogDriver):
    """The same through `send_arrow` and `poll_arrow`."""

    name = "tidelog-arrow"

    def _send(self, producer: Producer, topic: str, partition: int, records: Sequence[SentRecord]) -> list[int | None]:
        now_ms = time.time_ns() // 1_000_000
        times = [now_ms if record.timestamp_ms is None else record.timestamp_ms for record in records]
        headers = [[{"key": name, "value": value} for name, value in record.headers] for record in records]
        rows = pa.table(
            {
                "key": pa.array([record.key for record in records], pa.binary()),
                "value": pa.array([record.value for record in records], pa.binary()),
                "headers": pa.array(headers, HEADERS_TYPE),
                "at": pa.array(times, pa.timestamp("ms", tz="UTC")),
            }
        )
        stored = producer.send_arrow(topic, rows, timestamp="at", partition=partition).result(WAIT_S)
        assert sum(run.rows for run in stored) == len(records)
        return [None if run.offset < 0 else run.offset + row for run in stored for row in range(run.rows)]

    def _poll(self, consumer: Consumer) -> list[ReadRecord]:
        batch = consumer.poll_arrow(1.0)
        if batch is None:
            return []
        rows = batch.set_column(
            batch.schema.get_field_index("timestamp"), "timestamp", batch.column("timestamp").cast(pa.int64())
        ).to_pylist()
        return [
            ReadRecord(
                row["offset"],
                row["key"],
                row["value"],
                tuple((header["key"], header["value"]) for header in row["headers"] or ()),
                row["timestamp"] // 1000,
            )
            for row in rows
        ]
