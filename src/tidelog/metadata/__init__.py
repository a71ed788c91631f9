"""The metadata store: its contract and its implementations. `faulty` has one that injects faults, for tests."""

from __future__ import annotations

from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.sqlite import SqliteStore
from tidelog.metadata.store import (
    ABSENT,
    Conflict,
    Del,
    MetadataStoreError,
    Ok,
    Put,
    Rec,
    Session,
    SessionLost,
    Snapshot,
    Store,
    Unknown,
)

__all__ = [
    "ABSENT",
    "Conflict",
    "Del",
    "MemoryStore",
    "MetadataStoreError",
    "Ok",
    "Put",
    "Rec",
    "Session",
    "SessionLost",
    "Snapshot",
    "SqliteStore",
    "Store",
    "Unknown",
]
