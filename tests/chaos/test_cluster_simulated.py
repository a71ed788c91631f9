"""Clusters in a simulation: three whole brokers, the store between them, and real clients, in one process.

Brokers are killed between any two changes to their files, paused, cut off from each other, from one side only, or from
the store; their disks fill up, fail, or lose what was not flushed; their sessions end early and their clocks are wrong;
replicas are moved meanwhile; and no real time passes. Nothing committed may change, each epoch has one leader, members
of an ISR have what is committed, what was acknowledged is there once and in order, copies made in transactions are
exact, and once the troubles are over everybody comes to an end. CONTRIBUTING.md says how to run a failing seed again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cluster_mistakes import MISTAKES

SEEDS = 300  # `make soak` runs thousands
CHUNK = 30

_PROGRAM = Path(__file__).parent / "simulation" / "cluster_seeds.py"


def run_program(first: int, count: int, base: Path, *mistake: str) -> list[dict[str, Any]]:
    """In a process of its own: the order of Python's sets must not differ from run to run."""
    done = subprocess.run(
        [sys.executable, _PROGRAM, str(first), str(count), str(base / "run"), *mistake],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for row in rows:
        if "with" in row:
            pytest.fail(f"seed {row['seed']} fails with {row['with']}:\n{row['failed']}")
    assert done.returncode == 0, done.stderr
    return rows


def run_seeds(first: int, count: int, base: Path) -> list[dict[str, Any]]:
    rows = run_program(first, count, base)
    assert len(rows) == count
    return rows


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_clusters_hold_whatever_happens(first: int, tmp_path: Path) -> None:
    rows = run_seeds(first, CHUNK, tmp_path)
    # A simulation in which nothing happens would hold as well.
    for name in rows[0]:
        assert any(row[name] for row in rows), f"no run has {name}"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistakes_are_seen(mistake: str, tmp_path: Path) -> None:
    (row,) = run_program(0, CHUNK, tmp_path, mistake)
    assert row["failed"]


def test_a_seed_decides_everything(tmp_path: Path) -> None:
    assert run_seeds(0, 3, tmp_path / "one") == run_seeds(0, 3, tmp_path / "other")


@pytest.mark.soak
@pytest.mark.timeout(8 * 3600)
def test_thousands_of_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = int(os.environ.get("SIMULATION_SEED", time.time_ns() // 1_000_000))
    count = int(os.environ.get("SIMULATION_SEEDS", "10000"))
    with capsys.disabled():
        print(f"\n{count} runs from SIMULATION_SEED={first} on")
    for start in range(first, first + count, CHUNK):
        run_seeds(start, min(CHUNK, first + count - start), tmp_path)
