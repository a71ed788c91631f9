"""What `tidelog torture` prints and how it ends; the runs themselves are tested with real brokers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidelog.torture.checking
import tidelog.torture.run
from tidelog.cli.main import run
from tidelog.cli.torture import Display, status_text, verdict_lines
from tidelog.torture.errors import TortureError
from tidelog.torture.run import Status
from tidelog.torture.settings import TortureSettings
from tidelog.torture.verdict import (
    Availability,
    Fault,
    ShownAnomaly,
    Verdict,
    WorkloadResult,
    judge,
    write_document,
)

RUN: dict[str, Any] = {
    "seed": 7,
    "cluster": "tidelog-sqlite",
    "version": "Tidelog 0.1.0",
    "start_ns": 0,
    "workloads": ["queue"],
    "fault_seconds": 60.0,
    "ended": "2026-01-31T12:00:00Z",
    "ended_by": "ended after 60 s, as asked",
    "left_out": [{"what": "full-disk", "why": "it takes root"}],
}
QUEUE = WorkloadResult("queue", 1000, {"sends_acknowledged": 1000})
LOST = ShownAnomaly("lost-write", "queue", "queue-0", "value 7\nis gone")


def verdict(*anomalies: ShownAnomaly, acknowledged: int = 1000) -> Verdict:
    found = {"lost-write": 4} if anomalies else {}
    availability = Availability(60, 59, 1, 0.9833, 1.2, 2.0, 12.0, 900.0)
    faults = [Fault("kill", "broker 1", "", 1.0, 2.0), Fault("kill", "broker 2", "", 3.0, 4.0)]
    workload = WorkloadResult("queue", acknowledged, {"sends_acknowledged": acknowledged})
    return judge(RUN, found, anomalies, [workload], faults, availability)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Verdict | Exception], list[TortureSettings]]:
    """Puts a verdict, or an error, in the place of a run; gives the settings of all runs."""
    monkeypatch.chdir(tmp_path)

    def put(outcome: Verdict | Exception) -> list[TortureSettings]:
        asked: list[TortureSettings] = []

        def run_torture(settings: TortureSettings, *_: object) -> Verdict:
            asked.append(settings)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(tidelog.torture.run, "run_torture", run_torture)
        return asked

    return put


def test_a_verdict_is_a_few_plain_lines(capsys: pytest.CaptureFixture[str], runs: Any) -> None:
    runs(verdict())
    assert run(["torture", "--directory", "here", "--seed", "7"]) == 0
    output = capsys.readouterr()
    assert output.out == (
        "No anomaly in 1,000 acknowledged sends and 2 faults.\n"
        "  cluster       tidelog-sqlite, Tidelog 0.1.0\n"
        "  run           seed 7, 1 min 0 s with faults, ended after 60 s, as asked\n"
        "  faults        kill 2\n"
        "  workload      queue: sends acknowledged 1,000\n"
        "  availability  98.33% of all partitions' seconds had an acknowledged write, longest gap 1.2 s, p99 12.0 ms\n"
        "  left out      full-disk: it takes root\n"
        "  report        here/report.html\n"
    )
    assert "seed 7; everything is kept in here" in output.err


def test_anomalies_end_with_1_and_one_example_of_each_kind(capsys: pytest.CaptureFixture[str], runs: Any) -> None:
    runs(verdict(LOST, LOST))
    assert run(["torture"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "ANOMALY" in line]
    assert lines == ["  ANOMALY       lost-write 4; queue queue-0: value 7 is gone"]


@pytest.mark.parametrize(
    ("outcome", "message"),
    [(verdict(acknowledged=0), "Inconclusive"), (TortureError("no root\nhere"), "tidelog: no root here\n")],
)
def test_what_could_not_be_run_ends_with_2(
    capsys: pytest.CaptureFixture[str], runs: Any, outcome: Verdict | Exception, message: str
) -> None:
    runs(outcome)
    assert run(["torture"]) == 2
    output = capsys.readouterr()
    assert message in output.out + output.err


def test_json_is_one_document(capsys: pytest.CaptureFixture[str], runs: Any) -> None:
    runs(verdict(LOST))
    assert run(["torture", "--json", "--directory", "here"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["outcome"] == "anomalies"
    assert document["kinds"] == {"lost-write": 4}
    assert document["anomalies"][0]["detail"] == "value 7\nis gone"
    assert document["availability"]["share"] == 0.9833
    assert document["run"]["seed"] == 7
    assert document["report"] == "here/report.html"


def test_options_become_settings(runs: Any) -> None:
    asked = runs(verdict())
    line = "torture --cluster kafka --brokers 5 --workload queue --fault kill --fault pause --time 1.5h --faults 10"
    more = "--sends 20 --seed 3 --rate 100 --pause 0.5 --directory d --keep"
    assert run([*line.split(), *more.split()]) == 0
    (settings,) = asked
    assert settings == TortureSettings(
        directory=Path("d"), cluster="kafka", brokers=5, workloads=("queue",), faults=("kill", "pause"),
        seconds=5400.0, fault_count=10, send_count=20, seed=3, rate=100.0, pause_s=0.5, keep=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--time", "soon"], "'soon' is not a duration; write 90s, 15m, 2h"),
        (["--bootstrap", "nowhere:x"], "HOST:PORT with a port"),
        (["--bootstrap", "h:1", "--cluster", "kafka"], "leave out --cluster"),
        (["--workload", "queu"], "did you mean queue?"),
        (["--fault", "kil"], "did you mean kill?"),
        (["--pause", "0"], "--pause"),
        (["--seed", "3", "check", "."], "--seed is an option of a run; 'check' does not take it"),
        (["check", "."], "is not the directory of a torture run"),
        (["report", "."], "is not the directory of a torture run"),
        (["check", "missing"], "does not exist"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], runs: Any
) -> None:
    asked = runs(verdict())
    assert run(["torture", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert message in output.err
    assert asked == []


def test_the_report_of_a_kept_run_is_made_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_document(tmp_path / "run.json", RUN)
    write_document(tmp_path / "verdict.json", verdict(LOST).as_data())
    assert run(["torture", "report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    assert "value 7" in (tmp_path / "report.html").read_text()
    assert run(["torture", "report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(tmp_path / "report.html")}


def test_the_lists_name_everything_that_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["torture", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"queue", "transactions", "append", "table", "handover", "copy", "probe"} <= {
        row["name"] for row in rows if row["what"] == "workload"
    }
    assert {"kill", "pause", "cut-halves", "full-disk", "reassign"} <= {
        row["name"] for row in rows if row["what"] == "fault"
    }
    assert all(row["description"] for row in rows)
    assert run(["torture", "--list"]) == 0
    assert "cut-halves" in capsys.readouterr().out


# While it runs


def test_the_status_says_how_far_it_is() -> None:
    status = Status(65.0, 12_345, 1234.4, 9, 1, ("kill broker 2", "slow-link 1"))
    assert status_text(status, 300) == (
        "1 min 5 s of 5 min 0 s, 12,345 acknowledged (1,234/s), 9 read, 1 fault, broken now: kill broker 2, slow-link 1"
    )
    assert (
        status_text(Status(5.0, 0, 0.0, 0, 2, ()), None)
        == "5.00 s, 0 acknowledged (0/s), 0 read, 2 faults, nothing broken now"
    )


def test_without_a_terminal_the_status_is_a_line_every_few_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.cli.torture.STATUS_EVERY_S", 3600.0)
    display = Display(None, None, None)
    display.phase("breaking things")
    display.status(Status(5.0, 0, 0.0, 0, 2, ()))
    monkeypatch.setattr("tidelog.cli.torture.STATUS_EVERY_S", 0.0)
    display.status(Status(6.0, 0, 0.0, 0, 2, ()))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("breaking things")
    assert "2 faults" in lines[1]


def test_lines_of_a_verdict_hold_no_line_breaks_of_a_run() -> None:
    assert all("\n" not in line for line in verdict_lines(verdict(LOST), Path("report.html")))
    assert tidelog.torture.checking.histories_of(Path("/nowhere"), "queue") == []
