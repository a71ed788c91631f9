"""Reads a topic into `Contents`: the last value of every key, or every record if keys don't matter.

What always holds: only committed records are read; when `read_to_end` returns, everything that was committed when it
was called is in the contents; a topic that was recreated, or has lost unread records, is read again from the start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tidelog import Consumer, TopicPartition
from tidelog.client.errors import RequestTimeoutError
from tidelog.common.closing import Closing
from tidelog.pipeline.versions.contents import Contents

# How many rows are written to the file at once: enough that keys that change often are written only once.
_ROWS_AT_ONCE = 100_000
_POLL_S = 0.2
# If compaction has removed the last records, the position never reaches the end: then we stop after empty fetches.
_IDLE_POLLS = 3
_IDLE_S = 1.5

Tell = Callable[[int, int], None]
"""Called with the number of records read so far, and the approximate total."""


class TopicReader(Closing):
    """Reads one topic into one `Contents`; it stays connected, so that reading new records is quick."""

    def __init__(self, bootstrap: str, topic: str, contents: Contents, *, is_keyed: bool = True) -> None:
        self.topic = topic
        self.contents = contents
        self._is_keyed = is_keyed
        settings: Mapping[str, object] = {
            "bootstrap.servers": bootstrap,
            "isolation.level": "read_committed",
            "auto.offset.reset": "none",
            "enable.auto.commit": False,
        }
        self._consumer = Consumer(settings)
        try:
            self._partitions = self._assign()
        except BaseException:
            self._consumer.close()
            raise

    def close(self) -> None:
        self._consumer.close()

    @property
    def partition_count(self) -> int:
        return len(self._partitions)

    def _assign(self) -> list[TopicPartition]:
        described = self._consumer.partitions_for(self.topic)
        partitions = [TopicPartition(self.topic, row.partition) for row in described]
        topic_id = self._consumer.list_topics()[self.topic].topic_id
        origin = f"{self.topic} {topic_id} {'keys' if self._is_keyed else 'records'}"
        first = self._consumer.beginning_offsets(partitions)
        positions = self.contents.positions
        is_lost = any(positions.get(each.partition, first[each]) < first[each] for each in partitions)
        if self.contents.origin != origin or is_lost:
            self.contents.begin_anew(origin)
            positions = {}
        self._consumer.assign(partitions)
        for each in partitions:
            self._consumer.seek(each, positions.get(each.partition, first[each]))
        return partitions

    def ends(self) -> dict[int, int]:
        """The end of the committed records in each partition."""
        return {each.partition: end for each, end in self._consumer.end_offsets(self._partitions).items()}

    def read_to_end(self, tell: Tell | None = None, *, timeout_s: float | None = None) -> dict[int, int]:
        """Read everything that is committed now; returns the positions afterwards."""
        ends = self._consumer.end_offsets(self._partitions)
        starts = {each: self._consumer.position(each) for each in self._partitions}
        total = sum(max(end - starts[each], 0) for each, end in ends.items())
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        pending = _Pending(self._is_keyed)
        read = idle_polls = 0
        idle_since_s = time.monotonic()
        while not self._is_at(ends):
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise RequestTimeoutError(f"{self.topic}: {total - read} records are still to be read")
            batch = self._consumer.poll_arrow(_POLL_S, max_rows=_ROWS_AT_ONCE)
            if batch is None or batch.num_rows == 0:
                idle_polls += 1
                if idle_polls >= _IDLE_POLLS and time.monotonic() - idle_since_s > _IDLE_S:
                    break
                continue
            pending.add(batch)
            read += batch.num_rows
            idle_polls, idle_since_s = 0, time.monotonic()
            if pending.rows >= _ROWS_AT_ONCE:
                self._put(pending)
            if tell is not None:
                tell(read, max(total, read))
        self._put(pending)
        return self._positions()

    def _put(self, pending: _Pending) -> None:
        pending.put_into(self.contents, self._positions())

    def _positions(self) -> dict[int, int]:
        return {each.partition: self._consumer.position(each) for each in self._partitions}

    def _is_at(self, ends: Mapping[TopicPartition, int]) -> bool:
        return all(self._consumer.position(each) >= end for each, end in ends.items())


class _Pending:
    """Records that have been read but are not in the file yet."""

    def __init__(self, is_keyed: bool) -> None:
        self._is_keyed = is_keyed
        self._latest: dict[bytes, tuple[bytes | None, int]] = {}
        self._records: dict[bytes, int] = {}
        self.rows = 0

    def add(self, batch: Any) -> None:
        keys = batch.column("key").to_pylist()
        values = batch.column("value").to_pylist()
        self.rows += batch.num_rows
        if self._is_keyed:
            partitions = batch.column("partition").to_pylist()
            # A record without a key is not a row of a keyed topic, because its value can't be looked up.
            self._latest.update(
                (key, (value, partition))
                for key, value, partition in zip(keys, values, partitions, strict=True)
                if key is not None
            )
            return
        for key, value in zip(keys, values, strict=True):
            record = record_bytes(key, value)
            self._records[record] = self._records.get(record, 0) + 1

    def put_into(self, contents: Contents, positions: Mapping[int, int]) -> None:
        if self._is_keyed:
            contents.put(self._latest, positions)
        else:
            contents.count(self._records, positions)
        self._latest, self._records, self.rows = {}, {}, 0


def record_bytes(key: bytes | None, value: bytes | None) -> bytes:
    """Key and value of a record as bytes, so that equal records give equal bytes."""
    marks = bytes([key is not None, value is not None])
    return marks + len(key or b"").to_bytes(4, "big") + (key or b"") + (value or b"")


def record_parts(record: bytes) -> tuple[bytes | None, bytes | None]:
    """The reverse of `record_bytes`."""
    size = int.from_bytes(record[2:6], "big")
    key, value = record[6 : 6 + size], record[6 + size :]
    return (key if record[0] else None), (value if record[1] else None)
