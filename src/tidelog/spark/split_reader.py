"""Reads the offsets of one split in a task: fetches them directly from the partition leader and decodes them in the
compiled kernel.

What always holds: the readable records of the range come out exactly once and in order, whatever gaps compaction,
aborted transactions and markers have left; the next fetch runs while a response is decoded and passed to Spark; if a
range makes no progress within the timeout, it fails with an error that says where it is stuck. If records are gone,
`failOnDataLoss` decides between an error and a warning. No Python objects are created for records.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
import uuid
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from crc32c import crc32c

from tidelog.client.consumer.fetch_request import send_fetch
from tidelog.client.consumer.fetch_session import Wanted, without_session
from tidelog.client.consumer.offsets_lookup import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, list_offsets
from tidelog.client.consumer.settings import ConsumerSettings
from tidelog.client.errors import BrokerError, NoSuchPartitionError, RetriableError, error_code
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.loop_thread import LoopThread
from tidelog.client.types import TopicPartition
from tidelog.common.ids import ZERO_UUID
from tidelog.common.recycled_memory import RecycledMemory
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k01_fetch import FetchResponse
from tidelog.records.arrow import OpenBatch, batches_to_arrow
from tidelog.records.batch import BATCH_HEADER_SIZE, Compression
from tidelog.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from tidelog.records.errors import CorruptBatchError
from tidelog.records.kernel_consume import BatchCursor, find_end
from tidelog.spark.errors import DataLossError, SourceError

logger = logging.getLogger(__name__)

# Spark copies batches of this size fastest: smaller ones cost calls, larger ones leave the caches.
ARROW_BYTES_MAX = 4 * 1024 * 1024
_COMPRESSION_MASK = 0x07
_TIMESTAMP_TYPE_BIT = 0x08
_COMPRESSIONS = tuple(Compression)
# Repeated empty responses below the end of the partition mean that compaction has left no records there.
_EMPTY_ANSWERS_MAX = 2
_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})
# A topic that was just created may not be known to every broker yet.
_GONE_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Split:
    """Offsets of one partition for one task; the end is exclusive."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: uuid.UUID = ZERO_UUID  # when the batch was planned; zero if unknown

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Answer(NamedTuple):
    """The result of a fetch; `next_offset` is where the next fetch starts."""

    view: memoryview
    aborted: list[tuple[int, int]]
    next_offset: int
    end: int  # how far the partition can be read now
    is_throttled: bool


class SplitClient:
    """The connections of a worker process for one set of settings; used by one task at a time."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings = settings
        self.thread = LoopThread("tidelog-spark")
        self.memory = RecycledMemory()
        self._cluster = self.thread.run(self._make_cluster())

    async def _make_cluster(self) -> Cluster:
        return Cluster(self.settings.cluster)

    def close(self) -> None:
        self.thread.run(self._cluster.close())
        self.thread.close()

    # On the loop

    async def fetch(self, split: Split, offset: int, deadline_s: float) -> Answer:
        """Fetch from the offset; retries transient errors until the deadline."""
        failures = 0
        gone_since_s: float | None = None
        while True:
            try:
                return await self._fetch_once(split, offset)
            except (BrokerError, RetriableError) as error:
                now_s = time.monotonic()
                if isinstance(error, BrokerError) and error.code in _GONE:
                    gone_since_s = gone_since_s or now_s
                    if now_s - gone_since_s >= _GONE_AFTER_S:
                        raise DataLossError(
                            f"partition {split.topic_partition} no longer exists, or its topic was deleted and "
                            "recreated"
                        ) from error
                elif not isinstance(error, RetriableError):
                    raise
                failures += 1
                pause_s = self.settings.cluster.retry.pause_s(failures)
                if now_s + pause_s >= deadline_s:
                    raise
                self._cluster.forget(split.topic)
                logger.info("reading %s at offset %d failed, retrying: %s", split.topic_partition, offset, error)
                await asyncio.sleep(pause_s)

    async def _fetch_once(self, split: Split, offset: int) -> Answer:
        cluster, settings = self._cluster, self.settings
        leader_id = await cluster.leader(split.topic, split.partition)
        known = cluster.metadata.partition(split.topic_partition)
        topic_id = (await cluster.topic(split.topic)).topic_id
        if split.topic_id not in (ZERO_UUID, topic_id):
            # This worker's metadata is older than the plan, or the topic has been recreated since.
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID, subject=f"topic {split.topic}")
        connection = await cluster.connection_to(leader_id)
        size = settings.max_partition_fetch_bytes
        epoch = -1 if known is None else known.leader_epoch
        request = without_session({split.topic_partition: Wanted(offset, size, epoch, topic_id)})
        response = await send_fetch(connection, settings, request, size)
        return self._read(response, split, offset)

    def _read(self, response: FetchResponse, split: Split, offset: int) -> Answer:
        _raise_for(response.error_code, split)
        for topic in response.responses:
            for row in topic.partitions:
                _raise_for(row.error_code, split)
                end = row.last_stable_offset if self.settings.is_read_committed else row.high_watermark
                view = row.records if isinstance(row.records, memoryview) else memoryview(b"")
                found = find_end(view)
                if len(view) and found.next_offset <= offset:
                    raise SourceError(f"partition {split.topic_partition} holds a damaged batch at offset {offset}")
                aborted = sorted((each.first_offset, each.producer_id) for each in row.aborted_transactions or ())
                next_offset = found.next_offset if len(view) else offset
                return Answer(view[: found.size], aborted, next_offset, end, response.throttle_time_ms > 0)
        return Answer(memoryview(b""), [], offset, -1, response.throttle_time_ms > 0)

    async def bounds(self, split: Split) -> tuple[int, int]:
        """The current start and end of the partition."""
        key = split.topic_partition
        first = await list_offsets(self._cluster, {key: EARLIEST_TIMESTAMP}, is_read_committed=False)
        last = await list_offsets(
            self._cluster, {key: LATEST_TIMESTAMP}, is_read_committed=self.settings.is_read_committed
        )
        return first[key].offset, last[key].offset


def _raise_for(code: int, split: Split) -> None:
    if code != ErrorCode.NONE:
        raise BrokerError(error_code(code), subject=f"partition {split.topic_partition}")


class SplitReader:
    """Reads one split, once."""

    def __init__(self, client: SplitClient, split: Split, *, fail_on_data_loss: bool, timeout_s: float) -> None:
        self._client = client
        self._split = split
        self._fail_on_data_loss = fail_on_data_loss
        self._timeout_s = timeout_s
        self._position = split.start
        self._deadline_s = 0.0
        self._empty_answers = 0
        self._checksum = crc32c if client.settings.check_crcs else None
        self._ratio = 4.0  # compression ratio of the last batch, to estimate the next
        self._begun: concurrent.futures.Future[Answer] | None = None

    def begin(self) -> None:
        """Start fetching the first records."""
        self._deadline_s = time.monotonic() + self._timeout_s
        self._begun = self._begin_fetch(self._position)

    def give_up(self) -> None:
        """Cancel a fetch that has been started."""
        if self._begun is not None:
            self._begun.cancel()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All records of the split, with all columns."""
        future, self._begun = self._begun, None
        self._deadline_s = time.monotonic() + self._timeout_s
        try:
            while self._position < self._split.end:
                if future is None:
                    future = self._begin_fetch(self._position)
                answer = self._answer(future)
                future = None
                if answer is None:
                    continue
                self._deadline_s = time.monotonic() + self._timeout_s
                if answer.next_offset < self._split.end:
                    future = self._begin_fetch(answer.next_offset)
                yield from self._decode(answer)
        finally:
            if future is not None:
                future.cancel()

    def _begin_fetch(self, offset: int) -> concurrent.futures.Future[Answer]:
        coroutine = self._client.fetch(self._split, offset, self._deadline_s)
        return asyncio.run_coroutine_threadsafe(coroutine, self._client.thread.loop)

    def _answer(self, future: concurrent.futures.Future[Answer]) -> Answer | None:
        """The response if it has records; None if the position was moved or the fetch must be retried."""
        split = self._split
        try:
            answer = future.result(max(self._deadline_s - time.monotonic(), 0.0) + 1.0)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise self._stuck("no response") from None
        except DataLossError as error:
            self._lose(error.reason, split.end)
            return None
        except NoSuchPartitionError as error:
            self._lose(f"partition {split.topic_partition} no longer exists: {error}", split.end)
            return None
        except BrokerError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            self._leave_range()
            return None
        if len(answer.view):
            self._empty_answers = 0
            return answer
        if answer.end >= split.end and not answer.is_throttled:
            # The whole range can be read but is empty: compaction has left a gap up to the end.
            self._empty_answers += 1
            if self._empty_answers >= _EMPTY_ANSWERS_MAX:
                self._position = split.end
                return None
        if time.monotonic() >= self._deadline_s:
            level = "last stable offset" if self._client.settings.is_read_committed else "high watermark"
            raise self._stuck(f"the partition's {level} is {answer.end}")
        return None

    def _stuck(self, reason: str) -> SourceError:
        split = self._split
        return SourceError(
            f"reading {split.topic_partition} from offset {split.start} to {split.end} made no progress beyond "
            f"{self._position} within {self._timeout_s:g} s: {reason}. There may be an open transaction, or the "
            "partition may have been truncated; kafkaConsumer.pollTimeoutMs sets this timeout"
        )

    def _leave_range(self) -> None:
        """The position is outside the partition: records at its start were deleted, or its end was lost."""
        split = self._split
        first, last = self._client.thread.run(self._client.bounds(split))
        if self._position < first:
            self._lose(
                f"partition {split.topic_partition} now starts at offset {first}, but {self._position} was to be read",
                min(first, split.end),
            )
        elif self._position > last:
            self._lose(
                f"partition {split.topic_partition} now ends at offset {last}, but {self._position} was to be read",
                split.end,
            )
        else:
            time.sleep(0.05)  # its start or end has moved between the two requests
            if time.monotonic() >= self._deadline_s:
                raise self._stuck(f"the broker reports the range {first} to {last}, but rejects the position")

    def _lose(self, reason: str, position: int) -> None:
        if self._fail_on_data_loss:
            raise DataLossError(reason)
        logger.warning("%s; continuing at offset %d because failOnDataLoss is false", reason, position)
        self._position = position

    # Decoding

    def _decode(self, answer: Answer) -> Iterator[pa.RecordBatch]:
        split = self._split
        cursor = BatchCursor(
            answer.view,
            split.topic,
            split.partition,
            self._position,
            self._checksum,
            self._open_records,
            answer.aborted,
        )
        try:
            gathered: list[OpenBatch] = []
            size = 0
            while cursor.next_offset < split.end and cursor.next_batch():
                if cursor.base_offset >= split.end:
                    break
                batch = self._open_batch(answer.view, cursor)
                gathered.append(batch)
                size += len(batch.records)
                cursor.end_batch()
                if size >= ARROW_BYTES_MAX:
                    yield from self._rows(gathered)
                    gathered, size = [], 0
            if gathered:
                yield from self._rows(gathered)
        except CorruptBatchError as error:
            raise SourceError(
                f"partition {split.topic_partition} holds a damaged batch at offset {cursor.next_offset}: {error}"
            ) from error
        self._position = max(answer.next_offset, self._position)

    def _rows(self, gathered: list[OpenBatch]) -> Iterator[pa.RecordBatch]:
        batch = batches_to_arrow(gathered, self._client.memory)
        rows = batch.num_rows
        offsets = batch.column("offset")
        if rows and offsets[rows - 1].as_py() >= self._split.end:
            numbers = memoryview(offsets.buffers()[1]).cast("q")
            batch = batch.slice(0, bisect_left(numbers, self._split.end, 0, rows))
        if batch.num_rows:
            yield batch

    def _open_batch(self, view: memoryview, cursor: BatchCursor) -> OpenBatch:
        records = view[cursor.batch_at + BATCH_HEADER_SIZE : cursor.batch_end]
        codec = cursor.attributes & _COMPRESSION_MASK
        return OpenBatch(
            self._split.topic,
            self._split.partition,
            cursor.next_offset,
            records if codec == Compression.NONE or not cursor.records_count else self._open_records(records, codec),
            cursor.records_count,
            cursor.base_offset,
            cursor.base_timestamp,
            cursor.max_timestamp,
            bool(cursor.attributes & _TIMESTAMP_TYPE_BIT),
        )

    def _open_records(self, view: memoryview, codec: int) -> bytes:
        if codec >= len(_COMPRESSIONS):
            raise CorruptBatchError(f"unknown compression codec {codec} in the attributes; known codecs are 0 to 4")
        expected = max(65536, int(len(view) * self._ratio * 1.25))
        records = decompress(_COMPRESSIONS[codec], view, expected_bytes=min(expected, DECOMPRESSED_BYTES_MAX))
        self._ratio = len(records) / max(len(view), 1)
        return records
