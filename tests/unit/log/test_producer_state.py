"""Idempotence, transactions' first offsets, and snapshots in Kafka's format."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tidelog.log.errors import CorruptSnapshotError
from tidelog.log.producer_entry import SEQUENCE_MAX, BatchMetadata, ProducerEntry
from tidelog.log.producer_snapshot import decode_snapshot, encode_snapshot, read_snapshot, write_snapshot
from tidelog.log.producer_state import ProducerState
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import BatchHeader, ControlRecord, ControlRecordType

TRANSACTIONAL, CONTROL = 0x10, 0x20


def header(sequence: int, offset: int, *, epoch: int = 0, count: int = 1, attributes: int = 0) -> BatchHeader:
    return BatchHeader(
        base_offset=offset,
        batch_length=100,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=1000,
        max_timestamp=1000 + offset,
        producer_id=7,
        producer_epoch=epoch,
        base_sequence=sequence,
        records_count=count,
    )


def refusal(state: ProducerState, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        state.check(batch, check_sequence=True)
    return refused.value.code


@pytest.fixture
def state() -> ProducerState:
    state = ProducerState()
    for index in range(7):
        state.update(header(index * 2, 100 + index * 2, count=2))
    return state


def test_the_last_five_batches_are_known(state: ProducerState) -> None:
    entry = state.entry(7)
    assert entry is not None
    found = [entry.find_duplicate(header(sequence, 0, count=2)) for sequence in range(0, 14, 2)]
    assert [None if batch is None else batch.first_offset for batch in found] == [None, None, 104, 106, 108, 110, 112]
    assert entry.find_duplicate(header(12, 0, count=1)) is None
    assert entry.find_duplicate(header(12, 0, count=2, epoch=1)) is None


def test_sequences_follow_one_another(state: ProducerState) -> None:
    state.check(header(14, 0), check_sequence=True)
    assert refusal(state, header(15, 0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(state, header(2, 0)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_epochs(state: ProducerState) -> None:
    state.update(header(0, 200, epoch=3))
    assert refusal(state, header(1, 0, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(state, header(1, 0, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    state.check(header(0, 0, epoch=4), check_sequence=True)
    state.check(header(1, 0, epoch=3), check_sequence=True)


def test_an_unknown_producer_may_start_anywhere() -> None:
    ProducerState().check(header(55, 0), check_sequence=True)


def test_the_sequence_wraps() -> None:
    state = ProducerState()
    state.update(header(SEQUENCE_MAX - 1, 0, count=2))
    state.check(header(0, 2), check_sequence=True)
    assert refusal(state, header(1, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    state.update(header(0, 2))
    wrapping = ProducerState()
    wrapping.update(header(SEQUENCE_MAX, 0, count=3))
    entry = wrapping.entry(7)
    assert entry is not None
    assert entry.last_sequence == 1
    assert entry.find_duplicate(header(SEQUENCE_MAX, 0, count=3)) == BatchMetadata(1, 2, 2, 1000)


def test_open_transactions_hold_the_stable_offset() -> None:
    state = ProducerState()
    assert state.first_unstable_offset() is None
    state.update(header(0, 10, attributes=TRANSACTIONAL))
    state.update(header(1, 11, attributes=TRANSACTIONAL))
    assert state.first_unstable_offset() == 10
    assert refusal(state, header(2, 12)) is ErrorCode.INVALID_TXN_STATE
    state.update(header(-1, 12, attributes=TRANSACTIONAL | CONTROL), ControlRecord(ControlRecordType.COMMIT, 4, 0))
    assert state.first_unstable_offset() == 10
    state.on_high_watermark(12)
    assert state.first_unstable_offset() == 10
    state.on_high_watermark(13)
    assert state.first_unstable_offset() is None
    entry = state.entry(7)
    assert entry is not None
    assert entry.coordinator_epoch == 4
    assert entry.last_sequence == 1


def test_silent_producers_expire_unless_a_transaction_is_open(state: ProducerState) -> None:
    assert state.remove_expired(now_ms=1112 + 99, expiration_ms=100) == 0
    state.update(header(14, 200, attributes=TRANSACTIONAL))
    assert state.remove_expired(now_ms=10_000, expiration_ms=100) == 0
    state.update(header(-1, 201, attributes=TRANSACTIONAL | CONTROL))
    assert state.remove_expired(now_ms=10_000, expiration_ms=100) == 1
    assert state.entry(7) is None


def test_a_snapshot_has_kafkas_bytes() -> None:
    entry = ProducerEntry(9, 2, 5, 1_700_000_000_000, 33, [BatchMetadata(41, 77, 3, 1_700_000_000_000)])
    contents = encode_snapshot([entry.pack()])
    assert contents[:2] == bytes.fromhex("0001")
    assert contents[6:] == bytes.fromhex("00000001") + struct.pack(
        ">qhiqiqiq", 9, 2, 41, 77, 3, 1_700_000_000_000, 5, 33
    )
    # Known answers for CRC-32C are the records layer's business; here it must cover all that follows it.
    for position in range(6, len(contents)):
        damaged = bytearray(contents)
        damaged[position] ^= 1
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(bytes(damaged))


def test_a_snapshot_gives_back_what_was_written(tmp_path: Path, state: ProducerState) -> None:
    write_snapshot(tmp_path, 114, state.packed())
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000114.snapshot"]
    restored = ProducerState()
    restored.load(read_snapshot(tmp_path, 114))
    restored.check(header(14, 0), check_sequence=True)
    entry = restored.entry(7)
    assert entry is not None
    assert (entry.last_offset, entry.last_sequence, entry.last_timestamp) == (113, 13, 1112)


@pytest.mark.parametrize("size", range(0, 56, 5))
def test_a_cut_snapshot_is_refused(state: ProducerState, size: int) -> None:
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(encode_snapshot(state.packed())[:size])
