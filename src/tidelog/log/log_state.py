"""What a partition's log is made of when it is opened, what is known of it from then on, and what an append gives back.

What always holds: nothing here touches a file. What appends, reads and deletes is `partition_log`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tidelog.common.clock import Clock
from tidelog.log.checkpoints import LogEnd
from tidelog.log.config import LogConfig
from tidelog.log.epochs import EpochEntry, LeaderEpochs
from tidelog.log.health import LogHealth
from tidelog.log.producer_state import ProducerState
from tidelog.log.segment import Segment
from tidelog.log.segments import SegmentList


@dataclass(slots=True)
class AppendResult:
    """Where a batch went; of a repeated one, where it went the first time."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int  # -1 when the records keep the producer's timestamps
    log_start_offset: int
    is_duplicate: bool = False


@dataclass(slots=True)
class LogState:
    """What `recovery` found in a partition's directory."""

    segments: SegmentList
    epochs: LeaderEpochs
    producers: ProducerState
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int
    last_snapshot_offset: int
    was_recovered: bool = False


class FlushMark(NamedTuple):
    """How far a log and the names and small files in its directory were at some time."""

    end_offset: int
    active_base_offset: int
    directory_version: int
    truncations: int


class OpenLog(LogHealth):
    """The part of a partition's log that holds its state and tells of it."""

    __slots__ = (
        "_clock",
        "_directory_version",
        "_epochs",
        "_flushed_directory_version",
        "_flushed_offset",
        "_flushed_truncations",
        "_high_watermark",
        "_last_aborted_offset",
        "_last_flush_ms",
        "_last_snapshot_offset",
        "_lock",
        "_log_end_offset",
        "_log_start_offset",
        "_producers",
        "_segments",
        "_truncations",
        "config",
        "directory",
        "first_dirty_offset",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        directory: Path,
        config: LogConfig,
        clock: Clock,
        state: LogState,
        topic_id: uuid.UUID | None = None,
    ) -> None:
        super().__init__(topic, partition)
        self.directory = directory
        self.config = config
        self.topic_id = topic_id
        self._clock = clock
        self._segments = state.segments
        self._epochs = state.epochs
        self._producers = state.producers
        self._log_start_offset = state.log_start_offset
        self._log_end_offset = state.log_end_offset
        self._high_watermark = min(max(state.high_watermark, state.log_start_offset), state.log_end_offset)
        self._flushed_offset = min(state.recovery_point, state.log_end_offset)
        if state.was_recovered:
            # Segments that were removed before a crash may come back until that is flushed; so what is appended to is
            # checked again after another crash, from the segment's start.
            self._flushed_offset = min(self._flushed_offset, state.segments.active.base_offset)
        self._last_snapshot_offset = state.last_snapshot_offset
        # No aborted transaction reaches beyond it, so that readers at the log's end need look nothing up.
        self._last_aborted_offset = self._segments.last_aborted_offset
        self._last_flush_ms = clock.now_ms()
        self._lock = threading.Lock()  # guards what truncation changes and flush or rename_dropped does, too
        # Counts what was made, renamed or written beside the log. What was written to open it may not be flushed yet.
        self._directory_version = 1
        self._flushed_directory_version = 0
        # Counts truncations, so that a flush that one overtook vouches for nothing.
        # What a broker cut off before it crashed may come back until the log is flushed again.
        self._truncations = int(state.was_recovered)
        self._flushed_truncations = 0
        # Up to here the log is compacted, None where it never was. The cleaner keeps it, and its checkpoint.
        self.first_dirty_offset: int | None = None

    def __repr__(self) -> str:
        return f"PartitionLog({self.name}, {self._log_start_offset}..{self._log_end_offset})"

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Everything below is committed or aborted for good."""
        unstable_offset = self._producers.first_unstable_offset()
        if unstable_offset is None or unstable_offset >= self._high_watermark:
            return self._high_watermark
        return max(unstable_offset, self._log_start_offset)

    @property
    def flushed_offset(self) -> int:
        return self._flushed_offset

    @property
    def has_unflushed(self) -> bool:
        """Whether records were appended, or cut off, and no flush has reached that."""
        return self.recovery_point < self._log_end_offset or self._flushed_truncations < self._truncations

    @property
    def recovery_point(self) -> int:
        """From here on the log is checked again after a crash: records, or only indexes, may not be flushed."""
        unflushed = self._segments.with_unflushed_indexes(self._flushed_offset)
        return unflushed[-1].base_offset if unflushed else self._flushed_offset

    @property
    def flush_is_due(self) -> bool:
        """Whether flush.messages asks for a flush before anything more is acknowledged."""
        return self._log_end_offset - self._flushed_offset >= self.config.flush_messages

    @property
    def last_flush_ms(self) -> int:
        return self._last_flush_ms

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def has_unflushed_segments(self) -> bool:
        """Whether segments were rolled that are not yet on disk; nobody waits for it, but recovery gets shorter."""
        return self.recovery_point < self._segments.active.base_offset

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    @property
    def latest_epoch(self) -> int:
        return self._epochs.latest_epoch

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        return self._epochs.entries

    @property
    def log_end(self) -> LogEnd:
        """What the clean-shutdown checkpoint keeps of this log."""
        return LogEnd(self._log_end_offset, len(self._segments), self._segments.active.size_bytes, self.size_bytes)

    def on_segments_changed(self, call: Callable[[], None]) -> None:
        """Call after segments were begun or taken out, in whichever thread: only then may there be work behind them."""
        self._segments.on_change = call

    @property
    def has_work_behind(self) -> bool:
        """Whether segments wait to be flushed, or their files to be renamed or unlinked."""
        return self.has_unflushed_segments or self._segments.has_dropped or self._segments.has_removed

    @property
    def has_dropped_segments(self) -> bool:
        """Whether files wait for `rename_dropped`; where the log starts must be on disk by then."""
        return self._segments.has_dropped
