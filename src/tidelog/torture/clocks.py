"""Wall clocks that jump: a process is started with a small library that makes its wall clock wrong by what a file says.

What always holds: only the wall clock of that one process is wrong; its monotonic clock, by which timers run, and the
times of its files are right, as on a machine whose time is set by hand or by NTP. A jump counts at once. The library is
compiled from `wall_clock.c`, so it takes a C compiler. libfaketime is not used: where only the wall clock shall be
wrong, its release 0.9.10 has `time.sleep` fail in Python, and timed waits return at once in Java.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidelog.torture.errors import TortureError

_SOURCE: Final = Path(__file__).with_name("wall_clock.c")
_NS: Final = struct.Struct("=q")
_NS_PER_S: Final = 1_000_000_000


class ClockError(TortureError):
    """Clocks can't be made to jump; the text says why."""


def reason_against_clocks() -> str | None:
    """Why clocks can't be made to jump here, and what to do about it; None if they can."""
    if shutil.which("cc") is None:
        return "it takes a C compiler, and cc was not found: install gcc and libc6-dev"
    return None


class WallClock:
    """The wall clock of the processes that are started with its `prefix`."""

    def __init__(self, directory: Path, name: str) -> None:
        self._library = directory / "wall_clock.so"
        self._file = directory / name

    def start(self) -> None:
        """Make what a process needs to be started; the clock is right at first."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        if not self._library.exists():
            _compile(self._library)
        self._file.write_bytes(_NS.pack(0))

    @property
    def prefix(self) -> Sequence[str]:
        """Put before a command, this runs it by this clock."""
        return ["env", f"LD_PRELOAD={self._library.absolute()}", f"WALL_CLOCK_FILE={self._file.absolute()}"]

    @property
    def wrong_by_s(self) -> float:
        wrong_by_ns: int = _NS.unpack(self._file.read_bytes())[0]
        return wrong_by_ns / _NS_PER_S

    def jump(self, wrong_by_s: float) -> None:
        """From now on the clock is that much ahead, or behind if it is negative; 0 puts it right."""
        # In place and at once, as the processes have the file mapped.
        descriptor = os.open(self._file, os.O_WRONLY)
        try:
            os.pwrite(descriptor, _NS.pack(round(wrong_by_s * _NS_PER_S)), 0)
        finally:
            os.close(descriptor)


def _compile(library: Path) -> None:
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl", "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ClockError(f"cc could not compile {_SOURCE.name}: {done.stderr.strip()}; install libc6-dev")
