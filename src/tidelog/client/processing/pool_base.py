"""The common part of both worker pools: polling, pausing, committing, draining, and deciding about failed records.

The guarantees are stated in `worker_pool`. All of it is coroutines, which a KeyedWorkerPool runs in its polling thread
and its workers without an event loop (see `blocking`). A pool defines how it waits, how it starts handlers, and what it
does about handlers that outlast the drain timeout.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Generic

from tidelog.client.consumer.rebalance import RebalanceListener
from tidelog.client.consumer.settings import ConsumerSettings
from tidelog.client.errors import ClientError, CommitFailedError, ConfigError, FatalError, RetriableError
from tidelog.client.processing.blocking import resolved
from tidelog.client.processing.errors import ProcessingFailedError
from tidelog.client.processing.pool_core import Decision, PoolCore, Task
from tidelog.client.processing.pool_types import (
    AsyncPooledConsumer,
    Drain,
    PooledConsumer,
    PoolMetrics,
    PoolSettings,
    RecordT,
)
from tidelog.client.processing.record_keys import by_offset
from tidelog.client.types import OffsetAndMetadata, TopicPartition

logger = logging.getLogger(__name__)

# The rate of finished records is an average over about this many seconds.
_RATE_SAMPLES = 10
_RATE_SAMPLE_S = 1.0


class PoolBase(ABC, Generic[RecordT]):
    """The state of a pool; changed only while holding the pool's lock, or in its loop."""

    _is_async: ClassVar[bool]

    def __init__(
        self,
        consumer: PooledConsumer[RecordT] | AsyncPooledConsumer[RecordT],
        commit: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], object],
        topics: Iterable[str] | None,
        listener: RebalanceListener | None,
        settings: PoolSettings,
        lock: AbstractContextManager[Any],
        ended: threading.Event | asyncio.Event,
    ) -> None:
        check_consumer(consumer)
        self._consumer = consumer
        self._commit_offsets = commit
        self._topics = None if topics is None else list(topics)
        self._listener = _PoolListener(self, listener)
        self._settings = settings
        self._lock = lock
        self._core: PoolCore[RecordT] = PoolCore(settings)
        self._paused: set[TopicPartition] = set()
        self._has_begun = False
        # A plain flag, because a signal handler can set it whatever it interrupts.
        self._is_stopping = False
        self._ended = ended
        self._failure: BaseException | None = None
        # Records whose handlers the pool itself has cancelled; any other handler that raises CancelledError has failed.
        self._cancelled: set[Task[RecordT]] = set()
        self._skipped = 0
        self._dead_lettered = 0
        self._samples: deque[tuple[float, int]] = deque(maxlen=_RATE_SAMPLES)
        # The condition the poller waits for, if any; a finished record wakes the poller only if it now holds.
        self._awaited: Callable[[], bool] | None = None
        self._lags: dict[TopicPartition, int] = {}
        self._commit_due_s = 0.0

    # Defined by each kind of pool

    @abstractmethod
    def _now_s(self) -> float: ...

    @abstractmethod
    async def _await(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until a condition holds, the time is up, or the pool was stopped or has failed."""

    @abstractmethod
    def _wake_poller(self) -> None:
        """Have `_await` check again; called while holding the lock."""

    @abstractmethod
    def _start_workers(self) -> None: ...

    @abstractmethod
    def _wake_workers(self, ready: int) -> None:
        """This many lanes became ready; called while holding the lock."""

    @abstractmethod
    def _end_workers(self) -> None: ...

    @abstractmethod
    async def _give_up_waiting(self, partitions: Collection[TopicPartition] | None) -> None:
        """Handlers of these partitions, or of all, are still running after the drain timeout."""

    @abstractmethod
    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine for the consumer, or give it one to await."""

    # The poller

    def _begin(self) -> None:
        if self._has_begun:
            raise ConfigError("a worker pool runs only once: create a new one")
        self._has_begun = True

    async def _run(self) -> None:
        try:
            self._start_workers()
            if self._topics is not None:
                self._consumer.subscribe(self._topics, listener=self._listener)
            while not self._is_stopping:
                await self._step(is_draining=False)
        except BaseException as error:  # noqa: BLE001 - raised to those who wait for the pool
            self._fail(error)
        try:
            # The consumer can still be polled if only a record failed, and not the consumer itself.
            can_poll = self._failure is None or isinstance(self._failure, ProcessingFailedError)
            await self._drain(None, can_poll=can_poll)
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(error)
        self._end_workers()
        with self._lock:
            self._core.drop_queued()
        if self._failure is not None:
            logger.error("the worker pool is stopping: %s", self._failure)
        self._ended.set()

    async def _step(self, *, is_draining: bool) -> None:
        assigned = self._consumer.assignment()
        with self._lock:
            pause, resume = self._pauses(assigned, all_of_them=is_draining)
            is_all_paused = len(self._paused) == len(assigned) > 0
        if pause:
            self._consumer.pause(pause)
        if resume:
            self._consumer.resume(resume)
        if is_all_paused:
            # Everything is paused: the pool waits for room, and polls only to stay in the group.
            if is_draining:
                await self._await(lambda: self._core.is_idle(queued=True), self._settings.poll_timeout_s)
            else:
                await self._await(lambda: self._has_room(assigned), self._settings.poll_timeout_s)
        records = await self._poll(0.0 if is_all_paused else self._settings.poll_timeout_s)
        now_s = self._now_s()
        with self._lock:
            self._sample(now_s)
            self._wake_workers(self._core.add(records))
        if now_s >= self._commit_due_s:
            self._commit_due_s = now_s + self._settings.commit_interval_s
            await self._commit()

    async def _poll(self, timeout_s: float) -> Sequence[RecordT]:
        try:
            return await resolved(self._consumer.poll(timeout_s))
        except RetriableError as error:
            logger.warning("polling failed, retrying: %s", error)
            await self._await(lambda: False, self._settings.poll_timeout_s)
            return ()

    async def _drain(self, partitions: Collection[TopicPartition] | None, *, can_poll: bool) -> None:
        """Let running handlers finish while the consumer is still being polled, and commit what is done."""
        deadline_s = self._now_s() + self._settings.drain_timeout_s
        while True:
            with self._lock:
                if self._drop_for_drain(partitions):
                    break
            left_s = deadline_s - self._now_s()
            if left_s <= 0:
                with self._lock:
                    self._core.drop_queued(partitions)
                await self._give_up_waiting(partitions)
                break
            if can_poll:
                try:
                    await self._step(is_draining=True)
                except ClientError as error:
                    self._fail(error)
                    can_poll = False
            else:
                await self._await(lambda: self._core.is_idle(partitions, queued=True), left_s)
        await self._commit(partitions)

    async def _commit(self, partitions: Collection[TopicPartition] | None = None) -> None:
        with self._lock:
            offsets = self._core.committable(partitions)
        if not offsets:
            return
        try:
            await resolved(self._commit_offsets(offsets))
        except (RetriableError, CommitFailedError) as error:
            if isinstance(error, FatalError):
                raise
            # The next commit makes up for it.
            logger.warning("offsets could not be committed and are committed later, if they are still ours: %s", error)
        else:
            with self._lock:
                self._core.note_committed(offsets)

    # Called by the listener, in poll

    async def _revoke(self, partitions: Sequence[TopicPartition]) -> None:
        try:
            await self._drain(partitions, can_poll=False)
        finally:
            self._lose(partitions)

    def _lose(self, partitions: Sequence[TopicPartition]) -> None:
        with self._lock:
            self._core.give_up(partitions)
            self._paused -= set(partitions)

    # Failed records

    async def _is_given_up_on(self, task: Task[RecordT], error: BaseException) -> bool:
        """Whether to leave a failed record behind; otherwise it is retried, or the pool stops at it."""
        if self._was_cancelled(task):
            return False
        with self._lock:
            decision = self._core.decide(task, error)
            if decision is Decision.RETRY:
                self._core.retry(task, self._now_s())
        self._log_failure(task, error, decision)
        if decision is Decision.HAND_OVER:
            on_failure = self._settings.on_failure
            assert callable(on_failure)
            assert isinstance(error, Exception)
            try:
                await self._resolved(on_failure(task.record, error))
            except BaseException as raised:  # noqa: BLE001 - without it the record would be lost
                if self._was_cancelled(task):
                    return False
                error, decision = raised, Decision.STOP
        with self._lock:
            if decision is Decision.STOP:
                # The record stays unfinished, so nothing after it is committed.
                self._stop_at(task, error)
            return self._counts_as_left_behind(decision)

    def _was_cancelled(self, task: Task[RecordT]) -> bool:
        """Whether draining took too long, or the partition was lost: then it is left unfinished for its next reader."""
        if task not in self._cancelled:
            return False
        self._core.cancel(task)
        return True

    async def _resolved(self, answer: Any) -> Any:
        """The result of the user's code, awaited in an asyncio pool."""
        return await resolved(answer) if self._is_async else answer

    def _log_failure(self, task: Task[RecordT], error: BaseException, decision: Decision) -> None:
        place, attempts = by_offset(task.record), task.attempts
        if decision is Decision.RETRY:
            logger.warning("%s failed at attempt %d and is tried again: %r", place, attempts, error)
        elif decision is Decision.LEAVE:
            logger.warning("%s failed after its partition went to another member: %r", place, error)
        elif decision is not Decision.STOP:
            logger.error("%s is left behind after %d attempts: %r", place, attempts, error)

    def _stop_at(self, task: Task[RecordT], error: BaseException) -> None:
        failure = ProcessingFailedError(
            f"{by_offset(task.record)} could not be processed ({task.attempts} attempts): {error!r}; "
            "the pool stops, and commits nothing from this record on in its partition"
        )
        failure.__cause__ = error
        self._fail(failure)
        self._core.abandon(task)
        self._is_stopping = True
        self._wake_poller()

    def _fail(self, error: BaseException) -> None:
        """Stop the pool at the first failure; later ones are logged."""
        if self._failure is None:
            self._failure = error
        else:
            logger.error("a worker pool that stops failed once more: %r", error)

    def _counts_as_left_behind(self, decision: Decision) -> bool:
        """Count it; returns whether this finishes the record."""
        self._skipped += decision is Decision.SKIP
        self._dead_lettered += decision is Decision.HAND_OVER
        return decision in (Decision.SKIP, Decision.HAND_OVER, Decision.LEAVE)

    # Limits and counts

    def metrics(self) -> PoolMetrics:
        """A snapshot of the pool's work and progress; from any thread, or in the pool's loop."""
        with self._lock:
            return self._metrics(self._now_s())

    def _metrics(self, now_s: float) -> PoolMetrics:
        core = self._core
        then_s, done_then = self._samples[0] if self._samples else (now_s, core.done)
        return PoolMetrics(
            in_flight=core.in_flight,
            in_flight_bytes=core.in_flight_bytes,
            running=core.running,
            waiting_for_retry=core.waiting_for_retry,
            done=core.done,
            done_per_s=(core.done - done_then) / (now_s - then_s) if now_s > then_s else 0.0,
            retries=core.retries,
            skipped=self._skipped,
            dead_lettered=self._dead_lettered,
            uncommitted=core.uncommitted(),
            lag=dict(self._lags),
            paused=frozenset(self._paused),
        )

    def _sample(self, now_s: float) -> None:
        """Sample the progress now and then, and note how far ahead the partitions reach."""
        if not self._samples or now_s - self._samples[-1][0] >= _RATE_SAMPLE_S:
            self._samples.append((now_s, self._core.done))
            uncommitted = self._core.uncommitted()
            consumer = self._consumer
            lags = {partition: consumer.current_lag(partition) for partition in consumer.assignment()}
            # Records that the consumer has returned lie before its position, but are not done yet.
            self._lags = {
                partition: lag + uncommitted.get(partition, 0) for partition, lag in lags.items() if lag is not None
            }

    def _pauses(self, assigned: Collection[TopicPartition], *, all_of_them: bool) -> tuple[list[TopicPartition], ...]:
        """Which partitions to pause and which to resume, according to the limits."""
        wanted = set(assigned) if all_of_them else self._core.wants_pause(assigned)
        self._paused &= set(assigned)
        pause, resume = sorted(wanted - self._paused), sorted(self._paused - wanted)
        self._paused = wanted
        return pause, resume

    def _has_come(self) -> bool:
        """Whether the poller is waiting for a condition that now holds."""
        return self._awaited is not None and self._awaited()

    def _has_room(self, assigned: Collection[TopicPartition]) -> bool:
        return len(self._core.wants_pause(assigned)) < len(assigned)

    def _drop_for_drain(self, partitions: Collection[TopicPartition] | None) -> bool:
        """Drop records that need not be waited for; returns whether none are left. After a failure nothing starts."""
        self._core.drop_queued(partitions, Drain.RUNNING if self._failure is not None else self._settings.drain)
        return self._core.is_idle(partitions, queued=True)


@contextmanager
def after_block(error: BaseException | None) -> Iterator[None]:
    """Stop a pool at the end of a `with` block: the block's own error is raised, and the pool's is logged."""
    try:
        yield
    except ClientError as failure:
        if error is None:
            raise
        if failure is not error:
            logger.exception("the worker pool had failed too")


class _PoolListener(RebalanceListener):
    """Tells the pool about partitions that come and go, and then the user's listener."""

    def __init__(self, pool: PoolBase[Any], listener: RebalanceListener | None) -> None:
        self._pool = pool
        self._listener = listener or RebalanceListener()

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> Any:
        return self._listener.on_partitions_assigned(partitions)

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Any:
        return self._pool._call(self._revoke(partitions))

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Any:
        self._pool._lose(partitions)
        return self._listener.on_partitions_lost(partitions)

    async def _revoke(self, partitions: Sequence[TopicPartition]) -> Any:
        await self._pool._revoke(partitions)
        return await self._pool._resolved(self._listener.on_partitions_revoked(partitions))


def check_consumer(consumer: object) -> None:
    """Reject a consumer that commits whatever it has returned, done or not, or that can't commit at all."""
    settings = getattr(consumer, "_settings", None)
    if isinstance(settings, ConsumerSettings):
        if settings.group is None:
            raise ConfigError("a worker pool commits what is done: set group_id on its consumer")
        if settings.group.enable_auto_commit:
            raise ConfigError(
                "the consumer commits records before they are done: set enable_auto_commit=False, the pool commits"
            )
