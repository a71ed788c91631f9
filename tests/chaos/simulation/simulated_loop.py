"""An event loop of simulated processes: a seed decides which of them runs next, and time passes only when none can.

What always holds: everything that is called back belongs to the process that asked for it; within a process callbacks
run in the order in which they became ready, as on any event loop, and between processes in an order that the seed
decides; time moves to the next timer when nobody is ready, and never by itself. Work for threads is done at a moment
of the seed's choosing, in one piece; work for a pool of one thread in the order in which it came. A process that was
killed runs nothing any more, not even what would clean up after it; one that is paused goes on where it was.

It knows neither disks nor networks: those call `schedule`, and tell it by `set_readable` what may be read.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
import sys
import zlib
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar
from unittest import mock
from weakref import WeakKeyDictionary

T = TypeVar("T")

_THREAD_S_MEAN = 0.002
"""How long work for a thread waits and takes, on average."""


_TICK_S = 1e-9
_CLEAN_UPS_MAX = 50

# Which process a task belongs to: one that waits for a task of another process goes on in its own.
_OWNER: contextvars.ContextVar[Process] = contextvars.ContextVar("_OWNER")


class SimulationError(AssertionError):
    """The simulation came to a state that it can't go on from."""


class Process:
    """Something that runs by itself and can die by itself."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        # The machine it runs on: a restarted broker is another process on the same one.
        self.host = host
        # How much longer its work for threads takes than usual, for disks that are slow.
        self.thread_slowness = 1.0
        # Until when work for threads does not begin, and how long the call that just ended must be waited for.
        self.stalled_until_s = 0.0
        self.held_until_s = 0.0
        self.is_alive = True
        self.is_paused = False
        self.ready: deque[asyncio.Handle] = deque()
        self.context = contextvars.copy_context()
        self.context.run(_OWNER.set, self)
        # Told when it is killed, while it still is the one that runs.
        self.on_death: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<{self.name}>"


class SimulatedLoop(asyncio.AbstractEventLoop):
    """All processes of one simulation. Times are seconds since its beginning."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self._time_s = 0.0
        self._timers: list[tuple[float, int, Process, asyncio.Handle]] = []
        self._order = itertools.count()
        self._processes: list[Process] = []
        self._readers: dict[int, tuple[Process, Callable[[], None]]] = {}
        self._readable: dict[int, Callable[[], bool]] = {}
        self._pending_reads: set[int] = set()
        self._single_threads: WeakKeyDictionary[Executor, float] = WeakKeyDictionary()
        self._tasks: list[asyncio.Task[Any]] = []
        self._is_over = False
        self.outside = self.process("outside")
        self.current = self.outside
        self.steps = 0
        # Two runs of one seed have the same.
        self.digest = 0
        self.failures: list[str] = []

    # Processes

    def process(self, name: str, host: str | None = None) -> Process:
        made = Process(name, host or name)
        self._processes.append(made)
        return made

    def spawn(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.create_task(work, context=process.context.copy())

    def kill(self, process: Process) -> None:
        """End it between two of its callbacks, or in the middle of the one that runs."""
        if not process.is_alive:
            return
        process.is_alive = False
        process.ready.clear()
        self._readers = {fd: entry for fd, entry in self._readers.items() if entry[0] is not process}
        self._processes.remove(process)
        for callback in process.on_death:
            try:
                callback()
            except BaseException as error:  # noqa: BLE001 - those who wait for its end are told all the same
                self.failures.append(f"{process}: its end: {error!r}")

    # Running

    def run(self, work: Coroutine[Any, Any, T], limit_s: float, steps_max: int = sys.maxsize) -> T:
        """Run everybody until this is done; raises what it raises, and SimulationError when time or steps are up."""
        asyncio._set_running_loop(self)
        try:
            task = self.spawn(self.outside, work)
            while not task.done():
                if self._time_s > limit_s:
                    raise SimulationError(f"not done after {limit_s:.0f} s of simulated time: {task}")
                if self.steps > steps_max:
                    raise SimulationError(f"not done after {steps_max} steps: {task}")
                self._step()
            return task.result()
        finally:
            asyncio._set_running_loop(None)

    def _step(self) -> None:
        able = [process for process in self._processes if process.ready and not process.is_paused]
        if able:
            process = able[0] if len(able) == 1 else self._random.choice(able)
            handle = process.ready.popleft()
            if not handle.cancelled():
                self._run(process, handle)
            return
        if not self._timers:
            raise SimulationError("everybody waits for something that will not happen")
        due_s, _, process, handle = heapq.heappop(self._timers)
        # On a clock that stands still, who works in milliseconds could wait for ever for the last billionth of one.
        self._time_s = max(self._time_s + _TICK_S, due_s)
        if process.is_alive and not handle.cancelled():
            process.ready.append(handle)

    def _run(self, process: Process, handle: asyncio.Handle) -> None:
        self.steps += 1
        self.digest = zlib.crc32(f"{process.name} {self._time_s:.9f}".encode(), self.digest)
        self.current = process
        try:
            handle._run()
        finally:
            self.current = self.outside
        if process.held_until_s > self._time_s:
            # The loop itself waited for its disk.
            process.is_paused = True
            self.schedule(self.outside, process.held_until_s, setattr, process, "is_paused", False)
        process.held_until_s = 0.0

    def over(self) -> None:
        """Nothing runs any more; what is left in the middle of something ends without effect."""
        self._is_over = True
        self._timers.clear()
        for process in self._processes:
            process.ready.clear()
        asyncio._set_running_loop(self)
        # The dead clean up after themselves after all; whether that works, nobody sees.
        with mock.patch.object(sys, "unraisablehook"):
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio would complain of it
                    _end(task.get_coro())
            self._tasks.clear()
        asyncio._set_running_loop(None)

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._time_s

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]  # simpler than its overloads
        handle = asyncio.Handle(callback, args, self, context)
        process = self.current if context is None else context.get(_OWNER, self.current)
        if process.is_alive and not self._is_over:
            process.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # as above

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]  # as above
        return self.call_at(self._time_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:  # type: ignore[override]  # as above
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._push(when, self.current, handle)
        return handle

    def schedule(self, process: Process, when: float, callback: Callable[..., Any], *args: Any) -> None:
        """Call back in another process at that time."""
        self._push(when, process, asyncio.Handle(callback, args, self, process.context))

    def _push(self, when: float, process: Process, handle: asyncio.Handle) -> None:
        if process.is_alive and not self._is_over:
            heapq.heappush(self._timers, (when, next(self._order), process, handle))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        # Kept, so that what a killed process was doing is not collected, which would run its clean-up.
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # as above
        future = self.create_future()

        process = self.current

        def work() -> None:
            if future.cancelled():
                return
            try:
                end(future.set_result, func(*args))
            except BaseException as error:  # noqa: BLE001 - it is raised where the future is awaited
                end(future.set_exception, error)

        def end(tell: Callable[[Any], None], outcome: Any) -> None:
            held_until_s, process.held_until_s = process.held_until_s, 0.0
            if held_until_s > self._time_s:
                # What it did is done, and the call has not come back yet.
                self.schedule(process, held_until_s, _tell, future, tell, outcome)
            else:
                tell(outcome)

        due_s = self._time_s + self._random.expovariate(1 / _THREAD_S_MEAN) * self.current.thread_slowness
        due_s = max(due_s, process.stalled_until_s)
        if isinstance(executor, ThreadPoolExecutor) and executor._max_workers == 1:
            due_s = max(due_s, self._single_threads.get(executor, 0.0))
            self._single_threads[executor] = due_s
        self.schedule(self.current, due_s, work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.current.is_alive and not self._is_over and (error is None or isinstance(error, Exception)):
            self.failures.append(f"{self.current}: {context.get('message')}: {error!r}")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    # Files that are waited for: simulated sockets

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]  # as above
        assert not args
        number = _number_of(fd)
        self._readers[number] = self.current, callback
        self._look_at(number)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(_number_of(fd), None) is not None

    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]  # as above
        raise SimulationError("simulated sockets take everything at once")

    def remove_writer(self, fd: Any) -> bool:
        return False

    def set_readable(self, fd: int, is_readable: Callable[[], bool]) -> None:
        """Something happened to the file; who waits for it is called for as long as `is_readable` says so."""
        self._readable[fd] = is_readable
        self._look_at(fd)

    def forget(self, fd: int) -> None:
        self._readable.pop(fd, None)
        self._readers.pop(fd, None)

    def _look_at(self, fd: int) -> None:
        entry, is_readable = self._readers.get(fd), self._readable.get(fd)
        if entry is None or is_readable is None or fd in self._pending_reads or not is_readable():
            return
        self._pending_reads.add(fd)
        self.schedule(entry[0], self._time_s, self._read, fd)

    def _read(self, fd: int) -> None:
        self._pending_reads.discard(fd)
        entry, is_readable = self._readers.get(fd), self._readable.get(fd)
        if entry is not None and is_readable is not None and is_readable():
            entry[1]()
            self._look_at(fd)


def _end(work: Any) -> None:
    """Close a coroutine, however often its clean-up waits for something."""
    for _ in range(_CLEAN_UPS_MAX):
        try:
            work.close()
        except RuntimeError:
            continue  # it has ignored its end so far
        except BaseException:  # noqa: BLE001 - what the dead raise, nobody hears
            return
        return


def _tell(future: asyncio.Future[Any], tell: Callable[[Any], None], outcome: Any) -> None:
    if not future.done():
        tell(outcome)


def _number_of(fd: Any) -> int:
    """asyncio takes file descriptors and what has one."""
    return fd if isinstance(fd, int) else int(fd.fileno())
