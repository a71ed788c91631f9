"""The future that `send` returns, for the delivery of one record.

It is small: just the record's batch and its place in it. All futures of a batch finish together. Waiting for one makes
the producer send its batch immediately instead of lingering.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Self

from tidelog.client.errors import ClientError, RequestTimeoutError
from tidelog.client.producer.batch import future_batch
from tidelog.client.types import RecordMetadata
from tidelog.records.kernel_build import RecordReceipt


class DeliveryFuture(RecordReceipt):
    """The outcome of one send. Threads wait with `result`, coroutines with `await`."""

    __slots__ = ()

    def done(self) -> bool:
        """Whether the record was stored or has failed."""
        batch = future_batch(self)
        # A record that was sent before its topic was known moves to another batch, possibly at this very moment.
        return batch.is_done and batch is self.batch

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for delivery and return where the record was stored; raises if it failed.

        Raises RequestTimeoutError after `timeout` seconds; the record may still be delivered.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return future_batch(self).metadata_of(self)

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Wait like `result` and return the error, or None."""
        batch = future_batch(self)
        if not batch.wait(timeout):
            raise RequestTimeoutError(
                f"a record to partition {batch.topic_partition} was not acknowledged within {timeout:g} s; "
                "it may still be"
            )
        return future_batch(self).error_of(self)  # it may have moved to another batch meanwhile

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call it with this future once it is done: on the producer's thread, or immediately if it already is."""
        if not future_batch(self).watch(lambda: callback(self)):
            callback(self)

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        batch = future_batch(self)
        loop = asyncio.get_running_loop()
        waiting, thread_id = loop.create_future(), threading.get_ident()

        def wake() -> None:
            if threading.get_ident() == thread_id:
                _set_done(waiting)  # waking the loop from outside costs a system call
            else:
                loop.call_soon_threadsafe(_set_done, waiting)

        if batch.watch(wake):
            batch.want()
            yield from waiting
        batch = future_batch(self)  # it may have moved to another one meanwhile
        error = batch.error_of(self)
        if error is not None:
            raise error
        return batch.metadata_of(self)

    def __repr__(self) -> str:
        batch = future_batch(self)
        state = "pending" if not batch.is_done else "delivered" if batch.error is None else "failed"
        return f"<DeliveryFuture {batch.topic_partition} {state}>"


def _set_done(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():  # the waiting task may have been cancelled
        waiting.set_result(None)
