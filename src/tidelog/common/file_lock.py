"""Locks on files, which end with the process that holds them, however it dies: there is nothing to clean up.

They don't cover processes on other hosts.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A process that checks whether a lock is held takes it for a few microseconds.
_ATTEMPTS = 5
_ATTEMPT_INTERVAL_S = 0.01


def try_lock(path: Path) -> int | None:
    """The locked file's descriptor, which keeps the lock until it is closed; None if somebody else holds the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_ATTEMPT_INTERVAL_S)
        else:
            return file
    os.close(file)
    return None


@contextmanager
def locked(path: Path, busy: Exception) -> Iterator[None]:
    """Hold the lock for the block; raises `busy` if somebody else holds it."""
    file = try_lock(path)
    if file is None:
        raise busy
    try:
        yield
    finally:
        os.close(file)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock. A missing file means no."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two processes checking at the same time don't mistake each other for the holder.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
