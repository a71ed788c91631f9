"""Checks of produced batches that are too long for the event loop: threads, and the order of what waits for them.

What always holds: what one connection sends to a partition is appended in the order in which it was sent, whether or
not a thread has to look at it first; other connections and other partitions do not wait for that. Connections take
turns with the threads, a batch each, so one that sends many large batches delays the others by one. A thread holds the
interpreter's lock for no longer than any bytecode does: records are decompressed and walked without it. What a check
asks for is in `log/validation`; short batches are validated on the loop and never come here.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TYPE_CHECKING

from tidelog.broker.arrival_order import ArrivalOrder, Place
from tidelog.log.validation import ValidatedBatch, validate_batch
from tidelog.protocol import KafkaError
from tidelog.records.errors import CorruptBatchError

if TYPE_CHECKING:
    from tidelog.broker.partition import Partition
    from tidelog.broker.request_context import ClientSession
    from tidelog.common.clock import Clock
    from tidelog.log.config import LogConfig

CHECK_THREADS = 2
"""Each may hold an opened batch of 64 MiB. More would take cores from the loop and from the readers."""


class RecordChecks:
    """The threads that validate, and the turns of those that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._threads = ThreadPoolExecutor(CHECK_THREADS, thread_name_prefix="record-check")
        self._turns = ArrivalOrder()
        # The checks that no thread has begun, by the id of the connection's session.
        self._waiting: dict[int, deque[_Check]] = {}
        self._running = 0
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def must_wait(self, session: ClientSession, partition: Partition) -> bool:
        """Whether something that the connection sent to the partition earlier is not appended yet."""
        return (id(session), partition) in self._turns

    def take_turn(self, session: ClientSession, partition: Partition) -> Place:
        """The turn of a batch among those that its connection sent to the partition; the caller has to end it."""
        return self._turns.take((id(session), partition))

    def start(
        self, session: ClientSession, partition: Partition, records: memoryview
    ) -> asyncio.Future[ValidatedBatch]:
        """Validate a client's batch in a thread; the future raises what `validate_batch` raises."""
        check = _Check(records, partition.log.config, self._clock.now_ms(), self._loop.create_future())
        self._waiting.setdefault(id(session), deque()).append(check)
        self._run_next()
        return check.result

    def _run_next(self) -> None:
        while self._waiting and self._running < CHECK_THREADS:
            # The connection whose turn it is comes first in the dictionary; if it has more, it goes to the end.
            session_id = next(iter(self._waiting))
            checks = self._waiting.pop(session_id)
            check = checks.popleft()
            if checks:
                self._waiting[session_id] = checks
            if check.result.done():
                continue  # its connection is gone
            self._running += 1
            run = self._loop.run_in_executor(self._threads, check.run)
            run.add_done_callback(functools.partial(self._on_checked, check.result))

    def _on_checked(self, result: asyncio.Future[ValidatedBatch], run: asyncio.Future[ValidatedBatch]) -> None:
        self._running -= 1
        if not result.done():
            if run.cancelled():
                result.cancel()
            elif (error := run.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(run.result())
        elif not run.cancelled():
            run.exception()  # nobody waits for it now, and asyncio complains about exceptions that nobody looks at
        if not self._is_closed:
            self._run_next()


class _Check:
    """One batch on its way to a thread. The queues keep cancelled checks; this lets go of the bytes."""

    __slots__ = ("_config", "_now_ms", "_records", "result")

    def __init__(
        self, records: memoryview, config: LogConfig, now_ms: int, result: asyncio.Future[ValidatedBatch]
    ) -> None:
        self._records: memoryview | None = records
        self._config = config
        self._now_ms = now_ms
        self.result = result
        result.add_done_callback(self._finish)

    def run(self) -> ValidatedBatch:
        if self._records is None:
            raise CancelledError
        try:
            return validate_batch(self._records, self._config, self._now_ms)
        except (KafkaError, CorruptBatchError) as refusal:
            # The frames of its traceback hold the opened batch, and futures and callbacks that refer to each other
            # would keep it until the garbage collector comes by.
            refusal.__cause__ = refusal.__context__ = None
            raise refusal.with_traceback(None) from None

    def _finish(self, result: asyncio.Future[ValidatedBatch]) -> None:
        self._records = None
        # Whoever asked may have gone, and asyncio complains about exceptions that nobody looks at.
        if not result.cancelled():
            result.exception()
