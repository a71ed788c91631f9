"""Which offsets the next micro-batch of a query covers, and how far the query is: the driver's part of a stream.

What always holds: a batch that is planned again after a restart covers the same offsets; partitions that are added
begin at the earliest; what is gone is an error or a warning, as `failOnDataLoss` says; with a group, what is published
is the end of a batch that Spark has committed.
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

log = logging.getLogger(__name__)

_SIZES_AGE_MAX_S = 10.0


class StreamDriver:
    """What lives in the driver's one process for the query."""

    def __init__(self, options: Options, view: TopicView) -> None:
        self._options = options
        self.view = view
        self.latest: Offsets = {}
        self._initial: Offsets | None = None
        self._fixed_end: Offsets | None = None
        self._last_batch_s = float("-inf")
        self._offset_bytes: dict[TopicPartition, float] = {}
        self._sizes_asked_at_s = float("-inf")
        self._topic_ids: dict[str, uuid.UUID] = {}  # of the topics that were read last
        group_id = client_settings.group_id(options)
        self._progress = None if group_id is None else GroupProgress(group_id)

    def close(self) -> None:
        self.view.close()

    def publish(self, committed: Offsets) -> None:
        """Tell the group, unless it is where the query begins and nothing was read yet."""
        if self._progress is not None and committed != self._initial:
            there = self.view.partitions()
            self._progress.publish(
                self.view.admin, {key: offset for key, offset in committed.items() if not there or key in there}
            )

    # Where batches begin and end

    def initial(self, start: Bound) -> Offsets:
        """Where a new query begins."""
        self.view.refresh(age_max_s=self._age_max_s())
        self.view.require_all()
        self._initial = self.view.resolve(start, latest=self._fixed_end)
        return self._initial

    def fix_end(self) -> None:
        """From now on nothing younger than what is there is read."""
        self.view.refresh()
        self._fixed_end = self.view.latest(self.view.partitions())

    def next_end(self, start: Offsets, *, has_limit: bool) -> Offsets:
        """Where the batch ends that begins here; the same as the start when there is nothing for one."""
        # Spark asks for the next end when the batch before is committed: so this start is what is done.
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
        """Fail before Spark has noted the end of the batch: so the query can go on once the topic is restored."""
        self._check_deleted(start, end)
        for topic in sorted(self._other_topics()):
            self._lose(f"topic {topic} was deleted and made anew")
        for key, offset in end.items():
            if start.get(key, 0) > offset:
                self._lose(f"partition {key} ends at offset {offset} now, and {start[key]} was reached before")

    def _check_deleted(self, start: Offsets, end: Offsets) -> None:
        deleted = sorted(start.keys() - end.keys())
        if deleted:
            self._lose(f"there is no partition {', '.join(str(each) for each in deleted)} any more")

    def _age_max_s(self) -> float:
        return float(max(self._options.get("partition.metadata.cache.ttl.ms"), 0)) / 1000

    def _ask_latest(self, start: Offsets) -> Offsets:
        """Asked again when it lies before what was read: a leader that has just taken over may not know better yet."""
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
        """The start, and where partitions begin that were added since."""
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
            raise SourceError(f"the file {name} of maxOffsetsPerTriggerFile holds {text[:40]!r}, not a whole number")
        # A query that ends at what is there now would take an empty batch for its end.
        return int(text) if self._fixed_end is None else max(int(text), 1)

    def _sizes(self, end: Offsets) -> dict[TopicPartition, float]:
        now_s = time.monotonic()
        if now_s - self._sizes_asked_at_s > _SIZES_AGE_MAX_S or not self._offset_bytes.keys() >= end.keys():
            self._offset_bytes = self.view.offset_bytes(end)
            self._sizes_asked_at_s = now_s
        return self._offset_bytes

    # What a batch covers

    def ranges(self, start: Offsets, end: Offsets, *, age_max_s: float = 0.0) -> list[OffsetRange]:
        """The offsets between, after a look at what was added, deleted or made anew.

        What is known of topics must not be old for tasks, which compare the ids of topics with those of now.
        """
        self.view.refresh(age_max_s=age_max_s)
        self._check_deleted(start, end)
        anew = self._made_anew(start, end)
        begin = {**start, **self._added(end.keys() - start.keys()), **self.view.earliest(anew)}
        # Where a topic was made anew meanwhile, the end is that of the one before.
        until = {**end, **{key: min(end[key], offset) for key, offset in self.view.latest(anew).items()}}
        ranges = [OffsetRange(key, begin[key], until[key]) for key in sorted(end) if key in begin]
        return [each for each in ranges if each.size > 0 and self._is_there(each.topic_partition)]

    def _made_anew(self, start: Offsets, end: Offsets) -> list[TopicPartition]:
        """Partitions of topics that were deleted and made again, which are read from their beginning."""
        other = self._other_topics()
        self._topic_ids.update(self.view.topic_ids())
        anew = []
        for key in sorted(start.keys() & end.keys()):
            if key.topic in other:
                self._lose(f"topic {key.topic} was deleted and made anew")
                anew.append(key)
            elif start[key] > end[key]:
                self._lose(f"partition {key} ends at offset {end[key]} now, and {start[key]} was reached before")
                anew.append(key)
        return [key for key in anew if key in self.view.partitions()]

    def _other_topics(self) -> set[str]:
        """Those that have another id than when they were read last."""
        now = self.view.topic_ids()
        return {topic for topic, known in self._topic_ids.items() if now.get(topic, known) not in (known, ZERO_UUID)}

    def _added(self, keys: Collection[TopicPartition]) -> Offsets:
        there = self.view.partitions()
        first = self.view.earliest(key for key in keys if key in there)
        for key in sorted(keys):
            if key not in first:
                self._lose(f"partition {key}, which was new, does not exist any more")
            elif first[key] > 0:
                self._lose(f"partition {key} is new to the query and begins at offset {first[key]} instead of 0")
        return first

    def _is_there(self, key: TopicPartition) -> bool:
        if key in self.view.partitions():
            return True
        self._lose(f"partition {key} does not exist any more")
        return False

    def _lose(self, reason: str) -> None:
        if self._options.get("failOnDataLoss"):
            raise DataLossError(reason)
        log.warning("%s; going on because failOnDataLoss is false", reason)


def _unmoved(start: Offsets, end: Offsets) -> Offsets:
    return {key: start[key] for key in end if key in start}
