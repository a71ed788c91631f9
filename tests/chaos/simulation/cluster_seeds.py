"""Runs seeds of the cluster simulation in a process of their own, and says of each how it went, in a line of JSON.

What always holds: a seed gives the same run whenever it is run by this program with PYTHONHASHSEED=0, as tests do. A
seed that fails is shrunk: it is run again with fewer kinds of trouble for as long as it still fails.

    PYTHONHASHSEED=0 python tests/chaos/simulation/cluster_seeds.py FIRST COUNT DIRECTORY [MISTAKE]

With one of the planted mistakes, seeds are run until one fails, which is not shrunk.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
import warnings
from dataclasses import asdict
from pathlib import Path

from cluster_mistakes import MISTAKES
from cluster_run import NETWORK, STORE, TROUBLES, run_seed


def shrink(seed: int, base: Path) -> list[str]:
    """The kinds of trouble that are left when each that it does not take to fail is left out."""
    without: list[str] = []
    for trouble in (*TROUBLES, NETWORK, STORE):
        try:
            run_seed(seed, base, [*without, trouble])
        except AssertionError:
            without.append(trouble)
    return [trouble for trouble in (*TROUBLES, NETWORK, STORE) if trouble not in without]


def find(mistake: str, first: int, count: int, base: Path) -> int:
    """Make a mistake on purpose, until a seed fails."""
    with MISTAKES[mistake]():
        for seed in range(first, first + count):
            try:
                run_seed(seed, base)
            except AssertionError as error:
                print(json.dumps({"seed": seed, "failed": str(error)}), flush=True)
                return 0
    return 1


def main(first: int, count: int, base: Path) -> int:
    failed = 0
    for seed in range(first, first + count):
        try:
            row = asdict(run_seed(seed, base))
        except BaseException as error:
            if not isinstance(error, Exception):
                raise
            failed += 1
            row = {"failed": traceback.format_exc(limit=-3), "with": shrink(seed, base)}
        print(json.dumps({"seed": seed} | row), flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    # Every kill is followed by lines about it, and what a killed process awaited is never awaited.
    logging.getLogger("tidelog").setLevel(logging.CRITICAL + 1)
    warnings.simplefilter("ignore", RuntimeWarning)
    chosen = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    sys.exit(find(sys.argv[4], *chosen) if len(sys.argv) > 4 else main(*chosen))
