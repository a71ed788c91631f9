"""Records that were sent to topics nobody has told us about yet.

`send` must not keep its caller waiting while no broker can be reached: the caller may want to wait for the delivery
with a time-out of its own. So the first records to a topic are kept here, each with a stand-in for the batch it will be
in, until the topic's partitions are known. Then they are appended in the order they were sent.

What always holds: while a topic has records here, later ones to it queue up behind them and the compiled appender
doesn't know the topic, so nothing overtakes them. A record that has found no place after `max.block.ms` fails. What is
kept counts against `buffer.memory`.

`keep` may be called from any thread; everything else runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tidelog.client.errors import ClientError, NoSuchPartitionError, RetriableError
from tidelog.client.producer.accumulator import Accumulator, NoRoom, TopicQueues
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.futures import DeliveryFuture
from tidelog.client.producer.interceptors import ProducerRecord
from tidelog.client.types import TopicPartition
from tidelog.records.batch import BATCH_HEADER_SIZE

if TYPE_CHECKING:
    from tidelog.client.producer.core import DeliveryCallback

logger = logging.getLogger(__name__)

_NO_PARTITION = -1


class UnplacedRecord(ProducerBatch):
    """Stands in for the batch of a record until it has one: it can be waited for, watched and failed."""

    __slots__ = ("_placed_in", "deadline_s", "future", "kept_bytes", "on_delivery", "record")

    def __init__(
        self, record: ProducerRecord, kept_bytes: int, deadline_s: float, on_delivery: DeliveryCallback | None
    ) -> None:
        topic_partition = TopicPartition(
            record.topic, record.partition if record.partition is not None else _NO_PARTITION
        )
        super().__init__(topic_partition, bytearray(BATCH_HEADER_SIZE), BATCH_HEADER_SIZE, 0.0, _nothing_to_wake)
        self.record = record
        self.kept_bytes = kept_bytes
        self.deadline_s = deadline_s
        self.on_delivery = on_delivery
        self.future = DeliveryFuture()
        key_size = -1 if record.key is None else len(record.key)
        value_size = -1 if record.value is None else len(record.value)
        self.future.fill_in(self, 0, record.timestamp or 0, key_size, value_size, on_delivery)
        self._placed_in: ProducerBatch | None = None

    def place(self, batch: ProducerBatch) -> None:
        """The record is in this batch now, and so are those who wait for it."""
        self._placed_in = batch
        self.take_callbacks()  # the batch has them
        for watcher in self.hand_over_watchers():
            if not batch.watch(watcher):
                watcher()
        if self.is_wanted:
            batch.want()

    def watch(self, watcher: Callable[[], object]) -> bool:
        if super().watch(watcher):
            return True
        return self._placed_in is not None and self._placed_in.watch(watcher)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for a batch, and then for the end of that batch, for this long in all."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        if not super().wait(timeout_s):
            return False
        batch = self._placed_in
        if batch is None:
            return True
        return batch.wait(None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0))


def _setter(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> Callable[[], None]:
    def set_soon() -> None:
        loop.call_soon_threadsafe(event.set)

    return set_soon


def _nothing_to_wake() -> None:
    """The sender has no part in a record without a batch."""


class UnplacedRecords:
    """The records of a producer that wait for news of their topics."""

    def __init__(
        self,
        accumulator: Accumulator,
        *,
        max_block_s: float,
        pause_s_max: float,
        load_queues: Callable[[str, float], Awaitable[TopicQueues]],
        append: Callable[[TopicQueues, ProducerRecord, DeliveryCallback | None, DeliveryFuture], object],
        no_room_error: Callable[[int], ClientError],
    ) -> None:
        """`load_queues` waits for a topic until a time of `time.monotonic` and `pause_s_max` at most between two
        attempts; `append` gives a record its place."""
        self._accumulator = accumulator
        self._max_block_s = max_block_s
        self._pause_s_max = pause_s_max
        self._load_queues = load_queues
        self._append = append
        self._no_room_error = no_room_error
        self._waiting: dict[str, deque[UnplacedRecord]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for topic in list(self._waiting):
            self._start_task(topic)

    def stop(self, error: ClientError) -> None:
        """Place nothing more; what waits fails."""
        for task in self._tasks.values():
            task.cancel()
        self.fail_all(error)

    @property
    def records(self) -> list[UnplacedRecord]:
        with self._accumulator.lock:
            return [record for waiting in self._waiting.values() for record in waiting]

    def has_topic(self, topic: str) -> bool:
        """Whether records to this topic must queue up here; from any thread."""
        return topic in self._waiting

    def keep(self, record: ProducerRecord, on_delivery: DeliveryCallback | None) -> DeliveryFuture | None:
        """Keep a record until its topic is known; None where it can be appended now or isn't worth keeping.

        Raises NoRoom when the caller has to wait behind others for memory, and RecordTooLargeError.
        """
        accumulator = self._accumulator
        size = accumulator.check_size(record.topic, record.key, record.value, record.headers)
        with accumulator.lock:
            waiting = self._waiting.get(record.topic)
            if waiting is None and accumulator.topic(record.topic) is not None:
                return None
            if not accumulator.reserve(size):
                if waiting is None:
                    return None  # the caller waits for the topic itself
                raise NoRoom(size)
            if waiting is None:
                waiting = self._waiting[record.topic] = deque()
                accumulator.hold_topic(record.topic)
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._start_task, record.topic)
            unplaced = UnplacedRecord(record, size, time.monotonic() + self._max_block_s, on_delivery)
            waiting.append(unplaced)
        return unplaced.future

    def _start_task(self, topic: str) -> None:
        if topic not in self._tasks and topic in self._waiting:
            task = asyncio.get_running_loop().create_task(self._place_all(topic))
            self._tasks[topic] = task
            task.add_done_callback(lambda _: self._tasks.pop(topic, None))

    async def _place_all(self, topic: str) -> None:
        """Give the topic's records their places, one after another, until none is left."""
        while True:
            with self._accumulator.lock:
                waiting = self._waiting.get(topic)
                if not waiting:
                    self._waiting.pop(topic, None)
                    self._accumulator.release_topic(topic)
                    return
                unplaced = waiting[0]
            try:
                queues = await self._load_queues(topic, unplaced.deadline_s)
            except ClientError as error:
                self._fail(topic, error, only_late=isinstance(error, (RetriableError, NoSuchPartitionError)))
                continue
            try:
                self._append(queues, unplaced.record, unplaced.on_delivery, unplaced.future)
            except NoRoom as no_room:
                if not await self._wait_for_room(no_room.size, unplaced.deadline_s):
                    self._end(topic, unplaced, self._no_room_error(no_room.size))
            except ClientError as error:
                self._end(topic, unplaced, error)
            except Exception as error:  # noqa: BLE001  # the application's partitioner may raise anything
                self._end(topic, unplaced, ClientError(f"a record to {topic} could not be appended: {error}"))
            else:
                self._end(topic, unplaced, None)

    def _fail(self, topic: str, error: ClientError, *, only_late: bool) -> None:
        """The topic could not be loaded: records whose time is up fail, or all where it won't come."""
        late_s = time.monotonic() + self._pause_s_max  # another attempt would come too late for these
        with self._accumulator.lock:
            waiting = list(self._waiting.get(topic, ()))
        failed = [one for one in waiting if one is waiting[0] or not only_late or one.deadline_s <= late_s]
        for unplaced in failed:
            self._end(topic, unplaced, error)
        if failed:  # those of `send_nowait` have nobody to tell
            count = "1 record" if len(failed) == 1 else f"{len(failed)} records"
            logger.warning("%s to topic %s failed: %s", count, topic, error)

    def fail_all(self, error: ClientError) -> None:
        for unplaced in self.records:
            self._end(unplaced.record.topic, unplaced, error)

    def _end(self, topic: str, unplaced: UnplacedRecord, error: ClientError | None) -> None:
        accumulator = self._accumulator
        with accumulator.lock:
            waiting = self._waiting.get(topic)
            if waiting is None or unplaced not in waiting:
                return
            waiting.remove(unplaced)
            accumulator.unreserve(unplaced.kept_bytes)
        if error is None:
            batch = unplaced.future.batch
            assert isinstance(batch, ProducerBatch)
            unplaced.place(batch)
        else:
            unplaced.fail(error)

    async def _wait_for_room(self, size: int, deadline_s: float) -> bool:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        accumulator = self._accumulator
        with accumulator.lock:
            if accumulator.pool.available_bytes >= size:
                return True
            waiter = accumulator.pool.wait_for(size, _setter(loop, woken))
        try:
            async with asyncio.timeout(max(deadline_s - time.monotonic(), 0.0)):
                await woken.wait()
        except TimeoutError:
            return False
        finally:
            with accumulator.lock:
                accumulator.pool.forget(waiter)
        return True
