"""A process whose wall clock jumps, and whose timers and files know nothing of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.torture.clocks import WallClock

# Answers each line with what it knows of the time, and how long two waits of a twentieth of a second took.
PROGRAM = """
import os, sys, threading, time, datetime
for line in sys.stdin:
    began_s = time.monotonic()
    time.sleep(0.05)
    threading.Event().wait(0.05)
    waited_s = time.monotonic() - began_s
    with open(sys.argv[1], "w") as file:
        file.write("x")
    print(time.time(), datetime.datetime.now().timestamp(), time.monotonic(), waited_s, os.stat(sys.argv[1]).st_mtime)
    sys.stdout.flush()
"""
# A busy machine may take its time between the two readings of a clock.
CLOSE_S = 30.0


class Asked:
    """A process that tells what its clocks show."""

    def __init__(self, clock: WallClock, directory: Path) -> None:
        self._process = subprocess.Popen(
            [*clock.prefix, sys.executable, "-c", PROGRAM, str(directory / "file")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self) -> list[float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("now\n")
        self._process.stdin.flush()
        return [float(each) for each in self._process.stdout.readline().split()]

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    clock = WallClock(tmp_path / "clocks", "broker-1")
    clock.start()
    return clock


@pytest.fixture
def asked(clock: WallClock, tmp_path: Path) -> Iterator[Asked]:
    process = Asked(clock, tmp_path)
    yield process
    process.end()


def test_a_clock_jumps_and_is_put_right(clock: WallClock, asked: Asked) -> None:
    for wrong_by_s in (0.0, -3600.5, 2700.0, -0.25, 0.0):
        clock.jump(wrong_by_s)
        assert clock.wrong_by_s == wrong_by_s
        seen_s, seen_as_date_s, monotonic_s, waited_s, file_s = asked.ask()
        assert abs(seen_s - wrong_by_s - time.time()) < CLOSE_S
        assert abs(seen_as_date_s - seen_s) < CLOSE_S
        # Who waits waits as long as it wants, and not for an hour.
        assert 0.1 <= waited_s < CLOSE_S
        assert abs(monotonic_s - time.monotonic()) < CLOSE_S
        assert abs(file_s - time.time()) < CLOSE_S


def test_clocks_are_wrong_one_by_one(clock: WallClock, asked: Asked, tmp_path: Path) -> None:
    other = WallClock(tmp_path / "clocks", "broker-2")
    other.start()
    other.jump(1800)
    assert abs(asked.ask()[0] - time.time()) < CLOSE_S
