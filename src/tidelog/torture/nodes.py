"""Servers of a cluster as the nemesis sees them: they are killed, stopped, hung and started again, one by one.

What always holds: a server that was stopped or killed keeps its address, its data and its disk; `start` returns once it
answers, and gives up only when nothing moves. Once a cluster is closed, none of its servers starts any more, so that
nothing is left behind however a run ends. Each server is used by one thread at a time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tidelog.bench.brokers import BrokerProcess, answers
from tidelog.bench.processes import cpu_s_of
from tidelog.client.admin import Admin
from tidelog.common.watchdog import Watchdog
from tidelog.torture.clocks import WallClock
from tidelog.torture.disks import DiskImage
from tidelog.torture.errors import TortureError
from tidelog.torture.zookeeper_ensemble import Ensemble

# On a busy machine a JVM may take a minute to say its first word.
STANDSTILL_S: Final = 120.0
STOP_S: Final = 60.0
_POLL_S: Final = 0.05
_ASK_MS: Final = 3_000
_TAIL_BYTES: Final = 1500
# An idle server uses the processor now and then; one that starts uses it a lot.
_CPU_STEP_S: Final = 3.0


class NodeError(TortureError):
    """A server does not do what it is told; the text says what it said last."""


class ClosedError(TortureError):
    """The cluster is closed, so nothing of it starts any more."""


class Gate:
    """Lets servers be started until it is closed."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._is_closed = False
        self._starting = 0

    def check(self) -> None:
        """Raises ClosedError once it is closed: nobody need wait any more for a server to answer."""
        if self._is_closed:
            raise ClosedError("the cluster is closed")

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Around a start; `close` waits for it."""
        with self._condition:
            self.check()
            self._starting += 1
        try:
            yield
        finally:
            with self._condition:
                self._starting -= 1
                self._condition.notify_all()

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._condition.wait_for(lambda: not self._starting)


def wait_for(
    what: str,
    condition: Callable[[], bool],
    movement: Callable[[], object],
    check: Callable[[], None] = lambda: None,
    standstill_s: float = STANDSTILL_S,
) -> None:
    """Wait for a condition as long as anything moves; `check` raises when waiting is in vain."""
    watchdog = Watchdog(standstill_s)
    while not condition():
        check()
        if watchdog.is_standstill(seen := movement()):
            raise TortureError(f"waited in vain: {what}; for {standstill_s:g} s nothing has changed: {seen}")
        time.sleep(_POLL_S)


class Node(ABC):
    """A server: a broker of a cluster, or a server of its metadata store."""

    name: str
    """Also the name of its network."""

    def __init__(self, name: str, node_id: int) -> None:
        self.name = name
        self.node_id = node_id
        self.disk: DiskImage | None = None
        self.clock: WallClock | None = None
        self.is_paused = False

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """None while it does not run."""

    @property
    def is_up(self) -> bool:
        """Whether its process runs and is not paused."""
        return self.pid is not None and not self.is_paused

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """Of a process that ended by itself; None while it runs, and after it was killed or stopped."""

    def kill(self) -> None:
        """End it as a crash would."""
        self._kill()
        self.is_paused = False

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End it in order, or by force if that takes longer."""
        self.resume()
        self._stop(timeout_s)

    def start(self) -> None:
        """Start it if it does not run, and wait until it answers."""
        self.launch()
        self.wait_until_up()

    @abstractmethod
    def launch(self) -> None:
        """Start it if it does not run, and don't wait: it may need others before it answers."""

    @abstractmethod
    def wait_until_up(self) -> None:
        """Wait until it answers; raises NodeError when it ends instead."""

    @abstractmethod
    def _kill(self) -> None: ...

    @abstractmethod
    def _stop(self, timeout_s: float) -> None: ...

    def pause(self) -> None:
        """Stop it where it is, as if it hung."""
        if (pid := self.pid) is not None:
            os.kill(pid, signal.SIGSTOP)
            self.is_paused = True

    def resume(self) -> None:
        if self.is_paused and (pid := self.pid) is not None:
            os.kill(pid, signal.SIGCONT)
        self.is_paused = False


class BrokerNode(Node):
    """A broker."""

    def __init__(self, name: str, node_id: int, process: BrokerProcess, gate: Gate) -> None:
        super().__init__(name, node_id)
        self.process = process
        self._gate = gate

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process.is_running else None

    @property
    def exit_code(self) -> int | None:
        return self.process.exit_code

    def launch(self) -> None:
        with self._gate.starting():
            if not self.process.is_running:
                self.process.kill()  # puts away what is left of one that ended by itself
                self.process.launch()

    def wait_until_up(self) -> None:
        with Admin(
            bootstrap_servers=self.process.bootstrap, request_timeout_ms=_ASK_MS, default_api_timeout_ms=_ASK_MS
        ) as admin:
            wait_for(f"{self.name} answers", lambda: answers(admin), self._movement, self._check)

    def _movement(self) -> object:
        pid = self.pid
        return self.process.log_path.stat().st_size, None if pid is None else int(cpu_s_of(pid) / _CPU_STEP_S)

    def _check(self) -> None:
        self._gate.check()
        if not self.process.is_running:
            raise NodeError(f"{self.name} ended with exit code {self.exit_code} when it was started:\n{self.tail()}")

    def tail(self) -> str:
        """The end of what it said."""
        return self.process.log_path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")

    def _kill(self) -> None:
        self.process.kill()

    def _stop(self, timeout_s: float) -> None:
        # One that was told to stop and does not is no finding: it may have been cut off from all others.
        with suppress(subprocess.TimeoutExpired):
            self.process.stop(timeout_s)


class StoreNode(Node):
    """A server of a ZooKeeper ensemble."""

    def __init__(self, name: str, number: int, ensemble: Ensemble, gate: Gate) -> None:
        super().__init__(name, number)
        self._ensemble = ensemble
        self._gate = gate

    @property
    def pid(self) -> int | None:
        return self._ensemble.pid_of(self.node_id)

    @property
    def exit_code(self) -> int | None:
        return self._ensemble.exit_code_of(self.node_id)

    def launch(self) -> None:
        with self._gate.starting():
            if self.pid is None:
                self._ensemble.start(self.node_id)

    def wait_until_up(self) -> None:
        """Wait until it serves clients, for which a majority of the servers is needed."""
        wait_for(f"{self.name} serves clients", self._is_serving, self._movement, self._check)

    def _is_serving(self) -> bool:
        return self._ensemble.is_serving(self.node_id)

    def _movement(self) -> object:
        pid = self.pid
        return None if pid is None else int(cpu_s_of(pid) / _CPU_STEP_S)

    def _check(self) -> None:
        self._gate.check()
        if self.pid is None:
            raise NodeError(f"{self.name} ended with exit code {self.exit_code} when it was started")

    def _kill(self) -> None:
        self._ensemble.kill(self.node_id)

    def _stop(self, timeout_s: float) -> None:
        self._ensemble.stop_one(self.node_id, timeout_s)


def start_all(nodes: Iterable[Node]) -> None:
    """Start these, which may need each other, and wait until all of them answer."""
    nodes = list(nodes)
    for node in nodes:
        node.launch()
    for node in nodes:
        node.wait_until_up()
