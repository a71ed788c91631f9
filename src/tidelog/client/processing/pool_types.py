"""The types that worker pools take and return: consumers, settings, and statistics."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol, TypeVar

from tidelog.client.consumer.rebalance import RebalanceListener
from tidelog.client.errors import ConfigError
from tidelog.client.network.backoff import Backoff
from tidelog.client.processing.record_keys import ConsumedRecord
from tidelog.client.types import OffsetAndMetadata, TopicPartition
from tidelog.common.light_dataclass import dataclass

RecordT = TypeVar("RecordT", bound=ConsumedRecord)
RecordT_co = TypeVar("RecordT_co", bound=ConsumedRecord, covariant=True)


class ConsumerControls(Protocol):
    """What both kinds of consumers have in common."""

    def subscribe(self, topics: Iterable[str], /, *, listener: RebalanceListener | None = ...) -> None: ...
    def assignment(self) -> Collection[TopicPartition]: ...
    def current_lag(self, partition: TopicPartition, /) -> int | None: ...
    def pause(self, partitions: Iterable[TopicPartition], /) -> None: ...
    def resume(self, partitions: Iterable[TopicPartition], /) -> None: ...


class PooledConsumer(ConsumerControls, Protocol[RecordT_co]):
    """The part of a consumer that a KeyedWorkerPool uses, all of it from one thread."""

    def poll(self, timeout: float, /) -> Sequence[RecordT_co]: ...
    def commit_sync(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], /) -> object: ...


class AsyncPooledConsumer(ConsumerControls, Protocol[RecordT_co]):
    """The part of a consumer that an AsyncKeyedWorkerPool uses, all of it from one task."""

    async def poll(self, timeout: float, /) -> Sequence[RecordT_co]: ...
    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], /) -> object: ...


class OrderBy(enum.StrEnum):
    """Which records are worked on one after the other."""

    KEY = "key"
    PARTITION = "partition"


# A router's result for a record: records with equal values are processed in order; None means no order.
Router = Callable[[Any], Hashable | None]


class OnFailure(enum.StrEnum):
    """What to do with a record that failed for the last time."""

    STOP = "stop"
    SKIP = "skip"


class Drain(enum.StrEnum):
    """What to wait for before a partition is revoked or the pool ends."""

    # Running records, and the waiting ones before them: then nothing that was done is repeated.
    GAPS = "gaps"
    # Running records only: the quickest, but work done after a waiting record is repeated.
    RUNNING = "running"
    # Every polled record.
    ALL = "all"


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The settings of a pool; its keyword arguments have the same defaults."""

    workers: int = 8
    order_by: OrderBy | Router = OrderBy.KEY
    attempts: int = 3
    retry_backoff_s: float = 0.1
    retry_backoff_max_s: float = 10.0
    retry_on: tuple[type[Exception], ...] = (Exception,)
    on_failure: OnFailure | Callable[[Any, Exception], Any] = OnFailure.STOP
    max_in_flight: int = 1000
    max_in_flight_bytes: int = 64 * 1024 * 1024
    max_uncommitted: int = 10_000
    commit_interval_s: float = 1.0
    drain: Drain = Drain.GAPS
    drain_timeout_s: float = 30.0
    poll_timeout_s: float = 0.1

    @staticmethod
    def checked(**options: Any) -> PoolSettings:
        for name, choices in (("order_by", OrderBy), ("on_failure", OnFailure), ("drain", Drain)):
            value = options.get(name)
            if isinstance(value, str):
                if value not in set(choices):
                    raise ConfigError(f"{name} is {value!r}: it must be one of {', '.join(choices)}")
                options[name] = choices(value)
        retry_on = options.get("retry_on")
        if isinstance(retry_on, type):
            options["retry_on"] = (retry_on,)
        settings = PoolSettings(**options)
        for name in ("workers", "attempts", "max_in_flight", "max_in_flight_bytes", "max_uncommitted"):
            if getattr(settings, name) < 1:
                raise ConfigError(f"{name} is {getattr(settings, name)}: it must be at least 1")
        for name in ("retry_backoff_s", "retry_backoff_max_s", "commit_interval_s", "drain_timeout_s"):
            if not getattr(settings, name) >= 0:
                raise ConfigError(f"{name} is {getattr(settings, name)}: it must not be negative")
        if not settings.poll_timeout_s > 0:
            raise ConfigError(f"poll_timeout_s is {settings.poll_timeout_s}: it must be more than 0")
        return settings

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.retry_backoff_s, self.retry_backoff_max_s)


@dataclass(frozen=True, slots=True)
class PoolMetrics:
    """A snapshot of a pool."""

    # Records that were polled and are not done: running, waiting for a retry, or waiting for their turn.
    in_flight: int
    in_flight_bytes: int
    running: int
    waiting_for_retry: int
    done: int
    done_per_s: float
    retries: int
    skipped: int
    dead_lettered: int
    # Records of each partition that a crash would repeat.
    uncommitted: Mapping[TopicPartition, int] = field(default_factory=dict)
    # Records of each partition between the last one done and its end, as far as the consumer knows it.
    lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    paused: frozenset[TopicPartition] = frozenset()


Handler = Callable[[RecordT], object]
AsyncHandler = Callable[[RecordT], Awaitable[object]]
