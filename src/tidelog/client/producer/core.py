"""The producer's core: combines cluster, accumulator and sender, and holds what both producers do the same way.

What always holds: it belongs to one event loop, on which all coroutines here run. `prepare`, `append` and
`check_usable` may be called from any thread and never wait. The front ends do the waiting, each in its own way.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from tidelog.client.errors import (
    BrokerError,
    BufferFullError,
    ClientError,
    ClosedError,
    NoSuchPartitionError,
    RequestTimeoutError,
    RetriableError,
    SerializationError,
)
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.fork_guard import ForkGuard
from tidelog.client.producer.accumulator import Accumulator, TopicQueues
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.futures import DeliveryFuture
from tidelog.client.producer.hooks import TransactionHooks
from tidelog.client.producer.idempotence import Idempotence
from tidelog.client.producer.interceptors import InterceptorChain, ProducerRecord
from tidelog.client.producer.metrics import ProducerMetrics, per
from tidelog.client.producer.sender import Sender
from tidelog.client.producer.settings import ProducerSettings, Serializer
from tidelog.client.producer.unplaced import UnplacedRecord, UnplacedRecords
from tidelog.client.types import ClusterMetadata, PartitionMetadata, RecordMetadata
from tidelog.common.clock import Clock, SystemClock
from tidelog.protocol import ErrorCode
from tidelog.records.kernel_build import RecordAppender, RecordReceipt, encode_header_list, partition_for_key

Headers = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]
DeliveryCallback = Callable[[RecordMetadata | None, ClientError | None], object]

# Errors that are temporary while a topic is being created, from a writer's point of view.
_TOPIC_COMES = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE})


# Producers whose open batches a forked child must not fill: nobody would send them.
_cores: weakref.WeakSet[ProducerCore] = weakref.WeakSet()


class _LockedAppender:
    """The appender where it isn't compiled, and therefore isn't atomic."""

    def __init__(self, appender: RecordAppender, lock: threading.Lock) -> None:
        self._appender = appender
        self._lock = lock

    def append(self, *record: Any) -> int:
        with self._lock:
            return self._appender.append(*record)

    def append_with_receipt(self, *record: Any) -> RecordReceipt | None:
        with self._lock:
            return self._appender.append_with_receipt(*record)


class ProducerCore:
    """One producer, without a thread of its own."""

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        owner: str = "Producer",
        clock: Clock | None = None,
        make_hooks: Callable[[ProducerCore], TransactionHooks] | None = None,
        may_send_from_callers: bool = False,
    ) -> None:
        """With `may_send_from_callers`, a thread that waits for a record may send it itself."""
        clock = clock or SystemClock()
        self.settings = settings
        self.owner = owner
        self.cluster = Cluster(settings.cluster, tells_outages=True)
        self.fork_guard = ForkGuard(owner)
        is_transactional = settings.transactional_id is not None
        self.idempotence = Idempotence(is_transactional=is_transactional) if settings.enable_idempotence else None
        self.hooks = make_hooks(self) if make_hooks is not None else None
        self.accumulator = Accumulator(
            settings,
            clock.monotonic_ms,
            self.wake,
            self._available_partitions,
            hooks=self.hooks,
            send_now=self._send_now if may_send_from_callers else None,
        )
        self.sender = Sender(
            settings, self.cluster, self.accumulator, self.idempotence, self.hooks, clock.monotonic_ms, self.set_fatal
        )
        self.unplaced = UnplacedRecords(
            self.accumulator,
            max_block_s=settings.max_block_s,
            pause_s_max=settings.retry_backoff.longest_pause_s,
            load_queues=self._load_queues_until,
            append=self._append_unplaced,
            no_room_error=self.no_room_error,
            note_failed=self.sender.note_failed,
        )
        self.interceptors = InterceptorChain(settings.interceptors)
        self.fatal_error: ClientError | None = None
        self.is_closed = False
        self._topic_ids: dict[str, uuid.UUID] = {}
        _cores.add(self)
        self._now_ms = clock.monotonic_ms
        self._is_started = False
        self._acknowledge = self.interceptors.on_acknowledgement if self.interceptors.wants_acknowledgements else None

    def start(self) -> None:
        """Start sending, on the running event loop."""
        if not self._is_started:
            self._is_started = True
            self.cluster.add_listener(self._on_metadata)
            self.sender.start()
            self.unplaced.start()

    def wake(self) -> None:
        """There may be something to send; from any thread."""
        self.sender.wake()

    def _send_now(self, batch: ProducerBatch, timeout_s: float | None) -> bool:
        return not self.fork_guard.forked and self.sender.send_from_caller(batch, timeout_s)

    # Usability

    def check_open(self) -> None:
        self.fork_guard.check()
        if self.is_closed:
            raise ClosedError(f"this {self.owner} is closed; create a new one")

    def check_usable(self) -> None:
        self.check_open()
        if self.fatal_error is not None:
            raise self.fatal_error
        if self.hooks is not None:
            self.hooks.check_send()

    def set_fatal(self, error: ClientError) -> None:
        """The producer is no longer usable; every send raises this from now on."""
        if self.fatal_error is None:
            self.fatal_error = error
        self.set_fast(False)
        self.unplaced.fail_all(error)

    def set_fast(self, is_fast: bool) -> None:
        """Whether records may be appended to open batches without any checks."""
        self.accumulator.appender.set_enabled(is_fast and not self.is_closed and self.fatal_error is None)

    # From the application's record to the batch

    def callers_appender(self) -> RecordAppender:
        """Fills open batches in the callers' threads; it refuses records that must be prepared first."""
        settings, accumulator = self.settings, self.accumulator
        if settings.interceptors or settings.key_serializer is not None or settings.value_serializer is not None:
            refusing = RecordAppender(DeliveryFuture)
            refusing.set_enabled(False)
            return refusing
        if accumulator.fast_lock is None:
            return accumulator.appender
        return cast("RecordAppender", _LockedAppender(accumulator.appender, accumulator.fast_lock))

    def prepare(self, record: ProducerRecord) -> ProducerRecord:
        """The record after interceptors and serializers: key, value and headers are bytes."""
        record = self.interceptors.on_send(record)
        topic, value, key, headers, partition, timestamp = record
        if not isinstance(topic, str) or not topic:
            raise SerializationError(f"the topic must be its name, not {topic!r}")
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers) if headers is not None else None
        key_bytes = _serialize("key", self.settings.key_serializer, topic, key, pairs)
        value_bytes = _serialize("value", self.settings.value_serializer, topic, value, pairs)
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        elif type(timestamp) is not int or timestamp < 0:
            raise SerializationError(f"a timestamp must be milliseconds since 1970, not {timestamp!r}")
        return ProducerRecord(topic, value_bytes, key_bytes, encode_headers(pairs), partition, timestamp)

    def append(
        self, topic: TopicQueues, record: ProducerRecord, on_delivery: DeliveryCallback | None
    ) -> DeliveryFuture:
        """Choose the partition and append; raises NoRoom if the caller has to wait."""
        return self._append(topic, record, self._callback(on_delivery))

    def keep_unplaced(self, record: ProducerRecord, on_delivery: DeliveryCallback | None) -> DeliveryFuture | None:
        """Hold a record whose topic isn't known yet, so that `send` need not wait; None if it must be appended instead.

        A transaction ends with what is in batches, so its records are never held. Raises NoRoom like `append`.
        """
        is_known = not self.unplaced.has_topic(record.topic) and self.accumulator.topic(record.topic) is not None
        if self.hooks is not None or is_known:
            return None
        return self.unplaced.keep(record, self._callback(on_delivery))

    def _append_unplaced(self, topic: TopicQueues, unplaced: UnplacedRecord) -> None:
        self._append(topic, unplaced.record, unplaced.on_delivery, unplaced.future, unplaced.kept_bytes)

    def _append(
        self,
        topic: TopicQueues,
        record: ProducerRecord,
        callback: DeliveryCallback | None,
        future: DeliveryFuture | None = None,
        reserved: int = 0,
    ) -> DeliveryFuture:
        partition = self._partition(topic, record)
        if partition is not None and not 0 <= partition < topic.partitions:
            raise NoSuchPartitionError(_no_such_partition(topic.name, partition, topic.partitions))
        return self.accumulator.append(
            topic,
            partition,
            record.key,
            record.value,
            record.headers,
            record.timestamp or 0,
            callback,
            future,
            reserved,
        )

    def _callback(self, on_delivery: DeliveryCallback | None) -> DeliveryCallback | None:
        acknowledge = self._acknowledge
        if acknowledge is None or on_delivery is None:
            return on_delivery or acknowledge

        def both(metadata: RecordMetadata | None, error: ClientError | None) -> None:
            acknowledge(metadata, error)
            on_delivery(metadata, error)

        return both

    def _partition(self, topic: TopicQueues, record: ProducerRecord) -> int | None:
        if record.partition is not None:
            return int(record.partition)
        partitioner = self.settings.partitioner
        if partitioner is not None:
            partition = partitioner.partition(topic.name, record.key, record.value, topic.partitions)
            if type(partition) is not int:
                raise TypeError(f"the partitioner returned {partition!r} instead of a partition number")
            return partition
        if record.key is not None and not self.settings.ignore_keys:
            return partition_for_key(record.key, topic.partitions)
        return None

    def _available_partitions(self, name: str) -> list[int]:
        """The partitions that keyless records may go to: with a leader, at a broker that accepts records."""
        known = self.cluster.known_topic(name)
        if known is None:
            return []
        led = [row for row in known.partitions if row.leader_id >= 0]
        limit_ms = self.settings.availability_timeout_ms
        if limit_ms:
            led = [row for row in led if not self.sender.is_stuck(row.leader_id, limit_ms)] or led
        return [row.partition for row in led]

    # Topics

    def known_queues(self, name: str, partition: int | None) -> TopicQueues | None:
        """The topic's queues, if the topic is known and has that partition."""
        topic = self.accumulator.topic(name)
        if topic is None or (partition is not None and partition >= topic.partitions):
            return None
        return topic

    async def load_queues(self, name: str, partition: int | None, timeout_s: float | None = None) -> TopicQueues:
        """The topic's queues, waiting up to `max.block.ms` for its metadata; brokers may create the topic."""
        await self._load_topic(name, partition, timeout_s)
        topic = self.accumulator.topic(name)
        assert topic is not None  # the listener has created it
        return topic

    async def _load_queues_until(self, name: str, deadline_s: float) -> TopicQueues:
        return self.accumulator.topic(name) or await self.load_queues(name, None, deadline_s - time.monotonic())

    async def _load_topic(
        self, name: str, partition: int | None, timeout_s: float | None = None
    ) -> tuple[PartitionMetadata, ...]:
        self.start()
        deadline_s = asyncio.get_running_loop().time() + (self.settings.max_block_s if timeout_s is None else timeout_s)
        failures = 0
        last_error: ClientError | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline_s):
                    found = await self._ask_topic(name)
                if partition is None or partition < len(found):
                    return found
                error: ClientError = NoSuchPartitionError(
                    f"{_no_such_partition(name, partition, len(found))}; waited for it for max.block.ms, "
                    f"{self.settings.max_block_s * 1000:g}; give it more with "
                    f"'tidelog topics alter {name} --partitions {partition + 1}'"
                )
            except RetriableError as problem:
                error = problem
            except TimeoutError:
                raise last_error or RequestTimeoutError(
                    f"no broker described topic {name!r} within max.block.ms, {self.settings.max_block_s * 1000:g}"
                ) from None
            last_error = error
            failures += 1
            pause_s = self.settings.retry_backoff.pause_s(failures)
            if asyncio.get_running_loop().time() + pause_s >= deadline_s:
                is_unknown = isinstance(error, BrokerError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if is_unknown and not isinstance(error, NoSuchPartitionError):
                    raise NoSuchPartitionError(
                        f"there is no topic {name!r}; waited for it for max.block.ms, "
                        f"{self.settings.max_block_s * 1000:g}; create it with 'tidelog topics create {name}'"
                    )
                raise error
            await asyncio.sleep(pause_s)

    async def _ask_topic(self, name: str) -> tuple[PartitionMetadata, ...]:
        told = await self.cluster.refresh([name], allow_auto_topic_creation=True)
        topic = told.topics.get(name)
        if topic is not None and topic.partitions:
            return topic.partitions
        code = told.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if code in _TOPIC_COMES:
            raise BrokerError(code, f"there is no topic {name!r}")
        raise BrokerError(code, subject=f"topic {name}")

    async def partitions_for(self, name: str) -> tuple[PartitionMetadata, ...]:
        """The topic's partitions, with their leaders and replicas."""
        known = self.cluster.known_topic(name)
        return known.partitions if known is not None else await self._load_topic(name, None)

    def _on_metadata(self, told: ClusterMetadata) -> None:
        for name, topic in told.topics.items():
            if topic.partitions:
                is_new = self._topic_ids.get(name, topic.topic_id) != topic.topic_id
                self._topic_ids[name] = topic.topic_id
                self.accumulator.set_partitions(name, len(topic.partitions), is_new=is_new)
        self.wake()

    # Waiting

    def no_room_error(self, size: int) -> BufferFullError:
        settings = self.settings
        return BufferFullError(
            f"no room for {size} bytes within max.block.ms, {settings.max_block_s * 1000:g}: buffer.memory, "
            f"{settings.buffer_memory}, is full of unacknowledged records; send more slowly, or raise it"
        )

    async def flush(self) -> None:
        """Send everything that waits, without lingering, and wait until it is delivered or has failed."""
        batches: list[ProducerBatch] = [*self.unplaced.records, *self.accumulator.incomplete]
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        left = 0

        def one_ended() -> None:
            nonlocal left
            left -= 1
            if left == 0 and not ended.done():
                ended.set_result(None)

        for batch in batches:
            if batch.watch(one_ended):
                left += 1
        if not left:
            return
        self.accumulator.is_flushing += 1
        self.wake()
        try:
            await ended
        finally:
            self.accumulator.is_flushing -= 1

    async def close(self, timeout_s: float | None) -> None:
        """Deliver pending records within that time, fail the rest, and close all connections."""
        self.is_closed = True
        self.set_fast(False)
        try:
            if self._is_started:
                async with asyncio.timeout(timeout_s):
                    await self.flush()
        except TimeoutError:
            pass  # anything left fails below, as its futures report
        finally:
            closed = ClosedError(f"the {self.owner} was closed before the record was acknowledged")
            self.unplaced.stop(closed)
            self.sender.fail_all(closed)
            self.sender.stop()
            if self.hooks is not None:
                await self.hooks.close()
            await self.cluster.close()

    async def flush_within(self, timeout_s: float | None) -> None:
        """Flush; log it if that took too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.flush()
        except TimeoutError:
            left = len(self.unplaced.records) + sum(batch.count for batch in list(self.accumulator.incomplete))
            raise RequestTimeoutError(
                f"{left} records were not acknowledged within {timeout_s:g} s; they may still be"
            ) from None

    def metrics(self) -> ProducerMetrics:
        """A snapshot; each figure is right, but they may be a moment apart."""
        counters, pool = self.sender.counters, self.accumulator.pool
        elapsed_s = (self._now_ms() - counters.first_sent_ms) / 1000 if counters.first_sent_ms is not None else 0.0
        return ProducerMetrics(
            records_delivered=counters.records_delivered,
            records_failed=counters.records_failed,
            records_retried=counters.records_retried,
            records_per_s=counters.records_delivered / elapsed_s if elapsed_s > 0 else 0.0,
            batches_delivered=counters.batches_delivered,
            batches_split=counters.batches_split,
            batch_size_avg=per(counters.bytes_delivered, counters.batches_delivered),
            records_per_batch_avg=per(counters.records_delivered, counters.batches_delivered),
            bytes_delivered=counters.bytes_delivered,
            bytes_sent=counters.bytes_sent,
            compression_ratio=counters.bytes_sent / counters.bytes_sealed if counters.bytes_sealed else 1.0,
            requests_sent=counters.requests_sent,
            requests_in_flight=self.sender.requests_in_flight,
            request_latency_ms_avg=per(counters.latency_ms_sum, counters.requests_answered),
            request_latency_ms_max=counters.latency_ms_max,
            queue_time_ms_avg=per(counters.queue_ms_sum, counters.batches_sent),
            queue_time_ms_max=counters.queue_ms_max,
            batches_waiting=self.accumulator.waiting_batches,
            buffer_total_bytes=pool.memory_bytes,
            buffer_available_bytes=pool.available_bytes,
            buffer_exhausted=pool.exhausted,
            producer_id=self.idempotence.producer_id if self.idempotence is not None else -1,
            producer_epoch=self.idempotence.producer_epoch if self.idempotence is not None else -1,
        )


def _serialize(part: str, serializer: Serializer | None, topic: str, given: Any, headers: Any) -> bytes | None:
    if serializer is not None:
        try:
            given = serializer(topic, given, headers)
        except SerializationError:
            raise
        except Exception as error:
            raise SerializationError(f"the {part} serializer failed for a record to {topic}: {error}") from error
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    hint = f"; give the producer a {part}_serializer, or pass bytes"
    if isinstance(given, str):
        hint = f"; pass {part}.encode(), or give the producer a {part}_serializer"
    raise SerializationError(f"the {part} of a record to {topic} must be bytes, not {type(given).__name__}{hint}")


def _no_such_partition(name: str, partition: int, partitions: int) -> str:
    count = "1 partition" if partitions == 1 else f"{partitions} partitions"
    return f"topic {name!r} has no partition {partition}; it has 0 to {partitions - 1} ({count})"


def encode_headers(headers: Iterable[tuple[str, bytes | None]] | None) -> bytes | None:
    """Headers as the record holds them; None for none."""
    if not headers:
        return None
    try:
        return encode_header_list(headers)
    except (TypeError, ValueError, AttributeError) as error:
        raise SerializationError(f"headers must be pairs of a name and bytes: {error}") from error


def _stop_in_child() -> None:
    for core in _cores:
        core.set_fast(False)


os.register_at_fork(after_in_child=_stop_in_child)
