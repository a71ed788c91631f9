"""One thread that runs calls in the order they were submitted, and repeats others by time in between.

What always holds: no two calls run at once; a repeated call is due whatever else is waiting, and is delayed only by the
one call that is running. The event loop has no part in it, so a busy loop holds up no repeated call.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from tidelog.common.light_dataclass import dataclass

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _Repeated:
    call: Callable[[], object]
    interval_s: float
    due_s: float


class CallThread(Protocol):
    """What a store needs of the thread that its calls run in."""

    def submit(self, call: Callable[[], _T]) -> Future[_T]: ...

    def repeat(self, call: Callable[[], object], interval_s: float) -> Callable[[], None]: ...

    def shutdown(self) -> None: ...


class SqlThread:
    """The thread; it starts with the first use and ends after `shutdown`."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._repeated: list[_Repeated] = []
        self._guard = threading.Lock()
        # A daemon: a process that is about to end does not wait for somebody to close its store.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._is_started = False
        self._is_shut_down = False

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        """Run it after all that were submitted before; raises RuntimeError after `shutdown`."""
        future: Future[_T] = Future()
        self._enqueue((future, call))
        return future

    def repeat(self, call: Callable[[], object], interval_s: float) -> Callable[[], None]:
        """Call it every interval until the returned function is called, which any thread may do."""
        repeated = _Repeated(call, interval_s, time.monotonic() + interval_s)
        with self._guard:
            self._repeated.append(repeated)
        # Wakes the thread, which then waits no longer than until this one is due.
        self._enqueue((Future(), lambda: None))

        def stop() -> None:
            with self._guard:
                if repeated in self._repeated:
                    self._repeated.remove(repeated)

        return stop

    def shutdown(self) -> None:
        """End the thread once it has run what was submitted; doesn't wait for that."""
        with self._guard:
            self._is_shut_down = True
            self._repeated.clear()
            self._calls.put(None)

    def _enqueue(self, item: tuple[Future[Any], Callable[[], Any]]) -> None:
        with self._guard:
            if self._is_shut_down:
                raise RuntimeError("the thread was shut down")
            if not self._is_started:
                self._is_started = True
                self._thread.start()
            self._calls.put(item)

    def _work(self) -> None:
        while True:
            try:
                item = self._calls.get(timeout=self._seconds_to_next())
            except queue.Empty:
                self._run_due()
                continue
            if item is None:
                return
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - the caller gets it
                    future.set_exception(error)
            # A call may hold on to much, and the next may be long in coming.
            del item, future, call
            self._run_due()

    def _seconds_to_next(self) -> float | None:
        with self._guard:
            due_s = min((repeated.due_s for repeated in self._repeated), default=None)
        return None if due_s is None else max(0.0, due_s - time.monotonic())

    def _run_due(self) -> None:
        now_s = time.monotonic()
        with self._guard:
            due = [repeated for repeated in self._repeated if repeated.due_s <= now_s]
        for repeated in due:
            # Counted from now: beats that were missed are not made up for.
            repeated.due_s = now_s + repeated.interval_s
            try:
                repeated.call()
            except Exception:
                # It is a bug, and must not end the thread that everything else in the store runs on.
                logger.exception("a repeated call of the metadata thread failed")
