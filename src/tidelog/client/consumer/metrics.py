"""A consumer's counters, and the snapshot that `metrics()` returns."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.client.types import TopicPartition
from tidelog.common.light_dataclass import dataclass


class ConsumerCounts:
    """Running counts. Each has a single writer: the polling thread or the loop."""

    __slots__ = (
        "commits",
        "failed_commits",
        "fetched_bytes",
        "fetches",
        "fetching_s",
        "last_poll_s",
        "polls",
        "records",
        "throttled_ms",
    )

    def __init__(self) -> None:
        self.polls = 0
        self.records = 0
        self.last_poll_s = 0.0
        self.fetches = 0
        self.fetched_bytes = 0
        self.fetching_s = 0.0
        self.throttled_ms = 0
        self.commits = 0
        self.failed_commits = 0


@dataclass(frozen=True, slots=True)
class PartitionMetrics:
    """The state of an assigned partition; values that are not known are None."""

    position: int | None
    lag: int | None
    high_watermark: int | None
    is_paused: bool


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    """A snapshot of a consumer's work and progress."""

    polls_total: int
    records_consumed_total: int
    seconds_since_last_poll: float | None
    fetches_total: int
    bytes_fetched_total: int
    fetch_latency_avg_ms: float
    fetch_throttle_time_ms_total: int
    queued_bytes: int
    commits_total: int
    commits_failed_total: int
    records_lag_max: int | None
    partitions: Mapping[TopicPartition, PartitionMetrics]
