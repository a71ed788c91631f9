"""The consumer on an event loop: combines fetching, positions, the group and its commits.

`Consumer` and `AsyncConsumer` are its two front ends. They call its coroutines, and the methods that are marked as
callable from the user's thread. What always holds: a poll returns records only while the group is not waiting for the
user, so they belong to the assignment that the user was told about. User code (listeners, callbacks, deserializers)
runs only while the user is inside a call, except for the interceptors' `on_commit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from tidelog.client.consumer.decoding import Decoder
from tidelog.client.consumer.fetch_queue import FetchQueue
from tidelog.client.consumer.fetcher import Fetcher, log_crash, tell_crash
from tidelog.client.consumer.group_runner import CommitCallback, GroupRunner
from tidelog.client.consumer.interceptors import Interceptors
from tidelog.client.consumer.metrics import ConsumerCounts, ConsumerMetrics, PartitionMetrics
from tidelog.client.consumer.offsets_lookup import list_offsets
from tidelog.client.consumer.positions import PositionKeeper
from tidelog.client.consumer.rebalance import RebalanceListener, UserCall
from tidelog.client.consumer.settings import ConsumerSettings
from tidelog.client.consumer.subscription import PartitionState, SubscriptionState
from tidelog.client.errors import ClientError, FatalError, RequestTimeoutError, UsageError, WakeupError
from tidelog.client.network.cluster import Cluster
from tidelog.client.types import (
    ClusterMetadata,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicMetadata,
    TopicPartition,
)
from tidelog.common.clock import SystemClock

if TYPE_CHECKING:
    from tidelog.records.kernel_consume import ConsumerRecord

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class ConsumerCore:
    """One consumer; created on the loop that it runs on.

    `post` schedules a function on that loop, from any thread. `notify` tells a waiting poll to look again. `call_user`
    makes a call to the rebalance listener where the user's code may run.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        *,
        post: Callable[[Callable[[], None]], None],
        notify: Callable[[], None],
        call_user: Callable[[UserCall], Awaitable[None]],
    ) -> None:
        self.settings = settings
        self.subscription = SubscriptionState(on_change=self._post_wake)
        self.counts = ConsumerCounts()
        self.interceptors = Interceptors(settings.interceptors)
        self._clock = SystemClock()
        self._post = post
        self._notify = notify
        self._wake_is_posted = False
        self._woken_up = False
        self._done_commits: deque[Callable[[], None]] = deque()
        self._cluster = Cluster(settings.cluster, tells_outages=True)
        self.queue = FetchQueue(
            settings.queued_max_bytes,
            on_ready=notify,
            on_room=self._post_wake,
            on_give_up=self.subscription.fetch_again,
        )
        self.decoder = Decoder(settings, self.queue, self.subscription, self.counts)
        self.runner: GroupRunner | None = None
        if settings.group is not None:
            self.runner = GroupRunner(
                self._cluster,
                settings.group,
                self.subscription,
                call_user,
                wake=notify,
                on_automatic_commit=self._committed_by_itself,
                clock=self._clock,
            )
        self._runner_is_started = False
        self._crash: BaseException | None = None
        self._keeper = PositionKeeper(
            self._cluster,
            settings,
            self.subscription,
            self._clock,
            committed=None if self.runner is None else self.runner.committed,
            on_found=self._positions_found,
            on_error=notify,
            on_crash=self._crashed,
        )
        self._fetcher = Fetcher(
            self._cluster,
            settings,
            self.subscription,
            self.queue,
            self.counts,
            on_new_leader=self._keeper.wake,
            on_crash=self._crashed,
        )
        self._found = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cluster.add_listener(self._metadata_told)

    async def close(self, timeout_s: float) -> None:
        """Commit if commits are automatic and leave the group; then close everything."""
        deadline_s = time.monotonic() + timeout_s
        try:
            if self.runner is not None:
                await self.runner.close(timeout_s=max(deadline_s - time.monotonic(), 0.0))
        finally:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._fetcher.close()
            await self._keeper.close()
            await self._cluster.close()
            self.queue.clear()
            self.interceptors.close()

    # Waking up, on the loop and from the user's thread

    def _post_wake(self) -> None:
        """Have positions and fetches looked at soon; from any thread, once for many changes."""
        if not self._wake_is_posted:
            self._wake_is_posted = True
            self._post(self._wake)

    def _wake(self) -> None:
        self._wake_is_posted = False
        self.queue.wants_room = False
        self._keeper.wake()
        self._fetcher.wake()

    def _positions_found(self) -> None:
        found, self._found = self._found, asyncio.Event()
        found.set()
        self._fetcher.wake()

    def _metadata_told(self, told: ClusterMetadata) -> None:
        if self.subscription.pattern is not None and self._match():
            self._subscription_changed()
        self._post_wake()

    def _crashed(self, error: BaseException) -> None:
        """A background task ended that never should: a poll that says so is better than one that waits forever."""
        log_crash(error)
        self._crash = error
        self._notify()

    def wake_up(self) -> None:
        """Make the current poll, or the next one, raise WakeupError; from any thread."""
        self._woken_up = True
        self._notify()

    # Polling, from the user's thread

    def begin_poll(self) -> None:
        """Every poll starts with this; raises fatal errors."""
        self.counts.polls += 1
        self.counts.last_poll_s = time.monotonic()
        self.run_commit_callbacks()
        if self.runner is not None:
            self.runner.poll_started(self._clock.monotonic_ms())

    @property
    def has_turn(self) -> bool:
        """Whether the runner's `take_turn` must be awaited before records are handed out."""
        return self.runner is not None and self.runner.has_turn

    def raise_pending(self) -> None:
        """Raise errors that have come up since the last poll."""
        if self._woken_up:
            self._woken_up = False
            raise WakeupError("wakeup() was called")
        if self._crash is not None:
            raise FatalError(f"the consumer failed with an unexpected error: {self._crash!r}") from self._crash
        while self._keeper.errors:
            error = self._keeper.take_error()
            self._post_wake()  # so that it is retried, and reported again if it persists
            if error is not None:
                raise error
        if not (self.subscription.is_subscribed or self.subscription.is_manual):
            raise UsageError("nothing to read: call subscribe() or assign() first")

    def begin_waiting(self) -> None:
        if self.runner is not None:
            self.runner.poll_waits()

    def end_waiting(self) -> None:
        if self.runner is not None:
            self.runner.poll_ended(self._clock.monotonic_ms())

    def take(self) -> list[ConsumerRecord]:
        """The records that are ready, after the interceptors."""
        records = self.decoder.take(self.settings.max_poll_records)
        return self.interceptors.on_consume(records) if records and self.interceptors else records

    def run_commit_callbacks(self) -> None:
        """Run the callbacks of finished commits; from the user's thread."""
        while self._done_commits:
            self._done_commits.popleft()()

    # Subscriptions, on the loop

    def subscribe(
        self, topics: Iterable[str], pattern: re.Pattern[str] | None, listener: RebalanceListener | None
    ) -> None:
        """Adopt a subscription and start joining the group."""
        if self.runner is None:
            raise UsageError("subscribe() needs a group: set group.id, or use assign()")
        if pattern is not None:
            self.subscription.subscribe_pattern(pattern, listener)
            self._match()
            self._cluster.watch_topics(None)
        else:
            self.subscription.subscribe(topics, listener)
            self._cluster.watch_topics(self.subscription.topics)
        self._spawn(self._ask_subscribed())
        self._subscription_changed()

    def _subscription_changed(self) -> None:
        assert self.runner is not None
        if not self._runner_is_started:
            self._runner_is_started = True
            self.runner.start()
        else:
            self.runner.subscription_changed()

    def _match(self) -> bool:
        hides_internal = self.settings.exclude_internal_topics
        topics = self._cluster.metadata.topics.values()
        return self.subscription.match(topic.name for topic in topics if not (topic.is_internal and hides_internal))

    async def _ask_subscribed(self) -> None:
        """Get the topics' metadata, and have missing topics created if that is allowed."""

        async def ask() -> None:
            names = None if self.subscription.pattern is not None else self.subscription.topics
            create = names is not None and self.settings.allow_auto_create_topics
            await self._cluster.refresh(names, allow_auto_topic_creation=create)

        try:
            await self._cluster.retry(ask, patient=True)
        except ClientError as error:
            logger.warning("could not look up the subscribed topics: %s", error)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = [TopicPartition(*each) for each in partitions]
        if not wanted:
            await self.unsubscribe()
            return
        self._commit_before_change()
        self.subscription.assign_manually(wanted)
        self._cluster.watch_topics({topic for topic, _ in wanted})

    async def unsubscribe(self) -> None:
        """Leave the group if there is one; the listener is called while the partitions are still assigned."""
        try:
            if self.runner is not None and self._runner_is_started:
                self._runner_is_started = False
                await self.runner.unsubscribe()
            else:
                self._commit_before_change()
        finally:
            self.subscription.unsubscribe()
            self._cluster.watch_topics(())

    def _commit_before_change(self) -> None:
        group = self.settings.group
        offsets = self.subscription.consumed()
        if self.runner is not None and group is not None and group.enable_auto_commit and offsets:
            self.runner.commit_nowait(offsets)

    def _spawn(self, coroutine: Awaitable[None]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: tell_crash(done, self._crashed))

    # Offsets, on the loop

    def group(self) -> GroupRunner:
        if self.runner is None:
            raise UsageError("committed offsets belong to a group: set group.id")
        return self.runner

    async def commit(self, offsets: Offsets | None, timeout_s: float | None) -> None:
        chosen = self._to_commit(offsets)
        if not chosen:
            return
        try:
            await self.group().commit(chosen, timeout_s=timeout_s)
        except ClientError:
            self.counts.failed_commits += 1
            raise
        self.counts.commits += 1
        self.interceptors.on_commit(chosen)

    def commit_nowait(self, offsets: Offsets | None, callback: CommitCallback | None) -> None:
        chosen = self._to_commit(offsets)

        def done(committed: Offsets, error: Exception | None) -> None:
            if error is None:
                self.counts.commits += 1
                self.interceptors.on_commit(committed)
            else:
                self.counts.failed_commits += 1
                if callback is None:
                    logger.warning("an asynchronous commit failed: %s", error)
            if callback is not None:
                self._done_commits.append(lambda: callback(committed, error))

        if not chosen:
            done({}, None)
        else:
            self.group().commit_nowait(chosen, done)

    def _committed_by_itself(self, offsets: Offsets) -> None:
        self.counts.commits += 1
        self.interceptors.on_commit(offsets)

    def _to_commit(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        self.group()
        if offsets is None:
            return self.subscription.consumed()
        chosen: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic_partition, offset in offsets.items():
            value = OffsetAndMetadata(offset) if isinstance(offset, int) else OffsetAndMetadata(*offset)
            if value.offset < 0:
                raise ValueError(f"an offset to commit can't be negative: {value.offset} for {topic_partition}")
            chosen[TopicPartition(*topic_partition)] = value
        return chosen

    def seek_to_committed(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these positions, so that the committed offsets are looked up again; from the user's thread."""
        self.group()
        self.subscription.forget_positions(partitions)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        wanted = [TopicPartition(*each) for each in partitions]
        found = await self.group().committed(wanted, timeout_s=timeout_s)
        return {topic_partition: found.get(topic_partition) for topic_partition in wanted}

    async def position(self, topic_partition: TopicPartition, timeout_s: float | None) -> int:
        """The position, looked up if it is not known yet."""
        timeout_s = self.settings.cluster.api_timeout_s if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            found = self._found
            position = self.subscription.position(TopicPartition(*topic_partition))
            if position is not None:
                return position
            if self._keeper.errors and (error := self._keeper.take_error()) is not None:
                raise error
            self._keeper.wake()
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                raise RequestTimeoutError(f"the position of {topic_partition} was not found within {timeout_s:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(found.wait(), left_s)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_s: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        for topic_partition, timestamp in timestamps.items():
            if timestamp < 0:
                raise ValueError(f"a time is 0 or more milliseconds since 1970, not {timestamp} for {topic_partition}")
        found = await self._list_offsets(timestamps, timeout_s)
        return {topic_partition: None if offset.offset < 0 else offset for topic_partition, offset in found.items()}

    async def end_points(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout_s: float | None
    ) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(partitions, timestamp), timeout_s)
        return {topic_partition: offset.offset for topic_partition, offset in found.items()}

    async def _list_offsets(
        self, timestamps: Mapping[TopicPartition, int], timeout_s: float | None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        wanted = {TopicPartition(*key): timestamp for key, timestamp in timestamps.items()}
        if not wanted:
            return {}
        return await list_offsets(
            self._cluster, wanted, is_read_committed=self.settings.is_read_committed, timeout_s=timeout_s
        )

    # The cluster, on the loop

    async def partitions_for(self, topic: str, timeout_s: float | None) -> TopicMetadata:
        return await self._cluster.topic(topic, timeout_s=timeout_s)

    async def list_topics(self, timeout_s: float | None) -> dict[str, TopicMetadata]:
        told = await self._cluster.retry(lambda: self._cluster.refresh(None), timeout_s=timeout_s)
        hides_internal = self.settings.exclude_internal_topics
        return {name: topic for name, topic in told.topics.items() if not (topic.is_internal and hides_internal)}

    # Known without asking, from the user's thread

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """Records between the position and the end as of the last fetch; None if either is unknown."""
        return self._lag(self.subscription.state(TopicPartition(*topic_partition)))

    def _lag(self, state: PartitionState) -> int | None:
        end = state.last_stable_offset if self.settings.is_read_committed else state.high_watermark
        return None if end < 0 or not state.has_position else max(end - state.position, 0)

    def group_metadata(self) -> ConsumerGroupMetadata:
        return self.group().group_metadata()

    def metrics(self) -> ConsumerMetrics:
        counts = self.counts
        partitions = {
            state.topic_partition: PartitionMetrics(
                state.position if state.has_position else None,
                self._lag(state),
                state.high_watermark if state.high_watermark >= 0 else None,
                state.is_paused,
            )
            for state in self.subscription.states()
        }
        lags = [row.lag for row in partitions.values() if row.lag is not None]
        return ConsumerMetrics(
            polls_total=counts.polls,
            records_consumed_total=counts.records,
            seconds_since_last_poll=time.monotonic() - counts.last_poll_s if counts.polls else None,
            fetches_total=counts.fetches,
            bytes_fetched_total=counts.fetched_bytes,
            fetch_latency_avg_ms=1000 * counts.fetching_s / counts.fetches if counts.fetches else 0.0,
            fetch_throttle_time_ms_total=counts.throttled_ms,
            queued_bytes=self.queue.bytes,
            commits_total=counts.commits,
            commits_failed_total=counts.failed_commits,
            records_lag_max=max(lags, default=None),
            partitions=partitions,
        )
