"""`Consumer`: reads records in the user's own thread, while a background thread fetches ahead.

What always holds: fetched records are decoded in the user's thread, without waiting for the background thread. User
code (listeners, callbacks, deserializers, `on_consume`) runs in the user's thread, inside a call of the consumer. A
consumer belongs to one thread at a time: other threads may only call `wakeup`.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar, Unpack

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
from tidelog.client.consumer.core import ConsumerCore, Offsets
from tidelog.client.consumer.group_runner import CommitCallback
from tidelog.client.consumer.metrics import ConsumerMetrics
from tidelog.client.consumer.offsets_lookup import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidelog.client.consumer.rebalance import RebalanceListener
from tidelog.client.consumer.settings import ConsumerOptions, ConsumerSettings
from tidelog.client.consumer.subscription import TO_BEGINNING, TO_END, OffsetReset
from tidelog.client.consumer.user_thread import OneThread, UserThread
from tidelog.client.errors import ClosedError
from tidelog.client.network.fork_guard import ForkGuard
from tidelog.client.network.loop_thread import LoopThread
from tidelog.client.types import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from tidelog.common.closing import Closing
from tidelog.records.kernel_consume import ConsumerRecord

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

POLL_TIMEOUT_S = 1.0
CLOSE_TIMEOUT_S = 30.0


class Consumer(Closing):
    """Reads records of topics, alone or as a member of a group.

    >>> with Consumer(group_id="billing", auto_offset_reset="earliest") as consumer:  # doctest: +SKIP
    ...     consumer.subscribe(["orders"])
    ...     for record in consumer:
    ...         print(record.key, record.value)
    """

    def __init__(self, settings: Mapping[str, object] | None = None, /, **options: Unpack[ConsumerOptions]) -> None:
        self._closed = True  # there is nothing to close until it is set
        self._is_closing = False
        self._settings = ConsumerSettings.read(settings, options)
        self._fork_guard = ForkGuard("Consumer")
        self._one_thread = OneThread()
        self._ready = threading.Event()
        self._left: deque[ConsumerRecord] = deque()  # polled by iteration and not returned yet
        self._loop_thread = LoopThread("tidelog-consumer")
        self._user = UserThread(self._loop_thread)
        try:
            self._core = self._loop_thread.run(self._make_core())
        except BaseException:
            self._loop_thread.close()
            raise
        self._closed = False

    async def _make_core(self) -> ConsumerCore:
        return ConsumerCore(
            self._settings, post=self._loop_thread.post, notify=self._ready.set, call_user=self._user.call
        )

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self._fork_guard.forked:
            warnings.warn(f"a Consumer was not closed: {self!r}", ResourceWarning, stacklevel=2, source=self)
            self._closed = True
            self._loop_thread.close()

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Commit if commits are automatic, leave the group, then close connections and the thread.

        May be called again. Steps that take longer than the timeout are abandoned.
        """
        with self._one_thread:
            if self._closed or self._is_closing:
                return
            if self._fork_guard.forked:
                self._closed = True
                return
            # Not closed yet: a listener called for the revocation may still commit.
            self._is_closing = True
            self._give_back()
            try:
                self._user.run(self._core.close(timeout))
                self._core.run_commit_callbacks()
            finally:
                self._closed = True
                self._loop_thread.close()

    def wakeup(self) -> None:
        """Make the current poll, or the next one, raise WakeupError; may be called from any thread."""
        self._core.wake_up()

    # Reading

    def poll(self, timeout: float | None = POLL_TIMEOUT_S) -> list[ConsumerRecord]:
        """The next records, at most `max.poll.records`; waits up to `timeout` seconds (None: forever) for the first.

        Rebalances and automatic commits happen here too, so call it at least every
        `max.poll.interval.ms`.
        """
        if self._left:
            return self._take_left()
        return self._poll(timeout, self._core.take) or []

    def poll_arrow(self, timeout: float | None = POLL_TIMEOUT_S, max_rows: int | None = None) -> pa.RecordBatch | None:
        """The next records as one Arrow record batch; None if nothing arrived in time.

        Without `max_rows` it holds what has been fetched, up to about 8 MiB of records. Keys and values are bytes:
        deserializers and interceptors are not called.
        """
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows must be at least 1, not {max_rows}")
        require_pyarrow("poll_arrow")
        if self._left:
            self._give_back()
        return self._poll(timeout, lambda: self._core.decoder.take_arrow(max_rows))

    def _poll(self, timeout: float | None, take: Callable[[], T]) -> T | None:
        with self._one_thread:
            self._check()
            core, ready = self._core, self._ready
            core.begin_poll()
            deadline_s: float | None = None
            waited = False
            try:
                while True:
                    ready.clear()
                    core.raise_pending()
                    if core.has_turn:
                        assert core.runner is not None
                        left_s = timeout if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
                        if deadline_s is None and timeout is not None:
                            deadline_s = time.monotonic() + timeout
                        self._user.run(core.runner.take_turn(left_s))
                    if not core.has_turn:
                        taken = take()
                        if taken is not None and len(taken):  # type: ignore[arg-type]  # a list or an Arrow batch
                            return taken
                    if timeout is not None:
                        if deadline_s is None:
                            deadline_s = time.monotonic() + timeout
                        left_s = deadline_s - time.monotonic()
                        if left_s <= 0:
                            return None
                    else:
                        left_s = None
                    if not waited:
                        waited = True
                        core.begin_waiting()
                    ready.wait(left_s)
            finally:
                if waited:
                    core.end_waiting()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record. Iteration ends if none arrives within `consumer.timeout.ms`; by default it never ends."""
        if not self._left:
            self._left.extend(self.poll(self._settings.consumer_timeout_s))
            if not self._left:
                raise StopIteration
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
        created later. An empty list unsubscribes.
        """
        names, compiled = read_topics(topics, pattern)
        with self._one_thread:
            self._check()
            if not names and compiled is None:
                self.unsubscribe()
                return
            self._loop_thread.run(self._subscribe(names, compiled, listener))

    async def _subscribe(
        self, names: list[str], pattern: re.Pattern[str] | None, listener: RebalanceListener | None
    ) -> None:
        self._core.subscribe(names, pattern, listener)

    def assign(self, partitions: Partitions) -> None:
        """Read exactly these partitions, without group assignment."""
        wanted = read_partitions(partitions)
        with self._one_thread:
            self._check()
            self._give_back()
            self._user.run(self._core.assign(wanted))

    def unsubscribe(self) -> None:
        """Stop reading and leave the group."""
        with self._one_thread:
            self._check()
            self._give_back()
            self._user.run(self._core.unsubscribe())

    def assignment(self) -> frozenset[TopicPartition]:
        """The currently assigned partitions."""
        with self._one_thread:
            self._check()
            return self._core.subscription.assigned()

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to; with a pattern, those that match it."""
        with self._one_thread:
            self._check()
            return self._core.subscription.topics

    def pause(self, partitions: Partitions) -> None:
        """Return nothing from these until `resume`; they stay assigned, and fetched records are kept."""
        with self._one_thread:
            self._check()
            self._core.subscription.pause(read_partitions(partitions))

    def resume(self, partitions: Partitions) -> None:
        """Return records from these again, from where they were paused."""
        with self._one_thread:
            self._check()
            self._core.subscription.resume(read_partitions(partitions))

    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions."""
        with self._one_thread:
            self._check()
            return self._core.subscription.paused()

    # Positions

    def seek(self, partition: Partition, offset: int | OffsetAndMetadata) -> None:
        """Continue from this offset in an assigned partition."""
        chosen, value = read_partition(partition), read_offset(offset)
        with self._one_thread:
            self._check()
            self._forget_left([chosen])
            self._core.subscription.seek(chosen, value.offset, value.leader_epoch)

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
        with self._one_thread:
            self._check()
            chosen = self._assigned_of(partitions)
            self._core.seek_to_committed(chosen)
            self._forget_left(chosen)

    def _seek_by(self, partitions: Partitions | None, reset: OffsetReset) -> None:
        with self._one_thread:
            self._check()
            chosen = self._assigned_of(partitions)
            self._forget_left(chosen)
            for topic_partition in chosen:
                self._core.subscription.request_reset(topic_partition, reset)

    def _assigned_of(self, partitions: Partitions | None) -> list[TopicPartition]:
        """The given partitions, which must be assigned, or all assigned ones."""
        subscription = self._core.subscription
        chosen = list(subscription.assigned()) if partitions is None else read_partitions(partitions)
        for topic_partition in chosen:
            subscription.state(topic_partition)
        return chosen

    def position(self, partition: Partition, timeout: float | None = None) -> int:
        """The offset of the next record that poll will return; looked up if it is not known yet."""
        chosen = read_partition(partition)
        with self._one_thread:
            self._check()
            known = self._core.subscription.position(chosen)
            if known is not None and self._left:
                known = self._consumed()[chosen].offset
            return known if known is not None else self._loop_thread.run(self._core.position(chosen, timeout))

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The known positions of all assigned partitions, as `send_offsets_to_transaction` takes them."""
        with self._one_thread:
            self._check()
            return self._consumed()

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record at or after the time (milliseconds since 1970), or None."""
        with self._one_thread:
            self._check()
            return self._loop_thread.run(self._core.offsets_for_times(timestamps, timeout))

    def beginning_offsets(self, partitions: Partitions, timeout: float | None = None) -> dict[TopicPartition, int]:
        """The first offset in the log; the partitions need not be assigned."""
        with self._one_thread:
            self._check()
            return self._loop_thread.run(
                self._core.end_points(read_partitions(partitions), EARLIEST_TIMESTAMP, timeout)
            )

    def end_offsets(self, partitions: Partitions, timeout: float | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record; with read_committed, after the last readable one."""
        with self._one_thread:
            self._check()
            return self._loop_thread.run(self._core.end_points(read_partitions(partitions), LATEST_TIMESTAMP, timeout))

    def current_lag(self, partition: Partition) -> int | None:
        """Records between the position and the partition's end as of the last fetch; None if unknown."""
        with self._one_thread:
            self._check()
            return self._core.lag(read_partition(partition))

    # Commits

    def commit_sync(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None, timeout: float | None = None
    ) -> None:
        """Commit these offsets, or the positions of all partitions, and wait; retries temporary failures."""
        with self._one_thread:
            self._check()
            chosen = self._consumed() if offsets is None else read_offsets(offsets)
            self._loop_thread.run(self._core.commit(chosen, timeout))
            self._core.run_commit_callbacks()

    commit = commit_sync

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Commit without waiting and without retries; a later call runs `callback(offsets, error)`."""
        with self._one_thread:
            self._check()
            # Use the current positions: the user may poll again before the loop gets here.
            chosen = self._consumed() if offsets is None else read_offsets(offsets)
            self._loop_thread.run(self._commit_nowait(chosen, callback))

    async def _commit_nowait(self, offsets: Offsets | None, callback: CommitCallback | None) -> None:
        self._core.commit_nowait(offsets, callback)

    def committed(
        self, partitions: Partitions, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets for these partitions; None where there is no commit."""
        with self._one_thread:
            self._check()
            return self._loop_thread.run(self._core.committed(read_partitions(partitions), timeout))

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The identity of this member, for `Producer.send_offsets_to_transaction`."""
        with self._one_thread:
            self._check()
            return self._core.group_metadata()

    def enforce_rebalance(self, reason: str = "the user asked for it") -> None:
        """Make the group rebalance."""
        with self._one_thread:
            self._check()
            self._loop_thread.post(self._core.group().request_rejoin, reason)

    # The cluster

    def partitions_for(self, topic: str, timeout: float | None = None) -> tuple[PartitionMetadata, ...]:
        """The partitions of a topic; raises NoSuchPartitionError if it doesn't exist."""
        with self._one_thread:
            self._check()
            return self._loop_thread.run(self._core.partitions_for(topic, timeout)).partitions

    def list_topics(self, timeout: float | None = None) -> dict[str, TopicMetadata]:
        """All visible topics in the cluster, by name."""
        with self._one_thread:
            self._check()
            return self._loop_thread.run(self._core.list_topics(timeout))

    def metrics(self) -> ConsumerMetrics:
        """Counters, positions and lag."""
        with self._one_thread:
            self._check()
            return self._core.metrics()

    # Checks

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed")
        if self._fork_guard.forked:
            self._fork_guard.check()

    # Records that iteration has polled but not returned: positions are past them, the user is not

    def _consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Positions from the user's point of view."""
        return {**self._core.subscription.consumed(), **first_offsets(self._left)}

    def _take_left(self) -> list[ConsumerRecord]:
        with self._one_thread:
            self._check()
            records = list(self._left)
            self._left.clear()
            return records

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
        return f"Consumer(group_id={group!r}, client_id={self._settings.cluster.client_id!r})"


def first_offsets(records: Iterable[ConsumerRecord]) -> dict[TopicPartition, OffsetAndMetadata]:
    """The position before each partition's first record."""
    first: dict[TopicPartition, OffsetAndMetadata] = {}
    for record in records:
        topic_partition = TopicPartition(record.topic, record.partition)
        if topic_partition not in first:
            first[topic_partition] = OffsetAndMetadata(record.offset, record.leader_epoch)
    return first
