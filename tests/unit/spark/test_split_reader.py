"""Reading one split, from a partition that the test makes up: exactly its records, and never a hang."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidelog.client.consumer.settings import ConsumerSettings
from tidelog.client.errors import BrokerError, ConnectError
from tidelog.client.network.loop_thread import LoopThread
from tidelog.common.recycled_memory import RecycledMemory
from tidelog.protocol import ErrorCode
from tidelog.records.batch import Compression
from tidelog.records.codec import NewRecord, encode_batch
from tidelog.records.control import ControlRecordType, encode_control_batch
from tidelog.spark.errors import DataLossError, SourceError
from tidelog.spark.split_reader import Answer, Split, SplitReader

PRODUCER = 7


class Partition:
    """Batches in their order; where the log begins, and how far it can be read."""

    def __init__(self, thread: LoopThread) -> None:
        self.settings = ConsumerSettings.read({"isolation.level": "read_committed"}, {})
        self.thread = thread
        self.memory = RecycledMemory()
        self.batches: list[tuple[int, int, bytes]] = []  # base offset, next offset, bytes
        self.aborted: list[tuple[int, int]] = []
        self.first = 0
        self.end: int | None = None  # None: behind the last batch
        self.answer_bytes = 1000
        self.asked: list[int] = []
        self.is_throttled = False
        self.error: Exception | None = None

    @property
    def next_offset(self) -> int:
        return self.batches[-1][1] if self.batches else 0

    @property
    def readable_end(self) -> int:
        return self.next_offset if self.end is None else self.end

    def add(self, count: int, *, codec: Compression = Compression.NONE, is_aborted: bool = False) -> None:
        base = self.next_offset
        records = [NewRecord(b"k", b"%d" % offset, (), 1000 + offset) for offset in range(base, base + count)]
        producer = {"producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": 0} if is_aborted else {}
        raw = encode_batch(records, base_offset=base, compression=codec, is_transactional=is_aborted, **producer)  # type: ignore[arg-type]  # all of them numbers
        self.batches.append((base, base + count, bytes(raw)))
        if is_aborted:
            self.aborted.append((base, PRODUCER))

    def add_marker(self) -> None:
        base = self.next_offset
        raw = encode_control_batch(
            ControlRecordType.ABORT,
            producer_id=PRODUCER,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=0,
            base_offset=base,
        )
        self.batches.append((base, base + 1, bytes(raw)))

    def compact_away(self, number: int) -> None:
        """Nothing is left of this batch."""
        del self.batches[number]

    async def fetch(self, split: Split, offset: int, deadline_s: float) -> Answer:
        self.asked.append(offset)
        if self.error is not None:
            raise self.error
        if not self.first <= offset <= self.next_offset:
            raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        found = [row for row in self.batches if row[1] > offset and row[1] <= self.readable_end]
        view, next_offset = b"", offset
        for _, behind, raw in found:
            if view and len(view) + len(raw) > self.answer_bytes:
                break
            view += raw
            next_offset = behind
        return Answer(memoryview(view), self.aborted, next_offset, self.readable_end, self.is_throttled)

    async def bounds(self, split: Split) -> tuple[int, int]:
        return self.first, self.readable_end


@pytest.fixture
def partition() -> Iterator[Partition]:
    thread = LoopThread("test")
    yield Partition(thread)
    thread.close()


@pytest.fixture
def read(partition: Partition) -> Callable[..., list[int]]:
    def read(start: int, end: int, *, fail: bool = True, timeout_s: float = 10.0) -> list[int]:
        split = Split("t", 0, start, end)
        client: Any = partition
        reader = SplitReader(client, split, fail_on_data_loss=fail, timeout_s=timeout_s)
        rows = [row for batch in reader.batches() for row in batch.to_pylist()]
        assert all(row["value"] == b"%d" % row["offset"] for row in rows)
        return [row["offset"] for row in rows]

    return read


def test_every_range_over_every_codec(partition: Partition, read: Callable[..., list[int]]) -> None:
    seed = random.Random(5)
    for _ in range(40):
        partition.add(seed.randrange(1, 30), codec=seed.choice(list(Compression)))
    whole = list(range(partition.next_offset))
    for _ in range(60):
        partition.answer_bytes = seed.choice([1, 500, 5000, 10**9])
        start, end = sorted(seed.choices(range(len(whole) + 1), k=2))
        assert read(start, end) == whole[start:end]


def test_nothing_beyond_the_end_is_asked_for(partition: Partition, read: Callable[..., list[int]]) -> None:
    for _ in range(20):
        partition.add(10)
    partition.answer_bytes = 1
    assert read(15, 35) == list(range(15, 35))
    assert partition.asked == [15, 20, 30]


def test_aborted_records_and_markers_are_left_out(partition: Partition, read: Callable[..., list[int]]) -> None:
    partition.add(5)
    partition.add(5, is_aborted=True)
    partition.add_marker()
    partition.add(5)
    assert read(0, 16) == [*range(5), *range(11, 16)]
    assert read(7, 11) == []
    assert read(10, 12) == [11]


def test_a_range_that_ends_with_a_marker_ends(partition: Partition, read: Callable[..., list[int]]) -> None:
    partition.add(5, is_aborted=True)
    partition.add_marker()
    partition.answer_bytes = 1
    assert read(0, 6) == []


def test_gaps_that_compaction_has_left(partition: Partition, read: Callable[..., list[int]]) -> None:
    for _ in range(6):
        partition.add(10)
    partition.compact_away(2)
    partition.answer_bytes = 1
    assert read(0, 60) == [*range(20), *range(30, 60)]
    assert read(20, 30) == []
    assert read(25, 31) == [30]


def test_a_gap_up_to_the_end_is_taken_for_one_when_it_is_told_twice(
    partition: Partition, read: Callable[..., list[int]]
) -> None:
    partition.add(10)
    partition.end = 20

    async def nothing_behind(split: Split, offset: int, deadline_s: float) -> Answer:
        partition.asked.append(offset)
        return Answer(memoryview(b""), [], offset, 20, False)

    partition.fetch = nothing_behind  # type: ignore[method-assign]  # as a log whose end was compacted away
    assert read(10, 20) == []
    assert partition.asked == [10, 10]


def test_a_throttled_answer_is_no_gap(partition: Partition, read: Callable[..., list[int]]) -> None:
    """A broker that holds a client back may answer without records, though some are there."""
    partition.add(10)
    fetch, answers = partition.fetch, 0

    async def throttled(split: Split, offset: int, deadline_s: float) -> Answer:
        nonlocal answers
        answers += 1
        return Answer(memoryview(b""), [], offset, 10, True) if answers < 5 else await fetch(split, offset, deadline_s)

    partition.fetch = throttled  # type: ignore[method-assign]  # for this test
    assert read(5, 10) == list(range(5, 10))


def test_an_open_transaction_ends_in_an_error_that_says_where(
    partition: Partition, read: Callable[..., list[int]]
) -> None:
    partition.add(10)
    partition.add(10)
    partition.end = 10
    with pytest.raises(
        SourceError, match=r"from offset 0 to 20 made no progress beyond 10 within 0.2 s.*stable offset is 10"
    ):
        read(0, 20, timeout_s=0.2)


def test_records_that_were_deleted(partition: Partition, read: Callable[..., list[int]]) -> None:
    for _ in range(4):
        partition.add(10)
    partition.first = 25
    with pytest.raises(DataLossError, match="t-0 now starts at offset 25, but 5 was to be read"):
        read(5, 40)
    assert read(5, 40, fail=False) == list(range(25, 40))
    assert read(5, 20, fail=False) == []


def test_a_partition_that_was_cut_back(partition: Partition, read: Callable[..., list[int]]) -> None:
    partition.add(10)
    with pytest.raises(DataLossError, match="t-0 now ends at offset 10, but 30 was to be read"):
        read(30, 40)
    assert read(30, 40, fail=False) == []


def test_a_partition_that_is_gone(partition: Partition, read: Callable[..., list[int]]) -> None:
    partition.error = DataLossError("partition t-0 no longer exists")
    with pytest.raises(DataLossError, match="no longer exists"):
        read(0, 5)
    assert read(0, 5, fail=False) == []


def test_damage_is_told_with_its_place(partition: Partition, read: Callable[..., list[int]]) -> None:
    partition.add(10)
    partition.add(10)
    base, behind, raw = partition.batches[1]
    partition.batches[1] = (base, behind, raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(SourceError, match="t-0 holds a damaged batch at offset 10"):
        read(0, 20)


def test_an_error_that_does_not_pass_is_told(partition: Partition, read: Callable[..., list[int]]) -> None:
    partition.error = ConnectError("nobody is there")
    with pytest.raises(ConnectError, match="nobody is there"):
        read(0, 5)


def test_a_reader_that_is_given_up_leaves_nothing_under_way(partition: Partition) -> None:
    for _ in range(4):
        partition.add(10)
    partition.answer_bytes = 1
    client: Any = partition
    batches = SplitReader(client, Split("t", 0, 0, 40), fail_on_data_loss=True, timeout_s=10.0).batches()
    assert next(batches).num_rows == 10
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert len(partition.asked) <= 2
