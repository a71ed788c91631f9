"""kafka-python 3: the pure-Python client."""

from __future__ import annotations

from collections.abc import Sequence

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic

from client_drivers.model import ProduceOptions, ReadRecord, SentRecord

WAIT_S = 30.0


class KafkaPythonDriver:
    name = "kafka-python"
    sets_timestamps = True
    sends_null_headers = False
    sends_empty_records = False
    has_transactions = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def create_topic(self, topic: str, partitions: int, configs: dict[str, str], replicas: int = 1) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, replicas, topic_configs=configs)])

    def produce(
        self, topic: str, partition: int, records: Sequence[SentRecord], options: ProduceOptions
    ) -> list[int | None]:
        acks: str | int = "all" if options.acks == "all" else int(options.acks)
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if options.compression == "none" else options.compression,
            acks=acks,
            enable_idempotence=options.idempotent or options.transactional_id is not None,
            transactional_id=options.transactional_id,
            linger_ms=options.linger_ms or 0,
        )
        try:
            if options.transactional_id is not None:
                producer.init_transactions()
                producer.begin_transaction()
            futures = [
                producer.send(
                    topic,
                    partition=partition,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(WAIT_S)
            results = [future.get(WAIT_S) for future in futures]
            if options.transactional_id is not None:
                (producer.commit_transaction if options.commits else producer.abort_transaction)()
            return [None if acks == 0 else result.offset for result in results]
        finally:
            producer.close()

    def consume(
        self, topic: str, partition: int, offset: int, count: int, isolation: str | None = None
    ) -> list[ReadRecord]:
        consumer = self._consumer(isolation or "read_uncommitted")
        try:
            assigned = TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, offset)
            read: list[ReadRecord] = []
            while len(read) < count:
                polled = consumer.poll(timeout_ms=WAIT_S * 1000, max_records=count - len(read))
                assert polled, f"only {len(read)} of {count} records arrived within {WAIT_S} s"
                read += [
                    ReadRecord(record.offset, record.key, record.value, tuple(record.headers), record.timestamp)
                    for record in polled[assigned]
                ]
            return read
        finally:
            consumer.close()

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            asked = TopicPartition(topic, partition)
            return consumer.beginning_offsets([asked])[asked], consumer.end_offsets([asked])[asked]
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        consumer = self._consumer()
        try:
            asked = TopicPartition(topic, partition)
            found = consumer.offsets_for_times({asked: timestamp_ms})[asked]
            return None if found is None else int(found.offset)
        finally:
            consumer.close()

    def topic_config(self, topic: str, name: str) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        described = self._admin.describe_configs([resource], config_filter="all")
        return str(_find_config(described, topic, name))

    def alter_topic_config(self, topic: str, name: str, value: str) -> None:
        self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})])

    def grow_partitions(self, topic: str, count: int) -> None:
        self._admin.create_partitions({topic: NewPartitions(count)})

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._admin.delete_records({TopicPartition(topic, partition): before})

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])

    def topics(self) -> dict[str, int]:
        return {row["name"]: len(row["partitions"]) for row in self._admin.describe_topics()}

    def close(self) -> None:
        self._admin.close()

    def _consumer(self, isolation: str = "read_uncommitted") -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            auto_offset_reset="none",
            enable_auto_commit=False,
            isolation_level=isolation,
        )


def _find_config(described: object, topic: str, name: str) -> object:
    """The value inside kafka-python's nested answer: resource type, resource name, setting, then its fields."""
    for resources in described.values():  # type: ignore[attr-defined]  # untyped library
        if topic in resources:
            entry = resources[topic][name]
            return entry["value"] if isinstance(entry, dict) else entry
    raise AssertionError(f"no settings of topic {topic} in {described!r}")
