"""Monitors a replay: its progress and the time left, and keeps it to its rate.

What always holds: it uses one thread for the duration of the `with` block; it writes the limit to the file that the
source reads before each micro-batch, but never after a stop was requested. A broker that doesn't respond doesn't end a
replay.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from tidelog import Admin, TopicPartition
from tidelog.client.admin.types import OffsetSpec
from tidelog.client.errors import ClientError
from tidelog.pipeline.topics import end_offsets
from tidelog.pipeline.versions.pacing import Pace, adapted, rows_of_batch, seconds_left, tail_ms
from tidelog.pipeline.versions.registry_rows import Offsets, Progress, offsets_from_json

logger = logging.getLogger(__name__)

_WINDOW_S = 1.0
_PROBES = 20
# How many probes measure the normal latency, before the replay starts.
_NORMAL_PROBES = 60
# Without a limit, batches are sized to take about this long, so that there is progress to show and little to repeat
# after a crash.
_BATCH_S = 5.0
_BATCH_ROWS_START = 200_000
_BATCH_ROWS_MAX = 50_000_000
# The minimum latency that a failed probe counts as. No broker takes this long to respond to a probe.
FAILED_PROBE_MS = 10_000.0
# A replay that needs at most this long for its backlog has caught up: a live run has a similar backlog.
CAUGHT_UP_S = 3.0


class WatchedRun(Protocol):
    """The run to monitor; `runner.PipelineRun` implements it."""

    progress: Progress

    def request_stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ReplayStatus:
    """The progress of a replay; rows are offsets of its inputs."""

    rows_done: int
    rows_total: int
    rows_per_s: float
    # None if it will never catch up at this rate.
    seconds_left: float | None
    # The rate at which rows arrive, and the highest rate of this run.
    arriving_rows_per_s: float = 0.0
    rows_per_s_max: float = 0.0
    # The rate that is currently allowed, and the broker's latency; None without a limit or without probes.
    limit_rows_per_s: float | None = None
    latency_ms: float | None = None

    @property
    def rows_left(self) -> int:
        return max(self.rows_total - self.rows_done, 0)

    @property
    def is_caught_up(self) -> bool:
        """Whether the backlog is no more than what arrives, or can be read, in a batch or two of a live run."""
        return self.rows_left <= CAUGHT_UP_S * max(self.arriving_rows_per_s, self.rows_per_s_max)

    @property
    def is_at_the_end(self) -> bool:
        """Whether everything has been read, except for what has only just arrived."""
        return self.rows_left <= CAUGHT_UP_S * self.arriving_rows_per_s


@dataclass(frozen=True, slots=True)
class Limits:
    """What limits a replay: a rate, the broker's latency, or nothing."""

    max_rate: float | None = None
    yields_to_live: bool = False

    @property
    def is_limited(self) -> bool:
        return self.max_rate is not None or self.yields_to_live


class ReplayMonitor:
    """Monitors one run of a replay; use it in a `with` statement."""

    def __init__(
        self,
        run: WatchedRun,
        bootstrap: str,
        topics: list[str],
        starts_file: Path,
        limit_file: Path,
        limits: Limits,
        *,
        trigger_s: float,
        until_caught_up: bool = False,
        on_status: Callable[[ReplayStatus], None] = lambda status: None,
    ) -> None:
        self._run = run
        self._topics = topics
        self._starts_file = starts_file
        self._limit_file = limit_file
        self._limits = limits
        self._trigger_s = trigger_s
        self._until_caught_up = until_caught_up
        self._on_status = on_status
        self._admin = Admin(bootstrap_servers=bootstrap, client_id="tidelog-replay-monitor")
        self._pace = Pace(rows_per_s=limits.max_rate or Pace().rows_per_s)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="replay-monitor", daemon=True)
        self._rate_max = 0.0
        self.is_caught_up = False

    def __enter__(self) -> Self:
        if self._limits.yields_to_live:
            # Only successful probes show what is normal; if there are none, everything counts as slower for now.
            answered_ms = [taken for taken in self._probe(_NORMAL_PROBES) if taken < FAILED_PROBE_MS]
            self._pace = Pace(self._pace.rows_per_s, tail_ms(answered_ms or [0.0]))
        self._write_limit()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._admin.close()

    def _watch(self) -> None:
        previous: tuple[float, int, int] | None = None
        is_told = False
        while not self._is_over.is_set():
            began_s = time.monotonic()
            probes_ms = self._probe(_PROBES) if self._limits.yields_to_live else []
            try:
                starts, ends = self._starts(), end_offsets(self._admin, self._known_topics())
            except ClientError as error:
                if not is_told:
                    logger.warning("can't determine the progress of the replay: %s", error)
                    is_told = True
                self._is_over.wait(_WINDOW_S)
                continue
            is_told = False
            done, total = _rows(self._run.progress.processed, starts), _rows(ends, starts)
            now_s = time.monotonic()
            if previous is not None:
                passed_s = max(now_s - previous[0], 0.001)
                read, arrived = (done - previous[1]) / passed_s, (total - previous[2]) / passed_s
                self._tell(done, total, read, arrived, probes_ms)
            previous = (now_s, done, total)
            self._is_over.wait(max(_WINDOW_S - (time.monotonic() - began_s), 0.05))

    def _tell(self, done: int, total: int, read: float, arrived: float, probes_ms: list[float]) -> None:
        progress = self._run.progress
        rate = max(progress.rows_per_s if progress.batch_ms > _WINDOW_S * 1000 else read, 0.0)
        if self._limits.yields_to_live:
            self._pace = adapted(self._pace, probes_ms, self._used_rows_per_s(rate))
        if self._limits.max_rate is not None:
            capped = min(self._pace.rows_per_s, self._limits.max_rate)
            self._pace = dataclasses.replace(self._pace, rows_per_s=capped)
        if not self._is_resting():
            self._write_limit()
        allowed = self._pace.rows_per_s if self._limits.is_limited else None
        left_s = seconds_left(total - done, rate, arrived)
        latency_ms = tail_ms(probes_ms) if probes_ms else None
        self._rate_max = max(self._rate_max, rate)
        status = ReplayStatus(
            min(done, total), total, rate, left_s, max(arrived, 0.0), self._rate_max, allowed, latency_ms
        )
        has_begun = progress.batch_id >= 0 or (total == 0 and bool(self._topics))
        self.is_caught_up = has_begun and status.is_caught_up
        self._on_status(status)
        if self.is_caught_up and status.is_at_the_end and self._until_caught_up:
            self._is_over.set()
            self._run.request_stop()

    def _used_rows_per_s(self, measured: float) -> float:
        """The rate of the last batch, because a window may contain no batch or two; batches start a trigger apart."""
        progress = self._run.progress
        rows = progress.details.get("input_rows")
        return measured if rows is None else rows / max(self._trigger_s, progress.batch_ms / 1000, 0.001)

    def _is_resting(self) -> bool:
        """Whether the run has paused its source in order to stop between two batches."""
        if not self._is_over.is_set() and self._limit_file.read_text(encoding="utf-8") == "0":
            self._is_over.set()
        return self._is_over.is_set()

    def _rows_of_batch(self) -> int:
        progress = self._run.progress
        if self._limits.is_limited:
            return rows_of_batch(self._pace.rows_per_s, self._trigger_s, progress.batch_ms / 1000)
        return min(max(round(progress.rows_per_s * _BATCH_S), _BATCH_ROWS_START), _BATCH_ROWS_MAX)

    def _write_limit(self) -> None:
        temporary = self._limit_file.with_name(self._limit_file.name + ".new")
        self._limit_file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(str(self._rows_of_batch()), encoding="utf-8")
        os.replace(temporary, self._limit_file)

    def _probe(self, count: int) -> list[float]:
        """The latency in milliseconds of a small request, which every broker handles in the order of arrival.

        A failed request counts as slow: a broker that rejects requests or doesn't respond should not get more work.
        """
        taken: list[float] = []
        topic = next(iter(self._known_topics()), None)
        if topic is None:  # a pattern, before the first batch
            return taken
        for _ in range(count):
            began_s = time.perf_counter()
            try:
                self._admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.LATEST}).raise_for_errors()
                taken.append((time.perf_counter() - began_s) * 1000)
            except ClientError as error:
                taken.append(max((time.perf_counter() - began_s) * 1000, FAILED_PROBE_MS))
                logger.info("a probe of the broker failed and counts as slow: %s", error)
            if self._is_over.wait(_WINDOW_S / count / 2):
                break
        return taken

    def _known_topics(self) -> list[str]:
        """The topics that the pipeline names, plus those that its patterns have matched."""
        return sorted({*self._topics, *self._run.progress.processed})

    def _starts(self) -> Offsets:
        """Where the inputs started; if several inputs read a topic, the lowest offset counts."""
        try:
            by_input: Mapping[str, object] = json.loads(self._starts_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        merged: dict[str, dict[int, int]] = {}
        for rows in by_input.values():
            for topic, partitions in offsets_from_json(rows).items():
                for partition, offset in partitions.items():
                    known = merged.setdefault(topic, {}).get(partition, offset)
                    merged[topic][partition] = min(known, offset)
        return merged


def _rows(offsets: Offsets, starts: Offsets) -> int:
    return sum(
        max(offset - starts.get(topic, {}).get(partition, 0), 0)
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    )
