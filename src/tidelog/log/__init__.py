"""Partition logs on disk in Kafka's file formats: segments, indexes, recovery, producer state, leader epochs.

The log manager holds a broker's logs; a partition log is appended to and read in batches, never in records. Nothing
here knows about brokers, leaders or clients.
"""

from __future__ import annotations

from tidelog.log.cold_lookup import NotInMemoryError
from tidelog.log.config import LogConfig
from tidelog.log.epochs import EpochEntry
from tidelog.log.errors import (
    BelowStartError,
    DataDirectoryError,
    DataDirectoryLockedError,
    InconsistentClusterIdError,
    LogCorruptionError,
    LogStorageError,
    NoRoomError,
)
from tidelog.log.file_slice import FileSlice
from tidelog.log.housekeeping import BackgroundTask
from tidelog.log.manager import LogManager
from tidelog.log.partition_log import AppendResult, PartitionLog
from tidelog.log.producer_entry import ProducerEntry
from tidelog.log.reading import LogRead, TimestampOffset

__all__ = [
    "AppendResult",
    "BackgroundTask",
    "BelowStartError",
    "DataDirectoryError",
    "DataDirectoryLockedError",
    "EpochEntry",
    "FileSlice",
    "InconsistentClusterIdError",
    "LogConfig",
    "LogCorruptionError",
    "LogManager",
    "LogRead",
    "LogStorageError",
    "NoRoomError",
    "NotInMemoryError",
    "PartitionLog",
    "ProducerEntry",
    "TimestampOffset",
]
