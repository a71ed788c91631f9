"""confluent-kafka: librdkafka in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from client_drivers.model import Headers, ProduceOptions, ReadRecord, SentRecord

WAIT_S = 30.0


class ConfluentDriver:
    name = "confluent-kafka"
    sets_timestamps = True
    sends_null_headers = True
    sends_empty_records = True
    has_transactions = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create_topic(self, topic: str, partitions: int, configs: dict[str, str], replicas: int = 1) -> None:
        self._wait(self._admin.create_topics([NewTopic(topic, partitions, replicas, config=configs)]))

    def produce(
        self, topic: str, partition: int, records: Sequence[SentRecord], options: ProduceOptions
    ) -> list[int | None]:
        settings = {
            "bootstrap.servers": self._bootstrap,
            "compression.type": options.compression,
            "acks": options.acks,
            "enable.idempotence": options.idempotent or options.transactional_id is not None,
        }
        if options.linger_ms is not None:
            settings["linger.ms"] = options.linger_ms
        if options.transactional_id is not None:
            settings["transactional.id"] = options.transactional_id
        producer = Producer(settings)
        if options.transactional_id is not None:
            producer.init_transactions(WAIT_S)
            producer.begin_transaction()
        delivered: list[int | None] = []
        failures: list[str] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(str(error))
            delivered.append(None if options.acks == "0" else message.offset())

        for record in records:
            producer.produce(
                topic,
                partition=partition,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp=record.timestamp_ms or 0,
                on_delivery=on_delivery,
            )
        assert producer.flush(WAIT_S) == 0, "records were left unsent"
        assert not failures, failures
        if options.transactional_id is not None:
            end = producer.commit_transaction if options.commits else producer.abort_transaction
            end(WAIT_S)
        return delivered

    def consume(
        self, topic: str, partition: int, offset: int, count: int, isolation: str | None = None
    ) -> list[ReadRecord]:
        consumer = self._consumer(isolation)
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            read: list[ReadRecord] = []
            while len(read) < count:
                messages = consumer.consume(count - len(read), timeout=WAIT_S)
                assert messages, f"only {len(read)} of {count} records arrived within {WAIT_S} s"
                for message in messages:
                    assert message.error() is None, message.error()
                    read.append(_read_record(message))
            return read
        finally:
            consumer.close()

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=WAIT_S)
            return low, high
        finally:
            consumer.close()

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        consumer = self._consumer()
        try:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], timeout=WAIT_S)
            # librdkafka answers "none" with the logical offset END.
            return None if found.offset < 0 else int(found.offset)
        finally:
            consumer.close()

    def topic_config(self, topic: str, name: str) -> str:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = self._admin.describe_configs([resource])[resource].result(WAIT_S)
        return str(entries[name].value)

    def alter_topic_config(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._wait(self._admin.incremental_alter_configs([resource]))

    def grow_partitions(self, topic: str, count: int) -> None:
        self._wait(self._admin.create_partitions([NewPartitions(topic, count)]))

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._wait(self._admin.delete_records([TopicPartition(topic, partition, before)]))

    def delete_topic(self, topic: str) -> None:
        self._wait(self._admin.delete_topics([topic]))

    def topics(self) -> dict[str, int]:
        return {name: len(found.partitions) for name, found in self._admin.list_topics(timeout=WAIT_S).topics.items()}

    def close(self) -> None:
        return None

    def _consumer(self, isolation: str | None = None) -> Consumer:
        # librdkafka insists on a group id even where partitions are assigned by hand.
        settings: dict[str, object] = {
            "bootstrap.servers": self._bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
        if isolation is not None:
            settings["isolation.level"] = isolation
        return Consumer(settings)

    @staticmethod
    def _wait(futures: Mapping[Any, Future[Any]]) -> None:
        for future in futures.values():
            future.result(WAIT_S)


def _read_record(message: Message) -> ReadRecord:
    headers = cast(Headers, tuple(message.headers() or ()))
    return ReadRecord(cast(int, message.offset()), message.key(), message.value(), headers, message.timestamp()[1])
