"""Who goes first, what a row says, and that a comparison leaves no broker behind."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from tidelog.bench import brokers, comparison
from tidelog.bench.brokers import BrokerProcess
from tidelog.bench.comparison import Plan, Quantity, Samples
from tidelog.bench.errors import PlanError
from tidelog.bench.processes import cpu_s_of
from tidelog.bench.report import Row, cells, markdown
from tidelog.bench.workload import Throughput


@pytest.mark.parametrize("runs", [-2, 0, 1, 3])
def test_runs_that_favour_one_side_are_refused(runs: int) -> None:
    with pytest.raises(PlanError, match="even"):
        Plan(runs=runs)


def test_each_side_comes_first_equally_often() -> None:
    order = [comparison.in_turn(["ours", "theirs"], run)[0] for run in range(4)]
    assert order == ["ours", "theirs", "ours", "theirs"]


def test_rows_are_medians_and_say_whether_goals_are_met() -> None:
    ours, theirs = Samples(), Samples()
    for figure in (1.0, 2.0, 9.0):
        ours.add("time", figure)
        theirs.add("time", 3 * figure)
        ours.add_throughput("load", Throughput(1.0, int(figure), 10**9, figure))
        theirs.add_throughput("load", Throughput(1.0, 4, 10**9, 1.0))
    quantities = [
        Quantity("time", "it takes", "s", goal=3.0),
        Quantity("time", "it takes", "s", goal=3.0, limit=2.0),
        Quantity("time", "it takes", "s", limit=2.5),
        *comparison.throughput("load", "it does", 1.5),
    ]
    rows = comparison.rows(quantities, ours, theirs)
    assert [cells(row)[2:] for row in rows] == [
        ("2", "6", "3.00x", "3x", "met"),
        ("2", "6", "3.00x", "3x, below 2", "not met"),
        ("2", "6", "3.00x", "below 2.5", "met"),
        ("2", "4", "0.50x", "1.5x", "not met"),
        ("2", "1", "0.50x", "", ""),
    ]
    table = markdown(rows, "Peer").splitlines()
    assert table[0] == "| what | unit | Tidelog | Peer | ratio | goal |  |"
    assert table[3] == "| it takes | s | 2 | 6 | 3.00x | 3x, below 2 | not met |"
    assert [row.as_data()["met"] for row in rows] == [True, False, True, False, None]


def test_the_cpu_time_of_another_process_is_told_finely() -> None:
    began_s = cpu_s_of(os.getpid())
    deadline_s = time.process_time() + 0.003
    while time.process_time() < deadline_s:
        pass
    assert 0.003 <= cpu_s_of(os.getpid()) - began_s < 1.0
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_s_of(2**22)  # no process has this number


class SleepingBroker(BrokerProcess):
    """Never answers."""

    name = "Sleeper"

    def command(self) -> list[str]:
        return ["sleep", "600"]


def test_a_broker_ends_when_its_start_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = SleepingBroker(tmp_path)
    pids: list[int] = []

    def interrupt(_admin: object) -> bool:
        pids.append(broker.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(brokers, "answers", interrupt)
    with pytest.raises(KeyboardInterrupt):
        broker.start()
    assert not broker.is_running
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.parametrize(
    ("ours", "theirs", "higher_is_better", "ratio"),
    [(2.0, 1.0, True, 2.0), (2.0, 1.0, False, 0.5), (0.0, 0.0, False, 1.0), (0.0, 1.0, False, math.inf)],
)
def test_what_is_too_little_to_be_measured_has_a_ratio(
    ours: float, theirs: float, higher_is_better: bool, ratio: float
) -> None:
    row = Row("idle", "% of a core", ours, theirs, higher_is_better)
    assert row.ratio == ratio
    assert row.as_data()["ratio"] == (ratio if math.isfinite(ratio) else None)
