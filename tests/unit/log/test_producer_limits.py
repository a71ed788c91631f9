"""How many producers are remembered, what one costs in memory, and who is forgotten first."""

from __future__ import annotations

import random
import sys
import tracemalloc
from pathlib import Path

import pytest
from tests.unit.log.conftest import MakeBatch, Store

from tidelog.common.clock import VirtualClock
from tidelog.common.ids import random_uuid
from tidelog.log import LogConfig, LogManager, PartitionLog
from tidelog.log.producer_entry import BATCHES_KEPT, BatchMetadata, ProducerEntry
from tidelog.log.producer_limits import ProducerLimits
from tidelog.log.producer_snapshot import decode_snapshot, encode_snapshot
from tidelog.log.producer_state import ProducerState
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import BatchHeader

TRANSACTIONAL = 0x10


def header(producer_id: int, offset: int, *, sequence: int = 0, attributes: int = 0) -> BatchHeader:
    return BatchHeader(
        base_offset=offset,
        batch_length=100,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=0,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_000 + offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        records_count=1,
    )


def ids(state: ProducerState) -> list[int]:
    return sorted(entry.producer_id for entry in state.entries())


@pytest.mark.parametrize("seed", range(20))
def test_packing_loses_nothing(seed: int) -> None:
    source = random.Random(seed)

    def number(bits: int) -> int:
        return source.choice([-1, 0, 1, source.getrandbits(bits - 1), (1 << (bits - 1)) - 1])

    batches = [
        BatchMetadata(number(32), number(64), number(32), number(64)) for _ in range(source.randint(0, BATCHES_KEPT))
    ]
    entry = ProducerEntry(number(64), number(16), number(32), number(64), number(64), batches)
    entry.history_is_partial = source.random() < 0.5
    unpacked = ProducerEntry.unpack(entry.pack())
    for name in ProducerEntry.__slots__:
        assert getattr(unpacked, name) == getattr(entry, name), name


def test_a_producer_with_one_batch_takes_less_than_200_bytes() -> None:
    count = 20_000
    tracemalloc.start()
    try:
        state = ProducerState(ProducerLimits(count))
        for index in range(count):
            state.update(header(1_000_000 + index, 2_000_000 + index))
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(state) == count
    assert size_bytes / count < 200
    assert sys.getsizeof(state.packed()[0]) == 80


def test_all_producers_are_found_however_they_are_kept() -> None:
    state = ProducerState()
    for turn in range(3):
        for producer_id in range(500):
            batch = header(producer_id, turn * 500 + producer_id, sequence=turn)
            state.check(batch, check_sequence=True)
            state.update(batch)
    assert ids(state) == list(range(500))
    for producer_id in range(500):
        entry = state.entry(producer_id)
        assert entry is not None
        assert [batch.last_sequence for batch in entry.batches] == [0, 1, 2]
        assert entry.find_duplicate(header(producer_id, 0, sequence=1)) is not None


def test_a_full_partition_forgets_who_was_silent_for_longest() -> None:
    state = ProducerState(ProducerLimits(100))
    for producer_id in range(150):
        state.update(header(producer_id, producer_id))
    assert ids(state) == list(range(50, 150))
    state.update(header(50, 150, sequence=1))
    state.update(header(1000, 151))
    assert 50 in ids(state)
    assert 51 not in ids(state)


def test_an_open_transaction_is_never_forgotten() -> None:
    state = ProducerState(ProducerLimits(10))
    for producer_id in range(10):
        state.update(header(producer_id, producer_id, attributes=TRANSACTIONAL if producer_id < 9 else 0))
    for producer_id in range(100, 200):
        state.update(header(producer_id, producer_id))
    assert ids(state) == [*range(9), 199]
    assert state.first_unstable_offset() == 0


def test_a_new_producer_is_refused_when_nobody_can_be_forgotten() -> None:
    state = ProducerState(ProducerLimits(10))
    for producer_id in range(10):
        state.update(header(producer_id, producer_id, attributes=TRANSACTIONAL))
    state.check(header(3, 10, sequence=1, attributes=TRANSACTIONAL), check_sequence=True)
    with pytest.raises(KafkaError, match=r"max\.producer\.ids\.per\.partition") as refused:
        state.check(header(10, 10), check_sequence=True)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


def test_a_snapshot_with_too_many_is_cut_to_the_limit() -> None:
    many = ProducerState()
    for producer_id in range(300):
        many.update(header(producer_id, producer_id, attributes=TRANSACTIONAL if producer_id == 0 else 0))
    limits = ProducerLimits(100)
    state = ProducerState(limits)
    state.load(decode_snapshot(encode_snapshot(many.packed())))
    assert ids(state) == [0, *range(201, 300)]
    assert limits.total == 100
    state.clear()
    assert limits.total == 0


def test_the_largest_partition_gives_way_when_all_have_too_many(
    tmp_path: Path, clock: VirtualClock, make_batch: MakeBatch
) -> None:
    settings = {"tidelog.max.producer.ids": 3_000, "tidelog.max.producer.ids.per.partition": 5_000}
    manager = LogManager([tmp_path], settings, clock)
    manager.open("cluster", 1)
    manager.load()
    crowded, other = (manager.create(topic, 0, random_uuid(), LogConfig()) for topic in ("crowded", "other"))

    def append(log: PartitionLog, producer_id: int) -> None:
        batch = make_batch(producer_id=producer_id, producer_epoch=0, base_sequence=0)
        log.append_as_leader(batch, leader_epoch=0)

    for producer_id in range(10):
        append(other, producer_id)
    for producer_id in range(4_000):
        append(crowded, producer_id)
    assert len(other.active_producers()) == 10
    assert 2_700 < len(crowded.active_producers()) <= 2_990
    assert crowded.active_producers()[-1].producer_id == 3_999
    append(other, 10)
    assert len(other.active_producers()) == 11
    manager.close(clean=False)


def test_a_roll_leaves_the_snapshot_to_the_flush(store: Store, make_batch: MakeBatch) -> None:
    """The snapshot shows the producers as they were at the roll, whatever was appended until it is written."""
    log = store.create(config=LogConfig(segment_bytes=400))
    for sequence in range(4):
        log.append_as_leader(
            make_batch([bytes(200)], producer_id=5, producer_epoch=0, base_sequence=sequence), leader_epoch=0
        )
    assert not store.files(".snapshot")
    log.flush()
    (path,) = store.files(".snapshot")
    (entry,) = map(ProducerEntry.unpack, decode_snapshot(path.read_bytes()))
    assert int(path.stem) == log.segments[-1].base_offset
    assert entry.last_offset == log.segments[-1].base_offset - 1
    assert store.reopen(clean=False).active_producers()[0].last_sequence == 3


def test_a_truncation_takes_back_the_snapshot_that_is_not_written(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(config=LogConfig(segment_bytes=400))
    for sequence in range(3):
        log.append_as_leader(
            make_batch([bytes(200)], producer_id=5, producer_epoch=0, base_sequence=sequence), leader_epoch=0
        )
    log.truncate_to(1)
    log.append_as_leader(make_batch([bytes(200)], producer_id=6, producer_epoch=0, base_sequence=0), leader_epoch=0)
    log.flush()
    producers = {entry.producer_id: entry.last_offset for entry in store.reopen(clean=False).active_producers()}
    assert producers == {5: 0, 6: 1}
