"""An event loop in a background thread, on which a synchronous client runs the asynchronous core.

What always holds: `run` returns the coroutine's result or raises its error, or cancels it when the caller's time is up
or the caller is interrupted. After `close` the thread has ended, and nothing that was started on the loop is left.
Daemon threads freeze when the interpreter exits: from then on nothing waits for one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidelog.client.errors import ClosedError, RequestTimeoutError
from tidelog.client.network.fork_guard import ForkGuard
from tidelog.common.event_loop import new_event_loop

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 10.0  # anything left after this is a bug: everything was cancelled

T = TypeVar("T")


class LoopThread:
    """A daemon thread that runs an event loop until `close`."""

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        self._fork_guard = ForkGuard(name)
        self._closed = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller is the loop's own thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    @property
    def may_wait(self) -> bool:
        """Whether the caller may wait for something that runs on the loop."""
        return not (self.is_current or sys.is_finalizing())

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run it on the loop and wait for its result; called from any other thread."""
        try:
            self._check()
            if self.is_current:
                raise RuntimeError("a callback made a blocking call on the client's own thread; it would never return")
        except BaseException:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if future.done():  # its own TimeoutError, not ours
                raise
            future.cancel()
            raise RequestTimeoutError(f"not done within {timeout_s:g} s") from None
        except BaseException:
            future.cancel()
            raise

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a call on the loop; returns immediately."""
        self._check()
        self.loop.call_soon_threadsafe(callback, *args)

    def close(self) -> None:
        """Cancel everything that still runs, and end the thread."""
        if self._closed:
            return
        self._closed = True
        if self._fork_guard.forked or sys.is_finalizing():
            return  # the thread and the loop's files belong to the parent, or the thread is frozen
        self.loop.call_soon_threadsafe(self.loop.stop)
        if self.is_current:
            return  # it ends on its own
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            logger.error("the thread %s did not stop within %g s of its close", self._thread.name, _CLOSE_TIMEOUT_S)

    def _check(self) -> None:
        self._fork_guard.check()
        if self._closed:
            raise ClosedError("the client is closed")
        if sys.is_finalizing():
            raise ClosedError("the interpreter is shutting down, and the client with it")

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()
