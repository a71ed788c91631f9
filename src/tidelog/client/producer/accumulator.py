"""Records waiting to be sent: a deque of batches per partition, in bounded memory.

What always holds: records of a partition leave in the order they came, and batches that are being resent leave before
those never sent. Only the last batch of a partition is open. A batch is passed to the sender when it is full, has
lingered, someone waits for it, or memory is short. `append` may be called from any thread and never waits: without room
it says how much it needs. Everything here is done under `lock`. The compiled appender fills open batches without it,
because it is atomic; where it is not compiled, `fast_lock` makes it so.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from tidelog.client.errors import ClientError, DeliveryTimeoutError, RecordTooLargeError
from tidelog.client.network.backoff import Backoff
from tidelog.client.producer.batch import ProducerBatch, split_records
from tidelog.client.producer.buffer_pool import BufferPool, MemoryWaiter
from tidelog.client.producer.futures import DeliveryFuture
from tidelog.client.producer.hooks import TransactionHooks
from tidelog.client.producer.partitioners import PartitionLoad, StickyChoice
from tidelog.client.producer.settings import ProducerSettings
from tidelog.client.types import TopicPartition
from tidelog.records import kernel_build
from tidelog.records.batch import BATCH_HEADER_SIZE
from tidelog.records.kernel_build import BatchBuilder, RecordAppender, TopicSlots, record_size_max

_IS_COMPILED = not str(kernel_build.__file__).endswith(".py")
_ALIGNED = 4096
_GROWTH_FACTOR = 4  # few copies of a growing batch, and few sizes of buffers
# This share of the memory, or one batch if that is more, is off limits to records whose topic is not known yet. They
# need room for batches in several partitions once the topic is known, or they could be placed only one at a time.
_SPARE_PORTIONS = 8


class NoRoom(Exception):  # noqa: N818  # it never leaves the producer: its callers catch it and wait
    """The pool can't lend this many bytes right now."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class WrittenBatch(Protocol):
    """The properties of records that were written into a buffer."""

    @property
    def size(self) -> int: ...

    @property
    def base_timestamp(self) -> int: ...

    @property
    def max_timestamp(self) -> int: ...


class WritableRows(Protocol):
    """Records that can be written together, such as the rows of an Arrow table."""

    def size_max(self, first: int, end: int) -> int: ...

    def write(self, buffer: bytearray, first: int, end: int) -> WrittenBatch: ...


class PartitionQueue:
    """The waiting batches of one partition, oldest first."""

    __slots__ = ("batches", "growth_max", "in_flight", "is_muted", "topic", "topic_partition")

    def __init__(self, topic: TopicQueues, topic_partition: TopicPartition, growth_max: int) -> None:
        self.topic = topic
        self.topic_partition = topic_partition
        self.batches: deque[ProducerBatch] = deque()
        self.in_flight = 0
        self.is_muted = False  # while a batch is in flight that nothing may overtake
        self.growth_max = growth_max


class TopicQueues:
    """The queues of one topic, created on first use."""

    __slots__ = ("_growth_max", "name", "partitions", "queues", "slots", "sticky")

    def __init__(self, name: str, slots: TopicSlots, sticky: StickyChoice, partitions: int, growth_max: int) -> None:
        self.name = name
        self.slots = slots
        self.sticky = sticky
        self.partitions = partitions
        self.queues: list[PartitionQueue | None] = [None] * partitions  # also those that a recreated topic lacks
        self._growth_max = growth_max

    def grow(self, partitions: int) -> None:
        self.queues += [None] * (partitions - len(self.queues))
        self.slots.grow(partitions)
        self.partitions = partitions

    def shrink(self, partitions: int) -> None:
        self.slots.shrink(partitions)
        self.sticky.start_over()
        self.partitions = partitions

    def queue(self, partition: int) -> PartitionQueue:
        queue = self.queues[partition]
        if queue is None:
            topic_partition = TopicPartition(self.name, partition)
            queue = self.queues[partition] = PartitionQueue(self, topic_partition, self._growth_max)
        return queue


class Accumulator:
    """Everything that waits to be sent, and its memory."""

    def __init__(
        self,
        settings: ProducerSettings,
        now_ms: Callable[[], float],
        wake_sender: Callable[[], None],
        available: Callable[[str], Iterable[int]],
        hooks: TransactionHooks | None = None,
        send_now: Callable[[ProducerBatch, float | None], bool] | None = None,
    ) -> None:
        """`wake_sender` and `send_now` are called from the threads that append and wait."""
        self.lock = threading.Lock()
        self.fast_lock = None if _IS_COMPILED else threading.Lock()
        self._guard: AbstractContextManager[object] = self.fast_lock or nullcontext()
        self.pool = BufferPool(settings.buffer_memory)
        self.appender = RecordAppender(DeliveryFuture)
        self.active: dict[PartitionQueue, None] = {}  # queues with batches, in the order of their turns
        self.waiting_batches = 0
        self.ready_bytes = 0  # full batches that are waiting
        self.incomplete: dict[ProducerBatch, None] = {}  # all unfinished batches, in the order they were opened
        self.is_flushing = 0
        self.hooks = hooks
        self._settings = settings
        self._now_ms = now_ms
        self._wake_sender = wake_sender
        self._send_now = send_now
        self._available = available  # the topic's partitions that keyless records may go to
        self._topics: dict[str, TopicQueues] = {}
        self._held_topics: set[str] = set()  # the compiled appender must not know them yet
        self._batch_capacity = max(min(settings.batch_size, settings.max_request_size), BATCH_HEADER_SIZE)
        self._spare_bytes = max(self._batch_capacity, settings.buffer_memory // _SPARE_PORTIONS)
        self._is_stopped = False
        self._backoff: Backoff = settings.retry_backoff
        self.wake_slack_ms = 0.0  # how much later than due the sender may look
        self.next_look_ms = float("inf")  # when the sender will look by itself, as it last said

    # Topics

    def topic(self, name: str) -> TopicQueues | None:
        return self._topics.get(name)

    def set_partitions(self, name: str, partitions: int, *, is_new: bool = False) -> TopicQueues:
        """Set the topic's partition count. It shrinks only if the topic was recreated."""
        with self.lock, self._guard:
            topic = self._topics.get(name)
            if topic is None:
                settings = self._settings
                chooses = settings.partitioner is None
                slots = TopicSlots(partitions, chooses and not settings.ignore_keys, chooses)
                sticky = StickyChoice(slots, self._batch_capacity)
                topic = TopicQueues(name, slots, sticky, partitions, settings.batch_growth_max_bytes)
                self._topics[name] = topic
                if name not in self._held_topics:
                    self.appender.add_topic(name, slots)
            elif partitions > topic.partitions:
                topic.grow(partitions)
            elif partitions < topic.partitions and is_new:
                for partition in range(partitions, topic.partitions):
                    batch = topic.slots.get_open(partition)
                    if batch is not None:
                        self._close(topic.queue(partition), batch)
                topic.shrink(partitions)
            return topic

    def hold_topic(self, name: str) -> None:
        """Hide the topic from the compiled appender, so that every record to it takes the slow path. Under `lock`."""
        self._held_topics.add(name)

    def release_topic(self, name: str) -> None:
        """Show the topic to the compiled appender, if its metadata is known. Under `lock`."""
        self._held_topics.discard(name)
        topic = self._topics.get(name)
        if topic is not None:
            self.appender.add_topic(name, topic.slots)

    # Memory

    def reserve(self, size: int) -> None:
        """Count memory outside the pool against `buffer.memory`, if batches still fit beside it. Under `lock`.

        Raises NoRoom with the total that must be free for that.
        """
        if not self.pool.reserve(size, spare=self._spare_bytes):
            raise NoRoom(min(size + self._spare_bytes, self.pool.memory_bytes))

    def unreserve(self, size: int) -> None:
        """Under `lock`; the sender then wakes the threads waiting for memory."""
        self.pool.unreserve(size)
        if self.pool.has_waiters:
            self._wake_sender()

    def wait_for_room(self, size: int, wake: Callable[[], None], *, first: bool = False) -> MemoryWaiter | None:
        """Have `wake` called once there is room (with `first`, before all others); None if there is no need to wait.

        The caller then tries again, ends the wait with `stop_waiting`, and wakes the sender: any room that the caller
        did not take goes to the next waiter, which nobody else would wake.
        """
        with self.lock:
            if self._is_stopped or self.pool.available_bytes >= size:
                return None
            waiter = self.pool.wait_for(size, wake, first=first)
        self._wake_sender()  # batches go out now, whether or not they are full
        return waiter

    def stop_waiting(self, waiter: MemoryWaiter) -> None:
        with self.lock:
            self.pool.forget(waiter)

    def stop(self) -> None:
        """Nothing is sent any more, so no memory will become free: waiters find that the producer is closed."""
        with self.lock:
            self._is_stopped = True
            self.pool.wake_all()

    # Appending

    def append(
        self,
        topic: TopicQueues,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: bytes | None,
        timestamp: int,
        on_delivery: object,
        future: DeliveryFuture | None = None,
        reserved: int = 0,
    ) -> DeliveryFuture:
        """Append a record, opening a batch if need be. Without a partition it goes where keyless records go.

        The `future` is filled in; without one, a new one is created. The room `reserved` for the record is released
        when it gets a place in a batch, and stays reserved otherwise.

        Raises NoRoom if there is no memory for a new batch now, and RecordTooLargeError.
        """
        size_max = self.check_size(topic.name, key, value, headers)
        with self.lock, self._guard:
            self.pool.unreserve(reserved)
            try:
                place = self._append(topic, partition, key, value, headers, timestamp, size_max)
            except BaseException:
                self.pool.reserve(reserved, spare=0)
                raise
            if reserved and self.pool.has_waiters:
                self._wake_sender()
            future = future or DeliveryFuture()
            key_size = -1 if key is None else len(key)
            future.fill_in(*place, timestamp, key_size, -1 if value is None else len(value), on_delivery)
            return future

    def _append(
        self,
        topic: TopicQueues,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: bytes | None,
        timestamp: int,
        size_max: int,
    ) -> tuple[ProducerBatch, int]:
        """Write the record; returns its batch, and its index there."""
        is_sticky = partition is None
        while True:
            if partition is None:
                partition = self._sticky_partition(topic)
            queue = topic.queue(partition)
            batch = topic.slots.get_open(partition)
            if batch is None:
                batch = self._open_batch(queue, size_max)
            assert isinstance(batch, ProducerBatch)
            size = batch.size
            index = batch.append(key, value, headers, timestamp)
            if index >= 0:
                break
            if is_sticky and topic.sticky.is_due and topic.partitions > 1:
                # It is full and may go, but stays open: if it is still waiting at its partition's next turn, it grows.
                batch.want()
                partition = None
            elif not self._grow(queue, batch, size_max):
                self._close(queue, batch)
        if is_sticky:
            topic.slots.note_sticky(batch.size - size)
        return batch, index

    def check_size(self, topic: str, key: bytes | None, value: bytes | None, headers: bytes | None) -> int:
        """The most that a batch with only this record may need; raises RecordTooLargeError."""
        size_max = BATCH_HEADER_SIZE + record_size_max(key, value, headers)
        if size_max > self._settings.max_request_size:
            raise RecordTooLargeError(
                f"a record of {size_max} bytes to {topic} is larger than max.request.size, "
                f"{self._settings.max_request_size}"
            )
        return size_max

    def append_rows(
        self, topic: TopicQueues, partition: int | None, rows: WritableRows, first: int, end: int
    ) -> ProducerBatch:
        """Append rows as a batch of their own, behind what is queued for the partition; raises NoRoom."""
        size_max = rows.size_max(first, end)
        capacity = self._batch_capacity
        while capacity < size_max:  # the same sizes as growing batches, so that buffers are reused
            capacity = min(capacity * _GROWTH_FACTOR, max(size_max, self._settings.batch_growth_max_bytes))
        with self.lock, self._guard:
            is_sticky = partition is None
            if partition is None:
                partition = self._sticky_partition(topic)
            queue = topic.queue(partition)
            buffer = self._lend(queue, capacity, size_max)
        try:
            written = rows.write(buffer, first, end)
        except BaseException:
            with self.lock:
                self.pool.give_back(buffer, keep=True)
            raise
        with self.lock, self._guard:
            before = topic.slots.get_open(partition)
            if before is not None:
                self._close(queue, before)
            batch = ProducerBatch(queue.topic_partition, buffer, capacity, self._now_ms(), self._wake_sender)
            batch.fill(written.size, end - first, written.base_timestamp, written.max_timestamp)
            self.add(queue, batch)
            batch.close()
            self.ready_bytes += batch.size
            if is_sticky:
                topic.slots.note_sticky(batch.size)
        self._wake_sender()
        return batch

    def _sticky_partition(self, topic: TopicQueues) -> int:
        if topic.sticky.is_due:
            topic.sticky.move(self._loads(topic))
        return topic.slots.sticky_partition

    def _loads(self, topic: TopicQueues) -> list[PartitionLoad]:
        adaptive = self._settings.adaptive_partitioning
        loads = []
        for partition in self._available(topic.name):
            if partition < topic.partitions:
                queue = topic.queues[partition]
                waiting = len(queue.batches) if adaptive and queue is not None else 0
                loads.append(PartitionLoad(partition, waiting))
        return loads or [PartitionLoad(partition, 0) for partition in range(topic.partitions)]

    def _open_batch(self, queue: PartitionQueue, size_max: int) -> ProducerBatch:
        capacity = max(self._batch_capacity, size_max)
        buffer = self._lend(queue, capacity, size_max)
        now_ms = self._now_ms()
        batch = ProducerBatch(
            queue.topic_partition, buffer, capacity, now_ms, self._wake_sender, send_now=self._send_now
        )
        self.add(queue, batch)
        queue.topic.slots.set_open(queue.topic_partition.partition, batch)
        if now_ms + max(self._settings.linger_ms, self.wake_slack_ms) < self.next_look_ms:
            self._wake_sender()
        return batch

    def _lend(self, queue: PartitionQueue, capacity: int, size_max: int) -> bytearray:
        """A buffer for a new batch of the partition."""
        if capacity > self._settings.buffer_memory:
            raise RecordTooLargeError(
                f"a record of {size_max} bytes to {queue.topic.name} does not fit buffer.memory, "
                f"{self._settings.buffer_memory}"
            )
        if self.hooks is not None:
            self.hooks.on_append(queue.topic_partition)
        buffer = self.pool.lend(capacity)
        if buffer is None:
            raise NoRoom(capacity)
        return buffer

    def add(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Put a new batch at the end of its partition's queue."""
        queue.batches.append(batch)
        self.active[queue] = None
        self.waiting_batches += 1
        self.incomplete[batch] = None

    def _grow(self, queue: PartitionQueue, batch: ProducerBatch, size_max: int) -> bool:
        """Give a full batch more room if it has to wait anyway, so that fewer and larger ones are sent."""
        if queue.batches[0] is batch and not queue.is_muted and queue.in_flight < self._settings.max_in_flight:
            return False
        needed = batch.size + size_max
        if needed > queue.growth_max:
            return False
        capacity = min(max(batch.capacity * _GROWTH_FACTOR, needed), queue.growth_max)
        buffer = self.pool.lend(capacity)
        if buffer is None:
            return False
        self.pool.give_back(batch.move_to(buffer, capacity), keep=True)
        return True

    def _close(self, queue: PartitionQueue, batch: BatchBuilder) -> None:
        """The batch is full: nothing more goes in, and the sender may take it."""
        batch.close()
        queue.topic.slots.set_open(queue.topic_partition.partition, None)
        self.ready_bytes += batch.size
        self._wake_sender()

    # Used by the sender

    def ready_at_ms(self, queue: PartitionQueue, now_ms: float) -> float:
        """When the partition's first batch may go: now or earlier if it is ready, infinity if there is none."""
        if not queue.batches or queue.is_muted:
            return float("inf")
        batch = queue.batches[0]
        if batch.attempts:
            return batch.last_attempt_ms
        if (
            not batch.is_open
            or batch.is_wanted
            or len(queue.batches) > 1
            or self.is_flushing
            or self.pool.has_waiters
            or (self.hooks is not None and self.hooks.is_completing)
        ):
            return now_ms
        return batch.created_ms + self._settings.linger_ms

    def take(self, queue: PartitionQueue, now_ms: float) -> ProducerBatch:
        """Take the first batch, which goes out now; the partition's next turn comes after all others."""
        with self.lock, self._guard:
            batch = queue.batches.popleft()
            if batch.is_open:
                batch.close()
                queue.topic.slots.set_open(queue.topic_partition.partition, None)
            else:
                self.ready_bytes -= batch.size
            self.waiting_batches -= 1
            self.active.pop(queue, None)
            if queue.batches:
                self.active[queue] = None
            queue.in_flight += 1
            batch.in_flight = True
            batch.drained_ms = now_ms
        return batch

    def take_alone(self, batch: ProducerBatch, now_ms: float) -> bool:
        """Take a batch if nothing else of its partition is waiting or in flight; nothing more goes until `unmute`."""
        queue = self.queue_of(batch)
        with self.lock, self._guard:
            if queue.in_flight or queue.is_muted or len(queue.batches) != 1 or queue.batches[0] is not batch:
                return False
            if batch.attempts:
                return False
            queue.is_muted = True
        self.take(queue, now_ms)
        return True

    def unmute(self, batch: ProducerBatch) -> None:
        self.queue_of(batch).is_muted = False

    def put_back(
        self, batch: ProducerBatch, retry_at_ms: float, order_of: Callable[[ProducerBatch], int] | None
    ) -> None:
        """Queue a batch for resending: ahead of batches never sent, and in sequence order among resent ones."""
        with self.lock:
            queue = self.queue_of(batch)
            batch.attempts += 1
            batch.last_attempt_ms = retry_at_ms
            self._insert(queue, [batch], order_of)

    def _insert(
        self, queue: PartitionQueue, batches: list[ProducerBatch], order_of: Callable[[ProducerBatch], int] | None
    ) -> None:
        if order_of is not None:
            while queue.batches and queue.batches[0].has_sequence:
                batches.append(queue.batches.popleft())
                self.waiting_batches -= 1
                self.ready_bytes -= batches[-1].size
            batches.sort(key=order_of)
        queue.batches.extendleft(reversed(batches))
        self.active.setdefault(queue, None)
        self.waiting_batches += len(batches)
        self.ready_bytes += sum(batch.size for batch in batches)

    def queue_of(self, batch: ProducerBatch) -> PartitionQueue:
        topic = self._topics[batch.topic_partition.topic]
        return topic.queue(batch.topic_partition.partition)

    def answered(self, batch: ProducerBatch) -> None:
        """The batch is no longer in flight."""
        if batch.in_flight:
            batch.in_flight = False
            self.queue_of(batch).in_flight -= 1

    def split(
        self,
        batch: ProducerBatch,
        replace: Callable[[ProducerBatch, list[ProducerBatch]], None] | None,
        order_of: Callable[[ProducerBatch], int] | None,
    ) -> None:
        """Split a batch that is too large for the broker. The parts are outside the pool, and go next."""
        half = BATCH_HEADER_SIZE + (batch.size - BATCH_HEADER_SIZE + 1) // 2
        parts = split_records(batch, min(self._settings.batch_size, half))
        if replace is not None:
            replace(batch, parts)
        with self.lock:
            queue = self.queue_of(batch)
            queue.growth_max = min(queue.growth_max, max(batch.size // 2, self._batch_capacity))
            for part in parts:
                self.incomplete[part] = None
            self._insert(queue, list(parts), order_of)
        batch.split_into(parts)
        self.release(batch)

    def release(self, batch: ProducerBatch) -> None:
        """The batch has ended and nothing of it is in flight: its memory is free."""
        with self.lock:
            self.incomplete.pop(batch, None)
            buffer = batch.take_buffer()
            if buffer is not None and batch.is_pooled:
                self.pool.give_back(buffer, keep=self._is_kept(len(buffer)))

    def _is_kept(self, size: int) -> bool:
        """Buffers for a record larger than a batch are not kept: nobody is likely to need exactly that size again."""
        return size == self._batch_capacity or (size <= self._settings.batch_growth_max_bytes and not size % _ALIGNED)

    def oldest(self) -> ProducerBatch | None:
        """The oldest unfinished batch."""
        with self.lock:  # others add to it meanwhile
            return next(iter(self.incomplete), None)

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        """Take out batches that have waited longer than `delivery.timeout.ms`."""
        deadline_ms = now_ms - self._settings.delivery_timeout_ms
        taken: list[ProducerBatch] = []
        with self.lock, self._guard:
            for queue in list(self.active):
                while queue.batches and queue.batches[0].created_ms <= deadline_ms:
                    taken.append(self._remove_first(queue))
        return taken

    def take_all(self, *, unsent_only: bool) -> list[ProducerBatch]:
        """Take out everything that waits; with `unsent_only`, batches that were sent before stay for resending."""
        taken: list[ProducerBatch] = []
        with self.lock, self._guard:
            for queue in list(self.active):
                kept = [batch for batch in queue.batches if unsent_only and batch.attempts]
                while queue.batches:
                    batch = self._remove_first(queue)
                    if batch not in kept:
                        taken.append(batch)
                if kept:
                    self._insert(queue, kept, None)
        return taken

    def take_queue(self, queue: PartitionQueue) -> list[ProducerBatch]:
        """Take out everything that waits for one partition."""
        taken: list[ProducerBatch] = []
        with self.lock, self._guard:
            while queue.batches:
                taken.append(self._remove_first(queue))
        return taken

    def _remove_first(self, queue: PartitionQueue) -> ProducerBatch:
        batch = queue.batches.popleft()
        self.waiting_batches -= 1
        if batch.is_open:
            batch.close()
            queue.topic.slots.set_open(queue.topic_partition.partition, None)
        else:
            self.ready_bytes -= batch.size
        if not queue.batches:
            self.active.pop(queue, None)
        return batch

    def timeout_error(self, batch: ProducerBatch, last_error: ClientError | None) -> DeliveryTimeoutError:
        reason = f"; the last error was: {last_error}" if last_error is not None else ""
        if batch.attempts == 0 and not batch.in_flight and last_error is None:
            reason = "; it was not sent, because its broker took nothing or could not be reached"
        return DeliveryTimeoutError(
            f"{batch.count} records to partition {batch.topic_partition} were not acknowledged within "
            f"delivery.timeout.ms, {self._settings.delivery_timeout_ms}{reason}"
        )
