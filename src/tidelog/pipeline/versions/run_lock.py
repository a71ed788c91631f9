"""The lock that prevents two runs of the same version of a pipeline.

What always holds: it belongs to a process, which loses it however it dies; there are no files to clean up. It doesn't
cover processes on other hosts.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Self

from tidelog.pipeline.errors import AlreadyRunningError

# A process that checks whether the lock is held takes it for a few microseconds.
_ATTEMPTS = 5
_ATTEMPT_INTERVAL_S = 0.01


class RunLock:
    """The lock of `<state>/<pipeline>/v<version>`; use it in a `with` statement.

    A process that runs a version several times, in one role after another, holds the lock `host` all the time.
    """

    def __init__(self, state_dir: str | os.PathLike[str], pipeline: str, version: int, name: str = "lock") -> None:
        self.path = Path(state_dir) / pipeline / f"v{version}" / name
        self._file: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock; returns False if another process, or another lock object of this one, holds it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _lock(file):
            os.close(file)
            return False
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        self._file = file
        return True

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def is_held(self) -> bool:
        """Whether any process holds it now."""
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def holder(self) -> str:
        """The process that took it last."""
        return self.path.read_text().strip() or "?"

    def __enter__(self) -> Self:
        if not self.try_acquire():
            raise AlreadyRunningError(f"another process (pid {self.holder()}) holds {self.path}")
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _lock(file: int) -> bool:
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_ATTEMPT_INTERVAL_S)
        else:
            return True
    return False
