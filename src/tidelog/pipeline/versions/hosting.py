"""Hosts a version in a process: runs it in the role that the registry assigns, and changes roles during a switch.

What always holds: there is one process per version and state directory (it holds the lock `host`); Spark is started
once, so a version that becomes live continues within seconds; after a run was stopped for a switch, `next_move` decides
what comes next; after any other stop, the process ends.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Protocol

from tidelog.pipeline.declaration import Pipeline
from tidelog.pipeline.versions.position import checkpoint_dir, position_of
from tidelog.pipeline.versions.registry import Registry
from tidelog.pipeline.versions.registry_rows import Role
from tidelog.pipeline.versions.run_lock import RunLock
from tidelog.pipeline.versions.switch_stage import STOP_REASON
from tidelog.pipeline.versions.switching import next_move

_LOOK_S = 0.05


class HostedRun(Protocol):
    """What a host needs from a run; `runner.PipelineRun` implements it."""

    run_id: int | None

    def run(self) -> None: ...
    def request_stop(self) -> None: ...


MakeRun = Callable[[Role], HostedRun]
Around = Callable[[HostedRun, Role], AbstractContextManager[None]]


class Host:
    """Runs a version until it is stopped or another one has taken over.

    around: a context manager around each run, for example for a display or a rate limit.
    """

    def __init__(
        self,
        state_dir: Path,
        pipeline: Pipeline,
        make_run: MakeRun,
        *,
        tell: Callable[[str], None] = lambda text: None,
        around: Around | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._pipeline = pipeline
        self._make_run = make_run
        self._tell = tell
        self._around = around or (lambda run, role: contextlib.nullcontext())
        self._is_stopping = threading.Event()
        self._current: HostedRun | None = None

    def run(self, role: Role, *, handle_signals: bool = False) -> None:
        """Start in this role, and follow switches from there."""
        name, version = self._pipeline.name, self._pipeline.version
        with (
            RunLock(self._state_dir, name, version, "host"),
            Registry(self._state_dir) as registry,
            self._signals() if handle_signals else contextlib.nullcontext(),
        ):
            while self._run_once(registry, role):
                following = self._following(registry, role)
                if following is None:
                    return
                role = following

    def request_stop(self) -> None:
        """Request a stop after the current batch; returns immediately."""
        self._is_stopping.set()
        if self._current is not None:
            self._current.request_stop()

    def _run_once(self, registry: Registry, role: Role) -> bool:
        """Run until the run ends; returns whether it ended for a switch."""
        run = self._current = self._make_run(role)
        if self._is_stopping.is_set():
            return False
        with self._around(run, role):
            run.run()
        self._current = None
        if self._is_stopping.is_set() or run.run_id is None:
            return False
        return registry.run(run.run_id).stop_reason == STOP_REASON

    def _following(self, registry: Registry, role: Role) -> Role | None:
        """Wait until the switch decides about this version: its next role, or None if another one has taken over."""
        name, version = self._pipeline.name, self._pipeline.version
        is_told = False
        while not self._is_stopping.is_set():
            switch, live = registry.open_switch(name), registry.live_version(name)
            at = position_of(checkpoint_dir(self._state_dir, name, version))
            move = next_move(version, role, live, switch, at)
            if move == "end":
                self._tell(f"version {live} of {name} has taken over")
                return None
            if move != "wait":
                return "live" if move == "run-live" else "shadow"
            if not is_told and switch is not None:
                self._tell(f"waiting for the switch from version {switch.from_version} to {switch.to_version}")
                is_told = True
            self._is_stopping.wait(_LOOK_S)
        return None

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            if self._is_stopping.is_set() and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.request_stop()

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
