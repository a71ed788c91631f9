"""Which segments a log lets go: by age, by size, or because they lie below the log's start.

What always holds: only whole segments go, oldest first, and never one that holds an offset at or above the high
watermark; the last segment goes only when it holds batches and its owner has begun another. Times are compared with
the segment's largest timestamp, so one record from the future keeps its segment and all behind it. It chooses and
changes nothing; removing is up to the log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.log.cold_lookup import NotInMemoryError
from tidelog.log.config import LogConfig
from tidelog.log.errors import LogStorageError
from tidelog.log.segment import Segment

if TYPE_CHECKING:
    from tidelog.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_TURN_S: Final = 0.002
"""How long the event loop may look at logs before others have their turn: there may be thousands."""


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
    """How many segments, from the first on, may go. A damaged one raises CorruptSegmentError."""
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
    """The first segment that stays: without it there would be less than `retention_bytes` left."""
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
    """When the youngest record was made, as far as records tell; else when the file was last written to."""
    timestamp = segment.max_timestamp
    return timestamp if timestamp >= 0 else segment.path.stat().st_mtime_ns // 1_000_000


async def delete_expired(logs: Iterable[PartitionLog], now_ms: int) -> None:
    """Let every log drop what its settings let go, in turns with whatever else the event loop has to do."""
    unread: list[PartitionLog] = []
    turn_ends_s = time.monotonic() + _TURN_S
    for log in logs:
        if time.monotonic() > turn_ends_s:
            await asyncio.sleep(0)
            turn_ends_s = time.monotonic() + _TURN_S
        if _unread_segments(log):
            unread.append(log)
        else:
            _delete_expired(log, now_ms)
    for log in unread:
        # How old its segments are stands in files that nobody has looked into since the start.
        await asyncio.to_thread(_bring_in, _unread_segments(log))
        _delete_expired(log, now_ms)


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
    """The first segments whose age matters and can only be told by a look into their files."""
    if "delete" not in log.config.cleanup_policy or log.config.retention_ms < 0:
        return []
    segments = log.segments
    if segments[0].knows_max_timestamp:
        return []
    return [segment for segment in segments[:_BROUGHT_IN_MAX] if segment.size_bytes and not segment.knows_max_timestamp]


def _bring_in(segments: Iterable[Segment]) -> None:
    """Read what telling the age of segments will read, so that the event loop waits for no disk. Blocks."""
    for segment in segments:
        try:
            last_entry = segment.time_index.path.read_bytes()[-_TIME_ENTRY_BYTES:]
            relative_offset = int.from_bytes(last_entry[-_RELATIVE_OFFSET_BYTES:], "big")
            NotInMemoryError(segment.path, segment.offset_index.path, relative_offset, segment.size_bytes).bring_in()
        except OSError as error:
            # Whatever it is, the look that follows meets it as well and says what it means.
            logger.debug("%s can't be read ahead: %s", segment.path, error)
