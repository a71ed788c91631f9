"""`AsyncConsumer`: reads records on the user's event loop and fetches ahead there.

What always holds: everything runs on the loop that first used it. A poll returns records that are already fetched
without waiting. User code (listeners, callbacks, deserializers) runs inside a call of the consumer, which awaits a
listener's coroutine methods. One task polls at a time.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from tidelog.client.arrow_extra import require_pyarrow
from tidelog.client.consumer.arguments import (
    Partition,
    Partitions,
    read_offset,
    read_offsets,
    read_partition,
    read_partitions,
    read_topics,
)
from tidelog.client.consumer.consumer import CLOSE_TIMEOUT_S, POLL_TIMEOUT_S, first_offsets
from tidelog.client.consumer.core import ConsumerCore
from tidelog.client.consumer.group_runner import CommitCallback
from tidelog.client.consumer.metrics import ConsumerMetrics
from tidelog.client.consumer.offsets_lookup import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidelog.client.consumer.rebalance import RebalanceListener, UserCall
from tidelog.client.consumer.settings import ConsumerOptions, ConsumerSettings
from tidelog.client.consumer.subscription import TO_BEGINNING, TO_END, OffsetReset
from tidelog.client.errors import ClosedError, ConcurrentUseError
from tidelog.client.network.fork_guard import ForkGuard
from tidelog.client.types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from tidelog.common.closing import AsyncClosing
from tidelog.records.kernel_consume import ConsumerRecord

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class AsyncConsumer(AsyncClosing):
    """Reads records of topics, alone or as a member of a group, with asyncio.

    >>> async def main() -> None:
    ...     async with AsyncConsumer(group_id="billing") as consumer:
    ...         consumer.subscribe(["orders"])
    ...         async for record in consumer:
    ...             print(record.key, record.value)
    """

    def __init__(self, settings: Mapping[str, object] | None = None, /, **options: Unpack[ConsumerOptions]) -> None:
        self._closed = False
        self._is_closing = False
        self._made: ConsumerCore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._settings = ConsumerSettings.read(settings, options)
        self._fork_guard = ForkGuard("AsyncConsumer")
        self._ready = asyncio.Event()
        self._is_polling = False
        self._left: deque[ConsumerRecord] = deque()  # polled by iteration and not returned yet

    @property
    def _core(self) -> ConsumerCore:
        """The core, created on first use, which must be on the loop."""
        if self._closed:
            raise ClosedError("the consumer is closed")
        if self._fork_guard.forked:
            self._fork_guard.check()
        if self._made is None:
            self._loop = asyncio.get_running_loop()
            self._made = ConsumerCore(self._settings, post=self._post, notify=self._ready.set, call_user=_call_user)
        return self._made

    def _post(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        self._loop.call_soon(callback)

    async def __aenter__(self) -> Self:
        assert self._core is not None
        return self

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._made is not None and not self._fork_guard.forked:
            warnings.warn(f"an AsyncConsumer was not closed: {self!r}", ResourceWarning, stacklevel=2, source=self)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Commit if commits are automatic, leave the group, then close connections and tasks.

        May be called again. Steps that take longer than the timeout are abandoned.
        """
        if self._closed or self._is_closing:
            return
        core = self._made
        if core is None or self._fork_guard.forked:
            self._closed = True
            return
        # Not closed yet: a listener called for the revocation may still commit.
        self._is_closing = True
        self._give_back()
        try:
            await core.close(timeout)
            core.run_commit_callbacks()
        finally:
            self._closed = True

    def wakeup(self) -> None:
        """Make the current poll, or the next one, raise WakeupError; called on the loop."""
        self._core.wake_up()

    # Reading

    async def poll(self, timeout: float | None = POLL_TIMEOUT_S) -> list[ConsumerRecord]:
        """The next records, at most `max.poll.records`; waits up to `timeout` seconds (None: forever) for the first.

        Rebalances and automatic commits happen here too, so call it at least every
        `max.poll.interval.ms`.
        """
        if self._left:
            records = list(self._left)
            self._left.clear()
            return records
        return await self._poll(timeout, self._core.take) or []

    async def poll_arrow(
        self, timeout: float | None = POLL_TIMEOUT_S, max_rows: int | None = None
    ) -> pa.RecordBatch | None:
        """The next records as one Arrow record batch; None if nothing arrived in time.

        Without `max_rows` it holds what has been fetched, up to about 8 MiB of records. Keys and values are bytes:
        deserializers and interceptors are not called.
        """
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, not {max_rows}")
        require_pyarrow("poll_arrow")
        self._give_back()
        decoder = self._core.decoder
        return await self._poll(timeout, lambda: decoder.take_arrow(max_rows))

    async def _poll(self, timeout: float | None, take: Callable[[], T]) -> T | None:
        core = self._core
        if self._is_polling:
            raise ConcurrentUseError("another task is polling this consumer; only one task may read from it at a time")
        self._is_polling = True
        waited = False
        try:
            core.begin_poll()
            loop = asyncio.get_running_loop()
            deadline_s = None if timeout is None else loop.time() + timeout
            await asyncio.sleep(0)  # a loop that polls without ever waiting would starve other tasks
            while True:
                self._ready.clear()
                core.raise_pending()
                if core.has_turn:
                    assert core.runner is not None
                    await core.runner.take_turn(None if deadline_s is None else max(deadline_s - loop.time(), 0.0))
                if not core.has_turn:
                    taken = take()
                    if taken is not None and len(taken):  # type: ignore[arg-type]  # a list or an Arrow batch
                        return taken
                left_s = None if deadline_s is None else deadline_s - loop.time()
                if left_s is not None and left_s <= 0:
                    return None
                if not waited:
                    waited = True
                    core.begin_waiting()
                try:
                    async with asyncio.timeout(left_s):
                        await self._ready.wait()
                except TimeoutError:
                    continue
        finally:
            self._is_polling = False
            if waited:
                core.end_waiting()

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record. Iteration ends if none arrives within `consumer.timeout.ms`; by default it never ends."""
        if not self._left:
            self._left.extend(await self.poll(self._settings.consumer_timeout_s))
            if not self._left:
                raise StopAsyncIteration
        return self._left.popleft()

    # Subscription and assignment

    def subscribe(
        self,
        topics: Iterable[str] | str | re.Pattern[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics as a member of the group, replacing any earlier subscription.

        A compiled pattern, or `pattern=`, subscribes to every topic whose whole name it matches, including topics
        created later.
        """
        names, compiled = read_topics(topics, pattern)
        if not names and compiled is None:
            raise ValueError("subscribe to at least one topic; unsubscribe() ends a subscription")
        self._core.subscribe(names, compiled, listener)

    async def assign(self, partitions: Partitions) -> None:
        """Read exactly these partitions, without group assignment."""
        wanted = read_partitions(partitions)
        self._give_back()
        await self._core.assign(wanted)

    async def unsubscribe(self) -> None:
        """Stop reading and leave the group."""
        self._give_back()
        await self._core.unsubscribe()

    def assignment(self) -> frozenset[TopicPartition]:
        """The currently assigned partitions."""
        return self._core.subscription.assigned()

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to; with a pattern, those that match it."""
        return self._core.subscription.topics

    def pause(self, partitions: Partitions) -> None:
        """Return nothing from these until `resume`; they stay assigned, and fetched records are kept."""
        self._core.subscription.pause(read_partitions(partitions))

    def resume(self, partitions: Partitions) -> None:
        """Return records from these again, from where they were paused."""
        self._core.subscription.resume(read_partitions(partitions))

    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions."""
        return self._core.subscription.paused()

    # Positions

    def seek(self, partition: Partition, offset: int | OffsetAndMetadata) -> None:
        """Continue from this offset in an assigned partition."""
        chosen, value = read_partition(partition), read_offset(offset)
        self._core.subscription.seek(chosen, value.offset, value.leader_epoch)
        self._forget_left([chosen])

    def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """Continue from the first record of these partitions, or of all assigned ones."""
        self._seek_by(partitions, TO_BEGINNING)

    def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """Continue after the last record; with read_committed, after the last readable one."""
        self._seek_by(partitions, TO_END)

    def seek_to_committed(self, partitions: Partitions | None = None) -> None:
        """Go back to the group's committed offsets, for example after an aborted transaction.

        Without an argument it applies to all assigned partitions. Without a commit, `auto.offset.reset` applies.
        """
        chosen = self._assigned_of(partitions)
        self._core.seek_to_committed(chosen)
        self._forget_left(chosen)

    def _seek_by(self, partitions: Partitions | None, reset: OffsetReset) -> None:
        chosen = self._assigned_of(partitions)
        for topic_partition in chosen:
            self._core.subscription.request_reset(topic_partition, reset)
        self._forget_left(chosen)

    def _assigned_of(self, partitions: Partitions | None) -> list[TopicPartition]:
        """The given partitions, which must be assigned, or all assigned ones."""
        subscription = self._core.subscription
        chosen = list(subscription.assigned()) if partitions is None else read_partitions(partitions)
        for topic_partition in chosen:
            subscription.state(topic_partition)
        return chosen

    async def position(self, partition: Partition, timeout: float | None = None) -> int:
        """The offset of the next record that poll will return; looked up if it is not known yet."""
        chosen = read_partition(partition)
        known = self._core.subscription.position(chosen)
        if known is not None and self._left:
            return self._consumed()[chosen].offset
        return known if known is not None else await self._core.position(chosen, timeout)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The known positions of all assigned partitions, as `send_offsets_to_transaction` takes them."""
        return self._consumed()

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record at or after the time (milliseconds since 1970), or None."""
        return await self._core.offsets_for_times(timestamps, timeout)

    async def beginning_offsets(
        self, partitions: Partitions, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset in the log; the partitions need not be assigned."""
        return await self._core.end_points(read_partitions(partitions), EARLIEST_TIMESTAMP, timeout)

    async def end_offsets(self, partitions: Partitions, timeout: float | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record; with read_committed, after the last readable one."""
        return await self._core.end_points(read_partitions(partitions), LATEST_TIMESTAMP, timeout)

    def current_lag(self, partition: Partition) -> int | None:
        """Records between the position and the partition's end as of the last fetch; None if unknown."""
        return self._core.lag(read_partition(partition))

    # Commits

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, timeout: float | None = None
    ) -> None:
        """Commit these offsets, or the positions of all partitions, and wait; retries temporary failures."""
        await self._core.commit(self._consumed() if offsets is None else read_offsets(offsets), timeout)
        self._core.run_commit_callbacks()

    commit_sync = commit

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Commit without waiting and without retries; a later call runs `callback(offsets, error)`."""
        self._core.commit_nowait(self._consumed() if offsets is None else read_offsets(offsets), callback)

    async def committed(
        self, partitions: Partitions, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets for these partitions; None where there is no commit."""
        return await self._core.committed(read_partitions(partitions), timeout)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The identity of this member, for `AsyncProducer.send_offsets_to_transaction`."""
        return self._core.group_metadata()

    def enforce_rebalance(self, reason: str = "the user asked for it") -> None:
        """Make the group rebalance."""
        self._core.group().request_rejoin(reason)

    # The cluster

    async def partitions_for(self, topic: str, timeout: float | None = None) -> tuple[PartitionMetadata, ...]:
        """The partitions of a topic; raises NoSuchPartitionError if it doesn't exist."""
        return (await self._core.partitions_for(topic, timeout)).partitions

    async def list_topics(self, timeout: float | None = None) -> dict[str, TopicMetadata]:
        """All visible topics in the cluster, by name."""
        return await self._core.list_topics(timeout)

    def metrics(self) -> ConsumerMetrics:
        """Counters, positions and lag."""
        return self._core.metrics()

    # Records that iteration has polled but not returned: positions are past them, the user is not

    def _consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Positions from the user's point of view."""
        return {**self._core.subscription.consumed(), **first_offsets(self._left)}

    def _give_back(self) -> None:
        """Move the positions back before them; they are fetched again when needed."""
        for topic_partition, offset in first_offsets(self._left).items():
            if self._core.subscription.is_assigned(topic_partition):
                self._core.subscription.seek(topic_partition, offset.offset, offset.leader_epoch)
        self._left.clear()

    def _forget_left(self, partitions: Iterable[TopicPartition]) -> None:
        if self._left:
            moved = set(partitions)
            self._left = deque(each for each in self._left if TopicPartition(each.topic, each.partition) not in moved)

    def __repr__(self) -> str:
        group = self._settings.group.group_id if self._settings.group is not None else None
        return f"AsyncConsumer(group_id={group!r}, client_id={self._settings.cluster.client_id!r})"


async def _call_user(user_call: UserCall) -> None:
    result: Any = user_call()
    if inspect.isawaitable(result):
        await result
