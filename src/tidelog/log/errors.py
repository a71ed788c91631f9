"""Errors about files, each saying which partition, which file and what to do.

What always holds: everything a disk or its contents can cause reaches the caller as LogStorageError, which a client
sees as KAFKA_STORAGE_ERROR; a refusal of the records themselves is a plain KafkaError with its own code. Errors about
the data directory as a whole (DataDirectoryError) stop a broker from starting and are never sent to a client.
"""

from __future__ import annotations

from pathlib import Path

from tidelog.protocol import ErrorCode, KafkaError


class LogStorageError(KafkaError):
    """A file could not be written, flushed or read."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class NoRoomError(LogStorageError):
    """A write found no room and was undone: the disk works, and the log goes on once there is room again."""


class LogCorruptionError(LogStorageError):
    """Bytes that were once good no longer are, and good ones follow them: nothing here may be cut off silently."""

    def __init__(self, topic: str, partition: int, path: Path, position: int, reason: str) -> None:
        super().__init__(
            f"partition {topic}-{partition} is corrupt: {path} at byte {position}: {reason}; "
            "the partition stays offline: stop the broker, then restore the file or run "
            f"'tidelog log repair {path.parent if path.suffix else path}'"
        )
        self.topic = topic
        self.partition = partition
        self.path = path
        self.position = position
        self.reason = reason


class BelowStartError(Exception):
    """The first batch of an empty log begins below its start: the log has to begin with that batch instead."""

    def __init__(self, base_offset: int) -> None:
        super().__init__(f"the first batch begins at offset {base_offset}")
        self.base_offset = base_offset


class DataDirectoryError(Exception):
    """The data directory can't be used; the text is for the person who starts the broker."""


class DataDirectoryLockedError(DataDirectoryError):
    """Another process uses the directory."""


class InconsistentClusterIdError(DataDirectoryError):
    """The directory belongs to another cluster or to another broker of it."""


class CorruptCheckpointError(Exception):
    """A small text file does not say what its format says it must."""


class CorruptIndexError(Exception):
    """An index can't belong to its log; it is rebuilt."""


class CorruptSnapshotError(Exception):
    """A producer snapshot can't be read; an older one is used and the log replayed."""
