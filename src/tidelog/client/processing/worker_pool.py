"""Records of a consumer worked on by many threads, in order where order counts.

What always holds: records of one key (or partition, or route) are handled one after the other, also while one of them
is tried again; only what is done is committed, up to the first record that is not, so that a crash repeats records and
loses none; the consumer is polled all the time and from one thread, so that the group does not take the member for
dead, while partitions are paused when too much is in flight; partitions that are revoked are drained and committed
before they go. A handler's exception stops the pool unless `on_failure` says otherwise, and is raised to those who wait
for it. A thread can't be stopped from outside: a handler that outlasts the drain timeout keeps running alongside the
new owner's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from tidelog.client.consumer.rebalance import RebalanceListener
from tidelog.client.errors import ClientError, ConfigError, RetriableError
from tidelog.client.processing.pool_base import PoolBase, check_consumer
from tidelog.client.processing.pool_core import Decision, Task
from tidelog.client.processing.pool_types import (
    Handler,
    PooledConsumer,
    PoolMetrics,
    PoolSettings,
    RecordT,
    Router,
)
from tidelog.client.types import TopicPartition

logger = logging.getLogger(__name__)


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
    """Works on a consumer's records in parallel, and in order by key.

    >>> from tidelog import Consumer, KeyedWorkerPool
    >>> consumer = Consumer(group_id="billing", enable_auto_commit=False)  # doctest: +SKIP
    >>> with KeyedWorkerPool(consumer, handle, topics=["orders"], workers=8) as pool:  # doctest: +SKIP
    ...     pool.wait()
    """

    def __init__(
        self,
        consumer: PooledConsumer[RecordT],
        handler: Handler[RecordT],
        *,
        topics: Iterable[str] | None = None,
        listener: RebalanceListener | None = None,
        **options: Unpack[PoolOptions],
    ) -> None:
        """Nothing runs yet: `run()` works in the calling thread until `stop()`, `start()` or `with` in one of its own.

        The pool subscribes the consumer to `topics`, with a listener that calls yours; without them the consumer has
        been given its partitions by `assign()`. From then on only the pool may use it. It must not commit by itself
        (`enable.auto.commit=false`).
        """
        super().__init__(PoolSettings.checked(**options))
        check_consumer(consumer)
        self._consumer = consumer
        self._handler = handler
        self._topics = None if topics is None else list(topics)
        self._listener = _PoolListener(self, listener)
        self._lock = threading.Lock()
        self._work_there = threading.Condition(self._lock)
        self._progress = threading.Condition(self._lock)
        # A plain flag, which a signal handler can set whatever it interrupts.
        self._is_stopping = False
        self._ended = threading.Event()
        self._are_workers_done = False
        self._has_begun = False
        # Those from which nobody may wait for the pool.
        self._own_threads: set[threading.Thread] = set()

    # For the user

    def run(self) -> None:
        """Poll, and let the workers work, until another thread calls `stop()`; raises what stopped the pool."""
        self._begin()
        self._run()
        self._raise_failure()

    def start(self) -> Self:
        """Do the same in a thread of the pool's own."""
        self._begin()
        threading.Thread(target=self._run, name="worker-pool", daemon=True).start()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the pool has ended; False when the time-out came first. Raises what stopped it."""
        has_ended = self._ended.wait(timeout)
        self._raise_failure()
        return has_ended

    def stop(self) -> None:
        """Finish what was begun, commit what is done, and end. What waits for its turn is left to the next reader.

        Returns when all has ended; raises what stopped the pool before. May be called from any thread and again; in a
        handler, and in a signal handler of the thread that runs the pool, it requests the stop and returns immediately.
        """
        self._is_stopping = True
        # A handler, and a signal handler that interrupts run(), may hold the lock or be waited for: they only ask.
        if threading.current_thread() in self._own_threads:
            return
        with self._lock:
            self._progress.notify_all()
        if self._has_begun:
            self._ended.wait()
            self._raise_failure()

    def metrics(self) -> PoolMetrics:
        """What is under way, what was done, and how far each partition is; from any thread."""
        with self._lock:
            return self._metrics(time.monotonic())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except ClientError as failure:
            # The error of the block itself is the one to be seen; the pool's is in the log.
            if error is None:
                raise
            if failure is not error:
                logger.exception("the worker pool had failed too")

    def _begin(self) -> None:
        if self._has_begun:
            raise ConfigError("a worker pool runs only once: create a new one")
        self._has_begun = True

    def _raise_failure(self) -> None:
        if self._failure is not None and self._ended.is_set():
            raise self._failure

    # The thread that polls

    def _run(self) -> None:
        workers = [
            threading.Thread(target=self._work, name=f"worker-pool-{number}", daemon=True)
            for number in range(self._settings.workers)
        ]
        self._own_threads = {threading.current_thread(), *workers}
        try:
            for worker in workers:
                worker.start()
            if self._topics is not None:
                self._consumer.subscribe(self._topics, listener=self._listener)
            while not self._is_stopping:
                self._step(is_draining=False)
        except BaseException as error:  # noqa: BLE001 - raised to those who wait for the pool
            self._fail(error)
        try:
            self._drain_all()
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(error)
        with self._lock:
            self._are_workers_done = True
            self._core.drop_queued()
            self._work_there.notify_all()
            # Threads of handlers that outlasted the time to drain are left to themselves.
            has_stragglers = bool(self._core.running)
        if not has_stragglers:
            for worker in workers:
                worker.join()
        self._own_threads = set()
        if self._failure is not None:
            logger.error("the worker pool is stopping: %s", self._failure)
        self._ended.set()

    def _step(self, *, is_draining: bool) -> None:
        assigned = self._consumer.assignment()
        with self._lock:
            pause, resume = self._pauses(assigned, all_of_them=is_draining)
            is_all_paused = len(self._paused) == len(assigned) > 0
        if pause:
            self._consumer.pause(pause)
        if resume:
            self._consumer.resume(resume)
        if is_all_paused:
            # Nothing will be read: what is waited for is room, and the group only wants to be polled.
            if is_draining:
                self._await(lambda: self._core.is_idle(queued=True), self._settings.poll_timeout_s)
            else:
                self._await(lambda: self._has_room(assigned), self._settings.poll_timeout_s)
        records = self._poll(0.0 if is_all_paused else self._settings.poll_timeout_s)
        now_s = time.monotonic()
        with self._lock:
            self._sample(now_s, self._consumer)
            if records:
                self._work_there.notify(self._core.add(records))
        if now_s >= self._commit_due_s:
            self._commit_due_s = now_s + self._settings.commit_interval_s
            self._commit()

    def _await(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until a condition holds, the time is over, or the pool was stopped or failed meanwhile."""
        before = self._is_stopping, self._failure
        with self._lock:
            self._awaited = lambda: condition() or (self._is_stopping, self._failure) != before
            self._progress.wait_for(self._awaited, timeout_s)
            self._awaited = None

    def _poll(self, timeout_s: float) -> Sequence[RecordT]:
        try:
            return self._consumer.poll(timeout_s)
        except RetriableError as error:
            logger.warning("polling failed, retrying: %s", error)
            self._await(lambda: False, self._settings.poll_timeout_s)
            return ()

    def _drain_all(self) -> None:
        """Let what was begun come to its end while the consumer is polled on, and commit what is done."""
        deadline_s = time.monotonic() + self._settings.drain_timeout_s
        can_poll = self._can_poll_on()
        while time.monotonic() < deadline_s:
            with self._lock:
                if self._drop_for_drain(None):
                    break
            if can_poll:
                try:
                    self._step(is_draining=True)
                except ClientError as error:
                    self._fail(error)
                    can_poll = False
            else:
                self._await(lambda: self._core.is_idle(queued=True), deadline_s - time.monotonic())
        else:
            logger.warning(
                "handlers still run after %s s: their records will be repeated",
                self._settings.drain_timeout_s,
            )
        self._commit()

    def _commit(self, partitions: Collection[TopicPartition] | None = None) -> None:
        with self._lock:
            offsets = self._core.committable(partitions)
        if not offsets:
            return
        try:
            self._consumer.commit_sync(offsets)
        except ClientError as error:
            self._bear_commit(error)
        else:
            with self._lock:
                self._core.note_committed(offsets)

    # Called by the listener, in poll

    def _revoke(self, partitions: Sequence[TopicPartition]) -> None:
        """Let what was begun come to its end, commit what is done, and forget the partitions."""
        deadline_s = time.monotonic() + self._settings.drain_timeout_s
        while time.monotonic() < deadline_s:
            with self._lock:
                if self._drop_for_drain(partitions):
                    break
            self._await(lambda: self._core.is_idle(partitions, queued=True), deadline_s - time.monotonic())
        else:
            logger.warning("handlers of revoked partitions still run; other members will repeat their records")
        try:
            self._commit(partitions)
        finally:
            self._lose(partitions)

    def _lose(self, partitions: Sequence[TopicPartition]) -> None:
        with self._lock:
            self._core.give_up(partitions)
            self._paused -= set(partitions)

    # The threads that work

    def _work(self) -> None:
        while True:
            with self._lock:
                task = self._next()
            if task is None:
                return
            error: BaseException | None = None
            try:
                self._handler(task.record)
            except BaseException as raised:  # noqa: BLE001 - a handler's error is counted, tried again or stops the pool
                error = raised
            if error is None or self._is_given_up_on(task, error):
                with self._lock:
                    # The lane's next record needs no other worker: this one continues with it.
                    self._core.finish(task)
                    if self._has_come():
                        self._progress.notify_all()

    def _next(self) -> Task[RecordT] | None:
        """The next record, as soon as there is one; None when the workers shall end."""
        while True:
            now_s = time.monotonic()
            task = None if self._are_workers_done else self._core.take(now_s)
            if task is not None or self._are_workers_done:
                return task
            due_s = self._core.next_retry_s()
            self._work_there.wait(None if due_s is None else max(0.0, due_s - now_s))

    def _is_given_up_on(self, task: Task[RecordT], error: BaseException) -> bool:
        """Whether a record that failed is left behind; otherwise it is tried again, or the pool stops at it."""
        with self._lock:
            decision = self._core.decide(task, error)
            if decision is Decision.RETRY:
                self._core.retry(task, time.monotonic())
                self._work_there.notify()
                self._progress.notify_all()
        self._log_failure(task, error, decision)
        if decision is Decision.HAND_OVER:
            try:
                self._hand_over(task.record, error)
            except BaseException as raised:  # noqa: BLE001 - without it the record would be lost
                error, decision = raised, Decision.STOP
        with self._lock:
            if decision is Decision.STOP:
                # The record stays unfinished, so nothing behind it is committed.
                self._stop_at(task, error)
                self._is_stopping = True
                self._progress.notify_all()
            return self._counts_as_left_behind(decision)


class _PoolListener(RebalanceListener):
    """Tells the pool of partitions that come and go, and then the user's listener."""

    def __init__(self, pool: KeyedWorkerPool[Any], listener: RebalanceListener | None) -> None:
        self._pool = pool
        self._listener = listener or RebalanceListener()

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._listener.on_partitions_assigned(partitions)

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._pool._revoke(partitions)
        self._listener.on_partitions_revoked(partitions)

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._pool._lose(partitions)
        self._listener.on_partitions_lost(partitions)
