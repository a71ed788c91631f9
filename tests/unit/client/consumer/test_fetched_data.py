"""From fetched bytes to records and Arrow batches: queue, decoder, and what fetch answers do to positions."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest

from tidelog.client.consumer.decoding import Decoder
from tidelog.client.consumer.fetch_answers import Asked, Next, read_row
from tidelog.client.consumer.fetch_queue import FetchedChunk, FetchQueue
from tidelog.client.consumer.fetch_session import Wanted
from tidelog.client.consumer.metrics import ConsumerCounts
from tidelog.client.consumer.settings import ConsumerSettings
from tidelog.client.consumer.subscription import TO_BEGINNING, TO_END, OffsetReset, SubscriptionState
from tidelog.client.errors import (
    AuthorizationError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    RecordDeserializationError,
)
from tidelog.client.types import TopicPartition
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k01_fetch import AbortedTransaction, PartitionData
from tidelog.records import Compression, ControlRecordType, encode_batch, encode_control_batch

A = TopicPartition("a", 0)
B = TopicPartition("b", 1)


class Reader:
    """A consumer's inside without a cluster: answers are put in by hand."""

    def __init__(self, options: dict[str, object] | None = None, partitions: Sequence[TopicPartition] = (A, B)) -> None:
        self.settings = ConsumerSettings.read(options or {}, {})
        self.subscription = SubscriptionState()
        self.room_told = 0
        self.queue = FetchQueue(
            self.settings.queued_max_bytes, on_room=self._note_room, on_give_up=self.subscription.fetch_again
        )
        self.counts = ConsumerCounts()
        self.decoder = Decoder(self.settings, self.queue, self.subscription, self.counts)
        self.subscription.assign_manually(partitions)
        for partition in partitions:
            self.subscription.seek(partition, 0)

    def _note_room(self) -> None:
        self.room_told += 1

    def asked(self, partition: TopicPartition = A) -> Asked:
        state = self.subscription.state(partition)
        return Asked(state, state.version, Wanted(state.fetch_offset, 1 << 20, 0, ZERO_UUID))

    def answer(
        self, data: bytes | bytearray, partition: TopicPartition = A, aborted: Sequence[tuple[int, int]] = ()
    ) -> FetchedChunk | None:
        row = PartitionData(
            partition_index=partition.partition,
            high_watermark=1000,
            last_stable_offset=900,
            aborted_transactions=[AbortedTransaction(producer_id=pid, first_offset=first) for first, pid in aborted],
            records=memoryview(bytes(data)),
        )
        return self.put(row, self.asked(partition))

    def put(self, row: PartitionData, asked: Asked, reset: OffsetReset | None = TO_END) -> FetchedChunk | None:
        chunk, self.next = read_row(self.subscription, reset, asked, row)
        if chunk is not None:
            self.queue.put([chunk], chunk.size)
        return chunk

    def offsets(self, count: int = 100) -> list[int]:
        return [record.offset for record in self.decoder.take(count)]

    def position(self, partition: TopicPartition = A) -> int | None:
        return self.subscription.position(partition)


def batch(first: int, count: int, **options: Any) -> bytearray:
    records = [(b"k%d" % offset, b"v%d" % offset, (), 1000 + offset) for offset in range(first, first + count)]
    return encode_batch(records, base_offset=first, leader_epoch=3, **options)


def test_records_of_several_answers_come_in_order() -> None:
    reader = Reader()
    reader.answer(batch(0, 3) + batch(3, 2))
    reader.answer(batch(5, 4))
    assert reader.offsets(4) == [0, 1, 2, 3]
    assert reader.position() == 4
    assert reader.offsets(4) == [4, 5, 6, 7]
    assert reader.offsets(4) == [8]
    assert reader.position() == 9
    assert reader.offsets() == []
    assert reader.queue.bytes == 0
    assert reader.subscription.consumed()[A] == (9, 3, "")


def test_a_record_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()
    reader.answer(encode_batch([(b"k", None, [("h", b"1"), ("n", None)], 77)], base_offset=0, leader_epoch=5))
    (record,) = reader.decoder.take(10)
    assert (record.topic, record.partition, record.offset, record.timestamp) == ("a", 0, 0, 77)
    assert (record.key, record.value, record.headers) == (b"k", None, (("h", b"1"), ("n", None)))
    assert (record.leader_epoch, record.timestamp_type.name) == (5, "CREATE_TIME")


@pytest.mark.parametrize("codec", list(Compression))
def test_seek_into_a_batch(codec: Compression) -> None:
    reader = Reader()
    reader.subscription.seek(A, 7)
    reader.answer(batch(0, 10, compression=codec) + batch(10, 1, compression=codec))
    assert reader.offsets() == [7, 8, 9, 10]


def test_what_was_fetched_before_a_seek_is_dropped() -> None:
    reader = Reader()
    asked = reader.asked()
    reader.answer(batch(0, 5))
    assert reader.offsets(2) == [0, 1]
    reader.subscription.seek(A, 100)
    assert reader.offsets() == []
    assert reader.queue.bytes == 0
    assert reader.put(PartitionData(records=memoryview(batch(0, 5))), asked) is None  # under way when it was sought
    assert reader.position() == 100


def test_positions_move_over_gaps_control_batches_and_aborted_transactions() -> None:
    reader = Reader({"isolation.level": "read_committed"})
    aborted = batch(0, 2, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    marker = encode_control_batch(
        ControlRecordType.ABORT, producer_id=9, producer_epoch=0, coordinator_epoch=1, timestamp_ms=5, base_offset=2
    )
    kept = batch(3, 2, producer_id=9, producer_epoch=0, base_sequence=2, is_transactional=True)
    commit = encode_control_batch(
        ControlRecordType.COMMIT, producer_id=9, producer_epoch=0, coordinator_epoch=1, timestamp_ms=5, base_offset=5
    )
    reader.answer(aborted + marker + kept + commit + batch(20, 1), aborted=[(0, 9)])
    assert reader.offsets() == [3, 4, 20]
    assert reader.position() == 21
    reader.subscription.seek(A, 0)
    reader.answer(aborted + marker, aborted=[(0, 9)])
    assert reader.offsets() == []
    assert reader.position() == 3
    # A reader that begins within the aborted transaction leaves out its rest too.
    reader.subscription.seek(A, 1)
    reader.answer(aborted + marker + kept, aborted=[(0, 9)])
    assert reader.offsets() == [3, 4]
    # Other producers' records within it are not its own.
    reader.subscription.seek(A, 0)
    reader.answer(aborted + batch(2, 1), aborted=[(0, 9)])
    assert reader.offsets() == [2]


def test_uncommitted_records_are_read_unless_asked_otherwise() -> None:
    reader = Reader()
    reader.answer(batch(0, 2, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True))
    assert reader.offsets() == [0, 1]


def test_a_cut_off_batch_is_fetched_again() -> None:
    reader = Reader()
    reader.answer(batch(0, 3) + batch(3, 3)[:-1])
    assert reader.subscription.state(A).fetch_offset == 3
    assert reader.offsets() == [0, 1, 2]


@pytest.mark.parametrize("poll", ["records", "arrow"])
def test_a_damaged_batch_is_told_until_it_is_skipped(poll: str) -> None:
    reader = Reader()
    damaged = batch(3, 2)
    damaged[-1] ^= 1
    reader.answer(batch(0, 3) + damaged + batch(5, 1))

    def offsets() -> list[int]:
        if poll == "records":
            return reader.offsets()
        table = reader.decoder.take_arrow(None)
        return [] if table is None else table.column("offset").to_pylist()

    assert offsets() == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match=r"partition a-0 .* offset 3: the CRC is .* seek to 5") as raised:
            offsets()
        assert (raised.value.offset, raised.value.next_offset) == (3, 5)
        assert reader.position() == 3
    reader.subscription.seek(A, 5)
    reader.answer(batch(5, 1))
    assert offsets() == [5]


def test_damage_inside_a_batch_gives_what_was_before_it() -> None:
    """Without checksums, damage shows only when records are read."""
    reader = Reader({"check.crcs": False})
    damaged = batch(2, 2)
    damaged[61] = 0x7F  # the length of the first record
    reader.answer(batch(0, 2) + damaged)
    table = reader.decoder.take_arrow(None)
    assert table is not None
    assert table.column("offset").to_pylist() == [0, 1]
    with pytest.raises(CorruptRecordError, match="offset 2"):
        reader.decoder.take_arrow(None)
    with pytest.raises(CorruptRecordError, match="offset 2"):
        reader.offsets()


def test_bytes_that_are_no_batch_are_told() -> None:
    reader = Reader()
    reader.answer(b"\x00" * 16 + b"\x07" + b"\x00" * 100)
    assert reader.subscription.state(A).fetch_offset < 0  # the same is not fetched again and again
    with pytest.raises(CorruptRecordError, match="magic 7"):
        reader.offsets()


def test_paused_partitions_keep_what_was_fetched() -> None:
    reader = Reader()
    reader.answer(batch(0, 4))
    reader.answer(batch(0, 2), B)
    assert reader.offsets(2) == [0, 1]
    reader.subscription.pause([A])
    assert [(record.topic, record.offset) for record in reader.decoder.take(10)] == [("b", 0), ("b", 1)]
    assert reader.queue.bytes > 0
    reader.subscription.resume([A])
    assert reader.offsets() == [2, 3]
    assert reader.queue.bytes == 0


def test_a_paused_partition_holds_only_its_own_bytes() -> None:
    """One answer brings two partitions in one buffer: the pause of one does not keep the other's memory."""
    reader = Reader()
    frame = bytearray(batch(0, 1000) + batch(0, 1))
    size = len(batch(0, 1000))
    chunks = []
    for partition, view in ((A, memoryview(frame)[:size]), (B, memoryview(frame)[size:])):
        chunk, _ = read_row(reader.subscription, None, reader.asked(partition), PartitionData(records=view))
        assert chunk is not None
        chunks.append(chunk)
    reader.queue.put(chunks, len(frame))
    reader.subscription.pause([B])
    assert len(reader.offsets(1000)) == 1000
    assert reader.offsets() == []
    assert reader.queue.bytes == len(frame) - size
    del view, chunks, chunk
    gc.collect()
    frame.clear()  # raises BufferError while anything views it


def test_paused_partitions_give_way_when_others_need_the_room() -> None:
    reader = Reader()
    reader.answer(batch(0, 4))
    assert reader.offsets(1) == [0]
    reader.subscription.pause([A])
    told_before = reader.room_told
    assert reader.offsets() == []
    assert reader.queue.bytes > 0
    reader.queue.wants_room = True
    assert reader.offsets() == []
    assert reader.queue.bytes == 0
    assert reader.room_told > told_before
    reader.subscription.resume([A])
    assert reader.subscription.state(A).fetch_offset == 1  # fetched again from the position
    reader.answer(batch(0, 4))
    assert reader.offsets() == [1, 2, 3]


def test_deserializers() -> None:
    reader = Reader(
        {
            "key.deserializer": lambda topic, data, headers: (topic, data),
            "value.deserializer": lambda topic, data, headers: int(data[1:]),
        }
    )
    reader.answer(batch(0, 2) + encode_batch([(None, None, (), 1)], base_offset=2))
    assert [(record.key, record.value) for record in reader.decoder.take(10)] == [
        (("a", b"k0"), 0),
        (("a", b"k1"), 1),
        (None, None),
    ]


def test_a_deserializer_that_fails_names_the_record_and_loses_none() -> None:
    def number(topic: str, data: bytes, headers: object) -> int:
        if data == b"v2":
            raise ValueError("not this one")
        return int(data[1:])

    reader = Reader({"value.deserializer": number})
    reader.answer(batch(0, 2), B)
    reader.answer(batch(0, 4))
    records = reader.decoder.take(10)
    assert [(record.topic, record.value) for record in records] == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]
    assert (reader.position(A), reader.position(B)) == (2, 2)
    for _ in range(2):
        reader.answer(batch(0, 4))
        with pytest.raises(RecordDeserializationError, match=r"a-0: the record at offset 2 .*not this one; seek to 3"):
            reader.decoder.take(10)
        assert reader.position(A) == 2
    reader.subscription.seek(A, 3)
    reader.answer(batch(0, 4))
    assert reader.offsets() == [3]


def arrow_offsets(reader: Reader, rows_max: int | None = None) -> list[tuple[str, int, int]]:
    table = reader.decoder.take_arrow(rows_max)
    if table is None:
        return []
    columns = [table.column(name).to_pylist() for name in ("topic", "partition", "offset")]
    return list(zip(*columns, strict=True))


def test_arrow_takes_all_partitions_at_once() -> None:
    reader = Reader()
    reader.answer(batch(0, 2))
    reader.answer(batch(0, 1), B)
    reader.answer(batch(2, 1))
    assert arrow_offsets(reader) == [("a", 0, 0), ("a", 0, 1), ("b", 1, 0), ("a", 0, 2)]
    assert (reader.position(A), reader.position(B), reader.queue.bytes) == (3, 1, 0)
    assert arrow_offsets(reader) == []
    assert reader.counts.records == 4


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_arrow_with_a_limit_goes_on_where_it_stopped(codec: Compression) -> None:
    reader = Reader()
    reader.answer(batch(0, 7, compression=codec) + batch(7, 3, compression=codec))
    seen: list[int] = []
    positions: list[int | None] = []
    while rows := arrow_offsets(reader, 3):
        assert len(rows) <= 3
        seen += [offset for _, _, offset in rows]
        positions.append(reader.position())
    assert seen == list(range(10))
    assert positions == [3, 6, 7, 10]
    assert reader.counts.records == 10
    assert reader.queue.bytes == 0


def test_records_and_arrow_take_turns_within_a_batch() -> None:
    reader = Reader()
    reader.answer(batch(0, 10))
    assert reader.offsets(2) == [0, 1]
    assert [row[2] for row in arrow_offsets(reader, 3)] == [2, 3, 4]
    assert reader.offsets(2) == [5, 6]
    assert [row[2] for row in arrow_offsets(reader)] == [7, 8, 9]
    assert reader.queue.bytes == 0


def test_arrow_leaves_out_what_records_leave_out() -> None:
    reader = Reader({"isolation.level": "read_committed"})
    aborted = batch(0, 2, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    reader.answer(aborted + batch(2, 1), aborted=[(0, 9)])
    assert arrow_offsets(reader) == [("a", 0, 2)]
    reader.subscription.seek(A, 0)
    reader.answer(aborted, aborted=[(0, 9)])
    assert reader.decoder.take_arrow(None) is None
    assert reader.position() == 2


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID]
)
def test_a_leader_that_moved_is_looked_for(code: ErrorCode) -> None:
    reader = Reader()
    assert reader.put(PartitionData(error_code=code), reader.asked()) is None
    assert reader.next is Next.ASK_WHO_LEADS
    assert reader.subscription.state(A).fetch_offset == 0


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_LEADER_EPOCH])
def test_a_broker_that_is_behind_is_asked_later(code: ErrorCode) -> None:
    reader = Reader()
    assert reader.put(PartitionData(error_code=code), reader.asked()) is None
    assert reader.next is Next.TRY_LATER


def test_out_of_range_begins_a_reset_after_what_was_fetched_before_it() -> None:
    reader = Reader()
    reader.answer(batch(0, 2))
    reader.put(PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), reader.asked(), TO_BEGINNING)
    assert reader.offsets() == [0, 1]
    assert reader.subscription.needs_reset() == []
    assert reader.offsets() == []
    (state,) = reader.subscription.needs_reset()
    assert (state.topic_partition, state.reset, reader.position()) == (A, TO_BEGINNING, None)


def test_out_of_range_without_a_policy_is_raised_until_a_seek() -> None:
    reader = Reader()
    reader.put(PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), reader.asked(), None)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError, match="a-0 does not hold offset 0"):
            reader.offsets()
    reader.subscription.seek(A, 5)
    reader.answer(batch(5, 1))
    assert reader.offsets() == [5]


def test_other_errors_are_told_once_and_then_tried_again() -> None:
    reader = Reader()
    reader.put(PartitionData(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED), reader.asked())
    assert reader.subscription.state(A).fetch_offset < 0
    with pytest.raises(AuthorizationError, match="partition a-0"):
        reader.offsets()
    assert reader.subscription.state(A).fetch_offset == 0
    assert reader.offsets() == []


def test_the_queue_counts_what_it_holds_and_what_was_promised() -> None:
    reader = Reader({"queued.max.bytes": 10_000})
    reader.queue.reserve(4_000)
    assert reader.queue.room == 6_000
    data = batch(0, 10)
    chunk = reader.answer(data)
    assert chunk is not None
    reader.queue.release(4_000)
    assert reader.queue.room == 10_000 - len(data)
    assert reader.queue.bytes_of(reader.subscription.state(A)) == len(data)
    reader.offsets()
    assert reader.queue.room == 10_000
    assert reader.queue.bytes_of(reader.subscription.state(A)) == 0


def test_whoever_wants_room_is_told_when_something_was_read() -> None:
    reader = Reader()
    reader.answer(batch(0, 2))
    reader.queue.wants_room = True
    reader.offsets(1)
    assert not reader.room_told
    reader.offsets(5)
    assert reader.room_told


def test_answers_for_partitions_that_are_gone_change_nothing() -> None:
    reader = Reader()
    asked = reader.asked()
    reader.subscription.assign_manually([B])
    assert reader.put(PartitionData(records=memoryview(batch(0, 1))), asked) is None
    assert reader.queue.bytes == 0


def test_lag_follows_the_answers() -> None:
    reader = Reader()
    reader.answer(batch(0, 2))
    state = reader.subscription.state(A)
    assert (state.high_watermark, state.last_stable_offset) == (1000, 900)
