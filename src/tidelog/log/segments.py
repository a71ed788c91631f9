"""The segments of a partition in order, which of them holds an offset, and the files of those that were removed.

What always holds: there is at least one segment, base offsets grow, and only the last segment is appended to. A removed
segment's files are renamed at once and unlinked later, so that neither a reader nor the caller waits for it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from tidelog.log.producer_snapshot import snapshot_path
from tidelog.log.segment import Segment


class SegmentList(Sequence[Segment]):
    """Segments by base offset."""

    __slots__ = ("_base_offsets", "_deleted_paths", "_directory", "_segments")

    def __init__(self, directory: Path, segments: Sequence[Segment]) -> None:
        self._directory = directory
        self._segments = list(segments)
        self._base_offsets = [segment.base_offset for segment in segments]
        self._deleted_paths: list[tuple[int, Path]] = []

    def __len__(self) -> int:
        return len(self._segments)

    @overload
    def __getitem__(self, index: int) -> Segment: ...

    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...

    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._segments[index]

    def __iter__(self) -> Iterator[Segment]:
        # A copy, since a flush walks over it in another thread while the loop may roll.
        return iter(tuple(self._segments))

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self)

    def has_base_offset(self, offset: int) -> bool:
        slot = bisect.bisect_left(self._base_offsets, offset)
        return slot < len(self._base_offsets) and self._base_offsets[slot] == offset

    def index_of(self, offset: int) -> int:
        """The segment in which the offset lies, the first one for offsets before it."""
        return max(bisect.bisect_right(self._base_offsets, offset) - 1, 0)

    def from_offset(self, offset: int) -> list[Segment]:
        """The segments that may hold batches from this offset on. May be called from another thread."""
        segments = tuple(self)
        first = max(bisect.bisect_right(segments, offset, key=_base_offset) - 1, 0)
        return [segment for segment in segments[first:] if segment.size_bytes]

    def add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._base_offsets.append(segment.base_offset)

    def remove(self, first: int, end: int, due_ms: int) -> None:
        """Take segments out; their files are unlinked from `due_ms` on."""
        for segment in self._segments[first:end]:
            self._deleted_paths.extend((due_ms, path) for path in segment.mark_deleted())
            snapshot_path(self._directory, segment.base_offset).unlink(missing_ok=True)
        self._segments[first:end] = []
        self._base_offsets[first:end] = []

    def take_removed_paths(self, now_ms: int) -> list[Path]:
        """The files of removed segments whose time has come; the caller unlinks them."""
        due = [path for due_ms, path in self._deleted_paths if due_ms <= now_ms]
        self._deleted_paths = [(due_ms, path) for due_ms, path in self._deleted_paths if due_ms > now_ms]
        return due

    def unlink_removed(self) -> None:
        """Unlink all of them now, as when no reader can be there yet."""
        for _, path in self._deleted_paths:
            path.unlink(missing_ok=True)
        self._deleted_paths = []

    def move(self, directory: Path) -> None:
        """The directory was renamed."""
        self._directory = directory
        self._deleted_paths = [(due_ms, directory / path.name) for due_ms, path in self._deleted_paths]
        for segment in self._segments:
            segment.move(directory)

    def close(self) -> None:
        for segment in self._segments:
            segment.close()


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
