"""What a partition's log is made of when it is opened, and what an append gives back."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.log.epochs import LeaderEpochs
from tidelog.log.producer_state import ProducerState
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
