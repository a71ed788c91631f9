"""A torture run from its first broker to its last read: workloads, faults, healing; then the check and the report.

What always holds:
- What is broken is healed before workloads are asked to finish, so a workload that can't finish is a finding and not
  a consequence of a fault that lasts.
- Whatever happened before, all histories are checked and a report is written, unless the run was told twice to end.
- However the run ends, its processes, networks and disks are gone afterwards.
- `run.json` is there from the start, so the histories of a run that was killed can still be checked.

Workloads are supervised from the thread that calls `run_torture`. Faults and waits for the cluster are in threads
beside it, so that it can show progress and take signals at any time.
"""

from __future__ import annotations

import datetime
import os
import platform
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from tidelog import __version__
from tidelog.common.interruption import Interruption, undisturbed
from tidelog.common.watchdog import Watchdog
from tidelog.torture.checking import check_run
from tidelog.torture.errors import TortureError
from tidelog.torture.kept_data import keep_data, remove_data
from tidelog.torture.kinds import NOT_HEALED, REPLICAS_DIFFER, STUCK_CONSUMER, WORKLOAD_FAILED
from tidelog.torture.parts import Parts
from tidelog.torture.report import left_out_by_reason
from tidelog.torture.settings import FOREIGN, NO_FAULTS, TortureSettings
from tidelog.torture.verdict import CLEAN, FAULTS_FILE, HISTORIES_DIRECTORY, RUN_FILE, Verdict, write_document
from tidelog.torture.workloads.place import StuckError

if TYPE_CHECKING:
    from tidelog.torture.cluster import TortureCluster
    from tidelog.torture.nemesis import Nemesis
    from tidelog.torture.workloads import Workload

BROKERS_DIRECTORY: Final = "brokers"
SUPERVISE_S: Final = 1.0
RESTARTS_NOTED_MAX: Final = 200
TICK_S: Final = 0.25
# A run that only counts can end must not go on for ever once nothing is acknowledged any more.
STANDSTILL_S: Final = 300.0
# A thread that is told to end may be in the middle of starting a broker.
THREAD_END_S: Final = 30.0
RATE_WINDOW_S: Final = 5.0

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Status:
    """How far a run is, for whoever watches it."""

    elapsed_s: float
    acknowledged: int
    rate: float  # acknowledged sends a second, over the last few seconds
    read: int
    faults: int
    broken: Sequence[str]


class Ui(Protocol):
    """Whom a run tells how it goes."""

    def phase(self, text: str) -> None:
        """A new part of the run begins."""

    def event(self, text: str) -> None:
        """Something was broken, mended, restarted or found."""

    def progress(self, text: str) -> None:
        """How far a step is; called often."""

    def status(self, status: Status) -> None:
        """How far the run is; called several times a second."""


def run_torture(settings: TortureSettings, ui: Ui, interruption: Interruption, parts: Parts) -> Verdict:
    """Run everything and give the verdict; raises TortureError if it can't be run.

    A first signal in `interruption` ends the faults early; everything after them still happens. A second one raises.
    """
    return _Run(settings, ui, interruption, parts).torture()


class _Run:
    """One run, from its cluster to its verdict."""

    def __init__(self, settings: TortureSettings, ui: Ui, interruption: Interruption, parts: Parts) -> None:
        self._settings = settings
        self._ui = ui
        self._interruption = interruption
        self._parts = parts
        self._random = random.Random(settings.seed)
        self._brokers = settings.directory / BROKERS_DIRECTORY
        self._workloads: list[Workload] = []
        self._started: list[Workload] = []
        self._failed: set[str] = set()
        self._nemesis: Nemesis | None = None
        self._asides: list[_Aside[Any]] = []
        self._began_s = self._breaking_s = time.monotonic()
        self._supervised_s = 0.0
        self._pace = _Pace()
        self._record: dict[str, Any] = {}

    def torture(self) -> Verdict:
        """Do all of it; whatever ends it, everything that was started is ended."""
        held = ExitStack()
        is_kept = self._settings.keep
        try:
            verdict = self._torture(held)
            if is_kept or verdict.outcome != CLEAN:
                is_kept = True
                keep_data(self._brokers)
            return verdict
        except Exception:
            is_kept = True  # what the brokers wrote may say why
            raise
        finally:
            with undisturbed():
                held.close()
                if not is_kept:
                    remove_data(self._brokers)

    def _torture(self, held: ExitStack) -> Verdict:
        settings = self._settings
        cluster = self._parts.make_cluster(settings, self._brokers)
        kinds, left_out = self._possible_faults(cluster)
        names = settings.workloads or self._parts.workload_names
        claim(settings.directory)
        # Ended in the reverse order: once a cluster is closed, nobody can start a server of it again, and threads that
        # wait for one give up.
        held.callback(self._end_asides)
        held.callback(self._close_nemesis)
        held.callback(cluster.close)
        self._ui.phase(f"starting the cluster: {cluster.kind}")
        self._meanwhile("start", cluster.start)
        self._begin_record(cluster, names, kinds, left_out)
        self._start_workloads(cluster, names, held)
        nemesis = self._break_things(cluster, kinds)
        self._heal(nemesis, cluster)
        self._finish_workloads()
        self._remove_topics()
        self._compare_replicas(cluster)
        self._end_record()
        self._ui.phase("checking the histories")
        return check_run(settings.directory, self._ui.event, self._ui.progress, self._parts)

    # What can be done here

    def _possible_faults(self, cluster: TortureCluster) -> tuple[tuple[str, ...], dict[str, str]]:
        """The kinds of faults to use, and those left out with the reasons; one that was asked for must be possible."""
        wanted = self._settings.faults
        if wanted == (NO_FAULTS,):
            return (), {}
        impossible = {kind: why for kind in wanted or self._parts.fault_kinds if (why := cluster.can(kind)) is not None}
        for kind, why in impossible.items():
            if wanted:
                raise TortureError(f"--fault {kind} is not possible here: {why}")
        return tuple(kind for kind in wanted or self._parts.fault_kinds if kind not in impossible), impossible

    # The record of the run

    def _begin_record(
        self, cluster: TortureCluster, names: Sequence[str], kinds: Sequence[str], left_out: Mapping[str, str]
    ) -> None:
        settings = self._settings
        self._record = {
            "seed": settings.seed,
            "cluster": cluster.kind,
            "version": cluster.version,
            "tidelog": __version__,
            "bootstrap": cluster.bootstrap,
            "replication_factor": cluster.replication_factor,
            "min_isr": cluster.min_isr,
            "workloads": [*names],
            "faults": [*kinds],
            "left_out": [],
            "settings": settings.as_data(),
            "command": settings.command,
            "directory": str(settings.directory),
            "machine": {
                "system": f"{platform.system()} {platform.release()}",
                "processor": platform.machine(),
                "cores": f"{os.cpu_count()} cores",
                "python": f"Python {platform.python_version()}",
            },
            "started": _now(),
            "start_ns": time.monotonic_ns(),
            "ended": None,
            "ended_by": None,
            "findings": [],
            "restarts": {},
            "notes": [],
        }
        self._leave_out(left_out)

    def _write_record(self) -> None:
        write_document(self._settings.directory / RUN_FILE, self._record)

    def _end_record(self) -> None:
        """Note the end of the run, and what readers of the report should know of its servers and clients."""
        record, restarted = self._record, []
        for workload in self._workloads:
            record["restarts"][workload.name] = workload.progress().restarts
            restarted += workload.notes.restarts
        record["notes"] += [] if self._nemesis is None else self._nemesis.crashes
        record["restart_notes"] = restarted[:RESTARTS_NOTED_MAX]
        record["ended"] = _now()
        record["total_seconds"] = round(time.monotonic() - self._began_s, 1)
        self._write_record()

    def _find(self, kind: str, workload: str, detail: str) -> None:
        """Note something that went wrong and that no history shows."""
        self._record["findings"].append({"kind": kind, "workload": workload, "detail": detail})
        self._write_record()
        self._ui.event(f"found: {kind}: {f'{workload}: ' if workload else ''}{detail}")

    # Workloads

    def _start_workloads(self, cluster: TortureCluster, names: Sequence[str], held: ExitStack) -> None:
        for name in names:
            self._interruption.check()
            self._ui.phase(f"preparing the workload {name}")
            workload = self._parts.make_workload(name)
            held.callback(workload.close)
            directory = self._settings.directory / HISTORIES_DIRECTORY / name
            seed = self._random.getrandbits(32)
            self._meanwhile(f"prepare-{name}", partial(self._prepare, cluster, workload, directory, seed))
            self._leave_out({f"{name}: {what}": why for what, why in workload.notes.left_out.items()})
            self._workloads.append(workload)
        self._interruption.check()
        self._ui.phase("starting the workloads")
        self._began_s = time.monotonic()
        self._record["start_ns"] = time.monotonic_ns()  # the report counts from here
        self._write_record()
        for workload in self._workloads:
            workload.start()
            self._started.append(workload)

    def _prepare(self, cluster: TortureCluster, workload: Workload, directory: Path, seed: int) -> None:
        workload.prepare(self._parts.place(self._settings, cluster, workload, directory, seed))

    def _leave_out(self, reasons: Mapping[str, str]) -> None:
        """Say and note what this run can't show, and why."""
        added = [{"what": what, "why": why} for what, why in reasons.items()]
        self._record["left_out"] += added
        for why, those in left_out_by_reason(added).items():
            self._ui.event(f"left out: {', '.join(those)}: {why}")
        self._write_record()

    def _supervise(self) -> None:
        """Have workers started again that should be; a workload that can't go on is a finding."""
        now_s = time.monotonic()
        if now_s - self._supervised_s < SUPERVISE_S:
            return
        self._supervised_s = now_s
        for workload in self._started:
            if workload.name in self._failed:
                continue
            try:
                workload.supervise()
            except TortureError as error:
                self._fail(workload, error)

    def _fail(self, workload: Workload, error: TortureError) -> None:
        if workload.name not in self._failed:
            self._failed.add(workload.name)
            self._find(WORKLOAD_FAILED, workload.name, str(error))

    # The parts of the run

    def _break_things(self, cluster: TortureCluster, kinds: Sequence[str]) -> Nemesis | None:
        """Break and mend until it is time to end; without kinds of faults, only wait for that time."""
        ended = threading.Event()
        nemesis = None
        if kinds:
            log = self._settings.directory / FAULTS_FILE
            rng = random.Random(self._random.getrandbits(64))
            nemesis = self._nemesis = self._parts.make_nemesis(
                self._settings, cluster, self._workloads, rng, kinds, log, self._ui.event
            )
        self._ui.phase("breaking things" if nemesis else "running without faults")
        self._breaking_s = time.monotonic()
        work = (lambda: nemesis.run(ended.is_set)) if nemesis else lambda: _wait(ended)
        breaking = self._aside("nemesis", work)
        standstill, reason = Watchdog(STANDSTILL_S), ""
        try:
            while breaking.is_alive() and not (reason := self._reason_to_end(standstill)):
                self._tick()
                breaking.join(TICK_S)
        finally:
            ended.set()
        self._record["ended_by"] = reason
        self._record["fault_seconds"] = round(time.monotonic() - self._breaking_s, 1)
        self._write_record()
        try:
            self._await(breaking)
        except TortureError as error:
            self._record["ended_by"] = "ended early, because the cluster did not come back from a fault"
            self._find(NOT_HEALED, "", str(error))
        return nemesis

    def _reason_to_end(self, standstill: Watchdog) -> str:
        """Why the time of faults is over; nothing while it isn't."""
        settings = self._settings
        acknowledged = self._acknowledged()
        if self._interruption.has_come:
            return "ended early by a signal"
        if len(self._failed) == len(self._workloads):
            return "ended early, because all workloads had failed"
        if settings.seconds is not None and time.monotonic() - self._breaking_s >= settings.seconds:
            return f"ended after {settings.seconds:g} s, as asked"
        counts = [
            (settings.fault_count, self._fault_count, "faults"),
            (settings.send_count, acknowledged, "acknowledged sends"),
        ]
        asked = [(wanted, so_far, noun) for wanted, so_far, noun in counts if wanted]
        if asked and all(so_far >= wanted for wanted, so_far, _ in asked):
            return "ended after " + " and ".join(f"{wanted:,} {noun}" for wanted, _, noun in asked) + ", as asked"
        if standstill.is_standstill(acknowledged):
            return f"ended early, because nothing had been acknowledged for {STANDSTILL_S:.0f} s"
        return ""

    def _heal(self, nemesis: Nemesis | None, cluster: TortureCluster) -> None:
        """Undo all faults and wait until the cluster is whole; what doesn't come back is a finding."""
        self._ui.phase("healing")
        try:
            if nemesis is not None:
                self._meanwhile("heal", nemesis.heal)
            self._ui.phase("waiting until all replicas are in sync")
            self._meanwhile("wait", lambda: cluster.wait_until_healthy(self._ui.event))
        except TortureError as error:
            self._find(NOT_HEALED, "", str(error))

    def _finish_workloads(self) -> None:
        """Let all of them come to their end side by side: they wait for the same cluster."""
        self._ui.phase("finishing the workloads and reading everything back")
        finishing = [(each, self._aside(f"finish-{each.name}", each.finish)) for each in self._workloads]
        for workload, aside in finishing:
            try:
                self._await(aside, supervised=False)
            except StuckError as error:
                self._find(STUCK_CONSUMER, workload.name, str(error))
            except TortureError as error:
                self._fail(workload, error)
        for workload in self._workloads:
            workload.close()

    def _remove_topics(self) -> None:
        """Leave nothing behind in a cluster that goes on living."""
        if self._settings.cluster != FOREIGN:
            return
        self._ui.phase("removing the topics of the run")
        for workload in self._workloads:
            try:
                self._meanwhile(f"remove-{workload.name}", workload.remove_topics, supervised=False)
            except TortureError as error:
                self._record["notes"].append(f"topics of {workload.name} are still there: {error}")

    def _compare_replicas(self, cluster: TortureCluster) -> None:
        self._ui.phase("comparing the replicas")
        for difference in self._meanwhile("compare", cluster.compare_replicas, supervised=False):
            self._find(REPLICAS_DIFFER, "", difference)

    # Threads beside this one

    def _meanwhile(self, name: str, work: Callable[[], ResultT], *, supervised: bool = True) -> ResultT:
        """Do work in a thread, while this one shows progress and takes signals."""
        return self._await(self._aside(name, work), supervised=supervised)

    def _aside(self, name: str, work: Callable[[], ResultT]) -> _Aside[ResultT]:
        aside = _Aside(name, work)
        self._asides.append(aside)
        aside.start()
        return aside

    def _await(self, aside: _Aside[ResultT], *, supervised: bool = True) -> ResultT:
        while aside.is_alive():
            self._tick(supervised=supervised)
            aside.join(TICK_S)
        return aside.result()

    def _end_asides(self) -> None:
        """Give threads that still run a moment: they see that they are to end, or fail as their cluster is gone."""
        deadline_s = time.monotonic() + THREAD_END_S
        for aside in self._asides:
            aside.join(max(0.0, deadline_s - time.monotonic()))

    def _close_nemesis(self) -> None:
        if self._nemesis is not None:
            self._nemesis.close()

    def _tick(self, *, supervised: bool = True) -> None:
        if supervised:
            self._supervise()
        done = [each.progress() for each in self._workloads]
        acknowledged = sum(each.acknowledged for each in done)
        self._ui.status(
            Status(
                elapsed_s=time.monotonic() - self._breaking_s,
                acknowledged=acknowledged,
                rate=self._pace.at(acknowledged),
                read=sum(each.read for each in done),
                faults=self._fault_count,
                broken=self._nemesis.broken if self._nemesis is not None else (),
            )
        )

    @property
    def _fault_count(self) -> int:
        return self._nemesis.count if self._nemesis is not None else 0

    def _acknowledged(self) -> int:
        return sum(each.progress().acknowledged for each in self._workloads)


class _Aside(threading.Thread, Generic[ResultT]):
    """Work in a thread whose result, or error, is asked for by the thread that started it."""

    def __init__(self, name: str, work: Callable[[], ResultT]) -> None:
        super().__init__(name=f"torture-{name}", daemon=True)
        self._work = work
        self._result: list[ResultT] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            self._error = error

    def result(self) -> ResultT:
        if self._error is not None:
            raise self._error
        return self._result[0]


class _Pace:
    """How fast a count grows, over the last few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, count: int) -> float:
        now_s = self._clock()
        self._seen.append((now_s, count))
        while now_s - self._seen[0][0] > RATE_WINDOW_S and len(self._seen) > 2:
            self._seen.popleft()
        first_s, first = self._seen[0]
        return max(0, count - first) / (now_s - first_s) if now_s > first_s else 0.0


def _wait(event: threading.Event) -> None:
    event.wait()


def claim(directory: Path) -> None:
    """Make the directory of a run, which must be new or empty: histories of two runs would be checked as one."""
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise TortureError(f"{directory} is not empty; give a new directory with --directory")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
