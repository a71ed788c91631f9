"""A partition's log against a model: random appends, truncations, deletions and compactions, crashed at any call.

Processes end at the n-th call that changes a file, machines go down and forget what was not fsynced, calls fail; after
each start the log must be what the model allows. A failure names its seed and the shortest program that fails alike:
`run_seed(seed, path)` runs it again.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from log_program import run_seed

SEEDS = 240
CHUNK = 30


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Every crash is followed by lines about it, by the thousand."""
    caplog.set_level(logging.CRITICAL, logger="tidelog")


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: the simulation decides what reaches a disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path / "run"
        return
    with tempfile.TemporaryDirectory(prefix="tidelog-model-", dir=memory) as directory:
        yield Path(directory) / "run"


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_the_log_is_what_the_model_allows(first: int, base: Path) -> None:
    for seed in range(first, first + CHUNK):
        run_seed(seed, base)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_thousands_of_programs(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = int(os.environ.get("MODEL_SEED", time.time_ns() // 1_000_000))
    count = int(os.environ.get("MODEL_SEEDS", "10000"))
    with capsys.disabled():
        print(f"\n{count} programs from MODEL_SEED={first} on")
    for seed in range(first, first + count):
        run_seed(seed, base)
