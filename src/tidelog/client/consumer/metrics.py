"""What a consumer counts, and the snapshot that `metrics()` gives of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.client.types import TopicPartition


class ConsumerCounts:
    """Running counts. Each has one writer: the thread that polls, or the loop."""

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
    """Where an assigned partition stands; None while that is not known."""

    position: int | None
    lag: int | None
    high_watermark: int | None
    is_paused: bool


@dataclass(frozen=True, slots=True)
class ConsumerMetrics:
    """A snapshot of what a consumer has done and how far it is."""

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
