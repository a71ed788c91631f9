"""One load with one Python client, in a process of its own: `python -m tidelog.bench.client_drivers '{...}'`.

What always holds: every client does the same work with the same settings where it has them (acks=all, idempotent where
the client can be, 5 ms of linger); the clock runs from the first call until the last record is acknowledged or was
looked at; what was read is counted and its bytes are summed, or there is no figure. The result is one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tidelog.bench.processes import resident_peak_bytes_of

LINGER_MS = 5
POLL_RECORDS = 500  # Kafka's max.poll.records; confluent-kafka is slower with more at a time
LARGE_FETCH_BYTES = 8 << 20
_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does."""

    client: str
    load: str
    bootstrap: str
    topic: str
    records: int
    value_bytes: int
    batch_bytes: int
    partitions: int = 1


class _Clock:
    """Wall time, and CPU time of this process, from `start` to `stop`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.seconds, self.cpu_s = time.perf_counter() - wall, time.process_time() - cpu


# Tidelog


def tidelog_send(job: Job, clock: _Clock, **settings: Any) -> dict[str, float]:
    from tidelog import Producer

    value = bytes(job.value_bytes)
    with Producer(
        bootstrap_servers=job.bootstrap,
        linger_ms=LINGER_MS,
        batch_size=job.batch_bytes,
        max_request_size=1_100_000,
        **settings,
    ) as producer:
        producer.send(job.topic, value).result(30)
        send, topic = producer.send_nowait, job.topic
        with clock.running():
            for _ in range(job.records):
                send(topic, value)
            producer.flush()
        if producer.metrics().records_failed:
            raise SystemExit("records failed")
    return {}


def tidelog_send_without_growth(job: Job, clock: _Clock) -> dict[str, float]:
    """Batches stay as small as `batch.size` says, as those of the other clients do."""
    return tidelog_send(job, clock, batch_growth_max_bytes=0)


def tidelog_send_arrow(job: Job, clock: _Clock) -> dict[str, float]:
    import pyarrow as pa

    from tidelog import Producer

    rows = 100_000
    table = pa.record_batch({"value": pa.array([bytes(job.value_bytes)] * rows, pa.binary())})
    with Producer(
        bootstrap_servers=job.bootstrap, linger_ms=LINGER_MS, batch_size=job.batch_bytes, max_request_size=1_100_000
    ) as producer:
        # Connections, metadata and the producer's id are there afterwards.
        producer.send(job.topic, b"").result(30)
        with clock.running():
            for _ in range(job.records // rows):
                producer.send_arrow(job.topic, table, value="value")
            producer.flush()
        if producer.metrics().records_failed:
            raise SystemExit("records failed")
    return {}


def tidelog_poll(job: Job, clock: _Clock) -> dict[str, float]:
    from tidelog import Consumer, TopicPartition

    with Consumer(
        bootstrap_servers=job.bootstrap, auto_offset_reset="earliest", max_poll_records=POLL_RECORDS
    ) as consumer:
        consumer.assign([TopicPartition(job.topic, 0)])
        count = size = 0
        with clock.running():
            while count < job.records:
                for record in consumer.poll(_DEADLINE_S):
                    count += 1
                    size += len(record.value)
    _check_read(job, count, size)
    return {}


def tidelog_poll_arrow(job: Job, clock: _Clock, **settings: Any) -> dict[str, float]:
    import pyarrow.compute as pc

    from tidelog import Consumer, TopicPartition

    with Consumer(bootstrap_servers=job.bootstrap, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([TopicPartition(job.topic, number) for number in range(job.partitions)])
        count = size = 0
        with clock.running():
            while count < job.records:
                batch = consumer.poll_arrow(_DEADLINE_S)
                if batch is not None:
                    count += batch.num_rows
                    size += pc.sum(pc.binary_length(batch.column("value"))).as_py()
    _check_read(job, count, size)
    return {}


def tidelog_poll_arrow_large(job: Job, clock: _Clock) -> dict[str, float]:
    """With fetches as large as someone sets who reads for Arrow."""
    return tidelog_poll_arrow(job, clock, max_partition_fetch_bytes=LARGE_FETCH_BYTES)


def tidelog_round_trip(job: Job, clock: _Clock) -> dict[str, float]:
    from tidelog import Producer

    value = bytes(job.value_bytes)
    with Producer(bootstrap_servers=job.bootstrap, linger_ms=0) as producer:
        return _round_trips(job, clock, lambda: producer.send(job.topic, value).result(30))


# confluent-kafka, on librdkafka


def _confluent_producer(job: Job, **more: Any) -> Any:
    from confluent_kafka import Producer

    return Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": job.batch_bytes,
            "batch.num.messages": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
            **more,
        }
    )


def confluent_send(job: Job, clock: _Clock) -> dict[str, float]:
    producer = _confluent_producer(job)
    value, topic, produce = bytes(job.value_bytes), job.topic, producer.produce
    produce(topic, value)
    producer.flush()
    with clock.running():
        for _ in range(job.records):
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)
        if producer.flush(_DEADLINE_S):
            raise SystemExit("records were not delivered in time")
    return {}


def confluent_poll(job: Job, clock: _Clock) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            # Left at its default of a second, it stands still whenever its queue is full.
            "fetch.queue.backoff.ms": 1,
        }
    )
    consumer.assign([TopicPartition(job.topic, 0, 0)])
    count = size = 0
    with clock.running():
        while count < job.records:
            for message in consumer.consume(POLL_RECORDS, 1.0):
                count += 1
                size += len(message.value() or b"")
    consumer.close()
    _check_read(job, count, size)
    return {}


def confluent_round_trip(job: Job, clock: _Clock) -> dict[str, float]:
    producer = _confluent_producer(job, **{"linger.ms": 0})
    value = bytes(job.value_bytes)

    def send() -> None:
        producer.produce(job.topic, value)
        producer.flush()

    return _round_trips(job, clock, send)


# aiokafka


def aiokafka_send(job: Job, clock: _Clock) -> dict[str, float]:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=job.bootstrap,
            enable_idempotence=True,
            linger_ms=LINGER_MS,
            max_batch_size=job.batch_bytes,
            max_request_size=1_100_000,
        )
        await producer.start()
        value = bytes(job.value_bytes)
        await producer.send_and_wait(job.topic, value)
        with clock.running():
            for _ in range(job.records):
                await producer.send(job.topic, value)
            await producer.flush()
        await producer.stop()

    asyncio.run(run())
    return {}


def aiokafka_poll(job: Job, clock: _Clock) -> dict[str, float]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> tuple[int, int]:
        consumer = AIOKafkaConsumer(bootstrap_servers=job.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([TopicPartition(job.topic, 0)])
        count = size = 0
        with clock.running():
            while count < job.records:
                batches = await consumer.getmany(timeout_ms=1000, max_records=POLL_RECORDS)
                for records in batches.values():
                    for record in records:
                        count += 1
                        size += len(record.value)
        await consumer.stop()
        return count, size

    _check_read(job, *asyncio.run(run()))
    return {}


def aiokafka_round_trip(job: Job, clock: _Clock) -> dict[str, float]:
    from aiokafka import AIOKafkaProducer

    async def run() -> dict[str, float]:
        producer = AIOKafkaProducer(bootstrap_servers=job.bootstrap, enable_idempotence=True, linger_ms=0)
        await producer.start()
        value = bytes(job.value_bytes)
        took_us = []
        with clock.running():
            for _ in range(job.records):
                began = time.perf_counter()
                await producer.send_and_wait(job.topic, value)
                took_us.append((time.perf_counter() - began) * 1e6)
        await producer.stop()
        return _percentiles(took_us)

    return asyncio.run(run())


# kafka-python


def kafka_python_send(job: Job, clock: _Clock) -> dict[str, float]:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=job.bootstrap,
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        batch_size=job.batch_bytes,
        max_request_size=1_100_000,
    )
    value = bytes(job.value_bytes)
    producer.send(job.topic, value).get(30)
    with clock.running():
        for _ in range(job.records):
            producer.send(job.topic, value)
        producer.flush()
    producer.close()
    return {}


def kafka_python_poll(job: Job, clock: _Clock) -> dict[str, float]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=job.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([TopicPartition(job.topic, 0)])
    count = size = 0
    with clock.running():
        while count < job.records:
            for records in consumer.poll(1000, max_records=POLL_RECORDS).values():
                for record in records:
                    count += 1
                    size += len(record.value)
    consumer.close()
    _check_read(job, count, size)
    return {}


def kafka_python_round_trip(job: Job, clock: _Clock) -> dict[str, float]:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=job.bootstrap, enable_idempotence=True, linger_ms=0)
    value = bytes(job.value_bytes)
    result = _round_trips(job, clock, lambda: producer.send(job.topic, value).get(30))
    producer.close()
    return result


# What all share


def import_only(job: Job, clock: _Clock) -> dict[str, float]:
    """How long the import takes that a user of producer and consumer makes."""
    modules = {
        "tidelog": "from tidelog import Producer, Consumer",
        "confluent": "from confluent_kafka import Producer, Consumer",
        "aiokafka": "from aiokafka import AIOKafkaProducer, AIOKafkaConsumer",
        "kafka_python": "from kafka import KafkaProducer, KafkaConsumer",
    }
    with clock.running():
        exec(modules[job.client], {})
    return {}


def _round_trips(job: Job, clock: _Clock, send: Callable[[], object]) -> dict[str, float]:
    took_us = []
    send()
    with clock.running():
        for _ in range(job.records):
            began = time.perf_counter()
            send()
            took_us.append((time.perf_counter() - began) * 1e6)
    return _percentiles(took_us)


def _percentiles(took_us: list[float]) -> dict[str, float]:
    steps = statistics.quantiles(took_us, n=100)
    return {"p50_us": statistics.median(took_us), "p99_us": steps[98]}


def _check_read(job: Job, count: int, size: int) -> None:
    if count < job.records or size < job.records * job.value_bytes:
        raise SystemExit(f"read {count} records of {size} bytes, expected {job.records} of {job.value_bytes} each")


LOADS: dict[str, Callable[[Job, _Clock], dict[str, float]]] = {
    "tidelog send": tidelog_send,
    "tidelog send_without_growth": tidelog_send_without_growth,
    "tidelog send_arrow": tidelog_send_arrow,
    "tidelog poll": tidelog_poll,
    "tidelog poll_arrow": tidelog_poll_arrow,
    "tidelog poll_arrow_large": tidelog_poll_arrow_large,
    "tidelog round_trip": tidelog_round_trip,
    "confluent send": confluent_send,
    "confluent poll": confluent_poll,
    "confluent round_trip": confluent_round_trip,
    "aiokafka send": aiokafka_send,
    "aiokafka poll": aiokafka_poll,
    "aiokafka round_trip": aiokafka_round_trip,
    "kafka_python send": kafka_python_send,
    "kafka_python poll": kafka_python_poll,
    "kafka_python round_trip": kafka_python_round_trip,
    **{f"{client} import": import_only for client in ("tidelog", "confluent", "aiokafka", "kafka_python")},
}


def main(argument: str) -> None:
    job = Job(**json.loads(argument))
    clock = _Clock()
    found = LOADS[f"{job.client} {job.load}"](job, clock)
    found |= {
        "seconds": clock.seconds,
        "cpu_s": clock.cpu_s,
        "records_per_s": job.records / clock.seconds,
        "peak_mb": resident_peak_bytes_of(os.getpid()) / 1e6,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
