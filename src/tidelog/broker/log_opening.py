"""Opens logs at rest in threads before they are used, and keeps waiting produce requests in order.

What always holds: a produce request that waits for a log keeps its place in all of its partitions, so anything that
arrives later for one of them is appended later; the event loop reads no log files in the meantime. If a log can't be
opened, whoever uses it next reports why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable
from concurrent.futures import Executor
from typing import Final, TypeVar

from tidelog.broker.partition import Partition
from tidelog.common.steps import Steps, with_pauses
from tidelog.log import LogManager, LogStorageError, PartitionLog

logger = logging.getLogger(__name__)

T = TypeVar("T")

_OPENED_TOGETHER_MAX: Final = 256
"""Far more than there are threads, and few enough to wait for at once."""


class Turn:
    """The place of one request in each of its partitions."""

    __slots__ = ("before", "is_over", "partitions")

    def __init__(
        self, partitions: Collection[Partition], before: set[asyncio.Future[None]], is_over: asyncio.Future[None]
    ) -> None:
        self.partitions = partitions
        self.before = before
        self.is_over = is_over


class LogOpening:
    """Requests that wait for logs to be opened."""

    def __init__(self, logs: LogManager, loop: asyncio.AbstractEventLoop, threads: Executor) -> None:
        self._logs = logs
        self._loop = loop
        self._threads = threads
        # The last waiting request of each partition.
        self._last: dict[Partition, asyncio.Future[None]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and no log is at rest, so that single partitions need no check."""
        return not self._last and not self._logs.has_logs_at_rest

    def must_wait(self, partition: Partition) -> bool:
        """Whether an append has to wait, either for the log or behind another append that does."""
        return not partition.log.is_open or partition in self._last

    def take_turn(self, partitions: Collection[Partition]) -> Turn:
        """Make everything that arrives for these partitions from now on wait until `end_turn`."""
        before = {self._last[partition] for partition in partitions if partition in self._last}
        is_over = self._loop.create_future()
        for partition in partitions:
            self._last[partition] = is_over
        return Turn(partitions, before, is_over)

    async def wait(self, turn: Turn) -> None:
        """Wait until it is the request's turn and its logs are open."""
        for before in turn.before:
            await asyncio.shield(before)
        await self.open(partition.log for partition in turn.partitions)

    def end_turn(self, turn: Turn) -> None:
        """Everything is appended or refused."""
        if turn.is_over.done():
            return
        turn.is_over.set_result(None)
        for partition in turn.partitions:
            if self._last.get(partition) is turn.is_over:
                del self._last[partition]

    async def open(self, logs: Iterable[PartitionLog]) -> None:
        """Open logs in threads, in parallel; there may be thousands."""
        opening = []
        async for log in with_pauses(logs):
            if not log.is_open:
                opening.append(self._loop.run_in_executor(self._threads, _open, log))
            if len(opening) == _OPENED_TOGETHER_MAX:
                await asyncio.gather(*opening)
                opening.clear()
        await asyncio.gather(*opening)

    def once_open(self, partitions: Iterable[Partition], steps: Steps[T]) -> Steps[T | Coroutine[None, None, Steps[T]]]:
        """Do the steps once the logs of these partitions are open: immediately, or after a wait for threads."""
        at_rest: dict[PartitionLog, None] = {}
        if not self.is_idle:
            for partition in partitions:
                if not partition.log.is_open:
                    at_rest[partition.log] = None
                yield 0
        return self._open_first(at_rest, steps) if at_rest else (yield from steps)

    async def _open_first(self, at_rest: Iterable[PartitionLog], steps: Steps[T]) -> Steps[T]:
        await self.open(at_rest)
        return steps


def _open(log: PartitionLog) -> None:
    try:
        log.open()
    except LogStorageError as error:
        # The next user of the log meets the same error and reports it.
        logger.debug("%s", error.message)
