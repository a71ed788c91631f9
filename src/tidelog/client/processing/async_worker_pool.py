"""Records of a consumer worked on by many coroutines, in order where order counts.

What always holds is said in `worker_pool`. Here a handler that outlasts the time to drain is cancelled, so that nothing
keeps running alongside the new owner of a partition unless it resists cancellation.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from tidelog.client.consumer.rebalance import RebalanceListener
from tidelog.client.errors import ClientError, ConfigError, RetriableError
from tidelog.client.processing.pool_base import PoolBase, check_consumer
from tidelog.client.processing.pool_core import Decision, Task
from tidelog.client.processing.pool_types import AsyncHandler, AsyncPooledConsumer, PoolMetrics, PoolSettings, RecordT
from tidelog.client.processing.worker_pool import PoolOptions
from tidelog.client.types import TopicPartition

logger = logging.getLogger(__name__)

# How long a cancelled handler may take to end.
_CANCEL_S = 5.0


class AsyncKeyedWorkerPool(PoolBase[RecordT]):
    """Works on a consumer's records in parallel coroutines, and in order by key.

    >>> from tidelog import AsyncConsumer, AsyncKeyedWorkerPool
    >>> async with AsyncKeyedWorkerPool(consumer, handle, topics=["orders"]) as pool:  # doctest: +SKIP
    ...     await pool.wait()
    """

    def __init__(
        self,
        consumer: AsyncPooledConsumer[RecordT],
        handler: AsyncHandler[RecordT],
        *,
        topics: Iterable[str] | None = None,
        listener: RebalanceListener | None = None,
        **options: Unpack[PoolOptions],
    ) -> None:
        """Nothing runs yet: `run()` works in the calling task until `stop()`, `async with` in one of its own.

        The pool subscribes the consumer to `topics`, with a listener that calls yours; without them the consumer has
        been given its partitions by `assign()`. From then on only the pool may use it. It must not commit by itself
        (`enable.auto.commit=false`). `workers` is how many handlers run concurrently.
        """
        super().__init__(PoolSettings.checked(**options))
        check_consumer(consumer)
        self._consumer = consumer
        self._handler = handler
        self._topics = None if topics is None else list(topics)
        self._listener = _AsyncPoolListener(self, listener)
        self._handling: dict[Task[RecordT], asyncio.Task[None]] = {}
        # Those that the pool itself broke off; others that raise CancelledError have failed.
        self._cancelled: set[Task[RecordT]] = set()
        self._progress = asyncio.Event()
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._retry_timer: asyncio.TimerHandle | None = None
        self._poller: asyncio.Task[None] | None = None
        self._has_begun = False

    # For the user

    async def run(self) -> None:
        """Poll, and let handlers run, until `stop()` is called or this is cancelled; raises what stopped the pool."""
        await self.start().wait()

    def start(self) -> Self:
        """Do the same in a task of the pool's own."""
        if self._has_begun:
            raise ConfigError("a worker pool runs only once: create a new one")
        self._has_begun = True
        self._poller = asyncio.get_running_loop().create_task(self._run(), name="worker-pool")
        return self

    async def wait(self) -> None:
        """Wait until the pool has ended; raises what stopped it. When this is cancelled the pool stops first."""
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            self._stopping.set()
            self._progress.set()
            await self._ended.wait()
            raise
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Finish what was begun, commit what is done, and end. What waits for its turn is left to the next reader.

        Returns when all has ended; raises what stopped the pool before. In a handler it asks the pool to stop and
        returns immediately.
        """
        self._stopping.set()
        self._progress.set()
        current = asyncio.current_task()
        if self._has_begun and current is not self._poller and current not in self._handling.values():
            await self.wait()

    def metrics(self) -> PoolMetrics:
        """What is under way, what was done, and how far each partition is."""
        return self._metrics(asyncio.get_running_loop().time())

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        except ClientError as failure:
            # The error of the block itself is the one to be seen; the pool's is in the log.
            if error is None:
                raise
            if failure is not error:
                logger.exception("the worker pool had failed too")

    # The task that polls

    async def _run(self) -> None:
        try:
            if self._topics is not None:
                self._consumer.subscribe(self._topics, listener=self._listener)
            while not self._stopping.is_set():
                await self._step(is_draining=False)
        except BaseException as error:  # noqa: BLE001 - raised to those who wait for the pool
            self._fail(error)
        try:
            await self._drain_all()
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(error)
        self._core.drop_queued()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        if self._failure is not None:
            logger.error("the worker pool is stopping: %s", self._failure)
        self._ended.set()

    async def _step(self, *, is_draining: bool) -> None:
        assigned = self._consumer.assignment()
        pause, resume = self._pauses(assigned, all_of_them=is_draining)
        if pause:
            self._consumer.pause(pause)
        if resume:
            self._consumer.resume(resume)
        is_all_paused = len(self._paused) == len(assigned) > 0
        if is_all_paused:
            # Nothing will be read: what is waited for is room, and the group only wants to be polled.
            if is_draining:
                await self._await(lambda: self._core.is_idle(queued=True), self._settings.poll_timeout_s)
            else:
                await self._await(lambda: self._has_room(assigned), self._settings.poll_timeout_s)
        records = await self._poll(0.0 if is_all_paused else self._settings.poll_timeout_s)
        now_s = self._now_s()
        self._sample(now_s, self._consumer)
        if records:
            self._core.add(records)
        self._dispatch()
        if now_s >= self._commit_due_s:
            self._commit_due_s = now_s + self._settings.commit_interval_s
            await self._commit()

    async def _poll(self, timeout_s: float) -> Sequence[RecordT]:
        try:
            return await self._consumer.poll(timeout_s)
        except RetriableError as error:
            logger.warning("polling failed, retrying: %s", error)
            await asyncio.sleep(self._settings.poll_timeout_s)
            return ()

    async def _drain_all(self) -> None:
        """Let what was begun come to its end while the consumer is polled on, and commit what is done."""
        deadline_s = self._now_s() + self._settings.drain_timeout_s
        can_poll = self._can_poll_on()
        while not self._drop_for_drain(None):
            if self._now_s() >= deadline_s:
                self._core.drop_queued()
                await self._cancel(list(self._handling))
                break
            if can_poll:
                try:
                    await self._step(is_draining=True)
                except ClientError as error:
                    self._fail(error)
                    can_poll = False
            else:
                await self._await(lambda: self._core.is_idle(queued=True), deadline_s - self._now_s())
        await self._commit()

    async def _commit(self, partitions: Collection[TopicPartition] | None = None) -> None:
        offsets = self._core.committable(partitions)
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except ClientError as error:
            self._bear_commit(error)
        else:
            self._core.note_committed(offsets)

    async def _await(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until a condition holds, the time is over, or the pool was stopped or failed meanwhile."""
        before = self._stopping.is_set(), self._failure
        self._awaited = lambda: condition() or (self._stopping.is_set(), self._failure) != before
        try:
            async with asyncio.timeout(timeout_s):
                while not self._awaited():
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return
        finally:
            self._awaited = None

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    # Called by the listener, in poll

    async def _revoke(self, partitions: Sequence[TopicPartition]) -> None:
        """Let what was begun come to its end, commit what is done, and forget the partitions."""
        deadline_s = self._now_s() + self._settings.drain_timeout_s
        while not self._drop_for_drain(partitions):
            if self._now_s() >= deadline_s:
                self._core.drop_queued(partitions)
                await self._cancel([task for task in self._handling if task.progress.partition in partitions])
                break
            await self._await(lambda: self._core.is_idle(partitions, queued=True), deadline_s - self._now_s())
        try:
            await self._commit(partitions)
        finally:
            self._lose(partitions)

    def _lose(self, partitions: Sequence[TopicPartition]) -> None:
        self._core.give_up(partitions)
        self._paused -= set(partitions)
        for task, handling in self._handling.items():
            if task.progress.is_given_up:
                self._cancelled.add(task)
                handling.cancel()

    async def _cancel(self, tasks: Sequence[Task[RecordT]]) -> None:
        logger.warning("cancelling %d handlers that take too long to drain", len(tasks))
        self._cancelled.update(tasks)
        handling = [self._handling[task] for task in tasks]
        for each in handling:
            each.cancel()
        if handling:
            await asyncio.wait(handling, timeout=_CANCEL_S)

    # The tasks that work

    def _dispatch(self) -> None:
        """Start as many records as may run concurrently."""
        loop = asyncio.get_running_loop()
        while len(self._handling) < self._settings.workers:
            task = self._core.take(loop.time())
            if task is None:
                break
            self._handling[task] = loop.create_task(self._handle(task))
        due_s = self._core.next_retry_s()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        if due_s is not None and not self._ended.is_set():
            self._retry_timer = loop.call_at(due_s, self._dispatch)

    async def _handle(self, task: Task[RecordT]) -> None:
        try:
            try:
                await self._handler(task.record)
            except BaseException as error:  # noqa: BLE001 - it is counted, tried again or stops the pool
                if task in self._cancelled:
                    # Drained for too long, or lost: the record stays unfinished, and is the next reader's.
                    self._core.cancel(task)
                    return
                if not await self._is_given_up_on(task, error):
                    return
            self._core.finish(task)
        finally:
            del self._handling[task]
            self._cancelled.discard(task)
            self._dispatch()
            if self._has_come():
                self._progress.set()

    async def _is_given_up_on(self, task: Task[RecordT], error: BaseException) -> bool:
        """Whether a record that failed is left behind; otherwise it is tried again, or the pool stops at it."""
        decision = self._core.decide(task, error)
        self._log_failure(task, error, decision)
        if decision is Decision.RETRY:
            self._core.retry(task, self._now_s())
        elif decision is Decision.HAND_OVER:
            try:
                handed_over = self._hand_over(task.record, error)
                if inspect.isawaitable(handed_over):
                    await handed_over
            except BaseException as raised:  # noqa: BLE001 - without it the record would be lost
                if task in self._cancelled:
                    self._core.cancel(task)
                    return False
                error, decision = raised, Decision.STOP
        if decision is Decision.STOP:
            # The record stays unfinished, so nothing behind it is committed.
            self._stop_at(task, error)
            self._stopping.set()
        return self._counts_as_left_behind(decision)


class _AsyncPoolListener(RebalanceListener):
    """Tells the pool of partitions that come and go, and then the user's listener."""

    def __init__(self, pool: AsyncKeyedWorkerPool[Any], listener: RebalanceListener | None) -> None:
        self._pool = pool
        self._listener = listener or RebalanceListener()

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        told = self._listener.on_partitions_assigned(partitions)
        if told is not None:
            await told

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._pool._revoke(partitions)
        told = self._listener.on_partitions_revoked(partitions)
        if told is not None:
            await told

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._pool._lose(partitions)
        told = self._listener.on_partitions_lost(partitions)
        if told is not None:
            await told
