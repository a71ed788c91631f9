"""Checks of produced batches that are too long for the event loop: threads, and the order of what waits for them.

What always holds: what one connection sends to a partition is appended in the order in which it was sent, whether or
not a thread has to look at it first; other connections and other partitions wait for nobody. A thread holds the
interpreter's lock for no longer than any bytecode does: records are decompressed and walked without it. What a check
asks for is in `log/validation`; short batches are validated on the loop and never come here.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TYPE_CHECKING

from tidelog.broker.arrival_order import ArrivalOrder, Place
from tidelog.log.validation import AppendOrigin, ValidatedBatch, validate_batch
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

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def must_wait(self, session: ClientSession, partition: Partition) -> bool:
        """Whether something that the connection sent to the partition earlier is not appended yet."""
        return (id(session), partition) in self._turns

    def take_turn(self, session: ClientSession, partition: Partition) -> Place:
        """The turn of a batch among those that its connection sent to the partition; the caller has to end it."""
        return self._turns.take((id(session), partition))

    def start(self, partition: Partition, records: memoryview) -> asyncio.Future[ValidatedBatch]:
        """Validate a client's batch in a thread; the future raises what `validate_batch` raises."""
        check = _Check(records, partition.log.config, self._clock.now_ms())
        result = self._loop.run_in_executor(self._threads, check.run)
        result.add_done_callback(check.finish)
        return result


class _Check:
    """One batch on its way to a thread. The pool keeps cancelled work in its queue; this lets go of the bytes."""

    __slots__ = ("_config", "_now_ms", "_records")

    def __init__(self, records: memoryview, config: LogConfig, now_ms: int) -> None:
        self._records: memoryview | None = records
        self._config = config
        self._now_ms = now_ms

    def run(self) -> ValidatedBatch:
        if self._records is None:
            raise CancelledError
        try:
            return validate_batch(self._records, self._config, self._now_ms, AppendOrigin.CLIENT)
        except (KafkaError, CorruptBatchError) as refusal:
            # The frames of its traceback hold the opened batch, and futures and callbacks that refer to each other
            # would keep it until the garbage collector comes by.
            refusal.__cause__ = refusal.__context__ = None
            raise refusal.with_traceback(None) from None

    def finish(self, result: asyncio.Future[ValidatedBatch]) -> None:
        self._records = None
        # Whoever asked may have gone, and asyncio complains about exceptions that nobody looks at.
        if not result.cancelled():
            result.exception()
