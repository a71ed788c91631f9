"""The order of a run, whatever goes wrong in it, with parts that note what they are asked for."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tidelog.torture.run
from tidelog.common.interruption import Interruption
from tidelog.torture.anomalies import Anomaly, Checked
from tidelog.torture.checking import check_run
from tidelog.torture.errors import TortureError
from tidelog.torture.history import OK, Operation
from tidelog.torture.parts import Parts
from tidelog.torture.run import Status, run_torture
from tidelog.torture.settings import TortureSettings
from tidelog.torture.verdict import ANOMALIES, CLEAN, INCONCLUSIVE, Availability, Verdict, read_verdict
from tidelog.torture.workloads.place import Notes as WorkloadNotes
from tidelog.torture.workloads.place import StuckError, WorkloadError

DEADLINE_S = 30.0


class Notes:
    """Who was asked for what, and what each answers: nothing, an error, or what a function does."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.answers: dict[str, Any] = {}
        self.threads: set[threading.Thread] = set()

    def note(self, line: str) -> Any:
        self.lines.append(line)
        self.threads.add(threading.current_thread())
        answer = self.answers.get(line)
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer

    def before(self, first: str, second: str) -> bool:
        return max(self.places(first)) < min(self.places(second))

    def places(self, line: str) -> list[int]:
        found = [place for place, each in enumerate(self.lines) if each == line]
        assert found, f"{line} never happened: {self.lines}"
        return found


@dataclass(frozen=True)
class FakeProgress:
    acknowledged: int
    restarts: int = 2
    read: int = 3


class FakeWorkload:
    def __init__(self, name: str, notes: Notes, acknowledged: int) -> None:
        self.name = name
        self._notes = notes
        self.acknowledged = acknowledged
        self.notes = WorkloadNotes([f"{name}-send-1 was started again"])
        if name == "table":
            self.notes.left_out["copier java"] = "no Java"

    def prepare(self, place: object) -> None:
        self._notes.note(f"prepare {self.name}")

    def start(self) -> None:
        self._notes.note(f"start {self.name}")

    def progress(self) -> FakeProgress:
        return FakeProgress(self.acknowledged)

    def supervise(self) -> None:
        assert f"start {self.name}" in self._notes.lines
        self._notes.note(f"supervise {self.name}")

    def finish(self) -> None:
        self._notes.note(f"finish {self.name}")

    def remove_topics(self) -> None:
        self._notes.note(f"remove {self.name}")

    def close(self) -> None:
        self._notes.note(f"close {self.name}")


class FakeCluster:
    kind = "fake"
    version = "Fake 1"
    bootstrap = "127.0.0.1:1"
    replication_factor = 3
    min_isr = 2

    def __init__(self, notes: Notes, directory: Path) -> None:
        self._notes = notes
        self._directory = directory

    def can(self, kind: str) -> str | None:
        return "it takes root" if kind == "full-disk" else None

    def start(self) -> None:
        """Two brokers; the data of the second one is on a disk that will be gone."""
        disk = self._directory / "disks" / "broker-2"
        for data in (self._directory / "data" / "broker-1", disk):
            data.mkdir(parents=True)
            (data / "00000.log").write_text("records")
        (self._directory / "data" / "broker-2").symlink_to(disk)
        for name in ("broker-1", "broker-2"):
            (self._directory / name).mkdir()
            (self._directory / name / "output.log").write_text("ready")
        self._notes.note("cluster start")

    def wait_until_healthy(self, progress: Callable[[str], None]) -> None:
        self._notes.note("healthy")

    def compare_replicas(self) -> list[str]:
        return self._notes.note("compare") or []

    def close(self) -> None:
        shutil.rmtree(self._directory / "disks", ignore_errors=True)
        self._notes.note("cluster close")


class FakeNemesis:
    count = 7
    broken = ("kill broker 2",)
    crashes = ("broker-3 ended by itself with exit code 1",)

    def __init__(self, notes: Notes, kinds: Sequence[str], log: Path) -> None:
        self._notes = notes
        self.kinds = kinds
        self._log = log

    def run(self, until: Callable[[], bool]) -> None:
        row = {"kind": "kill", "target": "broker 2", "detail": "", "t0": 0, "t1": None}
        self._log.write_text(json.dumps(row) + "\n" + json.dumps(row | {"t1": 10}) + "\n")
        self._notes.note("nemesis run")
        while not until():
            threading.Event().wait(0.001)
        self._notes.note("nemesis ended")

    def heal(self) -> None:
        self._notes.note("heal")

    def close(self) -> None:
        self._notes.note("nemesis close")


class FakeParts(Parts):
    workload_names = ("queue", "table")
    fault_kinds = ("kill", "full-disk")

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.acknowledged = 5
        self.checked: dict[str, list[Anomaly]] = {}
        self.nemesis: FakeNemesis
        self.seeds: list[int] = []

    def make_cluster(self, settings: TortureSettings, directory: Path) -> Any:
        self.notes.note("make cluster")
        return FakeCluster(self.notes, directory)

    def make_workload(self, name: str) -> Any:
        return FakeWorkload(name, self.notes, self.acknowledged)

    def place(self, settings: object, cluster: object, workload: object, directory: Path, seed: int) -> Any:
        self.seeds.append(seed)
        return directory

    def make_nemesis(
        self,
        settings: TortureSettings,
        cluster: object,
        workloads: Sequence[object],
        rng: object,
        kinds: Sequence[str],
        fault_log: Path,
        on_event: Callable[[str], None],
    ) -> Any:
        self.nemesis = FakeNemesis(self.notes, kinds, fault_log)
        return self.nemesis

    def check(self, workload: str, histories: Sequence[Path], progress: Callable[[str], None]) -> Checked:
        self.notes.note(f"check {workload}")
        anomalies = self.checked.get(workload, [])
        found = dict(Counter(each.kind for each in anomalies))
        return Checked(workload, tuple(anomalies), found, {"sends_acknowledged": self.acknowledged}, 0.1)

    def availability(self, histories: Sequence[Path], start_ns: int) -> Availability | None:
        return None


class Silent:
    """Whom nothing is told, who notes it."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.events: list[str] = []
        self.statuses: list[Status] = []

    def phase(self, text: str) -> None:
        self.phases.append(text)

    def event(self, text: str) -> None:
        self.events.append(text)

    def progress(self, text: str) -> None:
        self.events.append(text)

    def status(self, status: Status) -> None:
        self.statuses.append(status)


@dataclass
class Stage:
    """A run and what surrounds it."""

    directory: Path
    notes: Notes
    parts: FakeParts
    ui: Silent

    def run(self, interruption: Interruption | None = None, **given: Any) -> Verdict:
        settings = TortureSettings(directory=self.directory, **{"seconds": 0.01, "seed": 3, **given})
        return run_torture(settings, self.ui, interruption or Interruption(), self.parts)

    @property
    def record(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.directory / "run.json").read_text())
        return document


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(tidelog.torture.run, "TICK_S", 0.005)
    monkeypatch.setattr(tidelog.torture.run, "SUPERVISE_S", 0.0)
    notes = Notes()
    yield Stage(tmp_path / "run", notes, FakeParts(notes), Silent())
    for thread in notes.threads - {threading.current_thread()}:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), thread.name


def test_everything_happens_in_its_order(stage: Stage) -> None:
    verdict = stage.run()
    assert verdict.outcome == CLEAN
    steps = (
        "make cluster", "cluster start", "prepare table", "start queue", "nemesis run", "nemesis ended", "heal",
        "healthy", "finish queue", "close queue", "compare", "check queue", "cluster close",
    )  # fmt: skip
    for first, second in itertools.pairwise(steps):
        assert min(stage.notes.places(first)) < min(stage.notes.places(second)), stage.notes.lines
    assert stage.notes.before("healthy", "finish table")
    assert {"supervise queue", "supervise table"} <= set(stage.notes.lines)
    assert stage.ui.statuses[-1].acknowledged == 10
    assert stage.ui.statuses[-1].read == 6


def test_what_was_run_is_kept(stage: Stage) -> None:
    verdict = stage.run(rate=5.0)
    record = stage.record
    assert record["seed"] == 3
    assert record["settings"]["rate"] == 5.0
    assert record["version"] == "Fake 1"
    assert record["left_out"] == [
        {"what": "full-disk", "why": "it takes root"},
        {"what": "table: copier java", "why": "no Java"},
    ]
    assert record["notes"] == ["broker-3 ended by itself with exit code 1"]
    assert record["restart_notes"] == ["queue-send-1 was started again", "table-send-1 was started again"]
    assert record["restarts"] == {"queue": 2, "table": 2}
    assert record["ended_by"] == "ended after 0.01 s, as asked"
    assert stage.parts.nemesis.kinds == ("kill",)
    assert "left out: full-disk: it takes root" in stage.ui.events
    assert [(fault.kind, fault.end_s is None) for fault in verdict.faults] == [("kill", False)]
    assert read_verdict(stage.directory).as_data() == verdict.as_data()
    report = (stage.directory / "report.html").read_text()
    for told in ("it takes root", "no Java", "broker-3 ended by itself"):
        assert told in report


def test_the_record_is_there_before_anything_is_broken(stage: Stage) -> None:
    seen = []
    stage.notes.answers["start queue"] = lambda: seen.append(stage.record)
    stage.run()
    assert seen[0]["workloads"] == ["queue", "table"]
    assert seen[0]["ended"] is None


def test_a_run_that_was_killed_is_checked_and_not_called_clean(stage: Stage) -> None:
    stage.run()
    record = stage.record | {"ended": None}
    (stage.directory / "run.json").write_text(json.dumps(record))
    verdict = check_run(stage.directory, stage.ui.event, stage.ui.progress, stage.parts)
    assert verdict.outcome == INCONCLUSIVE
    assert "did not come to its end" in verdict.reasons[0]


def test_anomalies_of_histories_reach_the_verdict(stage: Stage) -> None:
    operation = Operation("queue-send-1", "send", OK, 10**9, 2 * 10**9, [["send", "queue-0", list(range(900)), []]])
    stage.parts.checked["queue"] = [Anomaly("lost-write", "queue-0", "value 7 is gone", (operation,))]
    verdict = stage.run()
    assert verdict.outcome == ANOMALIES
    assert verdict.kinds == {"lost-write": 1}
    (shown,) = verdict.anomalies[0].operations
    assert shown.process == "queue-send-1"
    assert len(shown.events) <= 600
    assert verdict.workloads[0].kinds == {"lost-write": 1}


def test_a_workload_that_is_stuck_is_an_anomaly_and_all_is_checked(stage: Stage) -> None:
    stage.notes.answers["finish queue"] = StuckError("queue-poll-1 has not moved for 120 s")
    verdict = stage.run()
    assert verdict.kinds == {"stuck-consumer": 1}
    assert verdict.anomalies[0].workload == "queue"
    assert "queue-poll-1" in verdict.anomalies[0].detail
    assert {"finish table", "check queue", "check table", "compare"} <= set(stage.notes.lines)


def test_what_does_not_heal_is_an_anomaly_and_all_is_checked(stage: Stage) -> None:
    stage.notes.answers["healthy"] = TortureError("orders-0 has 2 of 3 replicas in sync")
    verdict = stage.run()
    assert verdict.kinds == {"not-healed": 1}
    assert {"finish queue", "check queue"} <= set(stage.notes.lines)


def test_a_broker_that_does_not_come_back_ends_the_faults_and_all_is_healed(stage: Stage) -> None:
    stage.notes.answers["nemesis run"] = TortureError("broker 2 did not come back")
    verdict = stage.run(seconds=None, fault_count=10**9)
    assert verdict.kinds == {"not-healed": 1}
    assert "did not come back" in stage.record["ended_by"]
    assert stage.notes.before("heal", "finish queue")


def test_a_fault_in_the_nemesis_itself_is_an_error_and_not_a_finding(stage: Stage) -> None:
    stage.notes.answers["nemesis run"] = ZeroDivisionError("a mistake")
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        stage.run()
    assert stage.notes.before("close queue", "cluster close")


def test_a_workload_that_fails_is_one_anomaly_and_the_others_go_on(stage: Stage) -> None:
    stage.notes.answers["supervise queue"] = WorkloadError("queue-send-1 ended with exit code 1")
    stage.notes.answers["finish queue"] = WorkloadError("queue-send-1 ended with exit code 1")
    stage.notes.answers["supervise table"] = third(lambda: signal.raise_signal(signal.SIGINT))
    with Interruption().caught() as interruption:
        verdict = stage.run(interruption, seconds=None, fault_count=10**9)
    assert verdict.kinds == {"workload-failed": 1}
    assert stage.notes.lines.count("supervise queue") == 1
    assert stage.notes.lines.count("supervise table") >= 3


def test_a_run_ends_when_all_workloads_have_failed(stage: Stage) -> None:
    for name in ("queue", "table"):
        stage.notes.answers[f"supervise {name}"] = WorkloadError("no such module")
    verdict = stage.run(seconds=None, fault_count=10**9)
    assert verdict.kinds == {"workload-failed": 2}
    assert "all workloads had failed" in stage.record["ended_by"]


def test_replicas_that_differ_are_anomalies(stage: Stage) -> None:
    stage.notes.answers["compare"] = lambda: ["orders-0: brokers 1 and 2 differ from offset 7 on"]
    assert stage.run().kinds == {"replicas-differ": 1}


def test_nothing_acknowledged_proves_nothing(stage: Stage) -> None:
    stage.parts.acknowledged = 0
    assert stage.run().outcome == INCONCLUSIVE


@pytest.mark.parametrize(
    ("where", "closed"),
    [
        ("make cluster", []),
        ("cluster start", ["cluster close"]),
        ("prepare table", ["close table", "close queue", "cluster close"]),
        ("start table", ["close table", "close queue", "cluster close"]),
    ],
)
def test_an_error_at_the_start_leaves_nothing_running(stage: Stage, where: str, closed: list[str]) -> None:
    stage.notes.answers[where] = TortureError("no such thing")
    with pytest.raises(TortureError, match="no such thing"):
        stage.run()
    assert [line for line in stage.notes.lines if "close" in line] == closed
    assert "nemesis run" not in stage.notes.lines


def test_an_error_while_cleaning_up_does_not_keep_the_rest_from_it(stage: Stage) -> None:
    stage.notes.answers["prepare table"] = TortureError("no such thing")
    stage.notes.answers["close table"] = OSError("gone")
    with pytest.raises(OSError, match="gone"):
        stage.run()
    assert {"close queue", "cluster close"} <= set(stage.notes.lines)


def test_a_directory_that_holds_something_is_refused(stage: Stage) -> None:
    stage.directory.mkdir()
    (stage.directory / "run.json").write_text("{}")
    with pytest.raises(TortureError, match="not empty; give a new directory"):
        stage.run()
    assert "cluster start" not in stage.notes.lines


def test_a_fault_that_was_asked_for_must_be_possible(stage: Stage) -> None:
    with pytest.raises(TortureError, match="--fault full-disk is not possible here: it takes root"):
        stage.run(faults=("full-disk",))
    assert not stage.directory.exists()


def test_a_foreign_cluster_is_left_without_topics_of_the_run(stage: Stage) -> None:
    stage.notes.answers["remove queue"] = WorkloadError("no answer")
    assert stage.run(cluster="foreign", bootstrap="b:1").outcome == CLEAN
    assert stage.notes.before("finish table", "remove queue")
    assert stage.notes.before("remove table", "compare")
    assert "topics of queue are still there: no answer" in stage.record["notes"]


# The data of the brokers


def data_of(stage: Stage) -> list[str]:
    brokers = stage.directory / "brokers"
    return sorted(str(path.relative_to(brokers)) for path in brokers.rglob("*") if path.is_file())


LOGS = ["broker-1/output.log", "broker-2/output.log"]
ALL = [*LOGS, "data/broker-1/00000.log", "data/broker-2/00000.log"]


def test_only_logs_are_left_of_brokers_when_nothing_was_found(stage: Stage) -> None:
    stage.run()
    assert data_of(stage) == LOGS


def test_the_data_is_kept_when_something_was_found_or_the_user_wants_it(stage: Stage, tmp_path: Path) -> None:
    stage.run(keep=True)
    assert data_of(stage) == ALL
    again = Stage(tmp_path / "again", stage.notes, stage.parts, Silent())
    stage.notes.answers["compare"] = lambda: ["orders-0: brokers 1 and 2 differ from offset 7 on"]
    again.run()
    assert data_of(again) == ALL
    assert not (again.directory / "brokers" / "data" / "broker-2").is_symlink()


def test_a_run_without_faults(stage: Stage) -> None:
    assert stage.run(faults=("none",)).outcome == CLEAN
    assert "nemesis run" not in stage.notes.lines
    assert stage.notes.before("healthy", "finish queue")


@pytest.mark.parametrize(
    ("counts", "ended_by"),
    [
        ({"fault_count": 7, "send_count": 10}, "ended after 7 faults and 10 acknowledged sends, as asked"),
        ({"fault_count": 7}, "ended after 7 faults, as asked"),
        ({"send_count": 9}, "ended after 9 acknowledged sends, as asked"),
    ],
)
def test_counts_end_a_run(stage: Stage, counts: dict[str, Any], ended_by: str) -> None:
    stage.run(seconds=None, **counts)
    assert stage.record["ended_by"] == ended_by


def test_both_counts_must_be_reached(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidelog.torture.run, "STANDSTILL_S", 0.3)
    stage.run(seconds=None, fault_count=7, send_count=11)
    assert stage.record["ended_by"] == "ended early, because nothing had been acknowledged for 0 s"


def test_the_first_signal_ends_the_faults_and_the_rest_still_happens(stage: Stage) -> None:
    stage.notes.answers["supervise queue"] = once(lambda: signal.raise_signal(signal.SIGINT))
    with Interruption().caught() as interruption:
        verdict = stage.run(interruption, seconds=None, fault_count=10**9)
    assert verdict.outcome == CLEAN
    assert "ended early by a signal" in stage.record["ended_by"]
    assert stage.notes.before("heal", "finish queue")
    assert {"compare", "check queue", "cluster close"} <= set(stage.notes.lines)


def test_the_second_signal_stops_at_once_and_cleans_up(stage: Stage) -> None:
    stage.notes.answers["supervise queue"] = lambda: signal.raise_signal(signal.SIGINT)
    with Interruption().caught() as interruption, pytest.raises(KeyboardInterrupt):
        stage.run(interruption, seconds=None, fault_count=10**9)
    assert "finish queue" not in stage.notes.lines
    assert "check queue" not in stage.notes.lines
    assert stage.notes.before("cluster close", "nemesis close")
    assert {"close queue", "close table", "nemesis ended"} <= set(stage.notes.lines)
    assert data_of(stage) == LOGS


def test_a_signal_during_the_start_ends_the_run(stage: Stage) -> None:
    stage.notes.answers["prepare queue"] = once(lambda: signal.raise_signal(signal.SIGTERM))
    with Interruption().caught() as interruption, pytest.raises(SystemExit):
        stage.run(interruption)
    assert "start queue" not in stage.notes.lines
    assert {"close queue", "cluster close"} <= set(stage.notes.lines)


def once(work: Callable[[], None]) -> Callable[[], None]:
    """Does it the first time only."""
    count = itertools.count(1)
    return lambda: work() if next(count) == 1 else None


def third(work: Callable[[], None]) -> Callable[[], None]:
    """Does it the third time only."""
    count = itertools.count(1)
    return lambda: work() if next(count) == 3 else None


def test_the_seed_decides_what_each_workload_and_the_nemesis_draw(stage: Stage, tmp_path: Path) -> None:
    drawn: list[list[int]] = []
    for number, seed in enumerate((5, 5, 6)):
        parts = FakeParts(stage.notes)
        Stage(tmp_path / f"seed-{number}", stage.notes, parts, Silent()).run(seed=seed)
        drawn.append(parts.seeds)
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
