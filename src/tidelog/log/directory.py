"""A data directory: its lock, whom it belongs to, its checkpoints, and whether its disk still works.

What always holds: one process uses a directory at a time (a POSIX lock, as Kafka takes it, on `.lock`); a directory
never serves a cluster or a broker other than the one it was first used by; after a disk error it is offline and stays
so until the next start. It does not know logs, only their names and offsets.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path

from tidelog.common.ids import random_uuid, uuid_from_text, uuid_to_text
from tidelog.log.checkpoints import (
    HIGH_WATERMARK_FILE,
    LOG_END_FILE,
    LOG_START_OFFSET_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    LogEnd,
    PartitionKey,
    read_clean_shutdown,
    read_log_ends,
    read_offsets,
    read_properties,
    remove_clean_shutdown,
    write_clean_shutdown,
    write_log_ends,
    write_offsets,
    write_properties,
)
from tidelog.log.errors import (
    CorruptCheckpointError,
    DataDirectoryError,
    DataDirectoryLockedError,
    InconsistentClusterIdError,
)
from tidelog.log.recovery import LastKnown

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
_META_VERSION = "1"
_FULL = (errno.ENOSPC, errno.EDQUOT)

# POSIX locks do not keep one process from locking twice, as brokers in one test process would.
_locked_here: set[Path] = set()
_locked_here_guard = threading.Lock()


class LogDirectory:
    """One of the directories that a broker keeps its logs in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory_id: uuid.UUID | None = None
        self.offline_reason: str | None = None
        self.clean_shutdown_epoch: int | None = None
        self._lock_fd = -1
        self._write_guard = threading.Lock()  # checkpoints are written by threads, one at a time

    # Lock and identity

    def lock(self) -> None:
        """Take the directory for this process; raises DataDirectoryLockedError when another has it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock()
        except OSError as error:
            raise DataDirectoryError(f"can't use the data directory {self.path}: {error}") from error

    def _lock(self) -> None:
        resolved = self.path.resolve()
        with _locked_here_guard:
            if resolved in _locked_here:
                raise DataDirectoryLockedError(f"the data directory {self.path} is in use by this process already")
            fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
                os.close(fd)
                by = f"process {owner}" if owner else "another process"
                raise DataDirectoryLockedError(
                    f"the data directory {self.path} is in use by {by}; stop it or choose another directory by --data"
                ) from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
            _locked_here.add(resolved)
            self._lock_fd = fd

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            with _locked_here_guard:
                _locked_here.discard(self.path.resolve())
                os.close(self._lock_fd)
            self._lock_fd = -1

    def identify(self, cluster_id: str, node_id: int) -> None:
        """Check that the directory belongs to this broker; a new one does from now on."""
        path = self.path / META_PROPERTIES_FILE
        try:
            values = read_properties(path)
            for name, expected in (("cluster.id", cluster_id), ("node.id", str(node_id))):
                found = values.get(name, expected)
                if found != expected:
                    raise InconsistentClusterIdError(
                        f"the data directory {self.path} has {name} {found}, this broker has {expected}; "
                        "choose another directory by --data, or remove this one if its records are not needed"
                    )
            if "directory.id" in values:
                self.directory_id = uuid_from_text(values["directory.id"])
                return
            self.directory_id = random_uuid()
            values |= {
                "version": _META_VERSION,
                "cluster.id": cluster_id,
                "node.id": str(node_id),
                "directory.id": uuid_to_text(self.directory_id),
            }
            write_properties(path, values)
        except (OSError, ValueError, CorruptCheckpointError) as error:
            raise DataDirectoryError(f"can't use {path}: {error}") from error

    # Checkpoints

    def take_clean_marker(self) -> bool:
        """Whether the last stop was clean. The marker is gone afterwards; only another clean stop brings it back."""
        self.clean_shutdown_epoch = read_clean_shutdown(self.path)
        if self.clean_shutdown_epoch is None:
            return False
        remove_clean_shutdown(self.path)
        return True

    def last_known(self, *, is_clean: bool) -> dict[PartitionKey, LastKnown]:
        """What the checkpoints say, by partition. One that can't be read counts as absent: then more is checked."""
        recovery_points = self._read(RECOVERY_POINT_FILE)
        log_start_offsets = self._read(LOG_START_OFFSET_FILE)
        high_watermarks = self._read(HIGH_WATERMARK_FILE)
        log_ends: dict[PartitionKey, LogEnd] = {}
        if is_clean:
            try:
                log_ends = read_log_ends(self.path / LOG_END_FILE)
            except CorruptCheckpointError as error:
                logger.warning("%s", error)
        keys = recovery_points.keys() | log_start_offsets.keys() | high_watermarks.keys() | log_ends.keys()
        return {
            key: LastKnown(
                is_clean=is_clean,
                log_end=log_ends.get(key),
                recovery_point=recovery_points.get(key, 0),
                log_start_offset=log_start_offsets.get(key, 0),
                high_watermark=high_watermarks.get(key, 0),
            )
            for key in keys
        }

    def _read(self, name: str) -> dict[PartitionKey, int]:
        try:
            return read_offsets(self.path / name)
        except CorruptCheckpointError as error:
            logger.warning("%s", error)
            return {}

    def write_recovery_points(self, offsets: Mapping[PartitionKey, int]) -> bool:
        return self._write(RECOVERY_POINT_FILE, offsets)

    def write_log_start_offsets(self, offsets: Mapping[PartitionKey, int]) -> bool:
        return self._write(LOG_START_OFFSET_FILE, offsets)

    def write_high_watermarks(self, offsets: Mapping[PartitionKey, int]) -> bool:
        return self._write(HIGH_WATERMARK_FILE, offsets)

    def _write(self, name: str, offsets: Mapping[PartitionKey, int]) -> bool:
        """Write a checkpoint; False when the old one still stands."""
        if self.offline_reason is not None:
            return False
        try:
            with self._write_guard:
                write_offsets(self.path / name, offsets)
        except OSError as error:
            if error.errno in _FULL:
                # As with appends: the disk works, and there may be room again the next time.
                logger.warning("%s can't be written and stays as it was: %s", self.path / name, error.strerror)
            else:
                self.take_offline(f"{name} can't be written: {error}")
            return False
        return True

    def write_clean_marker(self, log_ends: Mapping[PartitionKey, LogEnd], broker_epoch: int) -> None:
        """The very last word of a clean stop."""
        try:
            write_log_ends(self.path / LOG_END_FILE, log_ends)
            write_clean_shutdown(self.path, broker_epoch)
        except OSError as error:
            self.take_offline(f"the clean-shutdown marker can't be written: {error}")

    def take_offline(self, reason: str) -> None:
        if self.offline_reason is None:
            self.offline_reason = f"the data directory {self.path} is offline: {reason}"
            logger.error("%s", self.offline_reason)
