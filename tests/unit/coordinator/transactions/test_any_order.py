"""Transactions in any order: retries, zombies, lost answers, failed writes and markers, time-outs, crashes.

A world of one shard, its log and its partitions is driven by random steps. What must hold is checked against the log
(what is written is what counts), the markers that reached partitions, and the answers that producers were given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidelog.coordinator.actions import (
    Action,
    AllocateProducerId,
    Answer,
    Append,
    CancelTimer,
    GroupRecord,
    Now,
    SendMarkers,
    SetTimer,
    TimerKey,
    TopicPartition,
    Work,
)
from tidelog.coordinator.transaction import (
    EPOCH_MAX,
    NO_IDENTITY,
    NO_PRODUCER_EPOCH,
    ProducerIdentity,
    Transaction,
    TransactionState,
)
from tidelog.coordinator.txn_init import InitProducerId
from tidelog.coordinator.txn_records import decode_transaction, encode_transaction
from tidelog.coordinator.txn_requests import AddPartitions, EndTxn
from tidelog.coordinator.txn_shard import TransactionShard
from tidelog.coordinator.txn_state import ProducerResult, TransactionConfig
from tidelog.protocol import ErrorCode

IDS = ("a", "worn")
PARTITIONS = (("t", 0), ("t", 1), ("u", 0))
CONFIG = TransactionConfig(transactional_id_expiration_ms=3_000_000, transaction_two_phase_commit_enable=True)
TIMEOUT_MS = 60_000

State = TransactionState
NEXT_STATES = {
    None: {State.EMPTY},
    State.EMPTY: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT},
    State.ONGOING: {State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT},
    State.PREPARE_COMMIT: {State.COMPLETE_COMMIT},
    State.PREPARE_ABORT: {State.COMPLETE_ABORT},
    State.COMPLETE_COMMIT: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT},
    State.COMPLETE_ABORT: {State.EMPTY, State.ONGOING, State.PREPARE_ABORT},
}

ids = st.sampled_from(IDS)
partition_sets = st.sets(st.sampled_from(PARTITIONS), min_size=1).map(frozenset)
versions = st.sampled_from((0, 2))
indexes = st.integers(0, 35)
refusals = st.sampled_from(
    (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.MESSAGE_TOO_LARGE)
)


class Transactions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.monotonic_ms, self.wall_ms = 0.0, 1_000_000
        self.log: list[GroupRecord] = []
        self.written: dict[str, Transaction] = {}
        self.coordinator_epoch = 0
        self.next_producer_id = 1000
        self.timers: dict[TimerKey, float] = {}
        self.appends: deque[Append] = deque()
        self.markers: deque[SendMarkers] = deque()
        self.allocations: deque[AllocateProducerId] = deque()
        self.asked: dict[int, Any] = {}
        self.waiting: set[int] = set()
        self.next_exchange = 0
        # The newest identity that each producer was told when it asked, and all that anybody was ever told.
        self.given_before: dict[int, ProducerIdentity | None] = {}
        self.given: dict[str, list[ProducerIdentity]] = {id_: [] for id_ in IDS}
        # By transactional id and the identity of its producer: how its transaction ended.
        self.decisions: dict[tuple[str, ProducerIdentity], set[bool]] = {}
        # By identity that was given out: the one that its producer had before.
        self.parents: dict[ProducerIdentity, ProducerIdentity | None] = {}
        self.forgotten: set[int] = set()
        # Those that may abort what is open.
        self.asked_inits: set[tuple[str, ProducerIdentity | None]] = set()
        self.asked_to_keep: set[str] = set()
        self.asked_ends: set[tuple[str, ProducerIdentity, bool, int]] = set()
        self.marked: dict[str, set[TopicPartition]] = {id_: set() for id_ in IDS}
        self.tried_to_add: dict[str, set[TopicPartition]] = {id_: set() for id_ in IDS}
        self.added: dict[str, set[TopicPartition]] = {id_: set() for id_ in IDS}
        self.succeeded_ends: list[tuple[EndTxn, ProducerResult]] = []
        self.shard = TransactionShard(0, 0, CONFIG)

    @initialize(epochs_left=st.integers(1, 4))
    def start(self, epochs_left: int) -> None:
        worn = Transaction(
            transactional_id="worn",
            producer_id=7,
            producer_epoch=EPOCH_MAX - epochs_left,
            timeout_ms=TIMEOUT_MS,
            last_update_ms=self.wall_ms,
        )
        self._write((encode_transaction(worn),))
        self.given["worn"].append(worn.identity)
        self._load()

    # The world

    def _now(self) -> Now:
        return Now(self.monotonic_ms, self.wall_ms)

    def _load(self) -> None:
        self.timers.clear()
        self.appends.clear()
        self.markers.clear()
        self.allocations.clear()
        self.coordinator_epoch += 1
        self.shard = TransactionShard(0, self.coordinator_epoch, CONFIG)
        for offset, record in enumerate(self.log):
            self.shard.replay(record, offset)
        loaded = {transaction.transactional_id: transaction for transaction in self.shard.transactions()}
        # The one thing that is not written down, as in Kafka.
        assert loaded == {
            id_: replace(transaction, last_producer_epoch=NO_PRODUCER_EPOCH)
            for id_, transaction in self.written.items()
        }
        self._run(chain.from_iterable(self.shard.on_loaded(self._now())))

    def _run(self, actions: Iterable[Action], *, is_unloaded: bool = False) -> None:
        for action in actions:
            if isinstance(action, Work):
                for step in action.steps:
                    self._run(step)
            elif isinstance(action, Answer):
                self._answered(action)
            elif is_unloaded:
                continue
            elif isinstance(action, Append):
                self.appends.append(action)
            elif isinstance(action, SendMarkers):
                self._check_markers(action)
                self.markers.append(action)
            elif isinstance(action, AllocateProducerId):
                self.allocations.append(action)
            elif isinstance(action, SetTimer):
                self.timers[action.key] = action.due_ms
            elif isinstance(action, CancelTimer):
                self.timers.pop(action.key, None)

    def _write(self, records: tuple[GroupRecord, ...]) -> None:
        """Records are committed: check that they may follow what the log holds."""
        self.log += records
        for record in records:
            decoded = decode_transaction(record)
            assert decoded is not None
            id_, after = decoded
            before = self.written.get(id_)
            if after is None:
                assert before is not None
                assert before.state is State.EMPTY or before.state.is_complete
                del self.written[id_]
                self.forgotten |= {identity.producer_id for identity in (before.identity, *self.given[id_])}
                continue
            assert after.state in NEXT_STATES[None if before is None else before.state]
            if before is not None:
                assert after.identity >= before.identity, "an identity went back"
                assert after.client >= before.client, "the identity of a producer went back"
                self._check_step(id_, before, after)
            self.written[id_] = after

    def _check_step(self, id_: str, before: Transaction, after: Transaction) -> None:
        if after.state is State.ONGOING and before.state is not State.ONGOING:
            self.added[id_] = set()
        if before.is_kept and after.state is State.ONGOING:
            assert after.partitions == before.partitions, "something was added to what may be prepared"
        if after.is_kept and after.state is State.ONGOING:
            assert id_ in self.asked_to_keep
            assert after.client > before.client, "who had the transaction is not shut out"
            kept = replace(
                after,
                next_producer_id=before.next_producer_id,
                next_producer_epoch=before.next_producer_epoch,
                previous_producer_id=before.previous_producer_id,
                timeout_ms=before.timeout_ms,
                last_update_ms=before.last_update_ms,
            )
            assert kept == before, "a transaction was changed by being kept"
            assert after.timeout_ms >= before.timeout_ms
        if after.state.is_prepared:
            assert after.producer_id == before.producer_id
            assert after.producer_epoch - before.producer_epoch in ((1,) if before.is_kept else (0, 1))
            assert self.added[id_] <= after.partitions if before.state is State.ONGOING else not after.partitions
            assert after.partitions <= self.tried_to_add[id_]
            self.tried_to_add[id_] = set()
            self.marked[id_] = set()
            if (id_, before.client, after.state.is_commit, after.client_version) in self.asked_ends:
                self.decisions.setdefault((id_, before.client), set()).add(after.state.is_commit)
            else:
                assert not after.state.is_commit, "a commit that nobody asked for"
                assert after.client > before.client, "aborted, and its producer is not shut out"
                is_asked = (id_, None) in self.asked_inits or (id_, before.client) in self.asked_inits
                is_late = before.start_ms + before.timeout_ms < self.wall_ms and not before.is_two_phase
                assert is_asked or is_late, "aborted by a zombie, or by time where there is none"
        if after.state.is_complete:
            assert self.marked[id_] == before.partitions, "a transaction is complete without all its markers"
            assert after.client == before.client, "a producer was told another identity than it got"

    def _check_markers(self, action: SendMarkers) -> None:
        _, transaction = self._transaction_of(action)
        marker = action.marker
        assert transaction.state.is_prepared, "a marker for what is not decided"
        assert marker.committed == transaction.state.is_commit
        assert ProducerIdentity(marker.producer_id, marker.producer_epoch) == transaction.identity
        assert set(action.partitions) <= transaction.partitions
        assert marker.coordinator_epoch == self.coordinator_epoch

    def _transaction_of(self, action: SendMarkers) -> tuple[str, Transaction]:
        found = [pair for pair in self.written.items() if pair[1].producer_id == action.marker.producer_id]
        assert len(found) == 1
        return found[0]

    # Requests

    def _ask(self, ask: Any, *, is_calm: bool = False) -> None:
        exchange = self.next_exchange
        self.next_exchange += 1
        self.asked[exchange] = ask
        self.waiting.add(exchange)
        self.given_before[exchange] = max(self.given[ask.transactional_id], default=None)
        if isinstance(ask, InitProducerId):
            if ask.keeps_prepared:
                self.asked_to_keep.add(ask.transactional_id)
            else:
                self.asked_inits.add((ask.transactional_id, ask.expected))
            self._run(self.shard.init_producer_id(ask, self._now(), exchange))
        elif isinstance(ask, AddPartitions):
            self.tried_to_add[ask.transactional_id] |= ask.partitions
            self._run(self.shard.add_partitions(ask, self._now(), exchange))
        else:
            self.asked_ends.add((ask.transactional_id, ask.producer, ask.committed, ask.client_version))
            self._run(self.shard.end_txn(ask, self._now(), exchange))
        if is_calm:
            self.let_all_succeed()

    def _answered(self, action: Answer) -> None:
        ask = self.asked[action.exchange]
        assert action.exchange in self.waiting, "answered twice, or after the connection was gone"
        self.waiting.discard(action.exchange)
        newest = self.given_before[action.exchange]
        id_ = ask.transactional_id
        if isinstance(ask, AddPartitions):
            if action.response is ErrorCode.NONE:
                assert newest is None or ask.producer >= newest, "an older producer was served"
                self.added[id_] |= ask.partitions
            return
        result = action.response
        assert isinstance(result, ProducerResult)
        if result.error:
            return
        identity = ProducerIdentity(result.producer_id, result.producer_epoch)
        assert newest is None or identity >= newest, "an older identity was given out"
        assert identity.producer_epoch < EPOCH_MAX
        if isinstance(ask, InitProducerId):
            # Once an id is forgotten, nobody is known to have come after a producer.
            if ask.expected is not None and newest is not None and newest.producer_id not in self.forgotten:
                assert self._is_same_producer(newest, ask.expected), "an older producer got a new epoch"
            self.parents.setdefault(identity, ask.expected)
            written = self.written[id_]
            assert written.client == identity
            assert result.ongoing == (written.identity if ask.keeps_prepared and written.is_kept else NO_IDENTITY)
            assert (written.state is State.ONGOING) == (result.ongoing != NO_IDENTITY)
        else:
            assert ask.committed in self.decisions[id_, ask.producer], "success without a decision"
            assert ask.client_version == 0 or identity > ask.producer or newest == identity
            if identity != ask.producer:
                self.parents.setdefault(identity, ask.producer)
            self.succeeded_ends.append((ask, result))
        self.given[id_].append(identity)

    def _is_same_producer(self, newest: ProducerIdentity, expected: ProducerIdentity) -> bool:
        """Whether the newest identity was given to the producer that had this one, and to nobody else."""
        identity: ProducerIdentity | None = newest
        while identity is not None and identity != expected:
            identity = self.parents.get(identity)
        return identity is not None

    def _identity(self, id_: str, index: int) -> ProducerIdentity:
        """One that was given out, the newest most often."""
        known = sorted(set(self.given[id_]), reverse=True)
        return known[min(index // 10, len(known) - 1)] if known else ProducerIdentity(5, 0)

    @rule(id_=ids, index=indexes, names_itself=st.booleans(), is_two_phase=st.booleans(), is_calm=st.booleans())
    def init(self, id_: str, index: int, names_itself: bool, is_two_phase: bool, is_calm: bool) -> None:
        expected = self._identity(id_, index) if names_itself else None
        self._ask(InitProducerId(id_, TIMEOUT_MS, expected, is_two_phase), is_calm=is_calm)

    @rule(id_=ids, is_two_phase=st.booleans(), is_calm=st.booleans())
    def keep(self, id_: str, is_two_phase: bool, is_calm: bool) -> None:
        """A producer comes back after a crash, and wants to know what it had open."""
        self._ask(InitProducerId(id_, TIMEOUT_MS, None, is_two_phase, keeps_prepared=True), is_calm=is_calm)

    @rule(id_=ids, index=indexes, partitions=partition_sets, version=versions, is_calm=st.booleans())
    def add(self, id_: str, index: int, partitions: frozenset[TopicPartition], version: int, is_calm: bool) -> None:
        self._ask(AddPartitions(id_, self._identity(id_, index), partitions, version), is_calm=is_calm)

    @rule(id_=ids, index=indexes, committed=st.booleans(), version=versions, is_calm=st.booleans())
    def end(self, id_: str, index: int, committed: bool, version: int, is_calm: bool) -> None:
        self._ask(EndTxn(id_, self._identity(id_, index), committed, version), is_calm=is_calm)

    @precondition(lambda self: self.succeeded_ends)
    @rule(index=indexes)
    def end_again(self, index: int) -> None:
        """A producer that did not see the answer asks again, and gets the same one."""
        ask, result = self.succeeded_ends[-1 - index % len(self.succeeded_ends)]
        held = self.shard.state.held.get(ask.transactional_id)
        before = len(self.log), len(self.appends), dict(self.written)
        known = len(self.succeeded_ends)
        self._ask(ask)
        # In version 2 a decision takes an epoch; without one it was the answer to an end of version 0, told once more.
        if ask.client_version and result[1:3] != ask.producer:
            is_last = (
                held is not None
                and held.transaction is not None
                and held.transaction.state.is_complete
                and held.transaction.client_version == ask.client_version
                and held.transaction.identity == result[1:3]
            )
            if is_last and held is not None and not held.is_busy:
                assert self.succeeded_ends[known:] == [(ask, result)]
            assert (len(self.log), len(self.appends), dict(self.written)) == before, "a retry had an effect"

    # What becomes of actions

    @precondition(lambda self: self.appends)
    @rule()
    def append(self) -> None:
        action = self.appends.popleft()
        self._write(action.records)
        self._run(self.shard.on_appended(action.token, ErrorCode.NONE, self._now()))

    @precondition(lambda self: self.appends)
    @rule(error=refusals)
    def refuse_append(self, error: ErrorCode) -> None:
        self._run(self.shard.on_appended(self.appends.popleft().token, error, self._now()))

    @precondition(lambda self: self.appends)
    @rule(is_there=st.booleans())
    def leave_append_undecided(self, is_there: bool) -> None:
        """Nobody knows what became of a write: those who wait are told, and the shard is loaded from what is there."""
        shard = self.shard
        first = self.appends.popleft()
        if is_there:
            self._write(first.records)
        self._run(shard.on_appended(first.token, ErrorCode.REQUEST_TIMED_OUT, self._now()), is_unloaded=True)
        self._run(shard.on_unloaded(ErrorCode.NOT_COORDINATOR), is_unloaded=True)
        for action in tuple(self.appends):
            self._run(shard.on_appended(action.token, ErrorCode.NOT_LEADER_OR_FOLLOWER, self._now()), is_unloaded=True)
        assert not self.waiting, "somebody was not told that the coordinator is gone"
        self._load()

    @precondition(lambda self: self.allocations)
    @rule(fails=st.booleans())
    def allocate(self, fails: bool) -> None:
        action = self.allocations.popleft()
        self.next_producer_id += 1
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE if fails else ErrorCode.NONE
        self._run(self.shard.on_producer_id(action.token, self.next_producer_id, error, self._now()))

    @precondition(lambda self: self.markers)
    @rule(failing=st.sets(st.sampled_from(PARTITIONS)), lost=st.sets(st.sampled_from(PARTITIONS)))
    def write_markers(self, failing: set[TopicPartition], lost: set[TopicPartition]) -> None:
        """Some fail, of some only the answer is lost."""
        action = self.markers.popleft()
        self.marked[self._transaction_of(action)[0]] |= set(action.partitions) - failing
        errors = {
            partition: ErrorCode.REQUEST_TIMED_OUT if partition in failing | lost else ErrorCode.NONE
            for partition in action.partitions
        }
        self._run(self.shard.on_markers_written(action.token, errors, self._now()))

    @precondition(lambda self: self.allocations or self.appends or self.markers)
    @rule()
    def let_all_succeed(self) -> None:
        for _ in range(100):
            if self.allocations:
                self.allocate(fails=False)
            elif self.appends:
                self.append()
            elif self.markers:
                self.write_markers(set(), set())
            else:
                break

    @rule(seconds=st.sampled_from((1, 11, 61, 3700)))
    def advance(self, seconds: int) -> None:
        self.monotonic_ms += seconds * 1000
        self.wall_ms += seconds * 1000
        for key in [key for key, due_ms in self.timers.items() if due_ms <= self.monotonic_ms]:
            del self.timers[key]
            self._run(self.shard.on_timer(key, self._now()))

    @rule(count=st.integers(0, 3))
    def crash(self, count: int) -> None:
        """The broker dies; of the writes that were under way the first few are in the log."""
        for action in list(self.appends)[:count]:
            self._write(action.records)
        self.waiting.clear()
        self._load()

    # What holds

    @invariant()
    def what_is_held_is_what_is_written(self) -> None:
        held = {transaction.transactional_id: transaction for transaction in self.shard.transactions()}
        assert held.keys() == self.written.keys()
        for id_, transaction in held.items():
            assert replace(transaction, last_producer_epoch=NO_PRODUCER_EPOCH) == self.written[id_]

    def teardown(self) -> None:
        """With nothing failing any more everybody is answered, and every transaction comes to its end.

        Those without a time-out do when somebody comes for them, who may end them as he likes.
        """
        for _ in range(60):
            self.let_all_succeed()
            self.advance(2)
        assert not self.waiting
        for id_, transaction in list(self.written.items()):
            if transaction.state is State.ONGOING:
                assert transaction.is_two_phase
                self.keep(id_, is_two_phase=True, is_calm=True)
                self.end(id_, 0, committed=True, version=2, is_calm=True)
                assert self.written[id_].state is State.COMPLETE_COMMIT
                assert self.marked[id_] == transaction.partitions
            assert not transaction.state.is_prepared


Transactions.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestTransactions = Transactions.TestCase
