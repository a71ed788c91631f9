"""Whether the process behind a session still lives: by a file lock it holds, and by the time since the machine booted.

What always holds: a lock ends with the process that took it, however it dies, so a killed owner is noticed at once; the
clock counts while the machine sleeps and is the same for all its processes, so a stopped owner is noticed at its
deadline; a session of an earlier boot is dead. All of this is true on one machine only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_time_ms() -> float:
    """Milliseconds since boot, with the time the machine slept; the same clock in every process."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) / 1_000_000


def boot_id() -> str:
    """A name of this boot of the machine; empty where the system gives none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class HeldLock:
    """A file that is locked for as long as this process lives or until `release`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        while True:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            # Somebody who cleans up may have removed the file between the two calls.
            if path.exists() and path.stat().st_ino == os.fstat(self._fd).st_ino:
                return
            os.close(self._fd)

    def release(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._fd)


def is_lock_held(path: Path) -> bool:
    """Whether somebody holds the lock. A missing file means no: the holder unlinks it before it lets go."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two who ask at the same time do not take each other for the holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
