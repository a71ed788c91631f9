"""Transactions over one log: the last stable offset, what readers of committed records get, and the index of aborts.

Random histories are held against a model that knows every batch, through truncations, clean stops, crashes and lost or
torn indexes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.log import LogConfig, PartitionLog
from tidelog.log.errors import CorruptIndexError
from tidelog.log.inspect import AbortedTransactionRow, dump, verify
from tidelog.log.producer_entry import NO_OFFSET
from tidelog.log.repair import examine, execute
from tidelog.log.txn_guard import NOT_ASKED, TransactionGuard
from tidelog.log.txn_index import AbortedTransaction, TransactionIndex, write_txn_index
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.records import decode_records, iter_headers, parse_control_record, parse_header

if TYPE_CHECKING:
    from tests.unit.log.conftest import MakeBatch, Store

SEEDS = 30
STEPS = 60
PRODUCERS = (100, 101, 102)


@dataclass
class Written:
    """One batch of the model's log."""

    offset: int
    values: list[bytes]
    producer_id: int = -1
    is_transactional: bool = False
    commit: bool | None = None  # a marker's outcome

    @property
    def end(self) -> int:
        return self.offset + max(1, len(self.values))


@dataclass
class Model:
    batches: list[Written] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def outcomes(self) -> tuple[dict[int, int], list[AbortedTransaction], set[int]]:
        """Open transactions by producer, aborted ones in the order of their markers, offsets that were aborted."""
        open_at: dict[int, int] = {}
        aborted: list[AbortedTransaction] = []
        hidden: set[int] = set()
        for batch in self.batches:
            if batch.commit is not None:
                first = open_at.pop(batch.producer_id, None)
                if first is not None and not batch.commit:
                    stable = min(open_at.values(), default=batch.offset + 1)
                    aborted.append(AbortedTransaction(batch.producer_id, first, batch.offset, stable))
                    hidden |= {
                        offset
                        for other in self.batches
                        if other.producer_id == batch.producer_id and first <= other.offset < batch.offset
                        for offset in range(other.offset, other.end)
                    }
            elif batch.is_transactional:
                open_at.setdefault(batch.producer_id, batch.offset)
        return open_at, aborted, hidden

    def committed(self, from_offset: int) -> tuple[int, list[tuple[int, bytes]]]:
        open_at, _, hidden = self.outcomes()
        stable = min(open_at.values(), default=self.end)
        return stable, [
            (batch.offset + index, value)
            for batch in self.batches
            for index, value in enumerate(batch.values)
            if batch.commit is None
            and from_offset <= batch.offset + index < stable
            and batch.offset + index not in hidden
        ]


def read_committed(log: PartitionLog, offset: int, max_bytes: int) -> list[tuple[int, bytes]]:
    """What a consumer makes of reads up to the last stable offset and of the lists of aborted transactions."""
    found = []
    limit = log.last_stable_offset
    while offset < limit:
        read = log.read(offset, max_bytes, limit_offset=limit, min_one_batch=True)
        waiting = log.aborted_in(read, offset, limit)
        assert waiting == sorted(waiting, key=lambda entry: entry.first_offset)
        aborted: set[int] = set()
        data = b"".join(part.read() for part in read.slices)
        assert data
        for position, header in iter_headers(data, allow_partial=True):
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborted.add(waiting.pop(0).producer_id)
            if header.is_control:
                aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found += [
                    (record.offset, record.value or b"")
                    for record in decode_records(data, position)
                    if record.offset >= offset
                ]
            offset = header.next_offset
    return found


class History:
    """A log and its model, and the random steps that both take."""

    def __init__(self, store: Store, make_batch: MakeBatch, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = store
        self.make_batch = make_batch
        self.model = Model()
        self.log: PartitionLog = store.create(LogConfig(segment_bytes=1500, index_interval_bytes=200))

    def sequence(self, producer_id: int) -> int:
        entry = next((entry for entry in self.log.active_producers() if entry.producer_id == producer_id), None)
        return 0 if entry is None else entry.last_sequence + 1

    def append(self, producer_id: int = -1) -> None:
        values = [b"%d" % self.random.randrange(10**6) * 3 for _ in range(self.random.randint(1, 3))]
        options: dict[str, Any] = {}
        if producer_id >= 0:
            options = {
                "producer_id": producer_id,
                "producer_epoch": 0,
                "base_sequence": self.sequence(producer_id),
                "is_transactional": True,
            }
        result = self.log.append_as_leader(self.make_batch(values, **options), leader_epoch=0)
        assert result.first_offset == self.model.end
        self.model.batches.append(Written(result.first_offset, values, producer_id, producer_id >= 0))

    def end_transaction(self, commit: bool) -> None:
        producer_id = self.random.choice(PRODUCERS)
        result = self.log.append_marker(producer_id, 0, 3, commit=commit, leader_epoch=0)
        self.model.batches.append(Written(result.first_offset, [], producer_id, True, commit))

    def truncate(self) -> None:
        offset = self.random.randint(max(0, self.model.end - 20), self.model.end)
        self.log.truncate_to(offset)
        self.model.batches = [batch for batch in self.model.batches if batch.end <= offset]

    def crash(self) -> None:
        self.store.stop(clean=False)
        for path in self.store.files(".txnindex"):
            harm = self.random.randrange(4)
            if harm == 0:
                path.unlink()
            elif harm == 1:
                path.write_bytes(path.read_bytes()[:-10])
            elif harm == 2:
                path.write_bytes(path.read_bytes() + b"\x00" * 34)
        self.store.start()
        self.log = self.store.log

    def step(self) -> None:
        action = self.random.choices(
            ["plain", "transactional", "commit", "abort", "truncate", "crash", "stop", "roll"],
            [10, 20, 6, 8, 1, 1, 1, 2],
        )[0]
        if action == "plain":
            self.append()
        elif action == "transactional":
            self.append(self.random.choice(PRODUCERS))
        elif action in ("commit", "abort"):
            self.end_transaction(action == "commit")
        elif action == "truncate":
            self.truncate()
        elif action == "crash":
            self.crash()
        elif action == "stop":
            self.log = self.store.reopen(clean=True)
        else:
            self.log.roll()

    def check(self) -> None:
        log = self.log
        log.advance_high_watermark(log.log_end_offset)
        assert log.log_end_offset == self.model.end
        open_at, aborted, _ = self.model.outcomes()
        from_offset = self.random.randint(0, self.model.end)
        stable, committed = self.model.committed(from_offset)
        assert log.last_stable_offset == stable
        assert read_committed(log, from_offset, self.random.choice([1, 300, 10**6])) == committed
        assert [entry for segment in log.segments for entry in segment.txn_index.entries()] == aborted
        held = {
            entry.producer_id: entry.current_txn_first_offset
            for entry in log.active_producers()
            if entry.current_txn_first_offset != NO_OFFSET
        }
        assert held == open_at


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_histories_agree_with_the_model(store: Store, make_batch: MakeBatch, seed: int) -> None:
    history = History(store, make_batch, seed)
    for _ in range(STEPS):
        history.step()
        history.check()


def entry(first: int, last: int, stable: int | None = None) -> AbortedTransaction:
    return AbortedTransaction(7, first, last, last + 1 if stable is None else stable)


@pytest.fixture
def index(tmp_path: Path) -> TransactionIndex:
    return TransactionIndex(tmp_path / "00000000000000000100.log")


def test_an_index_has_kafkas_bytes_and_no_file_before_the_first_abort(index: TransactionIndex) -> None:
    assert (len(index), index.last_offset, index.path.exists()) == (0, -1, False)
    index.append(AbortedTransaction(0x0102030405060708, 100, 110, 105))
    assert index.path.name == "00000000000000000100.txnindex"
    assert index.path.read_bytes() == (
        bytes(2) + bytes(range(1, 9)) + (100).to_bytes(8) + (110).to_bytes(8) + (105).to_bytes(8)
    )


def test_a_look_up_reads_what_touches_the_range_and_says_when_it_is_complete(index: TransactionIndex) -> None:
    entries = [entry(100 + 10 * number, 105 + 10 * number) for number in range(600)]
    for item in entries:
        index.append(item)
    assert list(index.entries()) == entries
    assert index.collect(105, 106) == ([entries[0]], True)
    assert index.collect(106, 121) == (entries[1:3], True)
    assert index.collect(6095, 7000) == ([entries[-1]], False)
    assert index.collect(6096, 7000) == ([], False)
    index.truncate_to(4105)
    assert list(index.entries()) == entries[:400]
    assert index.last_offset == 4095


def test_an_open_transaction_keeps_a_look_up_going(index: TransactionIndex) -> None:
    index.append(entry(110, 112, stable=101))
    index.append(entry(101, 120))
    assert index.collect(110, 111) == ([entry(110, 112, stable=101), entry(101, 120)], True)


def test_entries_only_follow_one_another(index: TransactionIndex) -> None:
    index.append(entry(100, 120))
    with pytest.raises(ValueError, match="does not follow"):
        index.append(entry(110, 120))


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-1], lambda data: b"\x00\x01" + data[2:], lambda data: data[34:] + data[:34]]
)
def test_a_false_index_is_noticed_by_its_format(index: TransactionIndex, harm: Callable[[bytes], bytes]) -> None:
    write_txn_index(index.path, [entry(100, 110), entry(111, 120)])
    index.check(100)
    with pytest.raises(CorruptIndexError):
        index.check(111)
    index.path.write_bytes(harm(index.path.read_bytes()))
    with pytest.raises(CorruptIndexError):
        index.check(100)


def test_markers_are_fenced_by_epochs(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    options: dict[str, Any] = {"producer_id": 5, "producer_epoch": 3, "is_transactional": True}
    log.append_as_leader(make_batch(base_sequence=0, **options), leader_epoch=0)

    def refusal(epoch: int, coordinator_epoch: int, *, epoch_is_bumped: bool = False) -> ErrorCode:
        with pytest.raises(KafkaError) as raised:
            log.append_marker(5, epoch, coordinator_epoch, commit=True, leader_epoch=0, epoch_is_bumped=epoch_is_bumped)
        return raised.value.code

    assert refusal(2, 9) is ErrorCode.INVALID_PRODUCER_EPOCH
    # A marker that comes late, for the transaction before this one.
    assert refusal(3, 9, epoch_is_bumped=True) is ErrorCode.INVALID_PRODUCER_EPOCH
    log.append_marker(5, 4, 9, commit=True, leader_epoch=0, epoch_is_bumped=True)
    assert refusal(4, 8) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    # The same marker again does no harm.
    log.append_marker(5, 4, 9, commit=True, leader_epoch=0, epoch_is_bumped=True)
    log.append_as_leader(
        make_batch(base_sequence=0, producer_id=5, producer_epoch=4, is_transactional=True), leader_epoch=0
    )
    assert log.has_open_transaction(5, 4)
    assert not log.has_open_transaction(5, 3)


def test_a_transaction_begins_only_under_its_guard(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()

    def batch(sequence: int, epoch: int = 0) -> memoryview:
        return make_batch(base_sequence=sequence, producer_id=5, producer_epoch=epoch, is_transactional=True)

    def refusal(records: memoryview, guard: TransactionGuard | None) -> ErrorCode:
        with pytest.raises(KafkaError) as raised:
            log.append_as_leader(records, leader_epoch=0, guard=guard)
        return raised.value.code

    assert refusal(batch(0), None) is ErrorCode.INVALID_TXN_STATE
    stale = log.begin_verification(5, 0, 0)
    log.append_marker(5, 0, 1, commit=False, leader_epoch=0)
    # A transaction was aborted while its coordinator was asked. Whether it was this one, nobody here can tell.
    assert refusal(batch(0), stale) is ErrorCode.NOT_ENOUGH_REPLICAS
    guard = log.begin_verification(5, 0, 1)
    assert log.begin_verification(5, 0, 0) is guard
    assert refusal(batch(1), guard) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    log.append_as_leader(batch(0), leader_epoch=0, guard=guard)
    log.append_as_leader(batch(1), leader_epoch=0, guard=None)
    log.append_marker(5, 1, 1, commit=True, leader_epoch=0)
    bumped = log.begin_verification(5, 2, 0)
    assert refusal(batch(4, 2), bumped) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    with pytest.raises(KafkaError):
        log.begin_verification(5, 1, 0)
    log.append_as_leader(batch(0, 2), leader_epoch=0, guard=bumped)


def test_a_marker_is_never_compressed(store: Store, make_batch: MakeBatch) -> None:
    log = store.create(LogConfig(compression_type="zstd"))
    log.append_marker(5, 0, 7, commit=True, leader_epoch=0)
    data = log.read(0, 1000, limit_offset=1, min_one_batch=True).slices[0].read()
    assert parse_header(data).compression == 0
    assert parse_control_record(decode_records(data)[0]).coordinator_epoch == 7


def test_indexes_are_dumped_verified_and_repaired(store: Store, make_batch: MakeBatch) -> None:
    log = store.create()
    for sequence in range(2):
        options: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence}
        log.append_as_leader(make_batch(is_transactional=True, **options), leader_epoch=0)
        log.append_marker(5, 0, 1, commit=False, leader_epoch=0)
    store.stop(clean=True)
    (path,) = store.files(".txnindex")
    entries = [AbortedTransactionRow(5, 0, 1, 2), AbortedTransactionRow(5, 2, 3, 4)]
    assert list(dump(path)) == entries
    assert list(verify(store.directory)) == []
    path.write_bytes(path.read_bytes()[:-1])
    assert [problem.path for problem in verify(store.directory)] == [path]
    execute(examine(store.directory))
    assert list(dump(path)) == entries
    # The first marker is damaged: its entry would hide what the producer writes from there on.
    (log_path,) = store.files(".log")
    data = bytearray(log_path.read_bytes())
    (position,) = (at for at, header in iter_headers(data) if header.base_offset == 1)
    data[position + 70] ^= 1
    log_path.write_bytes(data)
    execute(examine(store.directory))
    assert list(dump(path)) == [AbortedTransactionRow(5, 0, 3, 4)]
    assert list(verify(store.directory)) == []
    store.start()


def test_guards_of_unbegun_transactions_expire(store: Store, clock: VirtualClock) -> None:
    log = store.create()
    guard = log.begin_verification(5, 0, 0)
    log.remove_expired_producers(clock.now_ms() + 10, 100)
    assert log.begin_verification(5, 0, 0) is guard
    log.remove_expired_producers(clock.now_ms() + 100, 100)
    assert log.begin_verification(5, 0, 0) is not guard
    assert guard is not NOT_ASKED
