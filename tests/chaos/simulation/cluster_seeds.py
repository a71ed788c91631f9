"""Runs clusters of the simulation in a process of their own, and says of each how it went, in a line of JSON.

What always holds: a seed gives the same run whenever it is run by this program with PYTHONHASHSEED=0, as tests do. A
seed that fails is shrunk: its line has the smallest plan that was found to break the same rule.

    cluster_seeds.py DIRECTORY --first 471 --count 1                          seeds, one after another
    cluster_seeds.py DIRECTORY --first 0 --count 100 --mistake never_truncate --shrink
    cluster_seeds.py DIRECTORY --plan PLAN.JSON                               a plan that was written down
    cluster_seeds.py DIRECTORY --named                                        the runs in named_runs.json

With a planted mistake, seeds are run until one fails, which is shrunk only with `--shrink`. A named run is one that a
bug once broke: it is run as the code is now, then with the bug made again.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import traceback
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cluster_invariants import InvariantError
from cluster_mistakes import MISTAKES
from cluster_plan import Plan, draw_plan
from cluster_run import run_plan
from cluster_shrink import shrink

_FRAMES_SHOWN = -3
NAMED_RUNS = Path(__file__).parent / "named_runs.json"


def run_one(plan: Plan, base: Path) -> dict[str, Any]:
    """How it went: what it has seen, or how it failed."""
    try:
        return asdict(run_plan(plan, base))
    except Exception as error:  # noqa: BLE001 - a row says how it failed, whatever it was
        named = {"broken": str(error.invariant)} if isinstance(error, InvariantError) else {}
        return {"failed": traceback.format_exc(limit=_FRAMES_SHOWN)} | named


def run_seeds(first: int, count: int, base: Path, *, until_one_fails: bool, shrinks: bool) -> int:
    """Returns how many failed."""
    failed = 0
    for seed in range(first, first + count):
        began_s = time.perf_counter()
        row = run_one(draw_plan(seed), base)
        took_s = time.perf_counter() - began_s
        if "failed" in row:
            failed += 1
            if shrinks:
                row["plan"] = asdict(shrink(draw_plan(seed), base))
            print(json.dumps({"seed": seed, "took_s": round(took_s, 2)} | row), flush=True)
            if until_one_fails:
                return failed
        elif not until_one_fails:
            print(json.dumps({"seed": seed} | row), flush=True)
    return failed


def run_named(base: Path) -> int:
    """Returns how many did not go as they should: well by themselves, and badly with their bug."""
    failed = 0
    for run in json.loads(NAMED_RUNS.read_text()):
        plan = Plan.from_json(json.dumps(run["plan"]))
        row: dict[str, Any] = {"named": run["name"], "bug": run["bug"]}
        sound = run_one(plan, base)
        if "failed" in sound:
            row["failed"] = sound["failed"]
        with MISTAKES[run["bug"]].plant():
            row["broken"] = run_one(plan, base).get("broken")
        failed += "failed" in row or row["broken"] is None
        print(json.dumps(row), flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="files of brokers, gone at the end")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--mistake", choices=sorted(MISTAKES), help="make it on purpose")
    parser.add_argument("--shrink", action="store_true", help="shrink what a mistake breaks, too")
    parser.add_argument("--plan", type=Path, help="run this plan instead of seeds")
    parser.add_argument("--named", action="store_true", help="run the named runs instead of seeds")
    asked = parser.parse_args()
    planted: AbstractContextManager[Any] = nullcontext() if asked.mistake is None else MISTAKES[asked.mistake].plant()
    with planted:
        if asked.named:
            return min(run_named(asked.directory), 1)
        if asked.plan is not None:
            row = run_one(Plan.from_json(asked.plan.read_text()), asked.directory)
            print(json.dumps(row), flush=True)
            return int("failed" in row)
        failed = run_seeds(
            asked.first,
            asked.count,
            asked.directory,
            until_one_fails=asked.mistake is not None,
            shrinks=asked.shrink or asked.mistake is None,
        )
    return min(failed, 1)


if __name__ == "__main__":
    # Every kill is followed by lines about it, and what a killed process awaited is never awaited.
    logging.getLogger("tidelog").setLevel(logging.CRITICAL + 1)
    warnings.simplefilter("ignore", RuntimeWarning)
    sys.exit(main())
