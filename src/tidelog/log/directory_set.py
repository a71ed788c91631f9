"""All data directories of a broker: locked at startup, and given up one by one as their disks fail.

What always holds: a broker starts as long as one directory works. A directory that another process has locked, or that
belongs to another broker, prevents the start, since that is a mistake and not a disk failure. A directory goes offline
once, with one log line that says why and what to do, whichever thread met the error first. It knows the directories,
not the logs in them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tidelog.log.directory import LogDirectory
from tidelog.log.errors import DataDirectoryError, DataDirectoryLockedError, InconsistentClusterIdError

logger = logging.getLogger(__name__)


class DirectorySet:
    """All directories of `log.dirs`."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._by_path = {path: LogDirectory(path, self.fail) for path in paths}
        self._guard = threading.Lock()
        self._listeners: list[Callable[[Path], None]] = []

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._by_path.values())

    def __getitem__(self, path: Path) -> LogDirectory:
        return self._by_path[path]

    @property
    def online(self) -> list[LogDirectory]:
        return [directory for directory in self if directory.offline_reason is None]

    @property
    def has_offline(self) -> bool:
        return any(directory.offline_reason is not None for directory in self)

    # Starting

    def lock(self) -> None:
        """Lock all for this process; raises DataDirectoryError if none can be used, or one belongs to someone else."""
        self.try_each(LogDirectory.lock)

    def unlock(self) -> None:
        for directory in self:
            directory.unlock()

    def identify(self, cluster_id: str, node_id: int) -> None:
        """Check their owner, and claim the new ones."""
        self.try_each(lambda directory: directory.identify(cluster_id, node_id))

    def try_each(self, step: Callable[[LogDirectory], None]) -> None:
        """Run one startup step on every directory; those whose disk fails are left out, unless all fail."""
        failed: list[tuple[LogDirectory, DataDirectoryError]] = []
        for directory in self.online:
            try:
                step(directory)
            except (DataDirectoryLockedError, InconsistentClusterIdError):
                raise
            except DataDirectoryError as error:
                failed.append((directory, error))
        if len(failed) == len(self.online):
            raise DataDirectoryError("; ".join(str(reason) for _, reason in failed))
        for directory, reason in failed:
            self.fail(directory.path, str(reason))

    # Failing

    def subscribe(self, listener: Callable[[Path], None]) -> Callable[[], None]:
        """Call back for every directory that goes offline, in any thread; returns the function to unsubscribe."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def fail(self, path: Path, reason: str) -> None:
        """Stop using a directory; only the first reason counts."""
        directory = self._by_path[path]
        with self._guard:
            if directory.offline_reason is not None:
                return
            directory.offline_reason = f"the data directory {path} is offline: {reason}"
        logger.error(
            "log directory %s goes offline: %s; its partitions answer KAFKA_STORAGE_ERROR, all others are served: "
            "repair the disk or make room, then restart the broker",
            path,
            reason,
        )
        for listener in tuple(self._listeners):
            listener(path)
