"""The tie between a log and the clean that rewrites its segments in a thread: the log cuts it, the thread looks at it.

What always holds: once aborted, a cleaning stays so, and nothing that the thread wrote gets into the log any more. It
knows nothing of files or segments.
"""

from __future__ import annotations

import threading


class CleaningAbortedError(Exception):
    """The log changed under a clean, or the broker stops; what was begun is dropped, and tried again if need be."""


class LogCleaning:
    """One clean of one log."""

    __slots__ = ("_aborted",)

    def __init__(self) -> None:
        self._aborted = threading.Event()

    @property
    def is_aborted(self) -> bool:
        return self._aborted.is_set()

    def abort(self) -> None:
        """Let it end soon. May be called from any thread."""
        self._aborted.set()

    def check(self) -> None:
        if self._aborted.is_set():
            raise CleaningAbortedError("the clean was aborted")

    def wait_ms(self, duration_ms: float) -> None:
        """Let a thread wait, but no longer than until the cleaning is aborted."""
        self._aborted.wait(duration_ms / 1000)
        self.check()
