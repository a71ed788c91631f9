"""Runs seeds of the cluster simulation in a process of their own, and says of each how it went, in a line of JSON.

What always holds: a seed gives the same run whenever it is run by this program with PYTHONHASHSEED=0, as tests do. A
seed that fails is shrunk: it is run again with fewer kinds of trouble for as long as it still fails.

    PYTHONHASHSEED=0 python tests/chaos/simulation/cluster_seeds.py FIRST COUNT DIRECTORY
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
import warnings
from dataclasses import asdict
from pathlib import Path

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


def main(first: int, count: int, base: Path) -> int:
    # Every kill is followed by lines about it, and what a killed process awaited is never awaited.
    logging.getLogger("tidelog").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore", RuntimeWarning)
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
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
