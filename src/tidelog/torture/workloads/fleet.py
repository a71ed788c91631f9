"""The worker processes of a workload: started, watched, killed, started again, and ended.

What always holds: every process has a session of its own and ends with this one, because its input does; a history
belongs to one process, so a worker that is started again has another name; nothing but these processes is ever killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog.common.interruption import undisturbed
from tidelog.torture.workers.progress_page import Phase, WorkerProgress, read_page
from tidelog.torture.workers.worker import ENDED_OK, RESTART
from tidelog.torture.workloads.place import Progress, WorkloadError

# Clients get this long to close when a worker is told to end; after that it is killed, and has noted all that counts.
_END_S: Final = 10.0
_RESTART_PAUSE_S: Final = 1.0
# A worker that fails so often in a row without getting anything done never will.
_FRUITLESS_MAX: Final = 10
_LOG_BYTES: Final = 3_000
_POLL_S: Final = 0.05


@dataclass(frozen=True)
class Identity:
    """What is new each time that a worker is started."""

    name: str
    number: int
    history: Path
    progress: Path


@dataclass(frozen=True)
class Post:
    """A place in the workload that a worker fills; another one when the first has ended before its time."""

    name: str
    command: Callable[[Identity], list[str]]
    # A client of others that does nothing for so long is started again, as whoever runs such a program would.
    silence_s: float | None = None
    ends_itself: bool = False  # without being told anything


@dataclass
class _Worker:
    post: Post
    identity: Identity
    process: subprocess.Popen[bytes]
    log: Path
    started_s: float
    is_killed: bool = False
    is_done: bool = False  # it ended as it should

    def progress(self) -> WorkerProgress:
        return read_page(self.identity.progress)


@dataclass
class _Filled:
    """A post and the worker that fills it now."""

    post: Post
    worker: _Worker
    starts: int = 1
    fruitless: int = 0
    lines: list[str] = field(default_factory=list)
    restart_at_s: float | None = None


class Fleet:
    """All workers of one workload. Its methods may be called from any thread."""

    def __init__(self, directory: Path, note: Callable[[str], None]) -> None:
        """`note` is told why a worker was started again."""
        self._directory = directory
        self._note = note
        self._lock = threading.RLock()
        self._posts: dict[str, _Filled] = {}
        self._started = 0
        self._restarts = 0
        self._past = WorkerProgress()  # of workers that others have replaced

    # Starting and ending

    def start(self, post: Post) -> None:
        with self._lock:
            if post.name in self._posts:
                raise ValueError(f"there is a worker {post.name} already")
            self._posts[post.name] = _Filled(post, self._launch(post, post.name))

    def _launch(self, post: Post, name: str) -> _Worker:
        self._started += 1
        directory = self._directory
        log = directory / "logs" / f"{post.name}.log"
        for each in (log.parent, directory / "progress"):
            each.mkdir(parents=True, exist_ok=True)
        identity = Identity(name, self._started, directory / f"{name}.jsonl", directory / "progress" / name)
        with log.open("ab") as output, undisturbed():
            process = subprocess.Popen(
                post.command(identity),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return _Worker(post, identity, process, log, time.monotonic())

    def tell(self, line: str, names: Iterable[str] | None = None) -> None:
        """Write a line to these workers, or to all; those that take their places are told it, too."""
        with self._lock:
            for name in list(self._posts if names is None else names):
                filled = self._posts[name]
                filled.lines.append(line)
                _write(filled.worker, line)

    def end(self, names: Iterable[str] | None = None) -> None:
        """End these workers, or all, and wait for it."""
        with self._lock:
            ending = [self._posts[name].worker for name in (self._posts if names is None else names)]
            for worker in ending:
                worker.is_done = True
                _close_input(worker)
        deadline_s = time.monotonic() + _END_S
        for worker in ending:
            try:
                worker.process.wait(max(deadline_s - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                _kill(worker)

    def close(self) -> None:
        """Kill whatever still runs."""
        with self._lock:
            for filled in self._posts.values():
                filled.worker.is_done = True
                _kill(filled.worker)
                _close_input(filled.worker)

    # Watching

    @property
    def running(self) -> list[str]:
        """The posts whose workers have not done all they should."""
        with self._lock:
            return [name for name, filled in self._posts.items() if not filled.worker.is_done]

    def are_done(self, names: Iterable[str]) -> bool:
        with self._lock:
            return all(self._posts[name].worker.is_done for name in names)

    def are_in(self, phase: Phase, names: Iterable[str]) -> bool:
        with self._lock:
            return all(self._posts[name].worker.progress().phase is phase for name in names)

    def progress(self) -> Progress:
        with self._lock:
            pages = [self._past, *(filled.worker.progress() for filled in self._posts.values())]
            return Progress(
                acknowledged=sum(page.acknowledged for page in pages),
                attempted=sum(page.attempted for page in pages),
                failed=sum(page.failed for page in pages),
                read=sum(page.read for page in pages),
                restarts=self._restarts,
                last_moved_ns=max(page.moved_ns for page in pages),
            )

    def moved_ns(self, names: Iterable[str]) -> int:
        """When any of them last got something done."""
        with self._lock:
            return max((self._posts[name].worker.progress().moved_ns for name in names), default=0)

    def describe(self, names: Iterable[str]) -> str:
        """Who of them has done how much, and since when no more; those who have done what they should are left out."""
        now_ns = time.monotonic_ns()
        with self._lock:
            texts = []
            for name in names:
                worker = self._posts[name].worker
                if not worker.is_done:
                    page = worker.progress()
                    silent_s = (now_ns - page.moved_ns) / 1e9 if page.moved_ns else 0.0
                    texts.append(
                        f"{worker.identity.name} ({page.acknowledged:,} sent, {page.read:,} read, "
                        f"silent for {silent_s:.0f} s, log in {worker.log})"
                    )
            return ", ".join(texts)

    def supervise(self) -> None:
        """Start workers again where that is right; raises WorkloadError for one that can't work at all."""
        with self._lock:
            for filled in self._posts.values():
                if filled.restart_at_s is not None:
                    self._restart_when_due(filled)
                elif not filled.worker.is_done:
                    self._look_after(filled)

    def _look_after(self, filled: _Filled) -> None:
        worker = filled.worker
        code = worker.process.poll()
        if code is None:
            if filled.post.silence_s is not None and _silent_s(worker) > filled.post.silence_s:
                _kill(worker)
                self._replace(filled, f"it had done nothing for {filled.post.silence_s:g} s")
        elif code == ENDED_OK and (filled.lines or filled.post.ends_itself):
            worker.is_done = True
            _close_input(worker)
        elif code == RESTART:
            filled.fruitless = 0 if _has_worked(worker) else filled.fruitless + 1
            if filled.fruitless >= _FRUITLESS_MAX:
                raise WorkloadError(
                    f"{worker.identity.name} failed {filled.fruitless} times without getting anything done; "
                    f"the end of {worker.log}:\n{_tail(worker.log)}"
                )
            self._replace(filled, f"its client failed for good: {_last_line(worker.log)}")
        elif worker.is_killed or code == -signal.SIGKILL:
            self._replace(filled, "it was killed")
        else:
            ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            raise WorkloadError(
                f"{worker.identity.name} {ended}, which no cluster should bring about; the end of {worker.log}:\n"
                f"{_tail(worker.log)}"
            )

    def _replace(self, filled: _Filled, why: str) -> None:
        worker = filled.worker
        _close_input(worker)
        page = worker.progress()
        past = self._past
        self._past = WorkerProgress(
            past.acknowledged + page.acknowledged,
            past.attempted + page.attempted,
            past.failed + page.failed,
            past.read + page.read,
            max(past.moved_ns, page.moved_ns),
        )
        worker.identity.progress.unlink(missing_ok=True)  # it counts as past now
        self._note(f"{worker.identity.name} was started again: {why}")
        filled.restart_at_s = max(time.monotonic(), worker.started_s + _RESTART_PAUSE_S)
        self._restart_when_due(filled)

    def _restart_when_due(self, filled: _Filled) -> None:
        if filled.restart_at_s is None or time.monotonic() < filled.restart_at_s:
            return
        filled.restart_at_s = None
        filled.worker = self._launch(filled.post, f"{filled.post.name}.{filled.starts}")
        filled.starts += 1
        self._restarts += 1
        for line in filled.lines:
            _write(filled.worker, line)

    def kill_one(self, rng: random.Random) -> str:
        """Kill -9 of a worker that runs; returns its name, or "" if there is none."""
        with self._lock:
            alive = [
                filled.worker
                for filled in self._posts.values()
                if not filled.worker.is_done and filled.worker.process.poll() is None
            ]
            if not alive:
                return ""
            worker = rng.choice(alive)
            worker.is_killed = True
            _kill(worker)
            return worker.identity.name


def _kill(worker: _Worker) -> None:
    """Kill it and all that it has started."""
    if worker.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.wait()


def _write(worker: _Worker, line: str) -> None:
    stdin = worker.process.stdin
    assert stdin is not None  # it has a pipe
    if stdin.closed:
        return
    try:
        stdin.write(line.encode() + b"\n")
        stdin.flush()
    except BrokenPipeError:
        return  # it has ended, and `supervise` sees to it


def _close_input(worker: _Worker) -> None:
    assert worker.process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        worker.process.stdin.close()


def _silent_s(worker: _Worker) -> float:
    moved_s = worker.progress().moved_ns / 1e9
    return time.monotonic() - max(moved_s, worker.started_s)


def _has_worked(worker: _Worker) -> bool:
    page = worker.progress()
    return page.acknowledged + page.read > 0


def _tail(log: Path) -> str:
    return log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")


def _last_line(log: Path) -> str:
    return next((line for line in reversed(_tail(log).splitlines()) if line.strip()), "it said nothing")
