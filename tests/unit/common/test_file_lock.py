"""Locks on files: one holder at a time, released however the holder ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.common.file_lock import is_locked, locked, try_lock

HOLD = """
import sys
from pathlib import Path
from tidelog.common.file_lock import try_lock
assert try_lock(Path(sys.argv[1])) is not None
print("held", flush=True)
sys.stdin.read()
"""


def test_only_one_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    assert not is_locked(path)
    with locked(path, RuntimeError("busy")):
        assert is_locked(path)
        assert try_lock(path) is None
        with pytest.raises(RuntimeError, match="busy"), locked(path, RuntimeError("busy")):
            pytest.fail("two hold the lock")
    assert not is_locked(path)
    file = try_lock(path)
    assert file is not None
    os.close(file)


def test_a_killed_holder_loses_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert is_locked(path)
        holder.kill()
        holder.wait()
        assert not is_locked(path)
