"""The synchronous producer: sends from any thread, with the core in a background thread.

What always holds: `send_nowait` and `send` wait only for room in the buffer, for at most `max.block.ms`. Callbacks run
on the producer's own thread, one after another, in the order in which the records of a partition were acknowledged, and
must not wait for the producer themselves. All methods may be called from any thread.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from tidelog.client.errors import BufferFullError
from tidelog.client.network.loop_thread import LoopThread
from tidelog.client.producer.accumulator import NoRoom, TopicQueues
from tidelog.client.producer.arrow_rows import ArrowColumns, RowsFuture, plan_rows
from tidelog.client.producer.core import DeliveryCallback, Headers
from tidelog.client.producer.futures import DeliveryFuture
from tidelog.client.producer.interceptors import ProducerRecord
from tidelog.client.producer.metrics import ProducerMetrics
from tidelog.client.producer.settings import ProducerOptions, ProducerSettings
from tidelog.client.producer.transaction_calls import TransactionCalls, make_core
from tidelog.client.types import PartitionMetadata
from tidelog.common.closing import Closing
from tidelog.records.kernel_build import RecordSender

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_CLOSE_GRACE_S = 5.0  # for closing connections, on top of the caller's delivery timeout


class Producer(RecordSender, TransactionCalls, Closing):
    """Sends records to topics.

    Settings are given by Kafka's dotted names in a mapping, as keyword arguments with underscores, or both.

        with Producer(bootstrap_servers="127.0.0.1:9092", linger_ms=5) as producer:
            producer.send_nowait("clicks", b"fire and forget")
            metadata = producer.send("clicks", b"and wait", key=b"user-7").result()
    """

    def __init__(self, settings: Mapping[str, object] | None = None, /, **options: Unpack[ProducerOptions]) -> None:
        self._is_open = False
        self._core = make_core(ProducerSettings.read(settings, options), "Producer", may_send_from_callers=True)
        self._thread = LoopThread("tidelog-producer")
        self._thread.post(self._core.start)
        self._set_appender(self._core.callers_appender())
        self._is_open = True

    # Sending

    if TYPE_CHECKING:
        # The methods of RecordSender, with a producer's types.

        def send_nowait(
            self,
            topic: str,
            value: Any = None,
            key: Any = None,
            headers: Headers | None = None,
            partition: int | None = None,
            timestamp: int | None = None,
            on_delivery: DeliveryCallback | None = None,
        ) -> None:
            """Send a record without creating a future; only `on_delivery`, if given, reports the outcome."""

        def send(
            self,
            topic: str,
            value: Any = None,
            key: Any = None,
            headers: Headers | None = None,
            partition: int | None = None,
            timestamp: int | None = None,
            on_delivery: DeliveryCallback | None = None,
        ) -> DeliveryFuture:
            """Send a record; the future says where it was stored, or why it failed.

            Without a `partition` the key decides; without a key the record joins the batch being filled.
            `on_delivery(metadata, error)` is called on the producer's thread; one of the two is None.
            """

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
        on_delivery: DeliveryCallback | None,
    ) -> DeliveryFuture:
        """The slow path: interceptors, serializers, partitioner, accumulator.

        It doesn't wait for the topic's metadata: the record is held until it arrives, and its future has the outcome.
        """
        core = self._core
        core.check_usable()
        record = core.prepare(ProducerRecord(topic, value, key, headers, partition, timestamp))

        def append() -> DeliveryFuture:
            kept = core.keep_unplaced(record, on_delivery)
            if kept is not None:
                return kept
            return core.append(self._queues(record.topic, record.partition), record, on_delivery)

        return self._with_room(append)

    def send_arrow(
        self,
        topic: str,
        data: pa.RecordBatch | pa.Table,
        key: str | None = None,
        value: str | None = None,
        headers: str | None = None,
        timestamp: str | None = None,
        partition: str | int | None = None,
    ) -> RowsFuture:
        """Send one record per row of a pyarrow RecordBatch or Table, without a Python object for each.

        The arguments name columns: keys and values are binary or string, timestamps are of any unit or int64
        milliseconds, headers are lists of key and value, partitions are integers. By default the columns `key`,
        `value` and `headers` are used where they exist. Serializers and interceptors are not called. The future is
        done when all rows are stored.
        """
        core = self._core
        core.check_usable()
        queues = self._queues(topic, None)
        columns = ArrowColumns(key, value, headers, timestamp, partition)
        batches = []
        for run in plan_rows(core.settings, topic, queues.partitions, data, columns):
            batches.append(self._with_room(partial(core.accumulator.append_rows, queues, *run)))
        return RowsFuture(batches)

    def _queues(self, name: str, partition: int | None) -> TopicQueues:
        topic = self._core.known_queues(name, partition)
        if topic is None:
            topic = self._thread.run(self._core.load_queues(name, partition))
        return topic

    def _with_room(self, append: Callable[[], T]) -> T:
        """Append as soon as there is room, waiting up to `max.block.ms` for it."""
        try:
            return append()
        except NoRoom as no_room:
            size = no_room.size
        deadline_s = time.monotonic() + self._core.settings.max_block_s
        try:
            while True:
                self._wait_for_room(size, deadline_s)
                self._core.check_usable()
                try:
                    return append()
                except NoRoom as no_room:
                    size = no_room.size
        finally:
            self._core.wake()  # room that this one was woken for and did not take goes to the next waiter

    def _wait_for_room(self, size: int, deadline_s: float) -> None:
        accumulator = self._core.accumulator
        if self._thread.is_current:
            raise BufferFullError(
                f"no room for {size} bytes, and a callback can't wait for it; send from another thread"
            )
        woken = threading.Lock()
        woken.acquire()
        waiter = accumulator.wait_for_room(size, woken.release)
        if waiter is None:
            return
        try:
            if not woken.acquire(timeout=max(deadline_s - time.monotonic(), 0)):
                raise self._core.no_room_error(size)
        finally:
            accumulator.stop_waiting(waiter)

    # Waiting

    def flush(self, timeout: float | None = None) -> None:
        """Send all pending records and return once each is delivered or has failed.

        Raises RequestTimeoutError after `timeout` seconds; pending records are still sent.
        """
        self._core.fork_guard.check()
        self._thread.run(self._core.flush_within(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Deliver pending records within `timeout` seconds, then stop the thread and close all connections.

        Records not delivered by then fail, as their futures and callbacks report. A second close does nothing.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._core.is_closed = True
        self._core.set_fast(False)
        try:
            if not self._core.fork_guard.forked:
                grace_s = None if timeout is None else timeout + _CLOSE_GRACE_S
                self._thread.run(self._core.close(timeout), grace_s)
        finally:
            self._thread.close()

    def __del__(self) -> None:
        if getattr(self, "_is_open", False) and not self._core.fork_guard.forked:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=1)
            self._is_open = False
            self._thread.close()

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        return f"<Producer {self._core.settings.cluster.client_id} {state}>"

    # Metadata and metrics

    def partitions_for(self, topic: str) -> tuple[PartitionMetadata, ...]:
        """The partitions of a topic, with leaders and replicas; waits up to `max.block.ms` for its metadata."""
        self._core.check_usable()
        return self._thread.run(self._core.partitions_for(topic))

    def metrics(self) -> ProducerMetrics:
        """Counters of sent and pending records, sizes and latencies."""
        return self._core.metrics()
