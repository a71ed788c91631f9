"""`tidelog torture` as users run it: real brokers, faults that need no root, a verdict, a report, nothing left.

One run serves most tests. It is ended by Ctrl-C once enough has been broken, which has to give a verdict all the same.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tidelog.torture.verdict import REPORT_FILE, VERDICT_FILE

DEADLINE_S = 240.0
COMMAND = (sys.executable, "-m", "tidelog", "torture")
FAULTS = ("--fault", "kill", "--fault", "pause", "--fault", "elect", "--pause", "0.5")
MENDED = 4


class Running:
    """A command that runs; its standard error is read line by line, and nothing of it outlives the test."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        self.told: list[str] = []
        self.seen: dict[int, psutil.Process] = {}

    def wait_for(self, text: str, count: int = 1) -> None:
        """Read until so many lines have the text; the command gives up by itself when nothing moves."""
        assert self.process.stderr is not None
        while sum(text in line for line in self.told) < count:
            line = self.process.stderr.readline()
            assert line, f"ended before {text!r}: {self.told}"
            self.told.append(line)
            self.look()

    def look(self) -> None:
        """Note the processes that it has started."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            self.seen[child.pid] = child

    def interrupt(self) -> None:
        self.look()
        self.process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Exit code and standard output, once it and everything that it had started are gone."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        self.told += err.splitlines()
        _, alive = psutil.wait_procs(self.seen.values(), timeout=DEADLINE_S)
        assert alive == []
        return self.process.returncode, out


@contextmanager
def running(*arguments: str) -> Iterator[Running]:
    command = Running(arguments)
    try:
        yield command
    finally:
        if command.process.poll() is None:
            command.look()
            command.process.kill()
        command.process.communicate()
        for process in command.seen.values():
            if process.is_running():
                process.kill()


@dataclass(frozen=True)
class Run:
    directory: Path
    code: int
    document: dict[str, Any]
    told: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("torture") / "run"
    workloads = ("--workload", "queue", "--workload", "probe", "--rate", "100")
    with running(
        *workloads, *FAULTS, "--time", "1h", "--seed", "3", "--directory", str(directory), "--json"
    ) as command:
        command.wait_for("mended:", MENDED)
        command.interrupt()
        code, out = command.end()
    return Run(directory, code, json.loads(out), "\n".join(command.told))


# A start of three brokers on a busy machine, and what their clients wait for when two of them are gone.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("torture-command")]


def test_a_run_gives_a_verdict(run: Run) -> None:
    assert run.code == 0, run.told
    document = run.document
    assert document["outcome"] == "clean"
    assert document["anomalies"] == []
    assert document["fault_count"] >= MENDED
    assert set(document["fault_kinds"]) <= {"kill", "pause", "elect"}
    assert {each["name"]: each["acknowledged"] > 0 for each in document["workloads"]} == {"queue": True, "probe": True}
    assert 0 < document["availability"]["share"] <= 1
    assert "ended early by a signal" in document["run"]["ended_by"]
    assert document["run"]["seed"] == 3
    assert "ending early" in run.told


def test_what_a_run_leaves(run: Run) -> None:
    assert json.loads((run.directory / VERDICT_FILE).read_text())["outcome"] == "clean"
    page = (run.directory / REPORT_FILE).read_text()
    assert "No anomaly in" in page
    assert "<svg" in page
    faults = [json.loads(line) for line in (run.directory / "faults.jsonl").read_text().splitlines()]
    assert len([row for row in faults if row["t1"] is not None]) == run.document["fault_count"]
    left = [path for path in (run.directory / "brokers").rglob("*") if path.is_file()]
    assert {path.name for path in left} == {"output.log"}, "data is removed where nothing was found"
    assert len(left) == 3


def again(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=DEADLINE_S)
    return done.returncode, done.stdout + done.stderr


def test_kept_histories_are_checked_again(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.directory, copy)
    (copy / VERDICT_FILE).unlink()
    (copy / REPORT_FILE).unlink()
    code, told = again("check", str(copy))
    assert code == 0, told
    assert "No anomaly in" in told
    assert json.loads((copy / VERDICT_FILE).read_text())["kinds"] == {}


def test_a_planted_loss_is_caught(run: Run, tmp_path: Path) -> None:
    """One acknowledged record is taken out of everything that was read back at the end."""
    copy = tmp_path / "copy"
    shutil.copytree(run.directory, copy)
    queue = copy / "histories" / "queue"
    rows = map(json.loads, (queue / "queue-send-0.jsonl").read_text().splitlines())
    _, key, values, _ = next(row[4][0] for row in rows if row[:2] == ["send", "ok"])
    dropped = sum(drop(path, key, values[0]) for path in queue.glob("queue-final*.jsonl"))
    assert dropped == 2, "read committed and uncommitted"
    code, told = again("check", str(copy))
    assert code == 1, told
    assert "lost-write" in told
    found = json.loads((copy / VERDICT_FILE).read_text())
    assert set(found["kinds"]) == {"lost-write"}
    assert {each["key"] for each in found["anomalies"]} == {key}
    page = (copy / REPORT_FILE).read_text()
    assert "lost-write" in page
    assert str(values[0]) in page
    assert again("report", str(copy)) == (0, f"{copy / REPORT_FILE}\n")


def drop(path: Path, key: str, value: int) -> int:
    """Take a value out of what a final read found; returns how often it was there."""
    dropped, rows = 0, [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        for event in row[4]:
            if event[0] == "poll" and event[1] == key and value in event[3]:
                place = event[3].index(value)
                del event[2][place], event[3][place]
                dropped += 1
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return dropped


def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    arguments = ("--workload", "probe", *FAULTS, "--time", "1h", "--directory", str(tmp_path / "run"))
    with running(*arguments) as command:
        command.wait_for("broke:")
        command.interrupt()
        command.wait_for("ending early")
        command.interrupt()
        began_s = time.monotonic()
        code, out = command.end()
        assert code == 130, command.told
        assert out == ""
        assert time.monotonic() - began_s < DEADLINE_S
        assert "stopped before the check" in command.told[-1]
    assert not (tmp_path / "run" / VERDICT_FILE).exists()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["ended"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--bootstrap", "127.0.0.1:1", "--workload", "probe"), "127.0.0.1:1"),
        (("--fault", "kill-store"), "--fault kill-store is not possible here: this cluster has no servers"),
        (("--brokers", "1", "--fault", "kill-two"), "it takes 3 brokers"),
    ],
)
def test_what_can_not_be_run_is_one_line(tmp_path: Path, arguments: Sequence[str], message: str) -> None:
    done = subprocess.run(
        [*COMMAND, *arguments, "--directory", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr.splitlines()[-1]
    assert done.stdout == ""
