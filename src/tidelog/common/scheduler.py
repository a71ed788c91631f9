"""Recurring work of a broker, on the event loop, by the broker's clock.

What always holds: a task never overlaps itself; a task that raises is logged and runs again at its next time; with a
virtual clock nothing runs until the clock is advanced; after `close` no task runs. One timer serves all tasks,
however many partitions there are, and an idle broker sleeps until the next one is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import field

from tidelog.common.clock import Clock
from tidelog.common.light_dataclass import dataclass

logger = logging.getLogger(__name__)

# Tasks that are due close to each other run in one turn; a virtual clock is looked at again only when it is advanced.
_PAUSE_MIN_S = 0.05
_PAUSE_MAX_S = 60.0


@dataclass(slots=True)
class _Task:
    name: str
    interval_ms: float
    run: Callable[[], Awaitable[None]]
    due_ms: float
    running: asyncio.Task[None] | None = field(default=None)


class Scheduler:
    """Runs coroutines at intervals until it is closed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: list[_Task] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_listening: Callable[[], None] | None = None

    def every(
        self,
        name: str,
        interval_ms: float,
        run: Callable[[], Awaitable[None]],
        *,
        first_after_ms: float | None = None,
    ) -> None:
        """Run it at intervals; the first time after `first_after_ms`, or after the interval."""
        pause_ms = interval_ms if first_after_ms is None else first_after_ms
        self._tasks.append(_Task(name, interval_ms, run, self._clock.monotonic_ms() + pause_ms))

    def start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()

        # A virtual clock may be turned from a test's own thread.
        def wake() -> None:
            loop.call_soon_threadsafe(self._run_due)

        self._stop_listening = self._clock.on_advance(wake)
        self._tick()

    async def close(self) -> None:
        """Start nothing more and wait for what runs: a thread that a task waits for could not be called back."""
        if self._timer is not None:
            self._timer.cancel()
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        self._loop = None
        running = [task.running for task in self._tasks if task.running is not None]
        await asyncio.gather(*running)

    def _tick(self) -> None:
        if self._loop is None:
            return
        self._run_due()
        now_ms = self._clock.monotonic_ms()
        pause_s = min((task.due_ms - now_ms for task in self._tasks), default=0) / 1000
        self._timer = self._loop.call_later(min(max(pause_s, _PAUSE_MIN_S), _PAUSE_MAX_S), self._tick)

    def _run_due(self) -> None:
        if self._loop is None:
            return
        now_ms = self._clock.monotonic_ms()
        for task in self._tasks:
            if task.due_ms <= now_ms and (task.running is None or task.running.done()):
                task.due_ms = now_ms + task.interval_ms
                task.running = self._loop.create_task(self._guard(task))

    async def _guard(self, task: _Task) -> None:
        try:
            await task.run()
        except Exception:  # one failing background task must not end the others
            logger.exception("background task %s failed; it runs again in %.0f ms", task.name, task.interval_ms)
