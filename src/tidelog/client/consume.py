"""Consuming by assignment: given partitions and where to start, records in order of their offsets.

What always holds: a partition's records come in offset order, each once; control records are never shown; a partition
whose leader moved, or whose broker restarts, is read on from where it stood. It belongs to no group, commits nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.client.admin_calls import Admin
from tidelog.client.admin_types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidelog.client.cluster import RETRY_BACKOFF_S, RETRY_BACKOFF_S_MAX, Cluster, TopicPartition, is_passing
from tidelog.client.connection import Connection, InFlight
from tidelog.client.errors import BrokerError, ClientError, InvalidResponseError, error_code, raise_for
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k01_fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidelog.records import BatchHeader, CorruptBatchError, Record, decode_records, iter_headers

FETCH_MAX_WAIT_MS = 500
FETCH_MAX_BYTES = 50 * 1024 * 1024  # Kafka's fetch.max.bytes
PARTITION_MAX_BYTES = 1024 * 1024  # Kafka's max.partition.fetch.bytes
_TOPIC_IDS_FROM = 13
_NO_SESSION_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin in a partition: an offset (below 0: counted back from the end), or the first record of a time."""

    offset: int | None = None
    timestamp: int | None = None


BEGINNING = Start(timestamp=EARLIEST_TIMESTAMP)
END = Start(timestamp=LATEST_TIMESTAMP)


class FetchedRecords(NamedTuple):
    topic_partition: TopicPartition
    records: list[Record]


@dataclass(slots=True)
class _Position:
    offset: int
    # Where to stop, or None to follow the partition for ever.
    stop_at: int | None = None

    @property
    def is_done(self) -> bool:
        return self.stop_at is not None and self.offset >= self.stop_at


class Consumer:
    """Reads assigned partitions from the caller's thread."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        max_wait_ms: int = FETCH_MAX_WAIT_MS,
        partition_max_bytes: int = PARTITION_MAX_BYTES,
        patience_s: float | None = None,
    ) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._max_wait_ms = max_wait_ms
        self._partition_max_bytes = partition_max_bytes
        self._patience_s = cluster.request_timeout_s if patience_s is None else patience_s
        self._positions: dict[TopicPartition, _Position] = {}
        self._failing_since_s: float | None = None
        self._pause_s = RETRY_BACKOFF_S
        self._pending: deque[tuple[TopicPartition, memoryview, int, BatchHeader]] = deque()
        self._errors: list[ClientError] = []

    def assign(self, starts: Mapping[TopicPartition, Start], *, stop_at_end: bool = False) -> None:
        """Take up these partitions instead of all before; `stop_at_end`: up to the end as it is now."""
        ends: dict[TopicPartition, int] = {}
        if stop_at_end or any(start.offset is not None and start.offset < 0 for start in starts.values()):
            ends = self._list_offsets(dict.fromkeys(starts, LATEST_TIMESTAMP))
        offsets = self._resolve(starts, ends)
        self._pending.clear()
        self._errors.clear()
        self._positions = {
            topic_partition: _Position(offsets[topic_partition], ends[topic_partition] if stop_at_end else None)
            for topic_partition in starts
        }

    @property
    def is_done(self) -> bool:
        """Whether all partitions were read up to where they are to stop."""
        return all(position.is_done for position in self._positions.values())

    @property
    def is_failing(self) -> bool:
        """Whether the last fetch met an error, which the next poll raises or bears."""
        return bool(self._errors)

    def position(self, topic_partition: TopicPartition) -> int:
        """The offset of the next record."""
        return self._positions[topic_partition].offset

    def poll(self) -> FetchedRecords | None:
        """The records of the next batch; None when nothing came within `max_wait_ms`.

        Raises when an error won't pass, or has not passed within the patience; what arrived before it comes first.
        """
        if not self._pending:
            self._raise_or_bear()
            self._fetch()
        while self._pending:
            topic_partition, buffer, start, header = self._pending.popleft()
            records = self._open(topic_partition, buffer, start, header)
            if records:
                return FetchedRecords(topic_partition, records)
        return None

    def __iter__(self) -> Iterator[FetchedRecords]:
        while not self.is_done:
            fetched = self.poll()
            if fetched is not None:
                yield fetched

    # Where to start

    def _resolve(
        self, starts: Mapping[TopicPartition, Start], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        by_time = {key: start.timestamp for key, start in starts.items() if start.timestamp is not None}
        offsets = self._list_offsets(by_time)
        # No record is as young as the time asked for: what comes next is.
        offsets |= self._list_offsets({key: LATEST_TIMESTAMP for key, offset in offsets.items() if offset < 0})
        from_end = {key: start.offset for key, start in starts.items() if start.offset is not None and start.offset < 0}
        first = self._list_offsets(dict.fromkeys(from_end, EARLIEST_TIMESTAMP))
        for key, start in starts.items():
            if start.offset is not None:
                offsets[key] = start.offset if start.offset >= 0 else max(ends[key] + start.offset, first[key])
        return offsets

    def _list_offsets(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if not timestamps:
            return {}
        return {key: listed.offset for key, listed in self._admin.list_offsets(timestamps).items()}

    # Fetching

    def _fetch(self) -> None:
        """Ask the leaders once; what they answer waits unopened, so that memory holds the records of one batch."""
        wanted = [key for key, position in self._positions.items() if not position.is_done]
        under_way: list[tuple[Connection, InFlight[FetchResponse]]] = []
        try:
            for leader_id, led in self._cluster.by_leader(wanted).items():
                connection = self._cluster.connection_to(leader_id)
                under_way.append((connection, self._send(connection, led)))
        except ClientError as error:
            self._errors.append(error)
        timeout_s = self._cluster.request_timeout_s + self._max_wait_ms / 1000
        for connection, sent in under_way:
            try:
                response = connection.receive(sent, timeout_s=timeout_s)
                raise_for(response.error_code)
            except ClientError as error:
                self._errors.append(error)
            else:
                self._read(response)
        if self._errors:
            for name in {topic_partition.topic for topic_partition in wanted}:
                self._cluster.forget(name)
        else:
            self._failing_since_s = None
            self._pause_s = RETRY_BACKOFF_S
        self._rotate()

    def _send(self, connection: Connection, led: Iterable[TopicPartition]) -> InFlight[FetchResponse]:
        topics: dict[str, FetchTopic] = {}
        for name, partition in led:
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = FetchTopic(topic=name, topic_id=self._cluster.topic(name).topic_id)
            topic.partitions.append(
                FetchPartition(
                    partition=partition,
                    fetch_offset=self._positions[TopicPartition(name, partition)].offset,
                    partition_max_bytes=self._partition_max_bytes,
                )
            )
        has_ids = all(topic.topic_id != ZERO_UUID for topic in topics.values())
        request = FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=FETCH_MAX_BYTES,
            session_epoch=_NO_SESSION_EPOCH,
            topics=list(topics.values()),
        )
        version = connection.version_for(FETCH, at_most=None if has_ids else _TOPIC_IDS_FROM - 1)
        return connection.send(FETCH, request, FetchResponse, version=version)

    def _rotate(self) -> None:
        """Let another partition be first next time: a broker fills an answer in the order of the request."""
        if len(self._positions) > 1:
            first = next(iter(self._positions))
            self._positions[first] = self._positions.pop(first)

    def _read(self, response: FetchResponse) -> None:
        for topic in response.responses:
            name = topic.topic or self._cluster.topic_name(topic.topic_id)
            for row in topic.partitions:
                topic_partition = TopicPartition(name or "", row.partition_index)
                if topic_partition not in self._positions:
                    continue
                try:
                    self._check(topic_partition, row)
                    # None: the broker had nothing.
                    if isinstance(row.records, memoryview):
                        self._queue(topic_partition, row.records)
                except ClientError as error:
                    self._errors.append(error)

    def _queue(self, topic_partition: TopicPartition, buffer: memoryview) -> None:
        try:
            for start, header in iter_headers(buffer, allow_partial=True):
                self._pending.append((topic_partition, buffer, start, header))
        except CorruptBatchError as error:
            raise _damaged(topic_partition, self._positions[topic_partition].offset, error) from error

    def _check(self, topic_partition: TopicPartition, row: PartitionData) -> None:
        code = error_code(row.error_code)
        if code is ErrorCode.NONE:
            return
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            first = self._list_offsets({topic_partition: EARLIEST_TIMESTAMP})[topic_partition]
            end = self._list_offsets({topic_partition: LATEST_TIMESTAMP})[topic_partition]
            raise BrokerError(
                code,
                f"partition {topic_partition} has no offset {self._positions[topic_partition].offset}; "
                f"it holds {first} up to {end}",
            )
        raise BrokerError(code, subject=f"partition {topic_partition}")

    def _open(
        self, topic_partition: TopicPartition, buffer: memoryview, start: int, header: BatchHeader
    ) -> list[Record]:
        """The records of a batch that were asked for; the position moves behind it."""
        position = self._positions[topic_partition]
        if header.next_offset <= position.offset or position.is_done:
            return []
        records: list[Record] = []
        if not header.is_control:
            try:
                records = decode_records(buffer, start)
            except CorruptBatchError as error:
                self._pending.clear()  # the next poll meets the damage again, at the beginning
                raise _damaged(topic_partition, position.offset, error) from error
        # The first batch holds the asked offset somewhere inside, and the end may lie inside the last.
        first, stop_at = position.offset, position.stop_at
        position.offset = header.next_offset
        return [record for record in records if first <= record.offset and (stop_at is None or record.offset < stop_at)]

    def _raise_or_bear(self) -> None:
        """Raise the last fetch's error when it won't pass or has lasted too long; else wait a little."""
        errors, self._errors = self._errors, []
        if not errors:
            return
        error = next((error for error in errors if not is_passing(error)), errors[0])
        now_s = self._cluster.monotonic()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        if not is_passing(error) or now_s - self._failing_since_s > self._patience_s:
            raise error
        self._cluster.pause(self._pause_s)
        self._pause_s = min(self._pause_s * 2, RETRY_BACKOFF_S_MAX)


def _damaged(topic_partition: TopicPartition, offset: int, error: CorruptBatchError) -> InvalidResponseError:
    return InvalidResponseError(
        f"partition {topic_partition} holds a damaged batch at or after offset {offset}: {error}"
    )
