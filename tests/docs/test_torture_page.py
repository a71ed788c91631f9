"""The page about torture names every workload, fault, anomaly, file and exit code that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidelog.torture.anomalies import KINDS
from tidelog.torture.fault_kinds import FAULT_KINDS
from tidelog.torture.kinds import OF_THE_RUN
from tidelog.torture.verdict import FAULTS_FILE, REPORT_FILE, RUN_FILE, VERDICT_FILE
from tidelog.torture.workloads import WORKLOADS

PAGE = (Path(__file__).parents[2] / "docs" / "torture.md").read_text(encoding="utf-8")


def named_in(heading: str) -> list[str]:
    """What stands in code in the first column of the table below a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize(
    ("heading", "names"),
    [("Workloads", [*WORKLOADS]), ("Faults", [*FAULT_KINDS]), ("Anomalies", [*{*KINDS, *OF_THE_RUN}])],
)
def test_tables_name_all_there_are_and_no_others(heading: str, names: list[str]) -> None:
    assert sorted(named_in(heading)) == sorted(names)


def test_the_files_of_a_run_are_named() -> None:
    assert {REPORT_FILE, VERDICT_FILE, RUN_FILE, FAULTS_FILE} <= set(named_in("What is kept"))
