"""Records sent to topics whose metadata is not known yet.

`send` must not keep its caller waiting while no broker can be reached: the caller may want to wait for the delivery
with its own timeout. So the first records to a topic are held here, each with a stand-in for its future batch, until
the topic's partitions are known. Then they are appended in the order they were sent.

What always holds: while records of a topic are held here, later ones to it queue up behind them and the compiled
appender doesn't know the topic, so nothing overtakes them. A record that has found no place after `max.block.ms` fails.
Held records count against `buffer.memory`, but leave room for batches; if those need more room, records held here get
it before any others.

`keep` may be called from any thread; everything else runs on the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
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
_PLACED_AT_ONCE = 100  # then yield to others on the event loop: this takes about a millisecond


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
        """The record is in this batch now, and its waiters move there, too."""
        self._placed_in = batch
        self.take_callbacks()  # the batch has its waiters now
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
    """The sender has nothing to do with a record without a batch."""


class UnplacedRecords:
    """A producer's records that wait for the metadata of their topics."""

    def __init__(
        self,
        accumulator: Accumulator,
        *,
        max_block_s: float,
        pause_s_max: float,
        load_queues: Callable[[str, float], Awaitable[TopicQueues]],
        append: Callable[[TopicQueues, UnplacedRecord], object],
        no_room_error: Callable[[int], ClientError],
        note_failed: Callable[[str, int, ClientError], None],
    ) -> None:
        """`load_queues` waits for a topic until a time of `time.monotonic`, pausing at most `pause_s_max` between two
        attempts. `append` places a record, and releases its `kept_bytes` for that. `note_failed` is told how many
        records to a topic failed.
        """
        self._accumulator = accumulator
        self._max_block_s = max_block_s
        self._pause_s_max = pause_s_max
        self._load_queues = load_queues
        self._append = append
        self._no_room_error = no_room_error
        self._note_failed = note_failed
        self._waiting: dict[str, deque[UnplacedRecord]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_stopped = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        for topic in list(self._waiting):
            self._start_task(topic)

    def stop(self, error: ClientError) -> None:
        """Place nothing more; records held here fail."""
        self._is_stopped = True
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
        """Hold a record until its topic is known; None if it can be appended now or isn't worth holding.

        Raises NoRoom if the caller has to wait behind others for memory, and RecordTooLargeError.
        """
        accumulator = self._accumulator
        size = accumulator.check_size(record.topic, record.key, record.value, record.headers)
        with accumulator.lock:
            waiting = self._waiting.get(record.topic)
            if waiting is None and accumulator.topic(record.topic) is not None:
                return None
            try:
                accumulator.reserve(size)
            except NoRoom:
                if waiting is None:
                    return None  # the caller waits for the topic itself
                raise
            if waiting is None:
                waiting = self._waiting[record.topic] = deque()
                accumulator.hold_topic(record.topic)
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._start_task, record.topic)
            unplaced = UnplacedRecord(record, size, time.monotonic() + self._max_block_s, on_delivery)
            waiting.append(unplaced)
        return unplaced.future

    def _start_task(self, topic: str) -> None:
        if topic not in self._tasks and topic in self._waiting and not self._is_stopped:
            task = asyncio.get_running_loop().create_task(self._place_all(topic))
            self._tasks[topic] = task
            task.add_done_callback(partial(self._on_task_end, topic))

    def _on_task_end(self, topic: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(topic) is task:
            del self._tasks[topic]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a producer could not place records to topic %s", topic, exc_info=error)
            problem = ClientError(f"the producer failed: {type(error).__name__}: {error}")
            with self._accumulator.lock:
                left = list(self._waiting.get(topic, ()))
            self._fail(topic, left, problem)
        self._start_task(topic)  # for records that came when the task had just ended

    async def _place_all(self, topic: str) -> None:
        """Place the topic's records, one after another, until none is left."""
        for placed in itertools.count(1):
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
                self._fail_late(topic, error, only_late=isinstance(error, (RetriableError, NoSuchPartitionError)))
                continue
            try:
                self._append(queues, unplaced)
            except NoRoom as no_room:
                if not await self._wait_for_room(no_room.size, unplaced.deadline_s):
                    self._fail(topic, [unplaced], self._no_room_error(no_room.size))
            except ClientError as error:
                self._fail(topic, [unplaced], error)
            except Exception as error:  # noqa: BLE001  # the application's partitioner may raise anything
                problem = ClientError(f"a record to {topic} could not be appended: {error}")
                self._fail(topic, [unplaced], problem)
            else:
                unplaced.kept_bytes = 0  # released for its place
                self._take_out(topic, unplaced)
                batch = unplaced.future.batch
                assert isinstance(batch, ProducerBatch)
                unplaced.place(batch)
            if not placed % _PLACED_AT_ONCE:
                await asyncio.sleep(0)

    def _fail_late(self, topic: str, error: ClientError, *, only_late: bool) -> None:
        """The topic could not be loaded: records whose time is up fail, or all if the topic won't come."""
        late_s = time.monotonic() + self._pause_s_max  # another attempt would come too late for these
        with self._accumulator.lock:
            waiting = list(self._waiting.get(topic, ()))
        failed = [one for one in waiting if one is waiting[0] or not only_late or one.deadline_s <= late_s]
        self._fail(topic, failed, error)

    def fail_all(self, error: ClientError) -> None:
        with self._accumulator.lock:
            left = {topic: list(waiting) for topic, waiting in self._waiting.items()}
        for topic, waiting in left.items():
            self._fail(topic, waiting, error)

    def _fail(self, topic: str, failed: list[UnplacedRecord], error: ClientError) -> None:
        taken = [unplaced for unplaced in failed if self._take_out(topic, unplaced)]
        if taken:
            self._note_failed(topic, len(taken), error)
        for unplaced in taken:
            unplaced.fail(error)

    def _take_out(self, topic: str, unplaced: UnplacedRecord) -> bool:
        """It no longer waits here; False if it did not."""
        with self._accumulator.lock:
            waiting = self._waiting.get(topic)
            if waiting is None or unplaced not in waiting:
                return False
            waiting.remove(unplaced)
            self._accumulator.unreserve(unplaced.kept_bytes)
            return True

    async def _wait_for_room(self, size: int, deadline_s: float) -> bool:
        """Wait ahead of all others that want to add records: the records held here make room once they can go."""
        woken = asyncio.Event()
        wake = _setter(asyncio.get_running_loop(), woken)
        waiter = self._accumulator.wait_for_room(size, wake, first=True)
        if waiter is None:
            return True
        try:
            async with asyncio.timeout(max(deadline_s - time.monotonic(), 0.0)):
                await woken.wait()
        except TimeoutError:
            return False
        finally:
            self._accumulator.stop_waiting(waiter)
        return True
