"""`tidelog bench spark` measures: a small run gives every row, and each load counts what it has read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.compat, pytest.mark.timeout(900)]


def test_a_small_run_gives_every_row() -> None:
    command = [sys.executable, "-m", "tidelog", "bench", "spark", "--runs", "2", "--records", "100000", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 11
    assert all(row["tidelog"] > 0 and row["peer"] > 0 for row in rows)
