"""Clusters in a simulation: three whole brokers, the store between them, and real clients, in one process.

Brokers are killed between any two changes to their files, paused, cut off from each other, from one side only, or from
the store; their disks stall, fill up, fail, or lose what was not flushed; their sessions end early and their clocks are
wrong; replicas are moved and topics changed meanwhile; and no real time passes. What must hold is named in
`cluster_invariants`, and docs/simulation.md says how to run a failing seed again.
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

from cluster_caught import CAUGHT, NOT_CAUGHT, OPEN, RARE
from cluster_invariants import Invariant
from cluster_mistakes import MISTAKES
from cluster_plan import TROUBLES, Plan, Trouble, draw_plan
from cluster_shrink import Shrinking

SEEDS = 300  # `make soak` runs thousands
CHUNK = 30
# The seed that is known to show a mistake comes first; should it not do so any more, one of the next will.
SEEDS_A_MISTAKE = 40
SEEDS_A_RARE_MISTAKE = 1_000

_PROGRAM = Path(__file__).parent / "simulation" / "cluster_seeds.py"


def run_program(base: Path, *arguments: object) -> list[dict[str, Any]]:
    """In a process of its own: the order of Python's sets must not differ from run to run."""
    done = subprocess.run(
        [sys.executable, _PROGRAM, str(base / "run"), *map(str, arguments)],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_seeds(first: int, count: int, base: Path) -> list[dict[str, Any]]:
    rows = run_program(base, "--first", first, "--count", count)
    for row in rows:
        if "failed" in row:
            pytest.fail(f"seed {row['seed']} fails:\n{row['failed']}\nThe smallest plan that does:\n{row['plan']}")
    assert len(rows) == count
    return rows


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_clusters_hold_whatever_happens(first: int, tmp_path: Path) -> None:
    rows = run_seeds(first, CHUNK, tmp_path)
    # A simulation in which nothing happens would hold as well.
    for name in rows[0]:
        assert any(row[name] for row in rows), f"no run has {name}"


@pytest.mark.parametrize("mistake", CAUGHT)
def test_planted_mistakes_are_seen(mistake: str, tmp_path: Path) -> None:
    (row,) = run_program(tmp_path, "--first", CAUGHT[mistake], "--count", SEEDS_A_MISTAKE, "--mistake", mistake)
    assert row["broken"] in set(Invariant)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mistake", RARE)
def test_rare_mistakes_are_seen(mistake: str, tmp_path: Path) -> None:
    (row,) = run_program(tmp_path, "--first", RARE[mistake], "--count", SEEDS_A_RARE_MISTAKE, "--mistake", mistake)
    assert row["broken"] in set(Invariant)


def test_every_mistake_is_caught_or_explained() -> None:
    listed = [*CAUGHT, *RARE, *NOT_CAUGHT, *OPEN]
    assert sorted(listed) == sorted(MISTAKES)


def test_bugs_of_the_past_would_be_seen_again(tmp_path: Path) -> None:
    """Each named run goes well now, and breaks a rule with the bug that once broke it."""
    for row in run_program(tmp_path, "--named"):
        assert "failed" not in row, row["failed"]
        assert row["broken"], f"{row['named']} does not show {row['bug']} any more: find another seed for it"


def test_a_seed_decides_everything(tmp_path: Path) -> None:
    assert run_seeds(0, 3, tmp_path / "one") == run_seeds(0, 3, tmp_path / "other")


def test_a_plan_that_was_written_down_gives_the_same_run(tmp_path: Path) -> None:
    (row,) = run_seeds(5, 1, tmp_path)
    written = tmp_path / "plan.json"
    written.write_text(draw_plan(5).to_json())
    assert Plan.from_json(written.read_text()) == draw_plan(5)
    (again,) = run_program(tmp_path, "--plan", written)
    assert {"seed": 5} | again == row


def test_every_trouble_is_drawn() -> None:
    drawn = {trouble.kind for seed in range(100) for trouble in draw_plan(seed).troubles}
    assert set(TROUBLES) < drawn


def test_shrinking_leaves_what_the_failure_takes() -> None:
    """A failure that takes two of the troubles, in this order, and one application."""
    runs: list[Plan] = []

    def fails(plan: Plan) -> bool:
        runs.append(plan)
        kinds = [trouble.kind for trouble in plan.troubles]
        return "pause" in kinds and "kill" in kinds[kinds.index("pause") :] and plan.copies

    troubles = [Trouble(at_s, TROUBLES[(at_s * 7) % len(TROUBLES)]) for at_s in range(30)]
    plan = Plan(
        seed=1,
        weather={"delay_s": 0.02, "late_share": 0.02},
        store_weather={"lost_share": 0.1},
        trouble_s=60.0,
        writers=(60, 60),
        members=("classic", "consumer"),
        copies=True,
        administers=True,
        troubles=(*troubles, Trouble(31, "pause"), Trouble(32, "kill", node=2)),
    )
    assert fails(plan)
    small = Shrinking(plan, fails).run()
    assert [trouble.kind for trouble in small.troubles] == ["pause", "kill"]
    assert small.copies
    assert not small.administers
    assert small.members == ()
    assert small.writers == (5,)
    assert small.weather == {} == small.store_weather
    assert small.trouble_s <= 33.0
    assert len(runs) <= 151


@pytest.mark.soak
@pytest.mark.timeout(12 * 3600)
def test_thousands_of_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = int(os.environ.get("SIMULATION_SEED", time.time_ns() // 1_000_000))
    count = int(os.environ.get("SIMULATION_SEEDS", "20000"))
    with capsys.disabled():
        print(f"\n{count} runs from SIMULATION_SEED={first} on")
    for start in range(first, first + count, CHUNK):
        run_seeds(start, min(CHUNK, first + count - start), tmp_path)
