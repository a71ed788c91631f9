"""The processes of a demo: a broker as users start it, commands as users type them, and stopping them all.

What always holds: each process has its own session, so that Ctrl-C reaches only the demo, which then stops what it has
started; the children of a process belong to its session and end with it, even if it was killed. Nothing else is ever
killed.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidelog.common.interruption import Interruption

START_DEADLINE_S = 120.0  # of a broker, on a very busy machine
STOP_DEADLINE_S = 10.0
LEFTOVERS_DEADLINE_S = 5.0
POLL_S = 0.1

_PROCESSES = Path("/proc")  # Linux alone tells the sessions of processes there
_LINES_TOLD = 12


class DemoError(Exception):
    """The demo can't continue, or a check failed; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended."""

    command: str
    code: int
    out: str
    log: Path  # what it said on standard error

    def ok(self, *codes: int) -> Finished:
        """Raises DemoError, with the end of the command's log, unless it ended with one of these codes."""
        if self.code not in (codes or (0,)):
            said = f"{self.out}\n{self.log.read_text(encoding='utf-8', errors='replace')}".strip().splitlines()
            raise DemoError("\n".join([f"{self.command} failed with {self.code}:", *said[-_LINES_TOLD:]]))
        return self


class Process:
    """A running process, in its own session."""

    def __init__(self, popen: subprocess.Popen[bytes], command: str, log: Path) -> None:
        self._popen = popen
        self.command = command
        self.log = log

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def read_to_end(self, deadline_s: float, watch: Callable[[], None]) -> tuple[int, str]:
        """The exit code and output of a process; `watch` is called repeatedly in the meantime."""
        assert self._popen.stdout is not None  # it was asked for
        out, end_s = b"", time.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._popen.stdout, selectors.EVENT_READ)
            while True:
                watch()
                if selector.select(POLL_S):
                    piece = os.read(self._popen.stdout.fileno(), 65536)
                    if not piece:
                        break
                    out += piece
                if time.monotonic() > end_s:
                    raise DemoError(f"{self.command} was not done after {deadline_s:.0f} s")
        return self._popen.wait(), out.decode("utf-8", errors="replace")

    def check(self) -> None:
        """Raise DemoError, with the end of its log, if it has ended."""
        code = self._popen.poll()
        if code is not None:
            said = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_LINES_TOLD:]
            raise DemoError("\n".join([f"{self.command} has ended with {code}:", *said]))

    def kill(self) -> None:
        """SIGKILL it and everything it has started."""
        for pid in {self.pid, *_session(self.pid)}:
            _send(pid, signal.SIGKILL)
        self._popen.wait()
        _wait_for_no_one(self.pid)

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> None:
        """SIGTERM, then SIGKILL for what is left after the deadline."""
        if self.is_running:
            self._popen.terminate()
            try:
                self._popen.wait(deadline_s)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
        for pid in _session(self.pid):
            _send(pid, signal.SIGKILL)
        _wait_for_no_one(self.pid)
        if self._popen.stdout is not None:
            self._popen.stdout.close()


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has ended by itself in the meantime


def _session(leader: int) -> list[int]:
    """The processes of a session; none where the system can't tell."""
    if not _PROCESSES.is_dir():
        return []
    found = []
    for entry in _PROCESSES.iterdir():
        if entry.name.isdigit():
            try:
                state, _parent, _group, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended while we looked
            if int(session) == leader and state != "Z":
                found.append(int(entry.name))
    return found


def _wait_for_no_one(leader: int) -> None:
    """Wait for the end of a session: a killed process holds its files and ports until it is gone."""
    deadline_s = time.monotonic() + LEFTOVERS_DEADLINE_S
    while left := _session(leader):
        if time.monotonic() > deadline_s:
            raise DemoError(f"processes {', '.join(map(str, left))} can't be killed")
        time.sleep(POLL_S / 10)


class Processes:
    """Starts processes with their logs in one directory, and stops those that are still running."""

    def __init__(self, directory: Path, interruption: Interruption) -> None:
        self.directory = directory
        self.interruption = interruption
        self.environment: dict[str, str] = {}
        self._started: list[Process] = []

    def start(self, *arguments: str, log: str, pipe: bool = False) -> Process:
        """Start a tidelog command that keeps running; its output goes to the log, or standard output to a pipe."""
        path = self.directory / log
        with path.open("ab") as file:
            popen = subprocess.Popen(
                [sys.executable, "-m", "tidelog", *arguments],
                cwd=self.directory,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe else file,
                stderr=file,
                start_new_session=True,
            )
        process = Process(popen, f"tidelog {' '.join(arguments)}", path)
        self._started.append(process)
        return process

    def run(
        self, *arguments: str, deadline_s: float, log: str = "commands.log", watch: Callable[[], None] | None = None
    ) -> Finished:
        """Run a tidelog command to its end; `watch` is called repeatedly in the meantime."""

        def watch_both() -> None:
            self.interruption.check()
            if watch is not None:
                watch()

        process = self.start(*arguments, log=log, pipe=True)
        code, out = process.read_to_end(deadline_s, watch_both)
        process.stop()
        self._started.remove(process)
        return Finished(process.command, code, out, process.log)

    def stop_all(self) -> None:
        """Stop them, the last one first: what uses the broker stops before it."""
        for process in reversed(self._started):
            process.stop()
        self._started.clear()

    def let_go(self) -> list[Process]:
        """Leave the running processes to the user, and return them."""
        running = [process for process in self._started if process.is_running]
        self._started.clear()
        return running

    # The broker

    def start_broker(self, data: Path, *settings: str) -> tuple[Process, str, float]:
        """Start a broker on a free port; returns it, its address, and the seconds until it was ready."""
        started_s = time.perf_counter()
        options = [each for setting in settings for each in ("--set", setting)]
        process = self.start("serve", "--listen", "127.0.0.1:0", "--data", str(data), *options, log="broker.log")
        deadline_s = time.monotonic() + START_DEADLINE_S
        while True:
            self.interruption.check()
            said = process.log.read_text(encoding="utf-8", errors="replace")
            ready = re.search(r"ready on (\S+)\n", said)
            if ready is not None:
                return process, ready[1], time.perf_counter() - started_s
            if not process.is_running or time.monotonic() > deadline_s:
                raise DemoError(f"the broker did not start: {(said.strip() or 'it printed nothing').splitlines()[-1]}")
            time.sleep(POLL_S / 10)
