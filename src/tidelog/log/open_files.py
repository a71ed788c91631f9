"""Limits the open log files of a process: the least recently used ones are closed to make room.

What always holds: a file in use (a slice being sent, a flush, a read) stays open until it is released, whatever is
decided here; a log file with unflushed writes is never closed before it is flushed; a process that runs out of
descriptors closes files here and tries again. The limit may be exceeded briefly if files are opened faster than `trim`
runs, or can't be flushed. One list serves all logs of a process, because descriptors are limited per process.

Why unflushed files stay open: Linux reports a failed write-back once to each process that has the file open when it
happens. Someone who opens it later hears of it only if nobody else has, and if the kernel still has the inode in
memory. So a log file that was closed, and reopened for its flush, could be flushed "successfully" without its records
being on disk.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol, TypeVar
from weakref import ReferenceType, ref

logger = logging.getLogger(__name__)

NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})

# Each mapped index is one of the maps that Linux lets a process have (vm.max_map_count, 65,530 by default).
_DEFAULT_LIMIT_MAX = 30_000
_LIMIT_MIN = 16
# How many are closed together, so that the next files to be opened need no check.
_TRIMMED_PART = 8
_FREED_PART = 4
# How many are flushed when the event loop may have to wait for it, at about a millisecond each.
_FLUSHED_AT_ONCE = 8
# Descriptors reserved from connections: for listening sockets, the metadata store, checkpoints being written.
_RESERVED_DESCRIPTORS = 128
_RESERVED_PART = 4
_TOLD_INTERVAL_S = 60.0

OpenedT = TypeVar("OpenedT")


class Holder(Protocol):
    """The owner of an open file: a segment for its log, an index for its map."""

    path: Path
    was_used: bool

    def let_go(self) -> bool:
        """Close the file, unless something in it was not flushed. May be called from any thread."""

    def sync_file(self) -> None:
        """Flush the file, so that it can be closed; raises OSError."""


class OpenFiles:
    """The open files of all logs, roughly by when they were last used."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = default_limit() if limit is None else limit
        # In the order of their turn: whoever was used since their last turn gets another one. A log that nobody has any
        # more takes its files with it.
        self._held: dict[ReferenceType[Holder], None] = {}
        self._guard = threading.Lock()
        self._failures: list[tuple[Path, OSError]] = []
        self._told_s = -_TOLD_INTERVAL_S

    def __len__(self) -> int:
        return len(self._held)

    def set_limit(self, limit: int | None) -> None:
        """Keep at most this many open; None: as many as the process's own limit allows."""
        self.limit = default_limit() if limit is None else limit

    def add(self, holder: Holder) -> None:
        """It has opened its file."""
        holder.was_used = True
        with self._guard:
            self._held[ref(holder)] = None

    def remove(self, holder: Holder) -> None:
        """It has closed its file itself."""
        with self._guard:
            self._held.pop(ref(holder), None)

    @property
    def is_over_limit(self) -> bool:
        return len(self._held) > self.limit

    def trim(self) -> None:
        """Close files until there is room below the limit again. Blocks: unflushed files are flushed first."""
        with self._guard:
            self._held = {reference: None for reference in self._held if reference() is not None}
        if self.is_over_limit:
            self._close(len(self._held) - self.limit + self.limit // _TRIMMED_PART)

    def make_room(self) -> None:
        """Close files because the process can't open any more. Waits for the disk only if all of them need a flush."""
        count = max(1, len(self._held) // _FREED_PART)
        now_s = time.monotonic()
        if now_s - self._told_s > _TOLD_INTERVAL_S:
            self._told_s = now_s
            logger.warning(
                "no file descriptors are left: log files that are not in use are closed for others, which is slow; "
                "raise ulimit -n, or lower max.connections"
            )
        kept = [holder for holder in self._choose(count) if not holder.let_go()]
        for holder in kept:
            self.add(holder)
        if len(kept) == count:
            self._close(min(count, _FLUSHED_AT_ONCE))

    def take_failures(self, directories: Iterable[Path]) -> list[tuple[Path, OSError]]:
        """Log files in these data directories that could not be flushed since the last call."""
        wanted = set(directories)
        with self._guard:
            taken = [failure for failure in self._failures if failure[0].parent.parent in wanted]
            self._failures = [failure for failure in self._failures if failure[0].parent.parent not in wanted]
        return taken

    def leaves_room_for(self, connections: int) -> bool:
        """Whether a process with this many connections has descriptors to spare for another one."""
        allowed = _allowed_descriptors()
        reserved = min(_RESERVED_DESCRIPTORS, allowed // _RESERVED_PART)
        return connections + len(self._held) + reserved < allowed

    def _close(self, count: int) -> None:
        for holder in self._choose(count):
            try:
                if not holder.let_go():
                    holder.sync_file()
                    # Written to meanwhile: it is in use, and stays.
                    if not holder.let_go():
                        self.add(holder)
            except OSError as error:
                # Its log must not continue as if nothing had happened: the log manager asks for this.
                logger.error("%s can't be flushed: %s", holder.path, error)
                self.add(holder)
                with self._guard:
                    self._failures.append((holder.path, error))

    def _choose(self, count: int) -> list[Holder]:
        """Take out those that were not used since their last turn."""
        chosen: list[Holder] = []
        with self._guard:
            # Twice around: the first time may only have made all of them unused.
            for reference in (*self._held, *self._held):
                if len(chosen) == count:
                    break
                holder = reference()
                if reference not in self._held:
                    continue
                del self._held[reference]
                if holder is not None and holder.was_used:
                    holder.was_used = False
                    self._held[reference] = None
                elif holder is not None:
                    chosen.append(holder)
        return chosen


def default_limit() -> int:
    """Half of the process's limit: the rest is for connections."""
    return max(_LIMIT_MIN, min(_allowed_descriptors() // 2, _DEFAULT_LIMIT_MAX))


def _allowed_descriptors() -> int:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return allowed if allowed != resource.RLIM_INFINITY else 2 * _DEFAULT_LIMIT_MAX


OPEN_FILES: Final = OpenFiles()


def open_descriptor(path: str | Path, flags: int, mode: int = 0o644) -> int:
    """Like `os.open`, with close-on-exec; if no descriptor is left, it makes room first."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in NO_DESCRIPTORS:
            raise
    OPEN_FILES.make_room()
    return os.open(path, flags | os.O_CLOEXEC, mode)


def with_room(open_it: Callable[[], OpenedT]) -> OpenedT:
    """The function's result; if no descriptor is left, makes room and calls it again."""
    try:
        return open_it()
    except OSError as error:
        if error.errno not in NO_DESCRIPTORS:
            raise
    OPEN_FILES.make_room()
    return open_it()
