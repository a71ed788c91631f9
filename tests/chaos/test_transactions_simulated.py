"""Transactions in a simulation: a whole broker, its clients and everything that may go wrong, decided by a seed.

Brokers are killed between any two changes to their files, applications are killed, stopped and woken too late,
connections break, requests arrive late and twice, coordinators load anew; and no real time passes. Each committed
record must be read once and in order, none of another transaction, none without the others of its transaction, and the
offsets that were committed with them must agree. A failure names its seed; with that in TRANSACTION_SEED, and
TRANSACTION_SEEDS=1, the soak test runs it again.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from txn_run import Outcome, run_seed

SEEDS = 100  # `make soak` runs thousands
CHUNK = 20


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Every kill is followed by lines about it, by the thousand."""
    caplog.set_level(logging.CRITICAL, logger="tidelog")


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a killed process leaves its files to the kernel, not to a disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path / "run"
        return
    with tempfile.TemporaryDirectory(prefix="tidelog-txn-", dir=memory) as directory:
        yield Path(directory) / "run"


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_transactions_hold_whatever_happens(first: int, base: Path) -> None:
    outcomes = [run_seed(seed, base) for seed in range(first, first + CHUNK)]
    # A simulation in which nothing happens would hold as well.
    for field in fields(Outcome):
        assert any(getattr(outcome, field.name) for outcome in outcomes), f"no run has {field.name}"
    assert any(outcome.broker_starts > 1 for outcome in outcomes)


def test_a_seed_decides_everything(base: Path) -> None:
    """In another process, where strings have other hashes and files other names, the same happens."""
    program = (
        "import sys, pathlib, txn_run; print(txn_run.run_seed(int(sys.argv[1]), pathlib.Path(sys.argv[2])).digest)"
    )
    for seed in (0, 1, 2):
        done = subprocess.run(
            [sys.executable, "-c", program, str(seed), str(base.with_name("other"))],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": str(seed + 1)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(done.stdout) == run_seed(seed, base).digest


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_thousands_of_seeds(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = int(os.environ.get("TRANSACTION_SEED", time.time_ns() // 1_000_000))
    count = int(os.environ.get("TRANSACTION_SEEDS", "5000"))
    with capsys.disabled():
        print(f"\n{count} runs from TRANSACTION_SEED={first} on")
    for seed in range(first, first + count):
        run_seed(seed, base)
