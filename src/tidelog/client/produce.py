"""Producing records: batching, partitioning, pipelining, retrying, and counting what was delivered.

What always holds: records of a partition are stored in the order of `send`, also across retries (without idempotence
only one request of a partition is under way at a time for that reason); every record handed to `send` is in the end
counted as delivered or failed; memory is bounded by `buffer_bytes`. It runs on the caller's thread: what `send` queued
goes out when a batch is full and in `flush`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tidelog.client.batches import Batch, Headers, PartitionQueue, record_size_bytes
from tidelog.client.cluster import (
    RETRY_BACKOFF_S,
    RETRY_BACKOFF_S_MAX,
    Cluster,
    TopicPartition,
    is_passing,
)
from tidelog.client.connection import Connection, InFlight
from tidelog.client.errors import BrokerError, ClientError, error_code, raise_for
from tidelog.client.partitioner import StickyChoice, partition_for_key
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k00_produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.messages.k22_init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidelog.records import Compression, encode_batch

ACKS_ALL = -1
BATCH_BYTES = 256 * 1024
BUFFER_BYTES = 32 * 1024 * 1024  # Kafka's buffer.memory
REQUEST_BYTES_MAX = 1024 * 1024  # Kafka's max.request.size, as far as several partitions share a request
IN_FLIGHT_MAX = 5  # the broker remembers five batches of an idempotent producer
DELIVERY_TIMEOUT_S = 120.0  # Kafka's delivery.timeout.ms

_TOPIC_IDS_FROM = 13

FailureCallback = Callable[[Batch, ClientError], None]


@dataclass(slots=True)
class Delivery:
    """What became of the records so far."""

    queued_records: int = 0
    delivered_records: int = 0
    delivered_bytes: int = 0  # keys and values
    failed_records: int = 0
    requests: int = 0
    retries: int = 0
    first_error: ClientError | None = None


@dataclass(slots=True)
class _ProduceInFlight:
    connection: Connection
    sent: InFlight[ProduceResponse]
    batches: dict[TopicPartition, Batch]


class Producer:
    """Sends records from the caller's thread."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = ACKS_ALL,
        compression: Compression = Compression.NONE,
        idempotent: bool = False,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
        on_failure: FailureCallback | None = None,
    ) -> None:
        if idempotent and acks != ACKS_ALL:
            raise ValueError("an idempotent producer needs acks=all")
        self._cluster = cluster
        self._acks = acks
        self._compression = compression
        self._idempotent = idempotent
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_s = delivery_timeout_s
        self._on_failure = on_failure
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._sticky: dict[str, StickyChoice] = {}
        self._partition_counts: dict[str, int] = {}
        self._in_flight: deque[_ProduceInFlight] = deque()
        self._buffered_bytes = 0
        self._producer: tuple[int, int] = (-1, -1)
        self._producer_id_needed = idempotent
        self.delivery = Delivery()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Queue a record; blocks while the buffer is full. Raises NoSuchPartitionError for a wrong topic."""
        if partition is None:
            partition = self._choose_partition(topic, key)
        topic_partition = TopicPartition(topic, partition)
        queue = self._queues.get(topic_partition)
        if queue is None:
            self._cluster.retry(lambda: self._cluster.leader(topic, partition))  # refuse early what can't be sent
            queue = self._queues[topic_partition] = PartitionQueue(topic_partition)
        size_bytes = record_size_bytes(key, value, headers)
        self._buffered_bytes += size_bytes
        self.delivery.queued_records += 1
        record = (key, value, headers, timestamp_ms if timestamp_ms is not None else time.time_ns() // 1_000_000)
        if queue.add(record, size_bytes, self._batch_bytes, self._cluster.monotonic()):
            if topic in self._sticky and key is None:
                self._sticky[topic].move()
            self._send_ready()
        while self._buffered_bytes > self._buffer_bytes:
            self._close_batches()
            self._advance()

    def flush(self) -> None:
        """Until every record queued so far is delivered or has failed."""
        self._close_batches()
        while any(not queue.is_empty for queue in self._queues.values()):
            self._advance()

    def _choose_partition(self, topic: str, key: bytes | None) -> int:
        partitions = self._partition_counts.get(topic)
        if partitions is None:
            # Kept, so that queueing goes on while the cluster can't be asked.
            partitions = self._partition_counts[topic] = len(self._cluster.topic(topic).partitions)
        if key is not None:
            return partition_for_key(key, partitions)
        sticky = self._sticky.get(topic)
        if sticky is None:
            sticky = self._sticky[topic] = StickyChoice(partitions)
        return sticky.partition

    def _close_batches(self) -> None:
        for queue in self._queues.values():
            queue.close_batch()

    def _advance(self) -> None:
        """One step towards delivery: send what can go, then wait for an answer, or for the end of a pause."""
        self._send_ready()
        if self._in_flight:
            self._receive_oldest()
        elif any(queue.batches for queue in self._queues.values()):
            now_s = self._cluster.monotonic()
            wait_s = min(queue.retry_at_s for queue in self._queues.values() if queue.batches) - now_s
            if wait_s > 0:
                self._cluster.pause(wait_s)

    # Sending

    def _send_ready(self) -> None:
        """Send until nothing can go; connections that are full are waited for, one answer at a time."""
        while True:
            if self._producer_id_needed:
                self._renew_producer_id()
            ready = self._ready_by_leader()
            if not ready:
                return
            for leader_id, batches in ready.items():
                try:
                    connection = self._cluster.connection_to(leader_id)
                    while connection.in_flight >= IN_FLIGHT_MAX and self._in_flight:
                        self._receive_oldest()
                    self._send_request(connection, batches)
                except ClientError as error:
                    for batch in batches:
                        self._failed(batch, error)

    def _ready_by_leader(self) -> dict[int, list[Batch]]:
        now_s = self._cluster.monotonic()
        in_flight_max = IN_FLIGHT_MAX if self._idempotent else 1
        ready: dict[int, list[Batch]] = {}
        sizes: dict[int, int] = {}
        for queue in self._queues.values():
            batch = queue.next_to_send(in_flight_max, now_s)
            if batch is None:
                continue
            try:
                leader_id = self._cluster.leader(*batch.topic_partition)
            except ClientError as error:
                self._failed(batch, error)
                continue
            if leader_id in ready and sizes[leader_id] + batch.size_bytes > REQUEST_BYTES_MAX:
                continue
            ready.setdefault(leader_id, []).append(batch)
            sizes[leader_id] = sizes.get(leader_id, 0) + batch.size_bytes
        return ready

    def _send_request(self, connection: Connection, batches: list[Batch]) -> None:
        has_ids = all(self._cluster.topic(batch.topic_partition.topic).topic_id != ZERO_UUID for batch in batches)
        version = connection.version_for(PRODUCE, at_most=None if has_ids else _TOPIC_IDS_FROM - 1)
        request = ProduceRequest(acks=self._acks, timeout_ms=int(self._cluster.request_timeout_s * 1000))
        topics: dict[str, TopicProduceData] = {}
        for batch in batches:
            name, partition = batch.topic_partition
            data = topics.get(name)
            if data is None:
                data = topics[name] = TopicProduceData(name=name, topic_id=self._cluster.topic(name).topic_id)
            data.partition_data.append(PartitionProduceData(index=partition, records=self._encode(batch)))
        request.topic_data = list(topics.values())
        self.delivery.requests += 1
        if self._acks == 0:
            connection.send_unanswered(PRODUCE, request, version=version)
            for batch in batches:
                self._delivered(batch)
            return
        sent = connection.send(PRODUCE, request, ProduceResponse, version=version)
        for batch in batches:
            batch.in_flight = True
        self._in_flight.append(_ProduceInFlight(connection, sent, {batch.topic_partition: batch for batch in batches}))

    def _encode(self, batch: Batch) -> bytearray:
        producer_id, producer_epoch = self._producer
        return encode_batch(
            batch.records,
            compression=self._compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=batch.base_sequence if self._idempotent else -1,
            now_ms=time.time_ns() // 1_000_000,
        )

    # Answers

    def _receive_oldest(self) -> None:
        request = self._in_flight.popleft()
        try:
            response = request.connection.receive(request.sent)
        except ClientError as error:
            for batch in request.batches.values():
                self._failed(batch, error)
            return
        unanswered = dict(request.batches)
        for topic in response.responses:
            name = topic.name or self._cluster.topic_name(topic.topic_id)
            for row in topic.partition_responses:
                topic_partition = TopicPartition(name or "", row.index)
                if topic_partition in unanswered:
                    self._answered(unanswered.pop(topic_partition), row)
        for batch in unanswered.values():
            self._failed(batch, BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's answer left it out"))

    def _answered(self, batch: Batch, row: PartitionProduceResponse) -> None:
        code = error_code(row.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._delivered(batch)
            return
        message = row.error_message
        if row.record_errors and row.record_errors[0].batch_index_error_message:
            message = row.record_errors[0].batch_index_error_message
        self._failed(batch, BrokerError(code, message, subject=f"partition {batch.topic_partition}"))

    def _delivered(self, batch: Batch) -> None:
        self._queues[batch.topic_partition].acknowledged(batch)
        self._buffered_bytes -= batch.size_bytes
        self.delivery.delivered_records += len(batch.records)
        self.delivery.delivered_bytes += batch.payload_bytes

    def _failed(self, batch: Batch, error: ClientError) -> None:
        """Decide whether the batch is sent again, sent in halves, or given up."""
        queue = self._queues[batch.topic_partition]
        now_s = self._cluster.monotonic()
        code = error.code if isinstance(error, BrokerError) else None
        if code is ErrorCode.MESSAGE_TOO_LARGE and len(batch.records) > 1:
            queue.split(batch)
            return
        if code is not None and (queue.is_out_of_turn(batch, code) or self._producer_id_needed):
            queue.failed_for_now(batch, now_s)
            return
        if is_passing(error) and now_s - batch.created_s < self._delivery_timeout_s:
            self._cluster.forget(batch.topic_partition.topic)
            pause_s = min(RETRY_BACKOFF_S * 2**batch.attempts, RETRY_BACKOFF_S_MAX)
            batch.attempts += 1
            self.delivery.retries += 1
            queue.failed_for_now(batch, now_s + pause_s)
            return
        queue.given_up(batch)
        self._buffered_bytes -= batch.size_bytes
        self.delivery.failed_records += len(batch.records)
        self.delivery.first_error = self.delivery.first_error or error
        # The broker will take no later sequence number after the gap that this batch leaves.
        self._producer_id_needed = self._idempotent
        if self._on_failure is not None:
            self._on_failure(batch, error)

    # Idempotence

    def _renew_producer_id(self) -> None:
        """Get a producer id once nothing is under way, and number what waits from 0."""
        while self._in_flight:
            self._receive_oldest()
        response = self._cluster.retry(self._ask_producer_id)
        self._producer = (response.producer_id, response.producer_epoch)
        for queue in self._queues.values():
            queue.renumber()
        self._producer_id_needed = False

    def _ask_producer_id(self) -> InitProducerIdResponse:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response = self._cluster.call(INIT_PRODUCER_ID, request, InitProducerIdResponse)
        raise_for(response.error_code, subject="producer id")
        return response
