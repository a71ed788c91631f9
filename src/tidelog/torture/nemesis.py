"""The nemesis: it breaks things at random, several at once, and keeps to what the cluster promises to survive.

What always holds, unless it is told to be unsafe:
- Whatever is broken is mended after at most some tens of seconds, so majorities, of ZooKeeper's servers as of KRaft's
  controllers, return in time. A majority of ZooKeeper's servers always runs.
- Any number of brokers may be killed or hang at the same time: what they wrote is in the kernel's memory and outlives
  them. Nothing ever takes the power from them.
- At most one disk is full, stalls or fails at a time, and none while a partition has a replica less by reassignment. A
  disk that fails loses what was not flushed, so it fails only when all replicas of all partitions are in sync, and no
  other broker is killed until this one has caught up.
- Clocks are never wrong by as much as makes a broker refuse records or delete them.
- To one server only one thing is done at a time, but networks and clocks may be wrong beside that. There is one cut of
  the network at a time.

Every so many faults it waits until all is mended and the cluster is healthy, so that a cluster that does not recover is
found when it happens. The seed decides which faults are drawn; what they meet depends on the machine.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from tidelog.torture.cluster import TortureCluster
from tidelog.torture.errors import TortureError
from tidelog.torture.faults import Client, Fault, Refused, Scene, draw
from tidelog.torture.nodes import ClosedError, Node, NodeError

AT_ONCE_MAX: Final = 4
CALM_EVERY: Final = 25
# A server that ends when it is started is started again, as whatever watches over servers would do: as long as other
# things are broken, and so many times after that.
_ATTEMPTS: Final = 4
_BETWEEN_ATTEMPTS_S: Final = 0.5
_TICK_S: Final = 0.05


class FaultLog:
    """`faults.jsonl`: a row when a fault begins, with `t1` null, and the same row with its end when it is undone."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def note(self, fault: Fault, detail: str, t0: int, t1: int | None) -> None:
        row = {"kind": fault.kind, "target": fault.target, "detail": detail, "t0": t0, "t1": t1}
        with self._lock:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@dataclass(eq=False)
class _Running:
    """A fault that was begun and not yet undone."""

    fault: Fault
    thread: threading.Thread | None = None
    detail: str = ""
    is_retried: bool = False
    """Whether it could not be undone at first."""

    def __str__(self) -> str:
        return f"{self.fault.kind} {self.fault.target}"


class Nemesis:
    """Breaks a cluster and mends it; used by one thread at a time."""

    def __init__(
        self,
        cluster: TortureCluster,
        workloads: Sequence[Client],
        rng: random.Random,
        kinds: Collection[str],
        mean_pause_s: float,
        fault_log: Path,
        on_event: Callable[[str], None],
        *,
        unsafe: bool = False,
    ) -> None:
        """Between the begins of two faults are `mean_pause_s` on the average; `on_event` is told what is done."""
        if not kinds:
            raise ValueError("a nemesis needs kinds of faults to draw from")
        self._cluster = cluster
        self._clients = workloads
        self._rng = rng
        self._kinds = sorted(kinds)
        self._mean_pause_s = mean_pause_s
        self._log = FaultLog(fault_log)
        self._on_event = on_event
        self._unsafe = unsafe
        self._bag: list[str] = []
        self._running: list[_Running] = []
        self._lock = threading.Lock()
        self._healing = threading.Event()
        self._failures: list[BaseException] = []
        self._since_calm = 0
        self.count = 0
        """How many faults there were; what the cluster refused is none."""
        self.crashes: list[str] = []
        """Servers that ended by themselves, although nothing was done to them."""

    @property
    def broken(self) -> Sequence[str]:
        """What is broken now."""
        with self._lock:
            return [str(each) for each in self._running]

    def run(self, until: Callable[[], bool]) -> None:
        """Break and mend until that is so, which is asked many times a second; what is broken then stays so.

        Raises TortureError when the cluster does not come back from something.
        """
        next_s = time.monotonic() + self._pause_s()
        while not until():
            self._raise_failures()
            self._start_again()
            if self._since_calm >= CALM_EVERY:
                self._calm_down(until)
            elif time.monotonic() >= next_s and len(self._running) < AT_ONCE_MAX:
                self._begin_one()
                next_s = time.monotonic() + self._pause_s()
            time.sleep(_TICK_S)

    def heal(self) -> None:
        """Undo everything at once and wait until all servers answer; raises TortureError if one does not."""
        self._healing.set()
        self._join()
        try:
            self._mend_all()
        finally:
            self._healing.clear()
        self._raise_failures()

    def close(self) -> None:
        """End what still goes on. If anything does, no server of the cluster starts any more: it is to be closed."""
        self._healing.set()
        if self.broken:
            self._cluster.gate.close()
        self._join()
        self._log.close()

    def _pause_s(self) -> float:
        return self._rng.expovariate(1 / self._mean_pause_s) if self._mean_pause_s > 0 else 0.0

    def _raise_failures(self) -> None:
        with self._lock:
            failures, self._failures = self._failures, []
        for failure in failures:
            if isinstance(failure, TortureError):
                raise failure
            raise TortureError(f"a fault could not be made or undone: {failure!r}") from failure

    # Drawing

    def _begin_one(self) -> None:
        """Begin a fault of the next kind that is possible now. All kinds have their turn, if they are possible."""
        fault = self._draw()
        if fault is not None:
            self._begin(fault)

    def _draw(self) -> Fault | None:
        if not self._bag:
            self._bag = self._rng.sample(self._kinds, len(self._kinds))
        scene = Scene(self._cluster, self._clients, self._rng, self._busy(), unsafe=self._unsafe)
        # What is left may have to wait for what is broken now; others go before it meanwhile.
        others = [kind for kind in self._rng.sample(self._kinds, len(self._kinds)) if kind not in self._bag]
        for kind in (*self._bag, *others):
            fault = draw(kind, scene)
            if fault is not None:
                if kind in self._bag:
                    self._bag.remove(kind)
                return fault
        return None

    def _busy(self) -> set[str]:
        with self._lock:
            return {need for each in self._running for need in each.fault.needs}

    def _begin(self, fault: Fault) -> None:
        self._since_calm += 1
        self._spawn(_Running(fault, detail=fault.detail), self._break)

    def _spawn(self, running: _Running, work: Callable[[_Running], None]) -> None:
        thread = threading.Thread(target=self._guard, args=(running, work), name=str(running), daemon=True)
        running.thread = thread
        with self._lock:
            self._running.append(running)
        thread.start()

    # One fault, in its thread

    def _guard(self, running: _Running, work: Callable[[_Running], None]) -> None:
        try:
            work(running)
        except ClosedError:
            pass  # the run is over, and its servers are gone
        except BaseException as error:  # noqa: BLE001 - raised where the nemesis is run
            with self._lock:
                self._failures.append(error)
        finally:
            with self._lock:
                self._running.remove(running)

    def _break(self, running: _Running) -> None:
        fault, t0 = running.fault, time.monotonic_ns()
        try:
            more = fault.begin()
        except Refused as refusal:
            self._on_event(f"{running}: the cluster did not take it: {refusal}")
            return
        except BaseException:
            self._mend(running)
            raise
        running.detail = "; ".join(filter(None, (running.detail, more)))
        self._log.note(fault, running.detail, t0, None)
        with self._lock:
            self.count += 1
        self._on_event(" ".join(filter(None, ("broke:", str(running), running.detail and f"({running.detail})"))))
        try:
            if fault.during is not None:
                fault.during(self._hold)
            else:
                self._hold(fault.hold_s)
        finally:
            self._mend(running)
        self._log.note(fault, running.detail, t0, time.monotonic_ns())
        self._on_event(f"mended: {running}")

    def _hold(self, seconds: float) -> bool:
        return not self._healing.wait(seconds)

    def _mend(self, running: _Running) -> None:
        """Undo it, several times if a server ends when it is started."""
        attempts = 0
        while True:
            try:
                running.fault.end()
                return
            except NodeError as error:
                running.is_retried = True
                attempts += self._are_all_retried()
                if attempts >= _ATTEMPTS:
                    raise
                lines = str(error).splitlines()
                self._on_event(f"starting again: {lines[0]} {lines[-1]}")
            time.sleep(_BETWEEN_ATTEMPTS_S)

    def _are_all_retried(self) -> bool:
        """Whether nothing is broken but what can't be undone."""
        with self._lock:
            return all(each.is_retried for each in self._running)

    # Between faults

    def _start_again(self) -> None:
        """Start servers that ended by themselves, as whatever watches over servers would do."""
        busy = self._busy()
        for node in (*self._cluster.nodes, *self._cluster.store_nodes):
            if node.name not in busy and node.pid is None:
                crash = f"{node.name} ended by itself with exit code {node.exit_code}"
                self.crashes.append(crash)
                self._on_event(crash)
                self._spawn(_Running(_restart(node)), self._mend)

    def _calm_down(self, until: Callable[[], bool]) -> None:
        """Begin nothing until all is mended and the cluster is healthy."""
        if self._running:
            return
        self._since_calm = 0
        self._on_event("waiting until the cluster is healthy")
        began_s = time.monotonic()

        def meanwhile() -> None:
            self._start_again()
            if until():
                raise _OverError

        try:
            self._cluster.wait_until_healthy(self._on_event, meanwhile)
        except _OverError:
            return
        self._on_event(f"healthy after {time.monotonic() - began_s:.1f} s")

    def _join(self) -> None:
        with self._lock:
            threads = [each.thread for each in self._running]
        for thread in threads:
            if thread is not None:
                thread.join()

    def _mend_all(self) -> None:
        """Faults undo themselves; this is for what a fault left that could not."""
        cluster = self._cluster
        if cluster.networks is not None:
            cluster.networks.mend()
        for node in (*cluster.store_nodes, *cluster.nodes):
            node.resume()
            if node.clock is not None:
                node.clock.jump(0)
            if node.disk is not None:
                if node.disk.is_mounted:
                    node.disk.thaw()
                if node.disk.is_broken:
                    node.kill()
                    node.disk.mend_file_system()
                node.disk.make_room()
            node.launch()
        for node in (*cluster.store_nodes, *cluster.nodes):
            node.wait_until_up()


class _OverError(Exception):
    """The time of faults is over, so nobody waits any more."""


def _restart(node: Node) -> Fault:
    return Fault("restart", node.name, frozenset({node.name}), lambda: None, node.start)
