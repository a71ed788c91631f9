"""Processes a consumer's records in many threads or coroutines, in order where order matters.

What always holds: records of one key (or partition, or route) are handled one after the other, even while one of them
is being retried. Commits cover only finished work, up to the first unfinished record, so a crash repeats records but
loses none. The consumer is polled all the time and from one thread or task, so the group does not consider the member
dead; partitions are paused when too much is in flight. Revoked partitions are drained and committed before they go. An
exception from a handler stops the pool unless `on_failure` says otherwise, and is raised to those who wait for the
pool. A thread can't be stopped from outside: a handler that outlasts the drain timeout keeps running alongside the new
owner's. A coroutine is cancelled, so nothing runs alongside the new owner unless it resists cancellation.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

from tidelog.client.consumer.rebalance import RebalanceListener
from tidelog.client.processing.blocking import run_blocking
from tidelog.client.processing.pool_base import PoolBase, after_block
from tidelog.client.processing.pool_core import Task
from tidelog.client.processing.pool_types import (
    AsyncHandler,
    AsyncPooledConsumer,
    Handler,
    PooledConsumer,
    PoolSettings,
    RecordT,
    Router,
)
from tidelog.client.types import TopicPartition

logger = logging.getLogger(__name__)

# How long a cancelled handler may take to end.
_CANCEL_S = 5.0

T = TypeVar("T")


class PoolOptions(TypedDict, total=False):
    """The keyword arguments of both pools; their defaults are in `PoolSettings`."""

    workers: int
    order_by: str | Router
    attempts: int
    retry_backoff_s: float
    retry_backoff_max_s: float
    retry_on: type[Exception] | tuple[type[Exception], ...]
    on_failure: str | Callable[[Any, Exception], Any]
    max_in_flight: int
    max_in_flight_bytes: int
    max_uncommitted: int
    commit_interval_s: float
    drain: str
    drain_timeout_s: float
    poll_timeout_s: float


class KeyedWorkerPool(PoolBase[RecordT]):
    """Processes a consumer's records in parallel, but in order within each key.

    >>> from tidelog import Consumer, KeyedWorkerPool
    >>> consumer = Consumer(group_id="billing", enable_auto_commit=False)  # doctest: +SKIP
    >>> with KeyedWorkerPool(consumer, handle, topics=["orders"], workers=8) as pool:  # doctest: +SKIP
    ...     pool.wait()
    """

    _is_async = False

    def __init__(
        self,
        consumer: PooledConsumer[RecordT],
        handler: Handler[RecordT],
        *,
        topics: Iterable[str] | None = None,
        listener: RebalanceListener | None = None,
        **options: Unpack[PoolOptions],
    ) -> None:
        """Nothing runs yet: `run()` works in the calling thread until `stop()`, `start()` or `with` in the background.

        The pool subscribes the consumer to `topics`, with a listener that calls yours; without them, `assign()` must
        have given the consumer its partitions. From then on only the pool may use the consumer. It must not commit by
        itself (`enable.auto.commit=false`).
        """
        self._lock: threading.Lock = threading.Lock()
        self._ended: threading.Event = threading.Event()
        settings = PoolSettings.checked(**options)
        super().__init__(consumer, consumer.commit_sync, topics, listener, settings, self._lock, self._ended)
        self._handler = handler
        self._work_there = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        self._are_workers_done = False
        self._workers: list[threading.Thread] = []
        # Threads that must not wait for the pool.
        self._own_threads: set[threading.Thread] = set()

    # Public methods

    def run(self) -> None:
        """Poll, and keep the workers busy, until another thread calls `stop()`; raises whatever stopped the pool."""
        self._begin()
        run_blocking(self._run())
        self._raise_failure()

    def start(self) -> Self:
        """Do the same in a background thread."""
        self._begin()
        threading.Thread(target=run_blocking, args=(self._run(),), name="worker-pool", daemon=True).start()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the pool has ended; False if the timeout came first. Raises whatever stopped it."""
        has_ended = self._ended.wait(timeout)
        self._raise_failure()
        return has_ended

    def stop(self) -> None:
        """Finish the running work, commit what is done, and end. Waiting records are left to the next reader.

        Returns when everything has ended; raises whatever stopped the pool earlier. May be called from any thread, and
        more than once. In a handler, and in a signal handler of the thread that runs the pool, it requests the stop and
        returns immediately.
        """
        self._is_stopping = True
        # A handler, or a signal handler that interrupts run(), may hold the lock or be waited for: they only request
        # it.
        if threading.current_thread() in self._own_threads:
            return
        with self._lock:
            self._progress.notify_all()
        if self._has_begun:
            self._ended.wait()
            self._raise_failure()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with after_block(error):
            self.stop()

    def _raise_failure(self) -> None:
        if self._failure is not None and self._ended.is_set():
            raise self._failure

    # The polling thread

    def _now_s(self) -> float:
        return time.monotonic()

    async def _await(self, condition: Callable[[], bool], timeout_s: float) -> None:
        before = self._is_stopping, self._failure
        with self._lock:
            self._awaited = lambda: condition() or (self._is_stopping, self._failure) != before
            self._progress.wait_for(self._awaited, timeout_s)
            self._awaited = None

    def _wake_poller(self) -> None:
        self._progress.notify_all()

    def _start_workers(self) -> None:
        self._workers = [
            threading.Thread(target=self._work, name=f"worker-pool-{number}", daemon=True)
            for number in range(self._settings.workers)
        ]
        self._own_threads = {threading.current_thread(), *self._workers}
        for worker in self._workers:
            worker.start()

    def _wake_workers(self, ready: int) -> None:
        self._work_there.notify(ready)

    def _end_workers(self) -> None:
        with self._lock:
            self._are_workers_done = True
            self._work_there.notify_all()
            # Threads whose handlers outlasted the drain timeout are left alone.
            has_stragglers = bool(self._core.running)
        if not has_stragglers:
            for worker in self._workers:
                worker.join()
        self._own_threads = set()

    async def _give_up_waiting(self, partitions: Collection[TopicPartition] | None) -> None:
        logger.warning(
            "handlers still run after %s s: their records will be repeated%s",
            self._settings.drain_timeout_s,
            "" if partitions is None else " by other members",
        )

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run_blocking(coroutine)

    # The worker threads

    def _work(self) -> None:
        while True:
            with self._lock:
                task = self._next()
            if task is None:
                return
            error: BaseException | None = None
            try:
                self._handler(task.record)
            except BaseException as raised:  # noqa: BLE001 - a handler's error is counted, retried, or stops the pool
                error = raised
            if error is None or run_blocking(self._is_given_up_on(task, error)):
                with self._lock:
                    # The lane's next record needs no other worker: this one continues with it.
                    self._core.finish(task)
                    if self._has_come():
                        self._progress.notify_all()
            else:
                with self._lock:
                    # A retry may be due before this worker is free again.
                    self._work_there.notify()

    def _next(self) -> Task[RecordT] | None:
        """The next record, as soon as there is one; None when the workers should end."""
        while True:
            now_s = time.monotonic()
            task = None if self._are_workers_done else self._core.take(now_s)
            if task is not None or self._are_workers_done:
                return task
            due_s = self._core.next_retry_s()
            self._work_there.wait(None if due_s is None else max(0.0, due_s - now_s))


class AsyncKeyedWorkerPool(PoolBase[RecordT]):
    """Processes a consumer's records in parallel coroutines, but in order within each key.

    >>> from tidelog import AsyncConsumer, AsyncKeyedWorkerPool
    >>> async with AsyncKeyedWorkerPool(consumer, handle, topics=["orders"]) as pool:  # doctest: +SKIP
    ...     await pool.wait()
    """

    _is_async = True

    def __init__(
        self,
        consumer: AsyncPooledConsumer[RecordT],
        handler: AsyncHandler[RecordT],
        *,
        topics: Iterable[str] | None = None,
        listener: RebalanceListener | None = None,
        **options: Unpack[PoolOptions],
    ) -> None:
        """Nothing runs yet: `run()` works in the calling task until `stop()`; `async with` uses a background task.

        The pool subscribes the consumer to `topics`, with a listener that calls yours; without them, `assign()` must
        have given the consumer its partitions. From then on only the pool may use the consumer. It must not commit by
        itself (`enable.auto.commit=false`). `workers` is how many handlers run concurrently.
        """
        self._ended: asyncio.Event = asyncio.Event()
        settings = PoolSettings.checked(**options)
        # Everything runs in one event loop, and no state change is interrupted by an await: no lock is needed.
        super().__init__(consumer, consumer.commit, topics, listener, settings, nullcontext(), self._ended)
        self._handler = handler
        self._handling: dict[Task[RecordT], asyncio.Task[None]] = {}
        self._progress = asyncio.Event()
        self._retry_timer: asyncio.TimerHandle | None = None
        self._poller: asyncio.Task[None] | None = None

    # Public methods

    async def run(self) -> None:
        """Poll, and run handlers, until `stop()` is called or this is cancelled; raises whatever stopped the pool."""
        await self.start().wait()

    def start(self) -> Self:
        """Do the same in a background task."""
        self._begin()
        self._poller = asyncio.get_running_loop().create_task(self._run(), name="worker-pool")
        return self

    async def wait(self) -> None:
        """Wait until the pool has ended; raises whatever stopped it. If this is cancelled, the pool stops first."""
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            self._request_stop()
            await self._ended.wait()
            raise
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Finish the running work, commit what is done, and end. Waiting records are left to the next reader.

        Returns when everything has ended; raises whatever stopped the pool earlier. In a handler it requests the stop
        and returns immediately.
        """
        self._request_stop()
        current = asyncio.current_task()
        if self._has_begun and current is not self._poller and current not in self._handling.values():
            await self.wait()

    def _request_stop(self) -> None:
        self._is_stopping = True
        self._wake_poller()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with after_block(error):
            await self.stop()

    # The polling task

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def _await(self, condition: Callable[[], bool], timeout_s: float) -> None:
        before = self._is_stopping, self._failure
        self._awaited = lambda: condition() or (self._is_stopping, self._failure) != before
        try:
            async with asyncio.timeout(timeout_s):
                while not self._awaited():
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            return
        finally:
            self._awaited = None

    def _wake_poller(self) -> None:
        self._progress.set()

    def _start_workers(self) -> None:
        """Start tasks when there are records for them."""

    def _end_workers(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()

    async def _give_up_waiting(self, partitions: Collection[TopicPartition] | None) -> None:
        tasks = [task for task in self._handling if partitions is None or task.progress.partition in partitions]
        logger.warning("cancelling %d handlers that take too long to drain", len(tasks))
        handling = self._cancel(tasks)
        if handling:
            await asyncio.wait(handling, timeout=_CANCEL_S)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return coroutine

    def _lose(self, partitions: Sequence[TopicPartition]) -> None:
        super()._lose(partitions)
        self._cancel([task for task in self._handling if task.progress.is_given_up])

    def _cancel(self, tasks: Sequence[Task[RecordT]]) -> list[asyncio.Task[None]]:
        self._cancelled.update(tasks)
        handling = [self._handling[task] for task in tasks]
        for each in handling:
            each.cancel()
        return handling

    # The worker tasks

    def _wake_workers(self, ready: int) -> None:
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
            self._retry_timer = loop.call_at(due_s, self._wake_workers, 0)

    async def _handle(self, task: Task[RecordT]) -> None:
        try:
            try:
                await self._handler(task.record)
            except BaseException as error:  # noqa: BLE001 - it is counted, retried, or stops the pool
                if not await self._is_given_up_on(task, error):
                    return
            self._core.finish(task)
        finally:
            del self._handling[task]
            self._cancelled.discard(task)
            self._wake_workers(0)
            if self._has_come():
                self._progress.set()
