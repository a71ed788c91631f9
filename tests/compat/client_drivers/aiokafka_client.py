"""aiokafka: the asyncio client. Each step runs in the driver's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from client_drivers.model import ProduceOptions, ReadRecord, SentRecord

WAIT_S = 30.0
T = TypeVar("T")


class AiokafkaDriver:
    name = "aiokafka"
    sets_timestamps = True
    sends_null_headers = True
    sends_empty_records = False
    has_transactions = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()
        self._admin: AIOKafkaAdminClient = self._run(self._start_admin())

    def create_topic(self, topic: str, partitions: int, configs: dict[str, str], replicas: int = 1) -> None:
        answer = self._run(self._admin.create_topics([NewTopic(topic, partitions, replicas, topic_configs=configs)]))
        for row in answer.topic_errors:
            assert row[1] == 0, row

    def produce(
        self, topic: str, partition: int, records: Sequence[SentRecord], options: ProduceOptions
    ) -> list[int | None]:
        return self._run(self._produce(topic, partition, records, options))

    async def _produce(
        self, topic: str, partition: int, records: Sequence[SentRecord], options: ProduceOptions
    ) -> list[int | None]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if options.compression == "none" else options.compression,
            acks="all" if options.acks == "all" else int(options.acks),
            enable_idempotence=options.idempotent or options.transactional_id is not None,
            transactional_id=options.transactional_id,
            linger_ms=options.linger_ms or 0,
        )
        await producer.start()
        try:
            if options.transactional_id is not None:
                await producer.begin_transaction()
            futures = [
                await producer.send(
                    topic,
                    partition=partition,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            results = [await future for future in futures]
            if options.transactional_id is not None:
                await (producer.commit_transaction() if options.commits else producer.abort_transaction())
            return [None if result is None or options.acks == "0" else result.offset for result in results]
        finally:
            await producer.stop()

    def consume(
        self, topic: str, partition: int, offset: int, count: int, isolation: str | None = None
    ) -> list[ReadRecord]:
        return self._run(self._consume(topic, partition, offset, count, isolation or "read_uncommitted"))

    async def _consume(self, topic: str, partition: int, offset: int, count: int, isolation: str) -> list[ReadRecord]:
        consumer = await self._consumer(isolation)
        try:
            assigned = TopicPartition(topic, partition)
            consumer.assign([assigned])
            consumer.seek(assigned, offset)
            read: list[ReadRecord] = []
            while len(read) < count:
                polled = await consumer.getmany(timeout_ms=int(WAIT_S * 1000), max_records=count - len(read))
                assert polled, f"only {len(read)} of {count} records arrived within {WAIT_S} s"
                read += [
                    ReadRecord(record.offset, record.key, record.value, tuple(record.headers), record.timestamp)
                    for record in polled[assigned]
                ]
            return read
        finally:
            await consumer.stop()

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        return self._run(self._watermarks(TopicPartition(topic, partition)))

    async def _watermarks(self, asked: TopicPartition) -> tuple[int, int]:
        consumer = await self._consumer()
        try:
            low = await consumer.beginning_offsets([asked])
            high = await consumer.end_offsets([asked])
            return low[asked], high[asked]
        finally:
            await consumer.stop()

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        return self._run(self._offset_for_time(TopicPartition(topic, partition), timestamp_ms))

    async def _offset_for_time(self, asked: TopicPartition, timestamp_ms: int) -> int | None:
        consumer = await self._consumer()
        try:
            found = (await consumer.offsets_for_times({asked: timestamp_ms}))[asked]
            return None if found is None else int(found.offset)
        finally:
            await consumer.stop()

    def topic_config(self, topic: str, name: str) -> str:
        (answer,) = self._run(self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
        (resource,) = answer.resources
        assert resource[0] == 0, resource
        values = {entry[0]: entry[1] for entry in resource[4]}
        return str(values[name])

    def alter_topic_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
        (answer,) = self._run(self._admin.alter_configs([resource]))
        for row in answer.resources:
            assert row[0] == 0, row

    def grow_partitions(self, topic: str, count: int) -> None:
        answer = self._run(self._admin.create_partitions({topic: NewPartitions(count)}))
        for row in answer.topic_errors:
            assert row[1] == 0, row

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._run(self._admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(before)}))

    def delete_topic(self, topic: str) -> None:
        answer = self._run(self._admin.delete_topics([topic]))
        for row in answer.topic_error_codes:
            assert row[1] == 0, row

    def topics(self) -> dict[str, int]:
        return {row["topic"]: len(row["partitions"]) for row in self._run(self._admin.describe_topics())}

    def close(self) -> None:
        self._run(self._admin.close())
        self._loop.close()

    async def _start_admin(self) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        return admin

    async def _consumer(self, isolation: str = "read_uncommitted") -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            auto_offset_reset="none",
            enable_auto_commit=False,
            isolation_level=isolation,
        )
        await consumer.start()
        return consumer

    def _run(self, step: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(step, WAIT_S * 2))
