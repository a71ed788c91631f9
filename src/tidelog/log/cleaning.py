"""The link between a log and the thread that is compacting it: the log cuts it, and the thread checks it.

What always holds: once aborted, a compaction stays aborted, and nothing more that the thread wrote gets into the log.
It knows nothing about files or segments.
"""

from __future__ import annotations

import threading


class CleaningAbortedError(Exception):
    """The log changed during a compaction, or the broker is stopping; the work is dropped, and retried if need be."""


class LogCleaning:
    """One compaction of one log."""

    __slots__ = ("_aborted",)

    def __init__(self) -> None:
        self._aborted = threading.Event()

    @property
    def is_aborted(self) -> bool:
        return self._aborted.is_set()

    def abort(self) -> None:
        """Make it end soon. May be called from any thread."""
        self._aborted.set()

    def check(self) -> None:
        if self._aborted.is_set():
            raise CleaningAbortedError("the compaction was aborted")

    def wait_ms(self, duration_ms: float) -> None:
        """Make a thread wait, but only until the compaction is aborted."""
        self._aborted.wait(duration_ms / 1000)
        self.check()
