"""The lock that prevents two runs of the same version of a pipeline.

What always holds: it belongs to a process, which loses it however it dies; there are no files to clean up. It doesn't
cover processes on other hosts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from tidelog.common.file_lock import is_locked, try_lock
from tidelog.pipeline.errors import AlreadyRunningError


class RunLock:
    """The lock of `<state>/<pipeline>/v<version>`; use it in a `with` statement.

    A process that runs a version several times, in one role after another, holds the lock `host` all the time.
    """

    def __init__(self, state_dir: str | os.PathLike[str], pipeline: str, version: int, name: str = "lock") -> None:
        self.path = Path(state_dir) / pipeline / f"v{version}" / name
        self._file: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock; returns False if another process, or another lock object of this one, holds it."""
        file = try_lock(self.path)
        if file is None:
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
        return is_locked(self.path)

    def holder(self) -> str:
        """The process that took it last."""
        return self.path.read_text().strip() or "?"

    def __enter__(self) -> Self:
        if not self.try_acquire():
            raise AlreadyRunningError(f"another process (pid {self.holder()}) holds {self.path}")
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
