"""The segments of a partition in order, which of them holds an offset, and the files of those that were removed.

What always holds: there is at least one segment, base offsets grow, and only the last segment is appended to. A removed
segment's files are renamed first and unlinked later, so that neither a reader nor the caller waits for it; those of
segments dropped from the start may be renamed in another thread, one at a time with all that changes the list. One
clean at a time may replace segments; whatever else removes some ends it.
"""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from tidelog.log.cleaning import CleaningAbortedError, LogCleaning
from tidelog.log.producer_snapshot import snapshot_path
from tidelog.log.scan import CorruptSegmentError
from tidelog.log.segment import Segment
from tidelog.log.swap_files import decide_swap, discard, put_in_place

logger = logging.getLogger(__name__)


class SegmentList(Sequence[Segment]):
    """Segments by base offset."""

    __slots__ = (
        "_base_offsets",
        "_cleaning",
        "_deleted_paths",
        "_directory",
        "_dropped",
        "_segments",
        "_swapping",
    )

    def __init__(self, directory: Path, segments: Sequence[Segment]) -> None:
        self._directory = directory
        self._segments = list(segments)
        self._base_offsets = [segment.base_offset for segment in segments]
        self._deleted_paths: list[tuple[int, Path]] = []
        self._dropped: list[Segment] = []
        self._cleaning: LogCleaning | None = None
        self._swapping: int | None = None  # the base offset of a cleaned segment whose swap is decided and not done

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

    @property
    def last_aborted_offset(self) -> int:
        """The last marker of an aborted transaction, -1 when there is none."""
        return max(segment.txn_index.last_offset for segment in self)

    def oldest_timestamp(self) -> int:
        """The largest timestamp of the first segment, which retention uses; -1 if it is unknown. Blocks."""
        first = self._segments[0]
        if not first.size_bytes:
            return -1
        try:
            return first.max_timestamp
        except (CorruptSegmentError, OSError) as error:
            logger.warning("can't determine the age of %s: %s", first.path, error)
            return -1

    def has_base_offset(self, offset: int) -> bool:
        slot = bisect.bisect_left(self._base_offsets, offset)
        return slot < len(self._base_offsets) and self._base_offsets[slot] == offset

    def index_of(self, offset: int) -> int:
        """The segment in which the offset lies, the first one for offsets before it."""
        return max(bisect.bisect_right(self._base_offsets, offset) - 1, 0)

    def from_offset(self, offset: int) -> list[Segment]:
        """The segments that may hold batches from this offset on. May be called from another thread.

        Those that were dropped are among them as long as their files have their names: a crash may bring them back.
        """
        segments = (*self._dropped, *self)
        first = max(bisect.bisect_right(segments, offset, key=_base_offset) - 1, 0)
        return [segment for segment in segments[first:] if segment.size_bytes]

    def with_unflushed_indexes(self, offset: int) -> list[Segment]:
        """The segments right before the one with this offset whose indexes are not on disk, last first. In any thread.

        A segment that was flushed while it was appended to gets the last entries of its indexes when it is rolled.
        """
        segments = tuple(self)
        end = max(bisect.bisect_right(segments, offset, key=_base_offset) - 1, 0)
        return list(itertools.takewhile(_has_unflushed_indexes, reversed(segments[:end])))

    def note_flushed(self, active_base_offset: int) -> None:
        """All segments before the one that was active are on disk, indexes too. In any thread."""
        for segment in self.with_unflushed_indexes(active_base_offset):
            segment.note_indexes_flushed()

    def add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._base_offsets.append(segment.base_offset)

    def remove(self, first: int, end: int, due_ms: int) -> None:
        """Take segments out, the last one first, so that a crash leaves no gap; unlinked from `due_ms` on."""
        if first < end:
            self.abort_cleaning()
        for segment in reversed(self._segments[first:end]):
            self._mark_deleted(segment, due_ms)
        self._segments[first:end] = []
        self._base_offsets[first:end] = []

    def _mark_deleted(self, segment: Segment, due_ms: int) -> None:
        self._deleted_paths.extend((due_ms, path) for path in segment.mark_deleted())
        snapshot_path(self._directory, segment.base_offset).unlink(missing_ok=True)

    @property
    def has_dropped(self) -> bool:
        return bool(self._dropped)

    @property
    def has_removed(self) -> bool:
        """Whether files wait to be unlinked."""
        return bool(self._deleted_paths)

    def drop_first(self, count: int) -> None:
        """Take this many segments out at the start and leave their files as they are until `rename_dropped`."""
        if count:
            self.abort_cleaning()
        self._dropped += self._segments[:count]
        self._segments[:count] = []
        self._base_offsets[:count] = []

    def rename_dropped(self, due_ms: int) -> None:
        """Rename the files of what was dropped; they are unlinked from `due_ms` on."""
        while self._dropped:
            self._mark_deleted(self._dropped.pop(0), due_ms)

    # Cleaning

    def start_cleaning(self) -> LogCleaning:
        """Let segments be replaced until the cleaning is ended or aborted."""
        if self._cleaning is not None:
            raise ValueError("the log is already being compacted")
        self._cleaning = LogCleaning()
        return self._cleaning

    def end_cleaning(self) -> None:
        self.abort_cleaning()
        self._cleaning = None

    def abort_cleaning(self) -> None:
        """The segments change in another way: the clean that is running may no longer replace any."""
        if self._cleaning is not None:
            self._cleaning.abort()
        if self._swapping is not None:
            base_offset, self._swapping = self._swapping, None
            discard(self._directory, base_offset)

    def decide_swap(self, cleaning: LogCleaning, old: Sequence[Segment]) -> None:
        """Decide that the cleaned segment, whose files are flushed, takes the place of others."""
        self._find_run(cleaning, old)
        decide_swap(self._directory, old[0].base_offset)
        self._swapping = old[0].base_offset

    def swap(self, cleaning: LogCleaning, old: Sequence[Segment], cleaned: Segment, due_ms: int) -> None:
        """Replace segments with the cleaned one, as decided; their files are unlinked from `due_ms` on."""
        first = self._find_run(cleaning, old)
        # Now it can't be taken back: should this fail in the middle, the next start finishes it.
        self._swapping = None
        for segment in old:
            self._deleted_paths.extend((due_ms, path) for path in segment.mark_deleted())
            if segment.base_offset != cleaned.base_offset:
                snapshot_path(self._directory, segment.base_offset).unlink(missing_ok=True)
        put_in_place(self._directory, cleaned.base_offset)
        self._segments[first : first + len(old)] = [cleaned]
        self._base_offsets[first : first + len(old)] = [cleaned.base_offset]

    def _find_run(self, cleaning: LogCleaning, old: Sequence[Segment]) -> int:
        """Where in the list the old segments are."""
        cleaning.check()
        first = self.index_of(old[0].base_offset)
        if cleaning is not self._cleaning or self._segments[first : first + len(old)] != list(old):
            raise CleaningAbortedError("these are not the segments that were compacted")
        return first

    # The files of what was removed

    def take_removed_paths(self, now_ms: int) -> list[Path]:
        """The files of removed segments whose time has come; the caller unlinks them."""
        due = [item for item in self._deleted_paths if item[0] <= now_ms]
        for item in due:
            # In place, since another thread may be adding those it renames.
            self._deleted_paths.remove(item)
        return [path for _, path in due]

    def unlink_removed(self) -> None:
        """Unlink all of them now, as when no reader can be there yet."""
        for _, path in self._deleted_paths:
            path.unlink(missing_ok=True)
        self._deleted_paths = []

    def move(self, directory: Path) -> None:
        """The directory was renamed."""
        self._directory = directory
        self._deleted_paths = [(due_ms, directory / path.name) for due_ms, path in self._deleted_paths]
        for segment in self._dropped + self._segments:
            segment.move(directory)

    def close(self) -> None:
        for segment in self._dropped + self._segments:
            segment.close()


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _has_unflushed_indexes(segment: Segment) -> bool:
    return segment.has_unflushed_indexes
