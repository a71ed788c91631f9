"""The user's thread of a synchronous consumer: only one at a time, and it is where user code is called.

What always holds: if a second thread uses the consumer at the same time as the first, it is refused immediately, before
it changes anything. While the user waits for something on the loop that needs the user's listener, the waiting thread
calls the listener.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from tidelog.client.consumer.rebalance import UserCall
from tidelog.client.errors import ConcurrentUseError, UsageError
from tidelog.client.network.loop_thread import LoopThread

T = TypeVar("T")


class OneThread:
    """Lets one thread in at a time; the same thread may enter again: `with one_thread:`."""

    __slots__ = ("_depth", "_lock", "_owner")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner != me:
            if not self._lock.acquire(blocking=False):
                raise ConcurrentUseError(
                    "this consumer is in use by another thread; a consumer belongs to one thread at a time, only "
                    "wakeup() may be called from others"
                )
            self._owner = me
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = 0
            self._lock.release()


class UserThread:
    """Runs coroutines on the loop for a thread, and makes the calls to user code that they request in that thread."""

    def __init__(self, loop_thread: LoopThread) -> None:
        self._loop_thread = loop_thread
        self._calls: queue.SimpleQueue[tuple[UserCall, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._is_running = False

    async def call(self, user_call: UserCall) -> None:
        """Have the thread that waits in `run` make the call; called on the loop."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls.put((user_call, done))
        await done

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for the coroutine to end, and make the calls that it requests meanwhile."""
        if self._is_running:
            coroutine.close()
            raise UsageError("a rebalance listener can't call poll(), unsubscribe() or close()")
        self._is_running = True
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop_thread.loop)
            future.add_done_callback(lambda _: self._calls.put(None))
            try:
                while (asked := self._calls.get()) is not None:
                    self._make(*asked)
            except BaseException:
                future.cancel()
                self._calls = queue.SimpleQueue()
                raise
            return future.result()
        finally:
            self._is_running = False

    def _make(self, user_call: UserCall, done: asyncio.Future[None]) -> None:
        try:
            result = user_call()
            if inspect.isawaitable(result):
                if inspect.iscoroutine(result):
                    result.close()
                raise TypeError(f"{user_call} is a coroutine; a Consumer takes plain methods, an AsyncConsumer both")
        except Exception as error:  # noqa: BLE001  # whatever the user's code raises is the user's to see
            self._loop_thread.post(_fail, done, error)
        else:
            self._loop_thread.post(_succeed, done)


def _succeed(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _fail(done: asyncio.Future[None], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
