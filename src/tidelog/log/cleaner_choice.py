"""Chooses which log to compact next, how far, and which of its segments to merge.

What always holds: the active segment, anything above the last stable offset, and anything unflushed is never cleaned; a
segment is cleaned as a whole or not at all. A log is chosen because enough of it is dirty, or because one of its
records has waited longer than max.compaction.lag.ms. It inspects logs and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog.common.light_dataclass import dataclass
from tidelog.log.cleaner_io import SourceSegment
from tidelog.log.config import FOREVER
from tidelog.log.index import RELATIVE_OFFSET_MAX
from tidelog.log.partition_log import PartitionLog
from tidelog.log.segment import Segment

# The files of all segments of a run are renamed in one turn of the event loop, at about 15 us each.
RUN_SEGMENTS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class LogToClean:
    """What compacting a log would involve."""

    log: PartitionLog
    first_dirty_offset: int
    end_offset: int  # where the first segment begins that may not be cleaned
    clean_bytes: int
    dirty_bytes: int
    delay_ms: int  # how much longer than max.compaction.lag.ms the oldest dirty record has waited

    @property
    def dirty_ratio(self) -> float:
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        if not self.dirty_bytes:
            return False
        return self.delay_ms > 0 or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def first_dirty_offset(log: PartitionLog) -> tuple[int, str | None]:
    """Where cleaning resumes, and what is wrong with the log's checkpointed offset if it is impossible."""
    noted = log.first_dirty_offset
    if noted is None:
        return log.log_start_offset, None
    if noted < log.log_start_offset:
        # With retention in addition to compaction, this happens all the time.
        problem = None if "delete" in log.config.cleanup_policy else f"lies below its start {log.log_start_offset}"
        return log.log_start_offset, problem
    if noted > log.log_end_offset:
        return log.log_start_offset, f"lies above its end {log.log_end_offset}"
    return noted, None


def measure(log: PartitionLog, now_ms: int) -> LogToClean:
    """What there is to clean; raises CorruptSegmentError or OSError if its segments' timestamps can't be read."""
    dirty_offset, _ = first_dirty_offset(log)
    segments = log.segments
    end_offset = max(_end_offset(log, segments, dirty_offset, now_ms), dirty_offset)
    # A segment that reaches beyond is left alone as a whole.
    end = _index_of(segments, end_offset)
    end_offset = segments[end].base_offset
    first = min(_index_of(segments, dirty_offset), end)
    return LogToClean(
        log=log,
        first_dirty_offset=dirty_offset,
        end_offset=end_offset,
        clean_bytes=sum(segment.size_bytes for segment in segments[:first]),
        dirty_bytes=sum(segment.size_bytes for segment in segments[first:end]) if dirty_offset < end_offset else 0,
        delay_ms=_delay_ms(log, segments[_index_of(segments, dirty_offset) : -1], now_ms),
    )


def _end_offset(log: PartitionLog, segments: Sequence[Segment], dirty_offset: int, now_ms: int) -> int:
    # A flushing thread uses the files of segments, so those it may still reach keep theirs.
    bound = min(log.last_stable_offset, segments[-1].base_offset, log.recovery_point)
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in segments[_index_of(segments, dirty_offset) : -1]:
            if segment.max_timestamp > now_ms - lag_ms:
                return min(bound, segment.base_offset)
    return bound


def _delay_ms(log: PartitionLog, dirty_segments: Sequence[Segment], now_ms: int) -> int:
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= FOREVER:
        return 0
    oldest_ms = min((time for time in map(_first_timestamp, dirty_segments) if time > 0), default=now_ms)
    return max(now_ms - lag_ms - oldest_ms, 0)


def _first_timestamp(segment: Segment) -> int:
    return segment.first_timestamp


def _index_of(segments: Sequence[Segment], offset: int) -> int:
    """The segment that contains the offset."""
    return max(sum(segment.base_offset <= offset for segment in segments) - 1, 0)


@dataclass(slots=True)
class Run:
    """Neighbouring segments to be merged, as far as they are known."""

    base_offset: int
    segments_count: int = 0
    size_bytes: int = 0
    index_bytes: int = 0
    time_index_bytes: int = 0

    def takes(self, segment: SourceSegment, segment_bytes: int, index_bytes: int) -> bool:
        """Whether one more fits after what is left of the others, even if all of it is kept.

        What counts is what is left: of long stretches of outdated records only their ends remain, and readers are
        better off with one segment for all of them than with one for each.
        """
        return not self.segments_count or (
            self.segments_count < RUN_SEGMENTS_MAX
            and self.size_bytes + segment.size_bytes <= segment_bytes
            and self.index_bytes + segment.index_bytes <= index_bytes
            and self.time_index_bytes + segment.time_index_bytes <= index_bytes
            # An empty one adds no offsets.
            and (not segment.size_bytes or segment.next_base_offset - 1 - self.base_offset <= RELATIVE_OFFSET_MAX)
        )
