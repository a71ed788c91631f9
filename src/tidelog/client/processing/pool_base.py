"""What both worker pools share: counts, failed commits, and how a failure is reported."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Generic, Protocol

from tidelog.client.consumer.settings import ConsumerSettings
from tidelog.client.errors import ClientError, CommitFailedError, ConfigError, FatalError, RetriableError
from tidelog.client.processing.errors import ProcessingFailedError
from tidelog.client.processing.pool_core import Decision, PoolCore, Task
from tidelog.client.processing.pool_types import Drain, PoolMetrics, PoolSettings, RecordT
from tidelog.client.processing.record_keys import by_offset
from tidelog.client.types import TopicPartition

logger = logging.getLogger(__name__)

# The rate of finished records covers about this many seconds.
_RATE_SAMPLES = 10
_RATE_SAMPLE_S = 1.0


class _ConsumerWithLag(Protocol):
    def assignment(self) -> Collection[TopicPartition]: ...
    def current_lag(self, partition: TopicPartition, /) -> int | None: ...


class PoolBase(Generic[RecordT]):
    """The state of a pool; changed only while holding the pool's lock, or in its loop."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._core: PoolCore[RecordT] = PoolCore(settings)
        self._paused: set[TopicPartition] = set()
        self._failure: BaseException | None = None
        self._skipped = 0
        self._dead_lettered = 0
        self._samples: deque[tuple[float, int]] = deque(maxlen=_RATE_SAMPLES)
        # What the poller waits for, if anything; finishing a record wakes it only once that has happened.
        self._awaited: Callable[[], bool] | None = None
        self._lags: dict[TopicPartition, int] = {}
        self._commit_due_s = 0.0

    def _sample(self, now_s: float, consumer: _ConsumerWithLag) -> None:
        """Note from time to time how much is done, and how far the consumer's partitions go."""
        if not self._samples or now_s - self._samples[-1][0] >= _RATE_SAMPLE_S:
            self._samples.append((now_s, self._core.done))
            uncommitted = self._core.uncommitted()
            lags = {partition: consumer.current_lag(partition) for partition in consumer.assignment()}
            # What the consumer has handed out lies behind its position, and is not done yet.
            self._lags = {
                partition: lag + uncommitted.get(partition, 0) for partition, lag in lags.items() if lag is not None
            }

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

    def _pauses(self, assigned: Collection[TopicPartition], *, all_of_them: bool) -> tuple[list[TopicPartition], ...]:
        """Which partitions are to be paused and which resumed, to be as the limits want it."""
        wanted = set(assigned) if all_of_them else self._core.wants_pause(assigned)
        self._paused &= set(assigned)
        pause, resume = sorted(wanted - self._paused), sorted(self._paused - wanted)
        self._paused = wanted
        return pause, resume

    def _has_come(self) -> bool:
        """Whether the poller waits for something, and it is there."""
        return self._awaited is not None and self._awaited()

    def _has_room(self, assigned: Collection[TopicPartition]) -> bool:
        return len(self._core.wants_pause(assigned)) < len(assigned)

    def _drop_for_drain(self, partitions: Collection[TopicPartition] | None) -> bool:
        """Drop what need not be waited for; whether nothing is left. After a failure nothing more is begun."""
        self._core.drop_queued(partitions, Drain.RUNNING if self._failure is not None else self._settings.drain)
        return self._core.is_idle(partitions, queued=True)

    def _can_poll_on(self) -> bool:
        """Whether the consumer is of use yet: a record failed at most, and not the consumer itself."""
        return self._failure is None or isinstance(self._failure, ProcessingFailedError)

    def _bear_commit(self, error: ClientError) -> None:
        """A commit that failed is made up for by the next; what will not pass is raised."""
        if isinstance(error, FatalError) or not isinstance(error, (RetriableError, CommitFailedError)):
            raise error
        logger.warning("offsets could not be committed and are committed later, if they are still ours: %s", error)

    def _fail(self, error: BaseException) -> None:
        """Let the pool stop at the first failure; later ones are logged."""
        if self._failure is None:
            self._failure = error
        else:
            logger.error("a worker pool that stops failed once more: %r", error)

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

    def _hand_over(self, record: RecordT, error: BaseException) -> Any:
        on_failure = self._settings.on_failure
        assert callable(on_failure)
        assert isinstance(error, Exception)
        return on_failure(record, error)

    def _counts_as_left_behind(self, decision: Decision) -> bool:
        """Count it; whether the record is finished by it."""
        self._skipped += decision is Decision.SKIP
        self._dead_lettered += decision is Decision.HAND_OVER
        return decision in (Decision.SKIP, Decision.HAND_OVER, Decision.LEAVE)


def check_consumer(consumer: object) -> None:
    """Refuse a consumer that commits what it has handed out, done or not, or that can't commit at all."""
    settings = getattr(consumer, "_settings", None)
    if isinstance(settings, ConsumerSettings):
        if settings.group is None:
            raise ConfigError("a worker pool commits what is done: set group_id on its consumer")
        if settings.group.enable_auto_commit:
            raise ConfigError(
                "the consumer commits records before they are done: set enable_auto_commit=False, the pool commits"
            )
