"""Kills simulated processes in the middle of what they write, and lets the disks of their machines fail or fill up.

What always holds: every call by which Python code of a simulated process changes files passes through here, and may be
the last of that process; a write to a log may be done in part first. What the dead still try to change, while their
stack unwinds, is not changed. What was written stays: memory is lost, the kernel is not. SQLite writes by itself: it is
killed between its transactions only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from simulated_disk import CrashError
from simulated_loop import Process, SimulatedLoop

_CHANGES = ("pwrite", "write", "ftruncate", "truncate", "rename", "replace", "unlink", "remove", "mkdir", "rmdir")
_WRITES = ("pwrite", "write")
_TAKE_ROOM = ("pwrite", "write", "mkdir")
_FLUSHES = ("fsync", "fdatasync")


class KillSwitch:
    """Counts what processes change, and ends those whose time has come."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._countdowns: dict[Process, tuple[int, float]] = {}
        # Machines of which the disk refuses what would take room, or everything, with this error.
        self._disk_errors: dict[str, int] = {}
        # Machines on which a flush does not come back before this time.
        self._flushes_end_s: dict[str, float] = {}
        self.mid_write = 0
        self.refused = 0
        self.stalled_flushes = 0

    def kill_at(self, process: Process, changes: int, torn_share: float = 0.0) -> None:
        """Kill it instead of the change after so many, of which this share is done if it is a write to a log."""
        self._countdowns[process] = changes, torn_share

    def break_disk(self, host: str, error: int) -> None:
        """ENOSPC: the disk is full, and names can still be removed or changed. EIO: it fails."""
        self._disk_errors[host] = error

    def stall_flushes(self, host: str, until_s: float) -> None:
        """Flushes are carried out, and those who asked for them hear of it later."""
        self._flushes_end_s[host] = until_s

    def is_full(self, host: str) -> bool:
        return self._disk_errors.get(host) == errno.ENOSPC

    def repair_disks(self) -> None:
        self._disk_errors.clear()
        self._flushes_end_s.clear()

    def spare_all(self) -> None:
        """Nobody is to be killed any more."""
        self._countdowns.clear()

    @contextmanager
    def installed(self) -> Iterator[None]:
        patches = [mock.patch.object(os, name, self._guarded(name)) for name in _CHANGES]
        patches += [mock.patch.object(os, name, self._stalling(name)) for name in _FLUSHES]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()

    def _guarded(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def change(*args: Any, **kwargs: Any) -> Any:
            process = self._loop.current
            if not process.is_alive:
                raise CrashError
            if process in self._countdowns:
                left, torn_share = self._countdowns.pop(process)
                if left == 0:
                    self._kill(process, real if name in _WRITES else None, args, torn_share)
                self._countdowns[process] = left - 1, torn_share
            error = self._disk_errors.get(process.host)
            if error is not None and (error != errno.ENOSPC or name in _TAKE_ROOM):
                self.refused += 1
                raise OSError(error, os.strerror(error))
            return real(*args, **kwargs)

        return change

    def _stalling(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def flush(fd: int) -> Any:
            process = self._loop.current
            until_s = self._flushes_end_s.get(process.host, 0.0)
            if until_s > self._loop.time():
                self.stalled_flushes += 1
                process.held_until_s = until_s
            return real(fd)

        return flush

    def _kill(self, process: Process, write: Callable[..., Any] | None, args: tuple[Any, ...], share: float) -> None:
        if write is not None and os.readlink(f"/proc/self/fd/{args[0]}").endswith(".log"):
            torn = memoryview(args[1])[: int(len(args[1]) * share)]
            if torn:
                write(args[0], torn, *args[2:])
        self.mid_write += 1
        self._loop.kill(process)
        raise CrashError
