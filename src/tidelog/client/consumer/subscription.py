"""What a consumer reads, and where it is in each partition: subscription, assignment, positions.

What always holds: a partition's position is the offset of the next record that `poll` will return. Data fetched for a
position that was since changed by a seek, a reset or a new assignment is never returned: every such change gives the
partition a new `version`, and fetched data carries the version it was fetched for. All methods may be called from any
thread. No requests are made here: whoever looks up an offset passes back the version it started with, so an answer that
arrives after a seek changes nothing.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable

from tidelog.client.consumer.read_replica import ReadReplica
from tidelog.client.consumer.rebalance import RebalanceListener
from tidelog.client.errors import UsageError
from tidelog.client.types import OffsetAndMetadata, TopicPartition
from tidelog.common.light_dataclass import dataclass

NO_EPOCH = -1
NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Where to start without an offset: at a timestamp of ListOffsets (-2 the beginning, -1 the end, or a time)."""

    timestamp: int
    # A reset by duration counts back from the moment of the reset.
    back_ms: int | None = None

    def timestamp_at(self, now_ms: int) -> int:
        return self.timestamp if self.back_ms is None else now_ms - self.back_ms


TO_BEGINNING = OffsetReset(-2)
TO_END = OffsetReset(-1)


class PartitionState:
    """The state of one assigned partition. Plain data; `SubscriptionState` and the fetcher change it."""

    __slots__ = (
        "checked_leader_epoch",
        "fetch_epoch",
        "fetch_offset",
        "fetch_size",
        "high_watermark",
        "is_paused",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "position",
        "read_replica",
        "reset",
        "topic_partition",
        "version",
        "waits_to_retry",
    )

    def __init__(self, topic_partition: TopicPartition, version: int) -> None:
        self.topic_partition = topic_partition
        self.version = version
        self.position = NO_OFFSET
        self.leader_epoch = NO_EPOCH  # of the last record before the position
        # The next offset to request, at or after the position; none while nothing may be fetched.
        self.fetch_offset = NO_OFFSET
        self.fetch_epoch = NO_EPOCH  # of the last record before it
        self.fetch_size = 0  # how many bytes to request, if more than usual
        self.reset: OffsetReset | None = None  # if set, an offset must be looked up before anything is fetched
        self.is_paused = False
        # The epoch of the leader whose log is known to contain the position; a newer leader is asked first.
        self.checked_leader_epoch = NO_EPOCH
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.waits_to_retry = False  # its broker could not answer recently
        self.read_replica = ReadReplica()

    @property
    def has_position(self) -> bool:
        return self.position >= 0

    @property
    def is_fetchable(self) -> bool:
        return self.fetch_offset >= 0 and not self.is_paused


def _nothing() -> None:
    """Does nothing; replaced when there is a listener."""


class SubscriptionState:
    """The subscription, the assignment, and every partition's position."""

    def __init__(self, *, on_change: Callable[[], None] = _nothing) -> None:
        """`on_change` is called after every change that may give the fetcher something to do or to drop."""
        self._lock = threading.RLock()
        self._partitions: dict[TopicPartition, PartitionState] = {}
        self._versions = 0
        self._topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.listener: RebalanceListener | None = None
        self.is_manual = False  # set by assign(): no group decides
        # Increases with every change of the subscription or the assignment, but not of a position.
        self.generation = 0
        self._on_change = on_change

    # Subscription

    @property
    def topics(self) -> frozenset[str]:
        """The topics subscribed to: those named, or those that matched the pattern in the latest metadata."""
        return self._topics

    @property
    def is_subscribed(self) -> bool:
        return bool(self._topics) or self.pattern is not None

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener | None = None) -> None:
        """Read these topics as a member of the group, replacing any earlier subscription."""
        with self._lock:
            self._refuse_mixing(manual=False)
            self._topics = frozenset(topics)
            self.pattern = None
            self.listener = listener
            self.generation += 1

    def subscribe_pattern(self, pattern: re.Pattern[str], listener: RebalanceListener | None = None) -> None:
        """Read every topic whose whole name the pattern matches; `match` reports which ones those are."""
        with self._lock:
            self._refuse_mixing(manual=False)
            self._topics = frozenset()
            self.pattern = pattern
            self.listener = listener
            self.generation += 1

    def match(self, names: Iterable[str]) -> bool:
        """Apply the pattern to the names of all topics; returns whether that changed the subscription.

        The consumer's core calls it with all new metadata, and tells the group if it returned True.
        """
        with self._lock:
            if self.pattern is None:
                return False
            matched = frozenset(name for name in names if self.pattern.fullmatch(name))
            if matched == self._topics:
                return False
            self._topics = matched
            self.generation += 1
            return True

    def unsubscribe(self) -> None:
        with self._lock:
            self._topics = frozenset()
            self.pattern = None
            self.listener = None
            self.is_manual = False
            self.generation += 1
            self._replace(())
        self._on_change()

    def assign_manually(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            self._refuse_mixing(manual=True)
            self.is_manual = True
            self.generation += 1
            self._replace(partitions)
        self._on_change()

    def _refuse_mixing(self, *, manual: bool) -> None:
        if manual and self.is_subscribed:
            raise UsageError("assign() and subscribe() can't be used together; call unsubscribe() first")
        if not manual and self.is_manual:
            raise UsageError("subscribe() and assign() can't be used together; call unsubscribe() first")

    # Assignment

    def assigned(self) -> frozenset[TopicPartition]:
        with self._lock:
            return frozenset(self._partitions)

    def is_assigned(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._partitions

    def set_assignment(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. Those that stay keep their state; new ones have no position yet."""
        with self._lock:
            self.generation += 1
            self._replace(partitions)
        self._on_change()

    def _replace(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = {TopicPartition(*each): None for each in partitions}
        for topic_partition in [each for each in self._partitions if each not in wanted]:
            # Data still queued or in flight for it carries an older version and will be dropped.
            self._partitions.pop(topic_partition).version = self._next_version()
        for topic_partition in wanted:
            if topic_partition not in self._partitions:
                self._partitions[topic_partition] = PartitionState(topic_partition, self._next_version())

    def _next_version(self) -> int:
        self._versions += 1
        return self._versions

    # Positions

    def state(self, topic_partition: TopicPartition) -> PartitionState:
        """Raises UsageError unless the partition is assigned."""
        state = self._partitions.get(topic_partition)
        if state is None:
            raise UsageError(f"partition {TopicPartition(*topic_partition)} is not assigned to this consumer")
        return state

    def states(self) -> list[PartitionState]:
        with self._lock:
            return list(self._partitions.values())

    def position(self, topic_partition: TopicPartition) -> int | None:
        """The offset of the next record to be returned; None while it is not known."""
        state = self.state(topic_partition)
        return state.position if state.has_position else None

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit for everything returned so far: all known positions."""
        with self._lock:
            return {
                topic_partition: OffsetAndMetadata(state.position, state.leader_epoch)
                for topic_partition, state in self._partitions.items()
                if state.has_position
            }

    def needs_position(self) -> list[TopicPartition]:
        """Partitions whose committed offset must be looked up: no position, and no reset requested."""
        with self._lock:
            return [
                topic_partition
                for topic_partition, state in self._partitions.items()
                if not state.has_position and state.reset is None
            ]

    def needs_reset(self) -> list[PartitionState]:
        with self._lock:
            return [state for state in self._partitions.values() if state.reset is not None]

    def seek(self, topic_partition: TopicPartition, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Continue from `offset`; `leader_epoch` is that of the record before it, if known."""
        if offset < 0:
            raise ValueError(f"an offset can't be negative, got {offset}; use seek_to_beginning() or seek_to_end()")
        with self._lock:
            self._move(self.state(topic_partition), offset, leader_epoch)
        self._on_change()

    def found(
        self,
        topic_partition: TopicPartition,
        version: int,
        offset: int,
        leader_epoch: int = NO_EPOCH,
        *,
        checked_leader_epoch: int = NO_EPOCH,
    ) -> bool:
        """A lookup that started at `version` returned this offset. False if the partition has moved since.

        `checked_leader_epoch` is the epoch of the leader that returned it, which need not be asked whether it has the
        offset.
        """
        with self._lock:
            state = self._partitions.get(topic_partition)
            if state is None or state.version != version:
                return False
            self._move(state, offset, leader_epoch)
            state.checked_leader_epoch = checked_leader_epoch
        self._on_change()
        return True

    def request_reset(self, topic_partition: TopicPartition, reset: OffsetReset, version: int | None = None) -> bool:
        """Look the position up again, unless the partition has moved since `version`."""
        with self._lock:
            state = self.state(topic_partition) if version is None else self._partitions.get(topic_partition)
            if state is None or (version is not None and state.version != version):
                return False
            self._move(state, NO_OFFSET, NO_EPOCH)
            state.reset = reset
        self._on_change()
        return True

    def forget_positions(self, partitions: Iterable[TopicPartition]) -> None:
        """Start over as if these had just been assigned: from the committed offset, or by `auto.offset.reset`."""
        with self._lock:
            for state in [self.state(topic_partition) for topic_partition in partitions]:
                self._move(state, NO_OFFSET, NO_EPOCH)
        self._on_change()

    def _move(self, state: PartitionState, offset: int, leader_epoch: int) -> None:
        state.version = self._next_version()
        state.position = state.fetch_offset = offset
        state.leader_epoch = state.fetch_epoch = leader_epoch
        state.checked_leader_epoch = NO_EPOCH
        state.reset = None
        state.waits_to_retry = False

    def advance(self, state: PartitionState, version: int, offset: int, leader_epoch: int) -> None:
        """Records up to `offset` were returned, unless the partition was moved meanwhile."""
        with self._lock:
            if state.version == version:
                state.position = offset
                if leader_epoch >= 0:
                    state.leader_epoch = leader_epoch

    def fetched(
        self, state: PartitionState, version: int, asked_offset: int, next_offset: int, leader_epoch: int
    ) -> bool:
        """The response to a fetch from `asked_offset` reaches up to `next_offset`; False if it is no longer wanted.

        With NO_OFFSET nothing is fetched until the partition is moved.
        """
        with self._lock:
            if state.version != version or state.fetch_offset != asked_offset:
                return False
            state.fetch_offset = next_offset
            if leader_epoch >= 0:
                state.fetch_epoch = leader_epoch
            return True

    def fetch_again(self, state: PartitionState, version: int) -> None:
        """Fetch from the position again: data fetched beyond it is not wanted, or an error has been reported."""
        with self._lock:
            if state.version == version and state.has_position:
                self._move(state, state.position, state.leader_epoch)
        self._on_change()

    # Pausing

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return nothing from these until `resume`; data that was fetched stays."""
        with self._lock:
            for state in [self.state(topic_partition) for topic_partition in partitions]:
                state.is_paused = True
        self._on_change()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            for state in [self.state(topic_partition) for topic_partition in partitions]:
                state.is_paused = False
        self._on_change()

    def paused(self) -> frozenset[TopicPartition]:
        with self._lock:
            return frozenset(key for key, state in self._partitions.items() if state.is_paused)
