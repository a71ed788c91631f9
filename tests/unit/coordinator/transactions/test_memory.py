"""What strangers can make the coordinator of transactions remember, and what makes room again."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from tidelog.coordinator.actions import (
    Action,
    AllocateProducerId,
    Answer,
    Append,
    GroupRecord,
    Now,
    SetTimer,
    TimerKey,
    Work,
)
from tidelog.coordinator.memory import MemoryBudget
from tidelog.coordinator.transaction import ProducerIdentity
from tidelog.coordinator.txn_init import InitProducerId
from tidelog.coordinator.txn_requests import AddPartitions
from tidelog.coordinator.txn_shard import TransactionShard
from tidelog.coordinator.txn_state import ProducerResult, TransactionConfig
from tidelog.protocol import ErrorCode

LIMIT_BYTES = 100_000
MINUTE_MS = 60_000


class Bench:
    """A shard whose writes are committed at once and whose timers go off when time is moved on."""

    def __init__(self) -> None:
        self.budget = MemoryBudget(LIMIT_BYTES)
        self.log: list[GroupRecord] = []
        self.timers: dict[TimerKey, float] = {}
        self.answer: object = None
        self.now = Now(0.0, 1_000_000_000)
        self._producer_id = 100
        self.restart()

    def restart(self) -> None:
        self.shard = TransactionShard(0, 1, TransactionConfig(), self.budget)
        for offset, record in enumerate(self.log):
            self.shard.replay(record, offset)
        self.run(chain.from_iterable(self.shard.on_loaded(self.now)))

    def run(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Work):
                for step in action.steps:
                    self.run(step)
            elif isinstance(action, Answer):
                self.answer = action.response
            elif isinstance(action, Append):
                self.log += action.records
                self.run(self.shard.on_appended(action.token, ErrorCode.NONE, self.now))
            elif isinstance(action, AllocateProducerId):
                self._producer_id += 1
                self.run(self.shard.on_producer_id(action.token, self._producer_id, ErrorCode.NONE, self.now))
            elif isinstance(action, SetTimer):
                self.timers[action.key] = action.due_ms

    def advance(self, ms: float) -> None:
        self.now = Now(self.now.monotonic_ms + ms, self.now.wall_ms + round(ms))
        for key in [key for key, due_ms in self.timers.items() if due_ms <= self.now.monotonic_ms]:
            del self.timers[key]
            self.run(self.shard.on_timer(key, self.now))

    def init(self, transactional_id: str) -> ProducerResult:
        self.run(self.shard.init_producer_id(InitProducerId(transactional_id, MINUTE_MS), self.now, 0))
        assert isinstance(self.answer, ProducerResult)
        return self.answer

    def begin(self, transactional_id: str, producer: ProducerResult) -> None:
        identity = ProducerIdentity(producer.producer_id, producer.producer_epoch)
        ask = AddPartitions(transactional_id, identity, frozenset({("t", 0)}))
        self.run(self.shard.add_partitions(ask, self.now, 0))
        assert self.answer is ErrorCode.NONE


def test_new_ids_are_refused_when_memory_is_short_and_known_ones_are_served() -> None:
    bench = Bench()
    honest = bench.init("honest")
    codes = [bench.init(f"{number} ".ljust(8_000)).error for number in range(20)]
    assert codes == [ErrorCode.NONE] * 10 + [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 10
    assert bench.budget.used_bytes <= LIMIT_BYTES
    assert bench.init("honest").producer_epoch == honest.producer_epoch + 1


def test_ids_that_never_had_a_transaction_make_room() -> None:
    bench = Bench()
    used = bench.init("used")
    bench.begin("used", used)
    assert bench.init("raised").producer_epoch == 0
    assert bench.init("raised").producer_epoch == 1
    for number in range(12):
        bench.init(f"{number} ".ljust(8_000))
    bench.advance(5 * MINUTE_MS)
    assert bench.init("another".ljust(8_000)).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.advance(0)
    assert len(bench.shard.state.held) == 12, "they may still be about to begin"
    bench.advance(5 * MINUTE_MS)
    assert bench.init("another".ljust(8_000)).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.advance(0)
    assert set(bench.shard.state.held) == {"used", "raised"}
    assert bench.init("another".ljust(8_000)).error == ErrorCode.NONE
    kept = dict(bench.shard.state.held)
    bench.shard.on_unloaded(ErrorCode.NOT_COORDINATOR)
    assert bench.budget.used_bytes == 0
    bench.restart()
    assert set(bench.shard.state.held) == set(kept)
    assert bench.budget.used_bytes == sum(held.size_bytes for held in kept.values())


def test_an_id_that_could_not_be_written_takes_no_memory() -> None:
    bench = Bench()
    before = bench.budget.used_bytes
    [allocate] = bench.shard.init_producer_id(InitProducerId("tx", MINUTE_MS), bench.now, 0)
    assert isinstance(allocate, AllocateProducerId)
    [append] = bench.shard.on_producer_id(allocate.token, 7, ErrorCode.NONE, bench.now)
    assert isinstance(append, Append)
    assert bench.budget.used_bytes > before
    bench.shard.on_appended(append.token, ErrorCode.NOT_ENOUGH_REPLICAS, bench.now)
    assert bench.budget.used_bytes == before


def test_an_id_that_is_used_while_others_expire_stays() -> None:
    bench = Bench()
    producers = {name: bench.init(name) for name in ("a", "b", "c")}
    bench.now = Now(bench.now.monotonic_ms, bench.now.wall_ms + 8 * 24 * 60 * MINUTE_MS)
    actions = bench.shard.on_timer(("", "expiration"), bench.now)
    [steps] = [action.steps for action in actions if isinstance(action, Work)]
    bench.run(next(steps))
    bench.begin("b", producers["b"])
    for step in steps:
        bench.run(step)
    assert sorted(transaction.transactional_id for transaction in bench.shard.transactions()) == ["b"]


def test_an_id_that_was_replaced_while_others_expire_stays() -> None:
    bench = Bench()
    for name in ("a", "b"):
        bench.init(name)
    bench.now = Now(bench.now.monotonic_ms, bench.now.wall_ms + 8 * 24 * 60 * MINUTE_MS)
    [steps] = [
        action.steps for action in bench.shard.on_timer(("", "expiration"), bench.now) if isinstance(action, Work)
    ]
    bench.run(next(steps))
    # Expired meanwhile for want of memory, and used again.
    bench.shard.state.drop("b")
    bench.init("b")
    for step in steps:
        bench.run(step)
    assert [transaction.transactional_id for transaction in bench.shard.transactions()] == ["b"]


def test_expired_ids_are_forgotten_in_small_writes() -> None:
    """However many there are, and however long."""
    bench = Bench()
    bench.budget.limit_bytes = 10_000_000
    for number in range(100):
        bench.init(f"{number}-" + "x" * 8_000)
    for number in range(100):
        bench.init(f"short-{number}")
    bench.now = Now(bench.now.monotonic_ms, bench.now.wall_ms + 8 * 24 * 60 * MINUTE_MS)
    writes = []
    for action in bench.shard.on_timer(("", "expiration"), bench.now):
        if isinstance(action, Work):
            writes += [write.records for step in action.steps for write in step if isinstance(write, Append)]
    assert sum(map(len, writes)) == 200
    assert max(map(len, writes)) == 64
    assert max(sum(len(record.key) for record in records) for records in writes) < 100_000
