"""Creates, opens and removes partitions' files in one thread, while the event loop keeps serving.

What always holds: work on one topic name is done in the order requested, so a topic that is deleted and recreated never
meets its old files; topics take turns, so a small one does not wait for all of a large one's partitions; results are
delivered on the event loop, a few at a time. There is only one thread, because this is many short system calls, and
several threads that pass the interpreter's lock back and forth get less done, not more. It makes no decisions about
leaders and serves nothing.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from tidelog.common.light_dataclass import dataclass
from tidelog.controller.image import PartitionState, TopicImage
from tidelog.log import LogConfig, LogManager, LogStorageError, PartitionLog
from tidelog.log.epochs import UNDEFINED_EPOCH
from tidelog.protocol import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

STEPS_PER_TURN: Final = 64
"""Partitions handed to the thread at a time: some 20 ms of work for it, under 1 ms for the loop that takes it over."""


class Opened(NamedTuple):
    """A partition whose log is open; without a log, opening it failed."""

    topic_id: uuid.UUID
    partition: int
    log: PartitionLog | None
    # Why there is none.
    error: LogStorageError | None = None


class _Step(NamedTuple):
    """A partition to open, with its settings; or, without settings, one to delete."""

    topic: TopicImage
    partition: int
    config: LogConfig | None


@dataclass(slots=True)
class _Work:
    """The same for several partitions of one topic."""

    topic: TopicImage
    indexes: deque[int]
    config: LogConfig | None


def is_new(state: PartitionState) -> bool:
    """Whether nothing has happened to a partition since it was made."""
    return state.partition_epoch == 0


class _Opening:
    """The partitions of a topic that are not open yet, and who waits for them."""

    __slots__ = ("done", "first", "indexes")

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.indexes: set[int] = set()
        # The first new partition among them; clients know those before it.
        self.first = sys.maxsize
        self.done = done


class PartitionFiles:
    """Work on partitions' files, with its queue on the event loop."""

    def __init__(self, logs: LogManager, on_opened: Callable[[Collection[Opened]], None]) -> None:
        """Create it on the running event loop; `on_opened` is called there, before waiters are woken."""
        self._logs = logs
        self._on_opened = on_opened
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="partition-files")
        # Work by topic name; the topic whose turn it is comes first.
        self._queue: dict[str, deque[_Work]] = {}
        self._opening: dict[uuid.UUID, _Opening] = {}
        self._running: asyncio.Future[list[Opened]] | None = None
        self._settled = asyncio.Event()
        self._settled.set()
        self._is_closed = False

    def open(self, topic: TopicImage, indexes: Collection[int], config: LogConfig, *, were_tried: bool = False) -> None:
        """Open the logs of these partitions, creating those that don't exist yet.

        Logs that were loaded at startup are delivered immediately. `were_tried`: not for the first time.
        """
        ready = [opened for opened in (self._find_loaded(topic, index) for index in indexes) if opened is not None]
        if ready:
            self._on_opened(ready)
            loaded = {opened.partition for opened in ready}
            indexes = [index for index in indexes if index not in loaded]
            if not indexes:
                return
        opening = self._opening.get(topic.topic_id)
        if opening is None:
            opening = self._opening[topic.topic_id] = _Opening(self._loop.create_future())
        opening.indexes.update(indexes)
        if not were_tried:
            # Partitions that move here, or whose leader has changed, are served by others: clients know them.
            opening.first = min((opening.first, *(index for index in indexes if is_new(topic.partitions[index]))))
        self._add(_Work(topic, deque(indexes), config))

    def _find_loaded(self, topic: TopicImage, index: int) -> Opened | None:
        try:
            log = self._logs.get(topic.name, index)
        except LogStorageError:
            return None
        if log is None or log.topic_id != topic.topic_id:
            return None
        return Opened(topic.topic_id, index, log)

    def delete(self, topic: TopicImage, indexes: Iterable[int]) -> None:
        """Remove the files of these partitions, and cancel all outstanding work for that topic."""
        queued = self._queue.get(topic.name, ())
        self._queue[topic.name] = deque(work for work in queued if work.topic.topic_id != topic.topic_id)
        self._forget(topic.topic_id)
        self._add(_Work(topic, deque(indexes), None))

    def remove(self, topic: TopicImage, indexes: Collection[int]) -> None:
        """Remove the files of partitions that other brokers have now; the topic's other partitions stay."""
        gone = set(indexes)
        for work in self._queue.get(topic.name, ()):
            if work.topic.topic_id == topic.topic_id and work.config is not None:
                work.indexes = deque(index for index in work.indexes if index not in gone)
        opening = self._opening.get(topic.topic_id)
        if opening is not None:
            opening.indexes -= gone
            if not opening.indexes:
                self._forget(topic.topic_id)
        self._add(_Work(topic, deque(indexes), None))

    def has(self, topic: TopicImage, index: int) -> bool:
        """Whether the partition has files here, or is about to."""
        return self.is_opening(topic.topic_id, index) or self._find_loaded(topic, index) is not None

    def is_opening(self, topic_id: uuid.UUID, index: int) -> bool:
        return index in self.opening(topic_id)

    def opening(self, topic_id: uuid.UUID) -> Collection[int]:
        """The partitions of a topic that have yet to be opened."""
        opening = self._opening.get(topic_id)
        return opening.indexes if opening is not None else ()

    def opening_from(self, topic_id: uuid.UUID) -> int | None:
        """The first new partition, until all are open; None: there is none, and clients may see all of the topic."""
        opening = self._opening.get(topic_id)
        return opening.first if opening is not None and opening.first != sys.maxsize else None

    async def wait_until_opened(
        self, topic_ids: Iterable[uuid.UUID], deadline_s: float | None = None
    ) -> set[uuid.UUID]:
        """Wait until no partition of these topics is still to be opened; those left at that time of the event loop."""
        awaited = {topic_id: self._opening[topic_id].done for topic_id in topic_ids if topic_id in self._opening}
        if awaited:
            timeout_s = None if deadline_s is None else max(0.0, deadline_s - self._loop.time())
            await asyncio.wait(awaited.values(), timeout=timeout_s)
        return {topic_id for topic_id, done in awaited.items() if not done.done()}

    async def settled(self) -> None:
        """Wait until there is nothing left to do."""
        await self._settled.wait()

    async def close(self) -> None:
        """Finish running work and all deletions; what has yet to be opened is left to the next start."""
        self._is_closed = True
        for name, works in self._queue.items():
            self._queue[name] = deque(work for work in works if work.config is None)
        await self._settled.wait()
        for topic_id in tuple(self._opening):
            self._forget(topic_id)
        self._thread.shutdown()

    def _add(self, work: _Work) -> None:
        self._queue.setdefault(work.topic.name, deque()).append(work)
        self._settled.clear()
        if self._running is None:
            self._run_next()

    def _forget(self, topic_id: uuid.UUID) -> None:
        opening = self._opening.pop(topic_id, None)
        if opening is not None:
            opening.done.set_result(None)

    def _run_next(self) -> None:
        steps = self._take_steps()
        if not steps:
            self._settled.set()
            return
        self._running = self._loop.run_in_executor(self._thread, self._carry_out, steps)
        self._running.add_done_callback(self._on_carried_out)

    def _take_steps(self) -> list[_Step]:
        steps: list[_Step] = []
        while self._queue and len(steps) < STEPS_PER_TURN:
            name, works = next(iter(self._queue.items()))
            del self._queue[name]
            while works and len(steps) < STEPS_PER_TURN:
                work = works[0]
                count = min(len(work.indexes), STEPS_PER_TURN - len(steps))
                steps.extend(_Step(work.topic, work.indexes.popleft(), work.config) for _ in range(count))
                if not work.indexes:
                    works.popleft()
            if works:
                # The others first.
                self._queue[name] = works
        return steps

    def _on_carried_out(self, running: asyncio.Future[list[Opened]]) -> None:
        self._running = None
        opened = running.result()
        if not self._is_closed:
            self._hand_over(opened)
        self._run_next()

    def _hand_over(self, opened: Iterable[Opened]) -> None:
        # Nobody waits any longer for a topic that was deleted meanwhile; its files are removed next.
        opened = [one for one in opened if self.is_opening(one.topic_id, one.partition)]
        self._on_opened(opened)
        for topic_id, index, _, _ in opened:
            opening = self._opening[topic_id]
            opening.indexes.discard(index)
            if not opening.indexes:
                self._forget(topic_id)

    # In the thread

    def _carry_out(self, steps: Iterable[_Step]) -> list[Opened]:
        opened = []
        for topic, index, config in steps:
            if config is None:
                self._delete(topic, index)
            else:
                opened.append(self._open(topic, index, config))
        try:
            self._logs.flush_deletions()
        except LogStorageError as error:
            logger.error("%s", error.message)
        return opened

    def _open(self, topic: TopicImage, index: int, config: LogConfig) -> Opened:
        try:
            return Opened(topic.topic_id, index, self._get_or_create(topic, index, config))
        except LogStorageError as error:
            # Requests for the partition get KAFKA_STORAGE_ERROR; the others are served. A missing data directory is
            # logged once, and not for each of its thousands of partitions.
            if not self._logs.is_withheld(topic.name, index):
                logger.error("partition %s-%d is offline: %s", topic.name, index, error)
            return Opened(topic.topic_id, index, None, error)

    def _get_or_create(self, topic: TopicImage, index: int, config: LogConfig) -> PartitionLog:
        epoch = _first_epoch(topic.partitions[index])
        try:
            return self._logs.get_or_create(topic.name, index, topic.topic_id, config, leader_epoch=epoch)
        except KafkaError as error:
            if error.code is not ErrorCode.INCONSISTENT_TOPIC_ID:
                raise
            # The files belong to a topic of that name that was deleted while this broker was down.
            self._logs.delete(topic.name, index)
            return self._logs.create(topic.name, index, topic.topic_id, config, leader_epoch=epoch)

    def _delete(self, topic: TopicImage, index: int) -> None:
        try:
            self._logs.delete(topic.name, index)
        except LogStorageError as error:
            logger.error("the files of %s-%d could not be removed: %s", topic.name, index, error)


def _first_epoch(state: PartitionState) -> int:
    """The epoch in which a new log will be appended to; only of a sole replica is it certain that it leads."""
    return state.leader_epoch if len(state.replicas) == 1 else UNDEFINED_EPOCH
