"""Turns fetched batches into what `poll` returns: a list of records, or one Arrow record batch.

What always holds: positions move over exactly what is returned, and over what is never returned (control batches,
aborted transactions, gaps). Records before a damaged batch come first; then every poll raises an error that names the
partition and the offset, until the user seeks. Decoding runs in the thread that polls and never waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.client.consumer.fetch_queue import ArrowRows, FetchedChunk, FetchQueue
from tidelog.client.consumer.metrics import ConsumerCounts
from tidelog.client.consumer.settings import ConsumerSettings, Deserializer
from tidelog.client.consumer.subscription import SubscriptionState
from tidelog.client.errors import ClientError, CorruptRecordError, RecordDeserializationError
from tidelog.client.types import TopicPartition
from tidelog.common.checksum import crc32c
from tidelog.common.recycled_memory import RecycledMemory
from tidelog.records.batch import Compression
from tidelog.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from tidelog.records.errors import CorruptBatchError
from tidelog.records.kernel_consume import BatchCursor, ConsumerRecord, DeserializeError, deserialize

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.records.arrow import OpenBatch

_BATCH_HEADER_SIZE = 61
_TIMESTAMP_TYPE_BIT = 0x08
_COMPRESSION_MASK = 0x07
_COMPRESSIONS = tuple(Compression)
# About how many bytes of records go into one Arrow batch; larger ones no longer fit the caches and gain nothing.
ARROW_BYTES_MAX = 8 * 1024 * 1024
# Arrow's binary columns can't hold more than this, so a batch that decompresses to more is never merged with others.
_ROOM_FACTOR = 1.25


class Decoder:
    """Takes records out of a consumer's queue."""

    def __init__(
        self,
        settings: ConsumerSettings,
        queue: FetchQueue,
        subscription: SubscriptionState,
        counts: ConsumerCounts,
    ) -> None:
        self._queue = queue
        self._subscription = subscription
        self._counts = counts
        self._checksum = crc32c if settings.check_crcs else None
        self._key: Deserializer | None = settings.key_deserializer
        self._value: Deserializer | None = settings.value_deserializer
        self._arrow_memory = RecycledMemory()
        self._ratios = [4.0] * len(_COMPRESSIONS)  # how much batches of each codec have grown, to guess the next size

    # Records

    def take(self, count: int) -> list[ConsumerRecord]:
        """Up to `count` records that are already there. Raises the error that stands in place of the next record."""
        records: list[ConsumerRecord] = []
        queue = self._queue
        while len(records) < count:
            chunk = queue.current()
            if chunk is None:
                break
            if chunk.error is not None or chunk.reset is not None:
                if records:
                    break
                self._tell(chunk)
                continue
            cursor = chunk.cursor or self._open(chunk)
            try:
                cursor.take(records, count - len(records))
            except CorruptBatchError as error:
                self._note_damage(chunk, cursor, error)
            else:
                self._advance(chunk, cursor)
                if len(records) < count:
                    queue.done(chunk)
        if records:
            if self._key is not None or self._value is not None:
                records = self._deserialized(records)
            self._counts.records += len(records)
        return records

    def _deserialized(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        try:
            deserialize(records, 0, self._key, self._value)
        except DeserializeError as error:
            # This record and everything after it is returned again; on its own poll if it is the first one here.
            failed = records[error.index]
            positions: dict[TopicPartition, ConsumerRecord] = {}
            for record in records[error.index :]:
                positions.setdefault(TopicPartition(record.topic, record.partition), record)
            for topic_partition, record in positions.items():
                self._subscription.seek(topic_partition, record.offset, record.leader_epoch)
            if error.index > 0:
                return records[: error.index]
            raise RecordDeserializationError(
                f"partition {failed.topic}-{failed.partition}: the record at offset {failed.offset} can't be "
                f"deserialized: {error.cause}; seek to {failed.offset + 1} to skip it",
                failed.topic,
                failed.partition,
                failed.offset,
            ) from error.cause
        return records

    # Arrow

    def take_arrow(self, rows_max: int | None) -> pa.RecordBatch | None:
        """The data that is already there as one Arrow batch of at most `rows_max` rows; None if there is none."""
        from tidelog.records.arrow import batches_to_arrow

        while True:
            chunk = self._queue.current()
            if chunk is None:
                return None
            if chunk.error is not None or chunk.reset is not None:
                self._tell(chunk)
                continue
            if chunk.rows is not None and chunk.rows.position == chunk.state.position:
                return self._take_rows(chunk, chunk.rows, rows_max)
            gathered = _Gathered()
            self._gather(gathered, rows_max)
            if gathered.batches:
                try:
                    table = batches_to_arrow(gathered.batches, self._arrow_memory)
                except CorruptBatchError:
                    table = self._keep_sound(gathered)
            else:
                table = None
            for chunk, cursor in gathered.cursors:
                self._advance(chunk, cursor)
            for chunk in gathered.finished:
                self._queue.done(chunk)
            if table is None or not table.num_rows:
                continue
            self._counts.records += table.num_rows
            if rows_max is not None and table.num_rows > rows_max:
                return self._cut(gathered.cursors[-1][0], table, rows_max)
            return table

    def _gather(self, gathered: _Gathered, rows_max: int | None) -> None:
        """Open batches, chunk by chunk, until there is enough; the last batch may bring more rows than wanted."""
        size = rows = 0
        for chunk in self._queue.ready():
            if chunk.error is not None or chunk.reset is not None:
                return
            cursor = chunk.cursor or self._open(chunk)
            if chunk.rows is not None:
                cursor.move_to(chunk.state.position)
                chunk.rows = None
            gathered.cursors.append((chunk, cursor))
            try:
                while cursor.next_batch():
                    batch = self._open_batch(chunk, cursor)
                    gathered.batches.append(batch)
                    gathered.sources.append((chunk, cursor))
                    cursor.end_batch()
                    rows += batch.records_count
                    size += len(batch.records)
                    if (rows_max is not None and rows >= rows_max) or size >= ARROW_BYTES_MAX:
                        return
            except CorruptBatchError as error:
                self._note_damage(chunk, cursor, error)
                return
            gathered.finished.append(chunk)

    def _open_batch(self, chunk: FetchedChunk, cursor: BatchCursor) -> OpenBatch:
        from tidelog.records.arrow import OpenBatch

        view = chunk.view[cursor.batch_at + _BATCH_HEADER_SIZE : cursor.batch_end]
        codec = cursor.attributes & _COMPRESSION_MASK
        return OpenBatch(
            chunk.state.topic_partition.topic,
            chunk.state.topic_partition.partition,
            cursor.next_offset,
            view if codec == Compression.NONE or not cursor.records_count else self._open_records(view, codec),
            cursor.records_count,
            cursor.base_offset,
            cursor.base_timestamp,
            cursor.max_timestamp,
            bool(cursor.attributes & _TIMESTAMP_TYPE_BIT),
        )

    def _keep_sound(self, gathered: _Gathered) -> pa.RecordBatch | None:
        """One of the batches holds an unreadable record: keep the batches before it, and note the error."""
        from tidelog.records.arrow import batches_to_arrow

        for number, (batch, (chunk, _)) in enumerate(zip(gathered.batches, gathered.sources, strict=True)):
            try:
                batches_to_arrow([batch])
            except CorruptBatchError as error:
                # The cursor has moved on; a new one is created at the offset where the damage begins.
                damaged = self._open(chunk, batch.from_offset)
                damaged.next_batch()
                self._note_damage(chunk, damaged, error)
                touched = [source for source in gathered.sources[:number] if source[0] is not chunk]
                gathered.cursors = [*dict.fromkeys(touched), (chunk, damaged)]
                gathered.finished = [
                    done for done in gathered.finished if done is not chunk and any(done is kept for kept, _ in touched)
                ]
                return batches_to_arrow(gathered.batches[:number]) if number else None
        raise AssertionError("a batch can be read alone but not with others")

    def _cut(self, chunk: FetchedChunk, table: pa.RecordBatch, rows_max: int) -> pa.RecordBatch:
        """The first rows; the others, all from the last batch, wait for the next call."""
        assert chunk.cursor is not None
        rest = table.slice(rows_max)
        position = rest.column("offset")[0].as_py()
        chunk.rows = ArrowRows(position, rest, chunk.cursor.next_offset)
        chunk.cursor.move_to(position)
        self._counts.records -= rest.num_rows
        self._advance(chunk, chunk.cursor)
        return table.slice(0, rows_max)

    def _take_rows(self, chunk: FetchedChunk, left: ArrowRows, rows_max: int | None) -> pa.RecordBatch:
        assert chunk.cursor is not None
        rows = left.rows if rows_max is None else left.rows.slice(0, rows_max)
        if rows.num_rows == left.rows.num_rows:
            chunk.rows = None
            chunk.cursor.move_to(left.end_position)
        else:
            rest = left.rows.slice(rows.num_rows)
            position = rest.column("offset")[0].as_py()
            chunk.rows = ArrowRows(position, rest, left.end_position)
            chunk.cursor.move_to(position)
        self._advance(chunk, chunk.cursor)
        self._counts.records += rows.num_rows
        return rows

    # Chunks

    def _open(self, chunk: FetchedChunk, offset: int | None = None) -> BatchCursor:
        topic_partition = chunk.state.topic_partition
        chunk.rows = None
        chunk.cursor = BatchCursor(
            chunk.view,
            topic_partition.topic,
            topic_partition.partition,
            chunk.start_offset if offset is None else offset,
            self._checksum,
            self._open_records,
            chunk.aborted,
        )
        return chunk.cursor

    def _open_records(self, view: memoryview, number: int) -> bytes:
        """The records of a compressed batch, decompressed."""
        if number >= len(_COMPRESSIONS):
            raise CorruptBatchError(f"the attributes name compression codec {number}; only 0 to 4 are known")
        expected = max(65536, int(len(view) * self._ratios[number] * _ROOM_FACTOR))
        records = decompress(_COMPRESSIONS[number], view, expected_bytes=min(expected, DECOMPRESSED_BYTES_MAX))
        self._ratios[number] = len(records) / max(len(view), 1)
        return records

    def _advance(self, chunk: FetchedChunk, cursor: BatchCursor) -> None:
        self._subscription.advance(chunk.state, chunk.version, cursor.next_offset, cursor.taken_epoch)

    def _note_damage(self, chunk: FetchedChunk, cursor: BatchCursor, error: CorruptBatchError) -> None:
        """Everything before the damage has been taken; from now on the chunk holds only the error."""
        topic, partition = chunk.state.topic_partition
        offset = cursor.next_offset
        behind = max(cursor.batch_next_offset, offset + 1)
        chunk.error = CorruptRecordError(
            f"partition {topic}-{partition} holds a damaged batch at offset {offset}: {error}; "
            f"seek to {behind} to skip it",
            topic,
            partition,
            offset,
            behind,
        )
        chunk.error.__cause__ = error
        chunk.error_stays = True
        self._advance(chunk, cursor)

    def _tell(self, chunk: FetchedChunk) -> None:
        """Raise the error that stands in place of data, or begin the reset that it calls for."""
        if chunk.reset is not None:
            self._queue.done(chunk)
            self._subscription.request_reset(chunk.state.topic_partition, chunk.reset, chunk.version)
            return
        error = chunk.error
        assert error is not None
        if not chunk.error_stays:
            self._queue.done(chunk)
            self._subscription.fetch_again(chunk.state, chunk.version)
        raise _again(error)


class _Gathered:
    """Batches of several chunks that will become one Arrow batch."""

    __slots__ = ("batches", "cursors", "finished", "sources")

    def __init__(self) -> None:
        self.batches: list[OpenBatch] = []
        self.sources: list[tuple[FetchedChunk, BatchCursor]] = []  # of each batch
        self.cursors: list[tuple[FetchedChunk, BatchCursor]] = []  # partitions whose position moved
        self.finished: list[FetchedChunk] = []


def _again(error: ClientError) -> ClientError:
    """The error without the traceback of the last time it was raised."""
    return error.with_traceback(None)
