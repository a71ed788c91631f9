"""Decides which record to work on next: lanes of records in order, retries, limits, and partitions that come and go.

What always holds: each lane works on one record at a time. The next one starts only when it is done or was given up,
even if it waits for a retry, and even if its partition was revoked and came back in between. No unfinished record lies
before an offset that may be committed. Records of a revoked partition no longer count. Nothing here does I/O, starts a
thread or takes a lock: the caller passes in the time and calls one method at a time.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, Generic

from tidelog.client.errors import ConfigError
from tidelog.client.processing.offset_progress import OffsetProgress
from tidelog.client.processing.pool_types import Drain, OnFailure, OrderBy, PoolSettings, RecordT
from tidelog.client.types import OffsetAndMetadata, TopicPartition

# Reading resumes once this share of the excess is done: pausing and resuming for every record would cost more.
_RESUME_AT = 0.75


class Decision(enum.Enum):
    """What to do with a record whose handler raised."""

    RETRY = enum.auto()
    STOP = enum.auto()
    SKIP = enum.auto()
    # Pass it to the user's failure function.
    HAND_OVER = enum.auto()
    # The record belongs to another member by now.
    LEAVE = enum.auto()


class Lane(Generic[RecordT]):
    """Records that are worked on one after the other; the first may be running."""

    __slots__ = ("is_queued", "key", "running", "tasks")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.tasks: deque[Task[RecordT]] = deque()
        self.running: Task[RecordT] | None = None
        # Whether it is in the list of ready lanes, or waits for a retry.
        self.is_queued = False


class Task(Generic[RecordT]):
    """One record to work on."""

    __slots__ = ("attempts", "lane", "progress", "record", "size")

    def __init__(self, record: RecordT, lane: Lane[RecordT], progress: OffsetProgress, size: int) -> None:
        self.record = record
        self.lane = lane
        self.progress = progress
        self.size = size
        self.attempts = 0


class PoolCore(Generic[RecordT]):
    """Everything in flight."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._lanes: dict[Hashable, Lane[RecordT]] = {}
        self._ready: deque[Lane[RecordT]] = deque()
        # Lanes whose first record waits for a retry, by time; the number keeps equal times distinct.
        self._retries: list[tuple[float, int, Lane[RecordT]]] = []
        self._retry_number = 0
        self._partitions: dict[TopicPartition, OffsetProgress] = {}
        # Includes lanes of revoked partitions: their running records still hold them.
        self._running: set[Task[RecordT]] = set()
        self._is_full = False
        # Set by the first record that must not be left behind: no more work starts.
        self._is_halted = False
        self.in_flight = 0
        self.in_flight_bytes = 0
        self.done = 0
        self.retries = 0

    # Adding records

    def add(self, records: Iterable[RecordT]) -> int:
        """Add polled records, in order; returns how many lanes became ready."""
        ready_before = len(self._ready)
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            progress = self._partitions.get(partition)
            if progress is None:
                progress = self._partitions[partition] = OffsetProgress(partition)
            progress.take(record.offset, getattr(record, "leader_epoch", -1))
            lane = self._lane_of(record, partition)
            size = size_of(record.key) + size_of(record.value)
            lane.tasks.append(Task(record, lane, progress, size))
            self.in_flight += 1
            self.in_flight_bytes += size
            if lane.running is None and not lane.is_queued:
                self._enqueue(lane)
        return len(self._ready) - ready_before

    def _lane_of(self, record: RecordT, partition: TopicPartition) -> Lane[RecordT]:
        order_by = self._settings.order_by
        key: Hashable
        if order_by is OrderBy.PARTITION:
            key = partition
        elif order_by is OrderBy.KEY:
            key = None if record.key is None else (partition, record.key)
        else:
            routed = order_by(record)
            key = None if routed is None else ("routed", routed)
        if key is None:
            return Lane(None)
        try:
            lane = self._lanes.get(key)
        except TypeError as error:
            raise ConfigError(
                f"records of {partition} can't be put in order: {error}; set order_by to a router"
            ) from error
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        return lane

    # Working on records

    def take(self, now_s: float) -> Task[RecordT] | None:
        """The next record to work on; None if there is none right now."""
        if self._is_halted:
            return None
        while self._retries and self._retries[0][0] <= now_s:
            lane = heapq.heappop(self._retries)[2]
            lane.is_queued = False
            self._settle(lane, first=True)
        while self._ready:
            lane = self._ready.popleft()
            lane.is_queued = False
            if not lane.tasks:
                self._settle(lane)
                continue
            task = lane.running = lane.tasks.popleft()
            task.attempts += 1
            task.progress.begun = max(task.progress.begun, task.record.offset)
            self._running.add(task)
            return task
        return None

    def finish(self, task: Task[RecordT]) -> None:
        """The record is done, or was given up on purpose."""
        self._stop_running(task)
        if not task.progress.is_given_up:
            self._leave(task)
            task.progress.finish(task.record.offset)
            self.done += 1
        self._settle(task.lane)

    def abandon(self, task: Task[RecordT]) -> None:
        """The record failed for good and must not be skipped: no more work starts."""
        self._stop_running(task)
        if not task.progress.is_given_up:
            self._leave(task)
            self._is_halted = True

    def cancel(self, task: Task[RecordT]) -> None:
        """The work was stopped because the partition was revoked or the pool is closing: the record stays unfinished.

        Later records must not pass it, so the waiting records of its partition have been dropped before.
        """
        self._stop_running(task)
        if not task.progress.is_given_up:
            self._leave(task)
        self._settle(task.lane)

    def retry(self, task: Task[RecordT], now_s: float) -> None:
        """Retry the record after a while, before any that follow it in its lane."""
        self._stop_running(task)
        lane = task.lane
        if task.progress.is_given_up:
            self._settle(lane)
            return
        self.retries += 1
        lane.tasks.appendleft(task)
        lane.is_queued = True
        self._retry_number += 1
        due_s = now_s + self._settings.backoff.pause_s(task.attempts)
        heapq.heappush(self._retries, (due_s, self._retry_number, lane))

    def decide(self, task: Task[RecordT], error: BaseException) -> Decision:
        """What to do with a record whose handler raised."""
        settings = self._settings
        if task.progress.is_given_up:
            return Decision.LEAVE
        if not isinstance(error, Exception):
            return Decision.STOP
        if task.attempts < settings.attempts and isinstance(error, settings.retry_on):
            return Decision.RETRY
        if isinstance(settings.on_failure, OnFailure):
            return Decision.SKIP if settings.on_failure is OnFailure.SKIP else Decision.STOP
        return Decision.HAND_OVER

    def next_retry_s(self) -> float | None:
        """When the next retry is due."""
        return self._retries[0][0] if self._retries else None

    # Partitions come and go

    def drop_queued(self, partitions: Collection[TopicPartition] | None = None, drain: Drain = Drain.RUNNING) -> None:
        """Drop records that nobody works on and that need not be waited for; of these partitions, or of all."""
        if drain is Drain.ALL:
            return
        chosen = None if partitions is None else set(partitions)
        queued = {id(lane): lane for lane in (*self._lanes.values(), *self._ready, *(row[2] for row in self._retries))}
        for lane in queued.values():
            kept: deque[Task[RecordT]] = deque()
            for task in lane.tasks:
                is_gap = drain is Drain.GAPS and task.record.offset <= task.progress.begun
                if is_gap or (chosen is not None and task.progress.partition not in chosen):
                    kept.append(task)
                else:
                    self._leave(task)
            lane.tasks = kept
        # Lanes waiting to retry a dropped record, and empty lanes, are updated.
        waiting, self._retries = self._retries, []
        for due_s, number, lane in waiting:
            if lane.tasks and lane.tasks[0].attempts:
                self._retries.append((due_s, number, lane))
            else:
                lane.is_queued = False
                self._settle(lane)
        heapq.heapify(self._retries)
        for lane in queued.values():
            self._settle(lane)

    def is_idle(self, partitions: Collection[TopicPartition] | None = None, *, queued: bool) -> bool:
        """Whether nothing of these partitions (or of all) is running; with `queued`, also nothing waiting."""
        if partitions is None:
            return not (self.in_flight if queued else self.running)
        if queued:
            chosen = (self._partitions.get(partition) for partition in partitions)
            return not any(progress is not None and progress.in_flight for progress in chosen)
        return not any(task.progress.partition in partitions for task in self.running_tasks())

    def running_tasks(self) -> list[Task[RecordT]]:
        """The running records that still count."""
        return [task for task in self._running if not task.progress.is_given_up]

    @property
    def running(self) -> int:
        return len(self.running_tasks())

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions belong to another member: their records no longer count."""
        gone = [partition for partition in partitions if partition in self._partitions]
        self.drop_queued(gone)
        for task in self.running_tasks():
            if task.progress.partition in gone:
                self._leave(task)
        for partition in gone:
            self._partitions.pop(partition).is_given_up = True

    # Commits and limits

    def committable(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that have advanced since they were committed."""
        moved = {}
        for partition, progress in self._partitions.items():
            done = progress.done
            if done is not None and done != progress.committed and (partitions is None or partition in partitions):
                moved[partition] = done
        return moved

    def note_committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for partition, offset in offsets.items():
            if partition in self._partitions:
                self._partitions[partition].committed = offset

    def wants_pause(self, assigned: Collection[TopicPartition]) -> set[TopicPartition]:
        """The partitions that should not be read for now.

        All of them if the limits are reached. From half of the limits on, those that have taken more than their share,
        so that one slow partition does not starve the others. Also those with too many records done after an unfinished
        one.
        """
        settings = self._settings
        load = max(self.in_flight / settings.max_in_flight, self.in_flight_bytes / settings.max_in_flight_bytes)
        self._is_full = load >= 1 or (self._is_full and load > _RESUME_AT)
        if self._is_full:
            return set(assigned)
        share = settings.max_in_flight / max(1, len(assigned))
        paused = set()
        for partition in assigned:
            progress = self._partitions.get(partition)
            if progress is not None and (
                progress.uncommitted >= settings.max_uncommitted or (load >= 0.5 and progress.in_flight >= share)
            ):
                paused.add(partition)
        return paused

    @property
    def waiting_for_retry(self) -> int:
        return len(self._retries)

    def uncommitted(self) -> dict[TopicPartition, int]:
        return {partition: progress.uncommitted for partition, progress in self._partitions.items()}

    # Lanes

    def _enqueue(self, lane: Lane[RecordT], *, first: bool = False) -> None:
        lane.is_queued = True
        if first:
            self._ready.appendleft(lane)
        else:
            self._ready.append(lane)

    def _settle(self, lane: Lane[RecordT], *, first: bool = False) -> None:
        """A lane that is not running is ready if it has records, and removed if it has none."""
        if lane.running is not None or lane.is_queued:
            return
        if lane.tasks:
            self._enqueue(lane, first=first)
        elif lane.key is not None:
            self._lanes.pop(lane.key, None)

    def _stop_running(self, task: Task[RecordT]) -> None:
        task.lane.running = None
        self._running.remove(task)

    def _leave(self, task: Task[RecordT]) -> None:
        self.in_flight -= 1
        task.progress.in_flight -= 1
        self.in_flight_bytes -= task.size


def size_of(part: Any) -> int:
    """The size of a key or value in bytes; deserialized objects count as nothing."""
    return len(part) if isinstance(part, (bytes, bytearray, memoryview, str)) else 0
