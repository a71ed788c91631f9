"""The producer for asyncio: the same core, on the application's own event loop.

What always holds: it belongs to the event loop on which it was first used. `send` waits only for room in the buffer and
for the first metadata of a topic, and yields to other tasks once a batch is full. Callbacks run on the loop.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from tidelog.client.producer.accumulator import NoRoom
from tidelog.client.producer.arrow_rows import ArrowColumns, RowsFuture, plan_rows
from tidelog.client.producer.core import DeliveryCallback, Headers
from tidelog.client.producer.futures import DeliveryFuture
from tidelog.client.producer.interceptors import ProducerRecord
from tidelog.client.producer.metrics import ProducerMetrics
from tidelog.client.producer.settings import ProducerOptions, ProducerSettings
from tidelog.client.producer.transaction_calls import AsyncTransactionCalls, make_core
from tidelog.client.types import PartitionMetadata, RecordMetadata
from tidelog.common.closing import AsyncClosing

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class AsyncProducer(AsyncTransactionCalls, AsyncClosing):
    """Sends records to topics from coroutines.

    It can be created anywhere and starts when first used.

        async with AsyncProducer(bootstrap_servers="127.0.0.1:9092") as producer:
            await producer.send_nowait("clicks", b"fire and forget")
            delivery = await producer.send("clicks", b"later", key=b"user-7")
            metadata = await delivery
            metadata = await producer.send_and_wait("clicks", b"now")
    """

    def __init__(self, settings: Mapping[str, object] | None = None, /, **options: Unpack[ProducerOptions]) -> None:
        self._is_open = False
        self._core = make_core(ProducerSettings.read(settings, options), "AsyncProducer")
        appender = self._core.callers_appender()
        self._append, self._append_with_receipt = appender.append, appender.append_with_receipt
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_open = True

    # Sending

    async def send_nowait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        """Send a record without creating a future; only `on_delivery`, if given, reports the outcome.

        It waits for room in the buffer, never for delivery.
        """
        if headers is None and on_delivery is None and self._append(topic, value, key, None, partition, timestamp):
            return
        await self._send(topic, value, key, headers, partition, timestamp, on_delivery)
        # A batch was opened, so others are full. Without yielding, a loop of sends would keep the sender from sending.
        await asyncio.sleep(0)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> DeliveryFuture:
        """Send a record; awaiting the future returns where it was stored, or raises."""
        if headers is None:
            future = self._append_with_receipt(topic, value, key, None, partition, timestamp, on_delivery)
            if future is not None:
                return future  # type: ignore[return-value]  # the appender creates futures of this class
        sent = await self._send(topic, value, key, headers, partition, timestamp, on_delivery)
        await asyncio.sleep(0)
        return sent

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Send a record and wait until it is stored; raises if it fails."""
        future = None
        if headers is None:
            future = self._append_with_receipt(topic, value, key, None, partition, timestamp, None)
        if future is None:
            future = await self._send(topic, value, key, headers, partition, timestamp, None)
        # Before the sender looks, so that it sends the batch instead of working out how long it may linger.
        return await future  # type: ignore[misc,no-any-return]  # the appender creates futures of that class

    async def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
        on_delivery: DeliveryCallback | None,
    ) -> DeliveryFuture:
        """The slow path: interceptors, serializers, partitioner, accumulator."""
        core = self._core
        self._begin()
        core.check_usable()
        record = core.prepare(ProducerRecord(topic, value, key, headers, partition, timestamp))
        queues = core.known_queues(record.topic, record.partition)
        if queues is None:
            queues = await core.load_queues(record.topic, record.partition)
        return await self._with_room(partial(core.append, queues, record, on_delivery))

    async def send_arrow(
        self,
        topic: str,
        data: pa.RecordBatch | pa.Table,
        key: str | None = None,
        value: str | None = None,
        headers: str | None = None,
        timestamp: str | None = None,
        partition: str | int | None = None,
    ) -> RowsFuture:
        """Send one record per row of a pyarrow RecordBatch or Table, like `Producer.send_arrow`.

        Awaiting the future returns where all rows were stored, or raises.
        """
        core = self._core
        self._begin()
        core.check_usable()
        queues = core.known_queues(topic, None) or await core.load_queues(topic, None)
        columns = ArrowColumns(key, value, headers, timestamp, partition)
        batches = []
        for run in plan_rows(core.settings, topic, queues.partitions, data, columns):
            batches.append(await self._with_room(partial(core.accumulator.append_rows, queues, *run)))
            await asyncio.sleep(0)  # let the sender run
        return RowsFuture(batches)

    async def _with_room(self, append: Callable[[], T]) -> T:
        """Append as soon as there is room, waiting up to `max.block.ms` for it."""
        try:
            return append()
        except NoRoom as no_room:
            size = no_room.size
        deadline_s = asyncio.get_running_loop().time() + self._core.settings.max_block_s
        try:
            while True:
                await self._wait_for_room(size, deadline_s)
                self._core.check_usable()
                try:
                    return append()
                except NoRoom as no_room:
                    size = no_room.size
        finally:
            self._core.wake()  # room that this one was woken for and did not take goes to the next waiter

    async def _wait_for_room(self, size: int, deadline_s: float) -> None:
        accumulator = self._core.accumulator
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = accumulator.wait_for_room(size, lambda: _wake(woken))
        if waiter is None:
            return
        try:
            async with asyncio.timeout_at(deadline_s):
                await woken
        except TimeoutError:
            raise self._core.no_room_error(size) from None
        finally:
            accumulator.stop_waiting(waiter)

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._core.start()
        elif self._loop is not loop:
            raise RuntimeError(
                "an AsyncProducer belongs to the event loop in which it was first used; create another one"
            )

    # Waiting

    async def flush(self, timeout: float | None = None) -> None:
        """Send all pending records and return once each is delivered or has failed.

        Raises RequestTimeoutError after `timeout` seconds; pending records are still sent.
        """
        self._begin()
        self._core.fork_guard.check()
        await self._core.flush_within(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Deliver pending records within `timeout` seconds and close all connections. A second close does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._core.is_closed = True
        self._core.set_fast(False)
        if not self._core.fork_guard.forked and self._loop is not None:
            await self._core.close(timeout)

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    def __del__(self) -> None:
        if getattr(self, "_is_open", False) and self._loop is not None and not self._core.fork_guard.forked:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=1)

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        return f"<AsyncProducer {self._core.settings.cluster.client_id} {state}>"

    # Metadata and metrics

    async def partitions_for(self, topic: str) -> tuple[PartitionMetadata, ...]:
        """The partitions of a topic, with leaders and replicas; waits up to `max.block.ms` for its metadata."""
        self._begin()
        self._core.check_usable()
        return await self._core.partitions_for(topic)

    def metrics(self) -> ProducerMetrics:
        """Counters of sent and pending records, sizes and latencies."""
        return self._core.metrics()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():  # the waiting task may have been cancelled
        woken.set_result(None)
