"""Shares the event loop between requests that take a lot of work: each runs for a few milliseconds at a time.

What always holds: all of this work together takes at most SLICE_S of a turn of the loop, plus what single steps take
longer than they may. Work starts immediately if the turn has time left, so a small request never waits. Work that has
hardly run yet goes first, then work that has been short so far, then long work; each has a part of every turn that the
others can't take from it. Only one piece of long work runs at a time, in order of arrival, so at
most one large response is being built, and only while there is memory for it (`tidelog.broker.memory`); without memory,
work with little output so far continues. Work whose future is cancelled is dropped. It does not know what the steps do.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tidelog.broker.memory import AnswerMemory
from tidelog.common.steps import Steps

T = TypeVar("T")

# How long this work may take in one turn of the loop. Others wait for at most one such slice, and a turn costs about
# 50 microseconds, so the overhead is small.
SLICE_S = 0.004

# This much of each slice is reserved for short work and as much for long work, so that shorter work can starve neither.
_KEPT_SLICE_S = SLICE_S / 4

# Work that has not used this much CPU time yet goes first: most requests need less, so they wait only this long for
# each other, however many larger ones there are.
FRESH_WORK_S = SLICE_S / 20

# Work is short until it has used this much CPU time or produced this much output; on a busy machine, wall-clock time
# would make everything look long. Output up to this size does not count towards the memory limit, so each connection
# may hold this much beyond it.
SHORT_WORK_S = 0.001
SHORT_WORK_BYTES = 64 * 1024


class AnswerTooLargeError(Exception):
    """A response is larger than all responses together may be."""


class _Work(Generic[T]):
    __slots__ = ("future", "made_bytes", "spent_s", "steps")

    def __init__(self, steps: Steps[T]) -> None:
        self.steps = steps
        self.spent_s = 0.0
        self.made_bytes = 0
        self.future: asyncio.Future[T] | None = None

    @property
    def is_fresh(self) -> bool:
        return self.spent_s < FRESH_WORK_S and self.made_bytes <= SHORT_WORK_BYTES

    @property
    def is_long(self) -> bool:
        return self.spent_s > SHORT_WORK_S or self.made_bytes > SHORT_WORK_BYTES


class Turns:
    """Runs the work of one broker in slices."""

    def __init__(
        self,
        memory: AnswerMemory,
        loop: asyncio.AbstractEventLoop,
        monotonic_s: Callable[[], float] = time.perf_counter,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._memory = memory
        self._loop = loop
        self._monotonic_s = monotonic_s
        self._cpu_s = cpu_s
        self._fresh: deque[_Work[Any]] = deque()
        self._short: deque[_Work[Any]] = deque()
        self._long: deque[_Work[Any]] = deque()
        self._left_s = SLICE_S
        self._is_scheduled = False
        self._is_out_of_memory = False

    @property
    def waiting_count(self) -> int:
        """How many pieces of work are unfinished."""
        return len(self._fresh) + len(self._short) + len(self._long)

    def start(self, steps: Steps[T]) -> asyncio.Future[T]:
        """Start the work; its future is already done if there was time for all of it."""
        work = _Work(steps)
        work.future = self._loop.create_future()
        if self._fresh or self._left_s <= 0 or not self._advance(work, self._left_s):
            self._put_back(work)
        self._schedule()
        return work.future

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._is_scheduled = False
        self._left_s = SLICE_S
        kept_for_long_s = _KEPT_SLICE_S if self._long else 0.0
        kept_for_short_s = _KEPT_SLICE_S if self._short else 0.0
        self._run(self._fresh, kept_for_short_s + kept_for_long_s)
        # A single step may have taken more than there was, if only because the process had to wait for a core.
        self._left_s = max(self._left_s, kept_for_short_s + kept_for_long_s)
        self._run(self._short, kept_for_long_s)
        self._left_s = max(self._left_s, kept_for_long_s)
        self._run_long()
        # The next turn starts with a full budget again, even if there is nothing left to do.
        if self._fresh or self._short or self._left_s < SLICE_S or self._next_long() is not None:
            self._schedule()

    def _run(self, works: deque[_Work[Any]], kept_s: float) -> None:
        while works and self._left_s > kept_s:
            work = works.popleft()
            if not self._advance(work, self._left_s - kept_s):
                self._put_back(work)

    def _put_back(self, work: _Work[Any]) -> None:
        (self._long if work.is_long else self._fresh if work.is_fresh else self._short).append(work)

    def _run_long(self) -> None:
        while self._long and self._left_s > 0:
            number = self._next_long()
            if number is None:
                self._wait_for_memory()
                return
            if self._advance(self._long[number], self._left_s):
                del self._long[number]

    def _next_long(self) -> int | None:
        """The long work to continue: the first with little output, or the first large response if it may grow."""
        is_first_large = True
        for number, work in enumerate(self._long):
            assert work.future is not None  # it was started
            if work.made_bytes <= SHORT_WORK_BYTES or work.future.cancelled():
                return number
            if is_first_large and self._memory.has_room_for(work.made_bytes):
                return number
            is_first_large = False
        return None

    def _wait_for_memory(self) -> None:
        """All long work waits until responses have been sent or their connections closed."""
        if not self._is_out_of_memory:
            self._is_out_of_memory = True
            self._memory.wait(self._long[0].made_bytes, self._on_memory)

    def _on_memory(self) -> None:
        self._is_out_of_memory = False
        if self._long:
            self._schedule()

    def _advance(self, work: _Work[T], time_s: float) -> bool:
        """Run some work for at most this time, or until it turns out to be long; True if it is done."""
        future = work.future
        assert future is not None  # it was started
        if future.cancelled():
            work.steps.close()
            return True
        was_large = work.made_bytes > SHORT_WORK_BYTES
        if not work.is_long:
            others_wait = self._fresh or self._short
            time_s = min(time_s, FRESH_WORK_S if work.is_fresh and others_wait else SHORT_WORK_S)
        started_s, cpu_started_s = self._monotonic_s(), self._cpu_s()
        try:
            while self._monotonic_s() - started_s < time_s:
                work.made_bytes += next(work.steps)
                if work.made_bytes > SHORT_WORK_BYTES:
                    if work.made_bytes > self._memory.bound_bytes:
                        work.steps.close()
                        raise AnswerTooLargeError(f"the answer has more than {self._memory.bound_bytes} bytes")
                    if not was_large or not self._memory.has_room_for(work.made_bytes):
                        break
        except StopIteration as end:
            if not future.done():
                future.set_result(end.value)
            return True
        except Exception as error:  # noqa: BLE001 - whoever waits for the work is told
            if not future.done():
                future.set_exception(error)
            return True
        finally:
            work.spent_s += self._cpu_s() - cpu_started_s
            self._left_s -= self._monotonic_s() - started_s
        return False
