"""Chooses which segments to delete: by age, by size, or because they are below the log start offset.

What always holds: only whole segments are deleted, oldest first, and never one with an offset at or above the high
watermark; the last segment is deleted only if it has batches and the log has rolled to a new one. A segment's age is
that of its largest timestamp, so one record from the future keeps its segment and all later ones. This module only
chooses; the log deletes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.common.steps import with_pauses
from tidelog.log.cold_lookup import ColdSegmentError
from tidelog.log.config import LogConfig
from tidelog.log.errors import LogStorageError
from tidelog.log.segment import Segment

if TYPE_CHECKING:
    from tidelog.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_BROUGHT_IN_MAX: Final = 64
"""How many segments of a log are looked at ahead: after a long pause, many may have expired."""

_TIME_ENTRY_BYTES: Final = 12
_RELATIVE_OFFSET_BYTES: Final = 4


def count_expired(
    segments: Sequence[Segment],
    config: LogConfig,
    now_ms: int,
    *,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
) -> int:
    """How many of the first segments may be deleted. A damaged one raises CorruptSegmentError."""
    count = len(segments)
    ends = [segment.base_offset for segment in segments[1:]] + [log_end_offset]
    # Nothing beyond the high watermark goes, nor a last segment without batches: there would be nothing to gain.
    while count and (ends[count - 1] > high_watermark or (count == len(segments) and not segments[-1].size_bytes)):
        count -= 1
    first = 0
    while first < min(count, len(segments) - 1) and ends[first] <= log_start_offset:
        first += 1
    if "delete" in config.cleanup_policy:
        if config.retention_bytes >= 0:
            first = _skip_by_size(segments, first, count, config.retention_bytes)
        if config.retention_ms >= 0:
            first = _skip_by_age(segments, first, count, now_ms - config.retention_ms)
    return first


def _skip_by_size(segments: Sequence[Segment], first: int, end: int, retention_bytes: int) -> int:
    """The first segment to keep: without it, less than `retention_bytes` would be left."""
    excess_bytes = sum(segment.size_bytes for segment in segments[first:]) - retention_bytes
    while first < end and segments[first].size_bytes <= excess_bytes:
        excess_bytes -= segments[first].size_bytes
        first += 1
    return first


def _skip_by_age(segments: Sequence[Segment], first: int, end: int, oldest_ms: int) -> int:
    while first < end and _largest_timestamp(segments[first]) < oldest_ms:
        first += 1
    return first


def _largest_timestamp(segment: Segment) -> int:
    """The newest record's timestamp, if there are any; otherwise when the file was last written to."""
    timestamp = segment.max_timestamp
    return timestamp if timestamp >= 0 else segment.path.stat().st_mtime_ns // 1_000_000


async def delete_expired(logs: Iterable[PartitionLog], now_ms: int) -> None:
    """Let every log delete what has expired, taking turns with whatever else the event loop has to do."""
    unread: list[PartitionLog] = []
    async for log in with_pauses(logs):
        if not log.may_have_expired(now_ms):
            continue
        if not log.is_open or _unread_segments(log):
            unread.append(log)
        else:
            _delete_expired(log, now_ms)
    for log in unread:
        # How old its segments are stands in files that nobody has looked into since the start.
        await asyncio.to_thread(_prepare, log)
        _delete_expired(log, now_ms)


def _prepare(log: PartitionLog) -> None:
    """Read ahead what deletion will read, so that the event loop doesn't wait for the disk. Blocks."""
    try:
        log.open()
    except LogStorageError as error:
        logger.debug("%s can't be opened: %s", log.name, error.message)
        return
    _bring_in(_unread_segments(log))


def _delete_expired(log: PartitionLog, now_ms: int) -> None:
    if log.is_offline:
        return
    try:
        count = log.delete_expired(now_ms)
    except LogStorageError as error:
        logger.error("retention: %s", error.message)
        return
    if count:
        logger.info("%s: %d segments went by its retention, it starts at %d", log.name, count, log.log_start_offset)


def _unread_segments(log: PartitionLog) -> list[Segment]:
    """The first segments whose age matters and is only known from their files."""
    if "delete" not in log.config.cleanup_policy or log.config.retention_ms < 0:
        return []
    segments = log.segments
    if segments[0].knows_max_timestamp:
        return []
    return [segment for segment in segments[:_BROUGHT_IN_MAX] if segment.size_bytes and not segment.knows_max_timestamp]


def _bring_in(segments: Iterable[Segment]) -> None:
    """Read ahead what determining the segments' age will read, so that the event loop doesn't wait. Blocks."""
    for segment in segments:
        try:
            last_entry = segment.time_index.path.read_bytes()[-_TIME_ENTRY_BYTES:]
            relative_offset = int.from_bytes(last_entry[-_RELATIVE_OFFSET_BYTES:], "big")
            ColdSegmentError(segment.path, segment.offset_index.path, relative_offset, segment.size_bytes).bring_in()
        except OSError as error:
            # Whatever it is, the look that follows meets it as well and says what it means.
            logger.debug("%s can't be read ahead: %s", segment.path, error)
