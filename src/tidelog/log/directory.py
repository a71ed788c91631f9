"""A data directory: its lock, its owner, its checkpoints, and whether its disk still works.

What always holds: one process uses a directory at a time (a POSIX lock on `.lock`, like Kafka's); a directory never
serves a cluster or broker other than the first one that used it; after a disk error it is offline until the next start,
but a full disk does not count as one. It does not know logs, only their names and offsets.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tidelog.common.durable_files import make_directory
from tidelog.common.ids import random_uuid, uuid_from_text, uuid_to_text
from tidelog.log.boot_id import BOOT_ID_FILE, was_machine_down, write_boot_id
from tidelog.log.checkpoints import (
    CLEANER_OFFSET_FILE,
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
from tidelog.log.health import is_out_of_room
from tidelog.log.recovery import LastKnown

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
_META_VERSION = "1"

# POSIX locks don't keep one process from locking twice, as several brokers in one test process would.
_locked_here: set[Path] = set()
_locked_here_guard = threading.Lock()

_UNKNOWN: Final = 2**63 - 1


class LogDirectory:
    """One of the directories in which a broker keeps its logs."""

    def __init__(self, path: Path, on_failure: Callable[[Path, str], None]) -> None:
        """`on_failure` is called when the disk fails, and sets `offline_reason`."""
        self.path = path
        # Shared with all logs in the directory.
        self.fail = functools.partial(on_failure, path)
        # Checkpoints that could not be written to a full disk, so that each is logged once and not every few seconds.
        self._refused: set[str] = set()
        self.directory_id: uuid.UUID | None = None
        self.offline_reason: str | None = None
        self.clean_shutdown_epoch: int | None = None
        self._lock_fd = -1
        # The contents of each checkpoint when it was last written.
        self._written: dict[str, Mapping[PartitionKey, int]] = {}
        self._cleaner_offsets: dict[PartitionKey, int] = {}
        self._write_guard = threading.Lock()  # checkpoints are written by threads, one at a time

    # Lock and identity

    def lock(self) -> None:
        """Lock the directory for this process; raises DataDirectoryLockedError if another process has it."""
        try:
            make_directory(self.path)
            self._lock()
        except OSError as error:
            raise DataDirectoryError(f"can't use the data directory {self.path}: {error}") from error

    def _lock(self) -> None:
        resolved = self.path.resolve()
        with _locked_here_guard:
            if resolved in _locked_here:
                raise DataDirectoryLockedError(f"the data directory {self.path} is already in use by this process")
            fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
                os.close(fd)
                by = f"process {owner}" if owner else "another process"
                raise DataDirectoryLockedError(
                    f"the data directory {self.path} is in use by {by}; stop it or choose another directory with --data"
                ) from None
            _locked_here.add(resolved)
            self._lock_fd = fd
            try:
                os.ftruncate(fd, 0)
                os.pwrite(fd, str(os.getpid()).encode(), 0)
            except OSError as error:
                # It only tells another broker who has the lock; a broker can start on a full disk.
                if not is_out_of_room(error):
                    raise

    @property
    def descriptor(self) -> int:
        """A descriptor on the directory's filesystem, open since before anything was written; -1 if not locked."""
        return self._lock_fd

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            with _locked_here_guard:
                _locked_here.discard(self.path.resolve())
                os.close(self._lock_fd)
            self._lock_fd = -1

    def identify(self, cluster_id: str, node_id: int) -> None:
        """Check that the directory belongs to this broker; claim a new one."""
        path = self.path / META_PROPERTIES_FILE
        try:
            values = read_properties(path)
            for name, expected, option in (
                ("cluster.id", cluster_id, "--metadata"),
                ("node.id", str(node_id), "--node-id"),
            ):
                found = values.get(name, expected)
                if found != expected:
                    raise InconsistentClusterIdError(
                        f"the data directory {self.path} has {name} {found}, this broker has {expected}; "
                        f"correct {option}, choose another directory with --data, or remove this one if its records "
                        "are not needed"
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
        """Whether the last stop was clean. Removes the marker; only another clean stop writes it again."""
        self.clean_shutdown_epoch = read_clean_shutdown(self.path)
        if self.clean_shutdown_epoch is None:
            return False
        remove_clean_shutdown(self.path)
        return True

    def last_known(self, *, is_clean: bool) -> dict[PartitionKey, LastKnown]:
        """What the checkpoints say, by partition. An unreadable one counts as missing, so more is checked."""
        recovery_points = self._read(RECOVERY_POINT_FILE)
        log_start_offsets = self._read(LOG_START_OFFSET_FILE)
        high_watermarks = self._read(HIGH_WATERMARK_FILE)
        log_ends: dict[PartitionKey, LogEnd] = {}
        if is_clean and self.clean_shutdown_epoch is not None:
            try:
                log_ends = read_log_ends(self.path / LOG_END_FILE, self.clean_shutdown_epoch)
            except CorruptCheckpointError as error:
                logger.warning("%s", error)
        is_machine_blamed = was_machine_down(self.path)
        keys = recovery_points.keys() | log_start_offsets.keys() | high_watermarks.keys() | log_ends.keys()
        return {
            key: LastKnown(
                is_clean=is_clean,
                log_end=log_ends.get(key),
                recovery_point=recovery_points.get(key, 0),
                log_start_offset=log_start_offsets.get(key, 0),
                high_watermark=high_watermarks.get(key, 0),
                was_machine_down=is_machine_blamed,
            )
            for key in keys
        }

    def nothing_known(self, *, is_clean: bool) -> LastKnown:
        """For a partition that is in no checkpoint."""
        return LastKnown(is_clean=is_clean, was_machine_down=was_machine_down(self.path))

    def note_boot(self) -> None:
        """All logs are open: whatever is written from now on is written during this boot. Blocks."""
        try:
            write_boot_id(self.path)
        except OSError as error:
            if not is_out_of_room(error):
                self.fail(f"{BOOT_ID_FILE} can't be written: {error}")
                return
            logger.warning("%s can't be written: %s; make room on the disk", self.path / BOOT_ID_FILE, error.strerror)

    def _read(self, name: str) -> dict[PartitionKey, int]:
        try:
            return read_offsets(self.path / name)
        except CorruptCheckpointError as error:
            logger.warning("%s", error)
            return {}

    def read_cleaner_offsets(self) -> dict[PartitionKey, int]:
        """How far each partition was compacted; without the file, compaction starts over."""
        self._cleaner_offsets = self._read(CLEANER_OFFSET_FILE)
        return self._cleaner_offsets

    def write_cleaner_offsets(self, offsets: Mapping[PartitionKey, int]) -> bool:
        """Like the other checkpoints, but written only if something changed, which is rare, on most brokers never."""
        if offsets == self._cleaner_offsets:
            return True
        is_written = self._write(CLEANER_OFFSET_FILE, offsets)
        if is_written:
            self._cleaner_offsets = dict(offsets)
        return is_written

    def write_recovery_points(self, offsets: Mapping[PartitionKey, int]) -> bool:
        return self._write(RECOVERY_POINT_FILE, offsets)

    def written_recovery_point(self, key: PartitionKey) -> int:
        """The recovery point of a partition as it is on the disk, or more if that is not known."""
        written = self._written.get(RECOVERY_POINT_FILE)
        return _UNKNOWN if written is None else written.get(key, 0)

    def write_log_start_offsets(self, offsets: Mapping[PartitionKey, int]) -> bool:
        return self._write(LOG_START_OFFSET_FILE, offsets)

    def write_high_watermarks(self, offsets: Mapping[PartitionKey, int]) -> bool:
        return self._write(HIGH_WATERMARK_FILE, offsets)

    def _write(self, name: str, offsets: Mapping[PartitionKey, int]) -> bool:
        """Write a checkpoint; False if the old one is still in place."""
        if self.offline_reason is not None:
            return False
        if self._written.get(name) == offsets:
            return True  # as it stands on the disk: an idle broker writes nothing
        try:
            with self._write_guard:
                self._written.pop(name, None)
                write_offsets(self.path / name, offsets)
                self._written[name] = offsets
        except OSError as error:
            if not is_out_of_room(error):
                self.fail(f"{name} can't be written: {error}")
            elif name not in self._refused:
                # As with appends: the disk works, and there may be room again the next time.
                self._refused.add(name)
                logger.warning(
                    "%s can't be written and stays as it was: %s; make room on the disk",
                    self.path / name,
                    error.strerror,
                )
            return False
        self._refused.discard(name)
        return True

    def write_clean_marker(self, log_ends: Mapping[PartitionKey, LogEnd], broker_epoch: int) -> None:
        """The last step of a clean stop."""
        try:
            write_log_ends(self.path / LOG_END_FILE, log_ends, broker_epoch)
            write_clean_shutdown(self.path, broker_epoch)
        except OSError as error:
            self.fail(f"the clean-shutdown marker can't be written: {error}")
