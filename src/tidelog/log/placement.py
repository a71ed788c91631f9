"""Decides which of several data directories holds a partition when more than one claims to.

What always holds: a partition is served from one directory. Two can hold it if a topic was deleted and recreated while
a directory was offline: the one with the cluster's topic id is right. Or it was being moved from one to the other: the
one that it was moved to says so. If neither decides it, neither is used, as a guess could bring back deleted records or
lose acknowledged ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from tidelog.log.checkpoints import PartitionKey, read_partition_metadata
from tidelog.log.errors import CorruptCheckpointError, LogStorageError
from tidelog.log.moves import latest_moved


class Placed(Protocol):
    """A partition's directory that was found at start."""

    @property
    def key(self) -> PartitionKey: ...
    @property
    def path(self) -> Path: ...


PlacedT = TypeVar("PlacedT", bound=Placed)


def find_doubles(
    found: Iterable[PlacedT], topic_ids: Mapping[str, uuid.UUID]
) -> tuple[list[PlacedT], list[PlacedT], list[tuple[PlacedT, LogStorageError]]]:
    """The partitions to open, the directories to set aside, and the partitions that can't be decided."""
    by_key: dict[PartitionKey, list[PlacedT]] = {}
    for item in found:
        by_key.setdefault(item.key, []).append(item)
    chosen: list[PlacedT] = []
    superseded: list[PlacedT] = []
    undecided: list[tuple[PlacedT, LogStorageError]] = []
    for (topic, partition), items in by_key.items():
        if len(items) == 1:
            chosen += items
            continue
        right = [item for item in items if _is_of(item.path, topic_ids.get(topic))]
        moved = _moved(right if topic in topic_ids else items)
        if moved is not None:
            right = [moved]
        if len(right) == 1:
            chosen += right
            superseded += [item for item in items if item is not right[0]]
        else:
            paths = " and ".join(str(item.path) for item in items)
            error = LogStorageError(
                f"partition {topic}-{partition} is in more than one data directory: {paths}; "
                "move those that are not wanted elsewhere and restart the broker"
            )
            undecided.append((items[0], error))
    return chosen, superseded, undecided


def _moved(items: Sequence[PlacedT]) -> PlacedT | None:
    """The one that the others were moved to, if all are of the same topic."""
    try:
        if len(items) < 2 or len({read_partition_metadata(item.path) for item in items}) > 1:
            return None
        path = latest_moved([item.path for item in items])
    except (OSError, CorruptCheckpointError):
        return None
    return next((item for item in items if item.path == path), None)


def _is_of(path: Path, topic_id: uuid.UUID | None) -> bool:
    try:
        return topic_id is not None and read_partition_metadata(path) == topic_id
    except (OSError, CorruptCheckpointError):
        # Unknown, which is not a yes; opening the log reports why.
        return False
