"""Whether the process behind a session is still alive: by a file lock it holds, and by the time since boot.

What always holds: a lock ends with the process that took it, however it dies, so a killed owner is noticed at once; the
clock keeps counting while the machine sleeps and is the same in all processes, so a stopped owner is noticed at its
deadline; a session from an earlier boot is dead. All of this is true on one machine only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_time_ms() -> float:
    """Milliseconds since boot, including the time the machine slept; the same clock in every process."""
    return time.clock_gettime_ns(_BOOT_CLOCK) / 1_000_000


def boot_id() -> str:
    """An id of the current boot; empty if the system provides none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class HeldLock:
    """A file that stays locked until `release` or until this process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        while True:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            # Another process may have cleaned up the file between the two calls.
            if path.exists() and path.stat().st_ino == os.fstat(self._fd).st_ino:
                return
            os.close(self._fd)

    def release(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._fd)
