"""Transaction indexes when a log is opened: existing ones are checked, and those that may be wrong are rebuilt.

What always holds: after `settle_txn_indexes` the indexes list exactly the aborted transactions whose markers and
records are in the log or, after a clean stop, the same as before. They are rebuilt from the log alone: the producers at
the start of the first such segment, and all markers from there on.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from tidelog.log.errors import CorruptIndexError
from tidelog.log.producer_replay import producers_at, read_marker
from tidelog.log.segments import SegmentList
from tidelog.log.txn_index import write_txn_index

logger = logging.getLogger(__name__)


def settle_txn_indexes(
    directory: Path,
    segments: SegmentList,
    found: Collection[int],
    log_start_offset: int,
    *,
    doubtful_from: int | None,
    has_markers: bool,
) -> None:
    """Make the indexes match the log.

    `found`: the base offsets of those that are there. `doubtful_from`: from the segment of this offset on they are
    rewritten (None: no log was checked); `has_markers` says whether there is anything to write.
    """
    doubtful = len(segments) if doubtful_from is None else segments.index_of(doubtful_from)
    for index, segment in enumerate(segments):
        if segment.base_offset not in found:
            segment.txn_index.start_empty()
        elif index < doubtful:
            try:
                segment.txn_index.check(segment.base_offset)
            except CorruptIndexError as error:
                logger.warning("%s; it is rebuilt", error)
                doubtful, has_markers = index, True
    if has_markers:
        rebuild_txn_indexes(directory, segments, doubtful, log_start_offset)
        return
    for segment in segments[doubtful:]:
        if segment.base_offset in found:
            segment.txn_index.remove()


def rebuild_txn_indexes(directory: Path, segments: SegmentList, first: int, log_start_offset: int) -> None:
    """Rebuild the indexes of the segments from `first` on, from the log."""
    for segment in segments[first:]:
        segment.txn_index.remove()
    state = producers_at(directory, segments, log_start_offset, segments[first].base_offset)
    for segment in segments[first:]:
        entries = []
        for position, header in segment.headers(walk=True) if segment.size_bytes else ():
            if header.has_producer:
                batch = segment.read_batch(position, header) if header.is_control else b""
                aborted = state.update(header, read_marker(batch, 0, header))
                if aborted is not None:
                    entries.append(aborted)
        if entries:
            write_txn_index(segment.txn_index.path, entries)
            segment.txn_index.forget()
        segment.close()
