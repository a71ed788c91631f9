"""Transactions one step at a time: what random orders reach seldom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

import pytest

from tidelog.coordinator.actions import Action, AllocateProducerId, Answer, Append, GroupRecord, Now, SendMarkers, Work
from tidelog.coordinator.transaction import EPOCH_MAX, ProducerIdentity, Transaction, TransactionState
from tidelog.coordinator.txn_init import InitProducerId
from tidelog.coordinator.txn_records import decode_transaction, encode_transaction
from tidelog.coordinator.txn_requests import AddPartitions, EndTxn
from tidelog.coordinator.txn_shard import TransactionShard
from tidelog.coordinator.txn_state import ProducerResult, TransactionConfig
from tidelog.protocol import ErrorCode, ProtocolError

NOW = Now(0.0, 1_000_000)
PARTITIONS = frozenset({("t", 0)})


@dataclass
class Bench:
    """A shard whose actions are carried out at once, unless a test wants them otherwise."""

    shard: TransactionShard = field(default_factory=lambda: TransactionShard(0, 1, TransactionConfig()))
    answers: list[object] = field(default_factory=list)
    append_error: ErrorCode = ErrorCode.NONE
    keeps_ids_back: bool = False
    keeps_markers_back: bool = False
    sent: list[SendMarkers] = field(default_factory=list)
    next_producer_id: int = 100

    def hold(self, producer: ProducerIdentity, state: TransactionState = TransactionState.EMPTY) -> None:
        """Start from a transaction that the log has."""
        transaction = Transaction(
            transactional_id="tx",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            timeout_ms=60_000,
            state=state,
            partitions=PARTITIONS if state is TransactionState.ONGOING else frozenset(),
            start_ms=NOW.wall_ms,
            last_update_ms=NOW.wall_ms,
        )
        self.shard.replay(encode_transaction(transaction), 0)
        self.run(chain.from_iterable(self.shard.on_loaded(NOW)))

    def run(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Work):
                for step in action.steps:
                    self.run(step)
            elif isinstance(action, Answer):
                self.answers.append(action.response)
            elif isinstance(action, Append):
                self.run(self.shard.on_appended(action.token, self.append_error, NOW))
            elif isinstance(action, SendMarkers):
                self.sent.append(action)
                if self.keeps_markers_back:
                    continue
                errors = dict.fromkeys(action.partitions, ErrorCode.NONE)
                self.run(self.shard.on_markers_written(action.token, errors, NOW))
            elif isinstance(action, AllocateProducerId) and not self.keeps_ids_back:
                self.next_producer_id += 1
                self.run(self.shard.on_producer_id(action.token, self.next_producer_id, ErrorCode.NONE, NOW))

    def init(self, expected: ProducerIdentity | None = None) -> object:
        self.run(self.shard.init_producer_id(InitProducerId("tx", 60_000, expected), NOW, 0))
        return self.answers[-1] if self.answers else None

    def add(self, producer: ProducerIdentity) -> object:
        self.run(self.shard.add_partitions(AddPartitions("tx", producer, PARTITIONS, 2), NOW, 0))
        return self.answers[-1]

    def end(self, producer: ProducerIdentity, *, committed: bool = True, version: int = 2) -> object:
        self.run(self.shard.end_txn(EndTxn("tx", producer, committed, version), NOW, 0))
        return self.answers[-1]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def done(producer_id: int, producer_epoch: int) -> ProducerResult:
    return ProducerResult(ErrorCode.NONE, producer_id, producer_epoch)


def test_a_zombie_does_not_abort_what_its_successor_runs(bench: Bench) -> None:
    bench.hold(ProducerIdentity(7, 5), TransactionState.ONGOING)
    assert bench.init(ProducerIdentity(7, 4)) == ProducerResult(ErrorCode.PRODUCER_FENCED)
    assert bench.end(ProducerIdentity(7, 5)) == done(7, 6)


def test_a_late_request_does_not_abort_the_next_transaction(bench: Bench) -> None:
    """It names the epoch that the same producer had in the transaction before."""
    bench.hold(ProducerIdentity(7, 5), TransactionState.ONGOING)
    assert bench.end(ProducerIdentity(7, 5)) == done(7, 6)
    assert bench.add(ProducerIdentity(7, 6)) is ErrorCode.NONE
    assert bench.init(ProducerIdentity(7, 5)) == ProducerResult(ErrorCode.PRODUCER_FENCED)
    assert bench.end(ProducerIdentity(7, 6)) == done(7, 7)


def test_a_producer_that_aborts_its_own_transaction_goes_on(bench: Bench) -> None:
    bench.hold(ProducerIdentity(7, 5), TransactionState.ONGOING)
    assert bench.init(ProducerIdentity(7, 5)) == ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert bench.init(ProducerIdentity(7, 5)) == done(7, 6)
    assert bench.init(ProducerIdentity(7, 4)) == ProducerResult(ErrorCode.PRODUCER_FENCED)


def test_the_last_epoch_is_never_given_out(bench: Bench) -> None:
    """Fencing took it, so the producer that was fenced by itself gets another id."""
    last = ProducerIdentity(7, EPOCH_MAX - 1)
    bench.hold(last, TransactionState.ONGOING)
    assert bench.init(last) == ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert bench.sent[0].marker.producer_epoch == EPOCH_MAX
    assert bench.init(last) == done(101, 0)
    # The answer was lost.
    assert bench.init(last) == done(101, 0)


def test_another_producer_id_follows_the_last_epoch(bench: Bench) -> None:
    bench.hold(ProducerIdentity(7, EPOCH_MAX - 2))
    assert bench.init() == done(7, EPOCH_MAX - 1)
    assert bench.init() == done(101, 0)


def test_an_end_in_the_last_epoch_gives_another_producer_id_and_gives_it_again(bench: Bench) -> None:
    last = ProducerIdentity(7, EPOCH_MAX - 1)
    bench.hold(last, TransactionState.ONGOING)
    assert bench.end(last) == done(101, 0)
    assert (bench.sent[0].marker.producer_id, bench.sent[0].marker.producer_epoch) == (7, EPOCH_MAX)
    assert bench.end(last) == done(101, 0)
    assert bench.end(last, committed=False) == ProducerResult(ErrorCode.INVALID_TXN_STATE)
    assert len(bench.sent) == 1
    assert bench.add(ProducerIdentity(101, 0)) is ErrorCode.NONE
    assert bench.end(last) == ProducerResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def test_an_abort_of_nothing_raises_the_epoch_in_version_2(bench: Bench) -> None:
    bench.hold(ProducerIdentity(7, 5))
    assert bench.end(ProducerIdentity(7, 5), committed=False, version=0) == ProducerResult(ErrorCode.INVALID_TXN_STATE)
    assert bench.end(ProducerIdentity(7, 5), committed=False) == done(7, 6)
    assert bench.end(ProducerIdentity(7, 5), committed=False) == done(7, 6)
    assert bench.end(ProducerIdentity(7, 6), committed=False) == done(7, 7)
    assert not bench.sent


def test_a_transaction_is_complete_when_every_partition_has_its_marker(bench: Bench) -> None:
    """Markers that fail, or of which nothing is heard, are sent again until they are written; the others are not."""
    first, second, third = ("t", 0), ("t", 1), ("t", 2)
    bench.hold(ProducerIdentity(7, 5))
    bench.run(
        bench.shard.add_partitions(
            AddPartitions("tx", ProducerIdentity(7, 5), frozenset({first, second, third}), 2), NOW, 0
        )
    )
    bench.keeps_markers_back = True
    assert bench.end(ProducerIdentity(7, 5)) == done(7, 6)
    [sent] = bench.sent
    assert sent.partitions == (first, second, third)

    def report(errors: dict[tuple[str, int], ErrorCode]) -> tuple[tuple[str, int], ...]:
        bench.run(bench.shard.on_markers_written(bench.sent[-1].token, errors, NOW))
        assert bench.shard.describe("tx").transaction_state == "PrepareCommit"
        bench.run(bench.shard.on_timer(("tx", "markers"), NOW))
        return bench.sent[-1].partitions

    assert report({first: ErrorCode.NONE, second: ErrorCode.NOT_LEADER_OR_FOLLOWER}) == (second, third)
    assert report({second: ErrorCode.REQUEST_TIMED_OUT, third: ErrorCode.REQUEST_TIMED_OUT}) == (second, third)
    assert report({second: ErrorCode.NONE}) == (third,)
    bench.run(bench.shard.on_markers_written(bench.sent[-1].token, {third: ErrorCode.NONE}, NOW))
    assert bench.shard.describe("tx").transaction_state == "CompleteCommit"
    assert len(bench.sent) == 4


def test_who_waits_for_a_producer_id_is_told_when_the_coordinator_moves(bench: Bench) -> None:
    bench.keeps_ids_back = True
    assert bench.init() is None
    bench.run(bench.shard.on_unloaded(ErrorCode.NOT_COORDINATOR))
    assert bench.answers == [ProducerResult(ErrorCode.NOT_COORDINATOR)]
    assert bench.shard.on_producer_id(0, 1, ErrorCode.NONE, NOW) == []


def test_an_id_whose_first_record_was_refused_is_not_known(bench: Bench) -> None:
    bench.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert bench.init() == ProducerResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert bench.shard.describe("tx").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    bench.append_error = ErrorCode.NONE
    assert bench.init() == done(102, 0)


@pytest.mark.parametrize(
    "record",
    [
        GroupRecord(b"", b""),
        GroupRecord(b"\0\0\0\1a", b""),
        GroupRecord(b"\0\0\0\1a", b"\0\7"),
        GroupRecord(b"\0\0\0\1a", b"\0\0" + bytes(8) + bytes(2) + bytes(4) + b"\7" + bytes(20)),
    ],
)
def test_bytes_that_are_no_record(record: GroupRecord) -> None:
    with pytest.raises(ProtocolError):
        decode_transaction(record)


def test_unknown_kinds_of_records_are_left_aside(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for offset in range(2):
        bench.shard.replay(GroupRecord(b"\0\5", b"what"), offset)
    assert len(caplog.records) == 1
    with pytest.raises(ProtocolError):
        bench.shard.replay(GroupRecord(b"\0\0\0\1a", None), 0, producer_id=5)
    with pytest.raises(ProtocolError):
        bench.shard.replay_transaction_end(5, committed=True)
