"""The driver's part of a stream: determines which offsets the next micro-batch covers, and publishes progress.

What always holds: a batch that is planned again after a restart covers the same offsets; new partitions start at the
earliest offset; if data is gone, `failOnDataLoss` decides between an error and a warning; only the end of a batch that
Spark has committed is published for the group.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection
from pathlib import Path

from tidelog.client.types import TopicPartition
from tidelog.common.ids import ZERO_UUID
from tidelog.spark import client_settings
from tidelog.spark.errors import DataLossError, SourceError
from tidelog.spark.group_progress import GroupProgress
from tidelog.spark.offsets import Bound, Offsets
from tidelog.spark.options import Options
from tidelog.spark.planning import OffsetRange, count_waiting, limit_bytes, limit_rows
from tidelog.spark.topic_view import TopicView

logger = logging.getLogger(__name__)

_SIZES_AGE_MAX_S = 10.0


class StreamDriver:
    """The state of a query in the driver process."""

    def __init__(self, options: Options, view: TopicView) -> None:
        self._options = options
        self.view = view
        self.latest: Offsets = {}
        self._initial: Offsets | None = None
        self._fixed_end: Offsets | None = None
        self._last_batch_s = float("-inf")
        self._offset_bytes: dict[TopicPartition, float] = {}
        self._sizes_asked_at_s = float("-inf")
        self._topic_ids: dict[str, uuid.UUID] = {}  # when the topics were last read
        group_id = client_settings.group_id(options)
        self._progress = None if group_id is None else GroupProgress(group_id)

    def close(self) -> None:
        self.view.close()

    def publish(self, committed: Offsets) -> None:
        """Publish the offsets for the group, unless the query is at its start and has read nothing."""
        if self._progress is not None and committed != self._initial:
            there = self.view.partitions()
            self._progress.publish(
                self.view.admin, {key: offset for key, offset in committed.items() if not there or key in there}
            )

    # Where batches begin and end

    def initial(self, start: Bound) -> Offsets:
        """Where a new query starts."""
        self.view.refresh(age_max_s=self._age_max_s())
        self.view.require_all()
        self._initial = self.view.resolve(start, latest=self._fixed_end)
        return self._initial

    def fix_end(self) -> None:
        """From now on, read nothing beyond what is available now."""
        self.view.refresh()
        self._fixed_end = self.view.latest(self.view.partitions())

    def next_end(self, start: Offsets, *, has_limit: bool) -> Offsets:
        """The end of the batch that starts here; the same as the start if there is nothing to read."""
        # Spark asks for the next end once it has committed the previous batch, so everything before this start is done.
        self.publish(start)
        end = self._fixed_end if self._fixed_end is not None else self._ask_latest(start)
        self.latest = dict(end)
        if self._options.get("failOnDataLoss"):
            self._check_kept(start, end)
        if not has_limit:
            self._last_batch_s = time.monotonic()
            return dict(end)
        return self._limited(start, end)

    def _check_kept(self, start: Offsets, end: Offsets) -> None:
        """Fail before Spark records the end of the batch, so that the query can resume once the topic is restored."""
        self._check_deleted(start, end)
        for topic in sorted(self._other_topics()):
            self._lose(f"topic {topic} was deleted and recreated")
        for key, offset in end.items():
            if start.get(key, 0) > offset:
                self._lose(f"partition {key} ends at offset {offset} now, but {start[key]} had already been reached")

    def _check_deleted(self, start: Offsets, end: Offsets) -> None:
        deleted = sorted(start.keys() - end.keys())
        if deleted:
            self._lose(f"partition {', '.join(str(each) for each in deleted)} no longer exists")

    def _age_max_s(self) -> float:
        return float(max(self._options.get("partition.metadata.cache.ttl.ms"), 0)) / 1000

    def _ask_latest(self, start: Offsets) -> Offsets:
        """Retries if it is lower than what has been read: a leader that has just taken over may lag behind."""
        self.view.refresh(age_max_s=self._age_max_s())
        retries: int = self._options.get("fetchOffset.numRetries")
        for left in range(retries, -1, -1):
            latest = self.view.latest(self.view.partitions())
            wrong = [key for key, offset in latest.items() if offset < start.get(key, 0)]
            if not wrong or not left:
                break
            time.sleep(self._options.get("fetchOffset.retryIntervalMs") / 1000)
            self.view.refresh()
        return latest

    def _limited(self, start: Offsets, end: Offsets) -> Offsets:
        options = self._options
        begin = self._with_new(start, end)
        rows_min = options.get("minOffsetsPerTrigger")
        if rows_min is not None and self._fixed_end is None:
            waited_s = time.monotonic() - self._last_batch_s
            if count_waiting(begin, end) < rows_min and waited_s < options.get("maxTriggerDelay") / 1000:
                return start
        limited = end
        for rows_max in (options.get("maxOffsetsPerTrigger"), self._limit_of_file()):
            if rows_max is not None:
                limited = _unmoved(start, end) if rows_max == 0 else limit_rows(rows_max, begin, limited)
        bytes_max = options.get("maxBytesPerTrigger")
        if bytes_max is not None:
            limited = limit_bytes(bytes_max, begin, limited, self._sizes(limited))
        if limited != start:
            self._last_batch_s = time.monotonic()
        return limited

    def _with_new(self, start: Offsets, end: Offsets) -> Offsets:
        """The start, plus the earliest offsets of partitions added since."""
        added = [key for key in end if key not in start]
        return {**start, **self.view.earliest(added)} if added else start

    def _limit_of_file(self) -> int | None:
        name = self._options.get("maxOffsetsPerTriggerFile")
        if name is None:
            return None
        try:
            text = Path(name).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None
        if not text:
            return None
        if not text.isdecimal():
            raise SourceError(f"the file {name} of maxOffsetsPerTriggerFile contains {text[:40]!r}, not an integer")
        # With Trigger.AvailableNow, an empty batch would end the query.
        return int(text) if self._fixed_end is None else max(int(text), 1)

    def _sizes(self, end: Offsets) -> dict[TopicPartition, float]:
        now_s = time.monotonic()
        if now_s - self._sizes_asked_at_s > _SIZES_AGE_MAX_S or not self._offset_bytes.keys() >= end.keys():
            self._offset_bytes = self.view.offset_bytes(end)
            self._sizes_asked_at_s = now_s
        return self._offset_bytes

    # What a batch covers

    def ranges(self, start: Offsets, end: Offsets, *, age_max_s: float = 0.0) -> list[OffsetRange]:
        """The offsets to read, after checking which partitions were added, deleted or recreated.

        Tasks need fresh metadata, because they compare the planned topic ids with the current ones.
        """
        self.view.refresh(age_max_s=age_max_s)
        self._check_deleted(start, end)
        recreated = self._recreated(start, end)
        begin = {**start, **self._added(end.keys() - start.keys()), **self.view.earliest(recreated)}
        # If a topic was recreated in the meantime, the planned end is that of the old topic.
        until = {**end, **{key: min(end[key], offset) for key, offset in self.view.latest(recreated).items()}}
        ranges = [OffsetRange(key, begin[key], until[key]) for key in sorted(end) if key in begin]
        return [each for each in ranges if each.size > 0 and self._is_there(each.topic_partition)]

    def _recreated(self, start: Offsets, end: Offsets) -> list[TopicPartition]:
        """Partitions of topics that were deleted and recreated; they are read from the beginning."""
        other = self._other_topics()
        self._topic_ids.update(self.view.topic_ids())
        recreated = []
        for key in sorted(start.keys() & end.keys()):
            if key.topic in other:
                self._lose(f"topic {key.topic} was deleted and recreated")
                recreated.append(key)
            elif start[key] > end[key]:
                self._lose(f"partition {key} ends at offset {end[key]} now, but {start[key]} had already been reached")
                recreated.append(key)
        return [key for key in recreated if key in self.view.partitions()]

    def _other_topics(self) -> set[str]:
        """Topics whose id has changed since they were last read."""
        now = self.view.topic_ids()
        return {topic for topic, known in self._topic_ids.items() if now.get(topic, known) not in (known, ZERO_UUID)}

    def _added(self, keys: Collection[TopicPartition]) -> Offsets:
        there = self.view.partitions()
        first = self.view.earliest(key for key in keys if key in there)
        for key in sorted(keys):
            if key not in first:
                self._lose(f"the new partition {key} no longer exists")
            elif first[key] > 0:
                self._lose(f"the new partition {key} starts at offset {first[key]} instead of 0")
        return first

    def _is_there(self, key: TopicPartition) -> bool:
        if key in self.view.partitions():
            return True
        self._lose(f"partition {key} no longer exists")
        return False

    def _lose(self, reason: str) -> None:
        if self._options.get("failOnDataLoss"):
            raise DataLossError(reason)
        logger.warning("%s; continuing because failOnDataLoss is false", reason)


def _unmoved(start: Offsets, end: Offsets) -> Offsets:
    return {key: start[key] for key in end if key in start}
