"""A measurement that is told to end leaves neither a broker nor its files behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEADLINE_S = 60.0


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def broker_of(pid: int) -> int | None:
    for child in children_of(pid):
        if b"serve" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
            return child
    return None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_broker_too(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tidelog", "bench", "client", "--directory", str(tmp_path)]
    bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while (broker := broker_of(bench.pid)) is None:
            assert bench.poll() is None
            assert time.monotonic() < deadline_s, "no broker was started"
            time.sleep(0.01)
        bench.send_signal(number)
        _, told = bench.communicate(timeout=DEADLINE_S)
    finally:
        bench.kill()
    assert bench.returncode == 128 + number, told
    assert not Path(f"/proc/{broker}").exists()
    assert list(tmp_path.iterdir()) == []
