"""Two-phase commit (KIP-939): identities of kept transactions, and the coordinator dying at every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, count

import pytest

from tidelog.coordinator.actions import (
    Action,
    AllocateProducerId,
    Answer,
    Append,
    GroupRecord,
    Now,
    SendMarkers,
    SetTimer,
    TopicPartition,
    Work,
)
from tidelog.coordinator.transaction import (
    EPOCH_MAX,
    NO_IDENTITY,
    NO_TIMEOUT_MS,
    ProducerIdentity,
    Transaction,
    TransactionState,
)
from tidelog.coordinator.txn_init import InitProducerId
from tidelog.coordinator.txn_records import decode_transaction, encode_transaction
from tidelog.coordinator.txn_requests import AddPartitions, EndTxn
from tidelog.coordinator.txn_shard import TransactionShard
from tidelog.coordinator.txn_state import TIME_OUTS, ProducerResult, TransactionConfig
from tidelog.protocol import ErrorCode

CONFIG = TransactionConfig(transaction_two_phase_commit_enable=True)
NOW = Now(0.0, 1_000_000)
LATER = Now(10.0**12, 10**12)
PARTITIONS = frozenset({("t", 0), ("t", 1)})
KEEP = InitProducerId("tx", 60_000, is_two_phase=True, keeps_prepared=True)


class Died(Exception):  # noqa: N818 - it is no error, but what the test wants
    """The coordinator is dead, whoever asked gets no answer."""


@dataclass
class World:
    """A coordinator whose actions are carried out at once, until the step at which it dies."""

    config: TransactionConfig = CONFIG
    dies_at: int = -1
    is_written_when_it_dies: bool = False
    steps: int = 0
    log: list[GroupRecord] = field(default_factory=list)
    markers: list[tuple[TopicPartition, ProducerIdentity, bool]] = field(default_factory=list)
    marker_versions: set[int] = field(default_factory=set)
    ids: count[int] = field(default_factory=lambda: count(101))
    timers: set[object] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.shard = TransactionShard(0, 1, self.config)

    def hold(self, producer: ProducerIdentity, *, timeout_ms: int = NO_TIMEOUT_MS) -> None:
        """Start from an open transaction that the log has."""
        transaction = Transaction(
            transactional_id="tx",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            timeout_ms=timeout_ms,
            state=TransactionState.ONGOING,
            partitions=PARTITIONS,
            start_ms=NOW.wall_ms,
            last_update_ms=NOW.wall_ms,
            client_version=2,
        )
        self.log.append(encode_transaction(transaction))
        self.load()

    def load(self) -> None:
        self.shard = TransactionShard(0, 1, self.config)
        for offset, record in enumerate(self.log):
            self.shard.replay(record, offset)
        self.timers.clear()
        self.run(chain.from_iterable(self.shard.on_loaded(NOW)))

    @property
    def transaction(self) -> Transaction:
        [transaction] = self.shard.transactions()
        decoded = decode_transaction(self.log[-1])
        assert decoded is not None
        assert decoded.transaction is not None
        assert decoded.transaction.client == transaction.client
        return transaction

    def _step(self) -> bool:
        """Whether the step is the last one of this coordinator."""
        self.steps += 1
        return self.steps == self.dies_at

    def run(self, actions: Iterable[Action], now: Now = NOW) -> list[object]:
        answers: list[object] = []
        waiting = deque(actions)
        while waiting:
            action = waiting.popleft()
            if isinstance(action, Work):
                for step in action.steps:
                    waiting.extend(step)
            elif isinstance(action, Answer):
                # It may die before the answer is on its way.
                if self._step():
                    raise Died
                answers.append(action.response)
            elif isinstance(action, Append):
                dies = self._step()
                if not dies or self.is_written_when_it_dies:
                    self.log += action.records
                if dies:
                    raise Died
                waiting.extend(self.shard.on_appended(action.token, ErrorCode.NONE, now))
            elif isinstance(action, SendMarkers):
                identity = ProducerIdentity(action.marker.producer_id, action.marker.producer_epoch)
                dies = self._step()
                if not dies or self.is_written_when_it_dies:
                    self.marker_versions.add(action.marker.transaction_version)
                    self.markers += [(partition, identity, action.marker.committed) for partition in action.partitions]
                if dies:
                    raise Died
                errors = dict.fromkeys(action.partitions, ErrorCode.NONE)
                waiting.extend(self.shard.on_markers_written(action.token, errors, now))
            elif isinstance(action, AllocateProducerId):
                if self._step():
                    raise Died
                waiting.extend(self.shard.on_producer_id(action.token, next(self.ids), ErrorCode.NONE, now))
            elif isinstance(action, SetTimer):
                self.timers.add(action.key)
        return answers

    def init(self, ask: InitProducerId = KEEP) -> ProducerResult:
        [answer] = self.run(self.shard.init_producer_id(ask, NOW, 0))
        assert isinstance(answer, ProducerResult)
        return answer

    def add(self, producer: ProducerIdentity) -> object:
        [answer] = self.run(self.shard.add_partitions(AddPartitions("tx", producer, PARTITIONS, 2), NOW, 0))
        return answer

    def end(self, producer: ProducerIdentity, *, committed: bool = True, version: int = 2) -> ProducerResult:
        [answer] = self.run(self.shard.end_txn(EndTxn("tx", producer, committed, version), NOW, 0))
        assert isinstance(answer, ProducerResult)
        return answer


@pytest.fixture
def world() -> World:
    return World()


def given(producer_id: int, producer_epoch: int, ongoing: tuple[int, int] = NO_IDENTITY) -> ProducerResult:
    return ProducerResult(ErrorCode.NONE, producer_id, producer_epoch, ProducerIdentity(*ongoing))


def test_each_producer_that_comes_back_gets_an_epoch_and_the_same_transaction(world: World) -> None:
    world.hold(ProducerIdentity(7, 5))
    for epoch in (6, 7, 8):
        assert world.init() == given(7, epoch, (7, 5))
    assert world.add(ProducerIdentity(7, 8)) is ErrorCode.INVALID_TXN_STATE
    assert world.add(ProducerIdentity(7, 5)) is ErrorCode.PRODUCER_FENCED
    assert world.end(ProducerIdentity(7, 7)) == ProducerResult(ErrorCode.PRODUCER_FENCED)
    assert world.end(ProducerIdentity(7, 5)) == ProducerResult(ErrorCode.PRODUCER_FENCED)
    assert world.end(ProducerIdentity(9, 0)) == ProducerResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert world.end(ProducerIdentity(7, 8)) == given(7, 9)
    assert world.end(ProducerIdentity(7, 8)) == given(7, 9)
    assert world.end(ProducerIdentity(7, 8), committed=False) == ProducerResult(ErrorCode.INVALID_TXN_STATE)
    assert world.transaction.state is TransactionState.COMPLETE_COMMIT
    assert sorted(world.markers) == [(partition, (7, 6), True) for partition in sorted(PARTITIONS)]
    assert world.init() == given(7, 10)


def test_an_old_client_that_comes_back_keeps_its_epoch_when_it_ends(world: World) -> None:
    """The markers have a higher one than the records all the same, which shuts out who wrote those."""
    world.hold(ProducerIdentity(7, 5))
    assert world.init() == given(7, 6, (7, 5))
    assert world.end(ProducerIdentity(7, 6), version=0) == given(7, 6)
    assert world.end(ProducerIdentity(7, 6), version=0) == given(7, 6)
    assert {identity for _, identity, _ in world.markers} == {(7, 6)}
    # The next transaction has that epoch, too. A late marker must not end it, so it says that it raised the epoch.
    assert world.marker_versions == {2}
    assert world.add(ProducerIdentity(7, 6)) is ErrorCode.NONE


@pytest.mark.parametrize("reloads", [False, True])
@pytest.mark.parametrize(
    ("epoch", "kept_as", "goes_on_as"),
    [
        (EPOCH_MAX - 4, [(7, EPOCH_MAX - 3), (7, EPOCH_MAX - 2)], (7, EPOCH_MAX - 1)),
        (EPOCH_MAX - 3, [(7, EPOCH_MAX - 2), (7, EPOCH_MAX - 1)], (101, 0)),
        (EPOCH_MAX - 2, [(7, EPOCH_MAX - 1), (101, 0)], (101, 1)),
        (EPOCH_MAX - 1, [(101, 0), (101, 1)], (101, 2)),
    ],
)
def test_another_producer_id_follows_the_last_epoch(
    world: World, epoch: int, kept_as: list[tuple[int, int]], goes_on_as: tuple[int, int], reloads: bool
) -> None:
    """The markers are those of the transaction; nobody gets an epoch above which there is none to shut it out."""
    world.hold(ProducerIdentity(7, epoch))
    for identity in kept_as:
        assert world.init() == given(*identity, (7, epoch))
        if reloads:
            world.load()
    client = ProducerIdentity(*kept_as[-1])
    assert world.end(client, committed=False) == given(*goes_on_as)
    if reloads:
        world.load()
    assert {identity for _, identity, _ in world.markers} == {(7, epoch + 1)}
    assert world.end(client, committed=False) == given(*goes_on_as)
    assert world.end(ProducerIdentity(7, epoch)).error in (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    )
    assert world.add(ProducerIdentity(*goes_on_as)) is ErrorCode.NONE


def test_the_id_that_ran_out_twice_is_known_for_retries(world: World) -> None:
    """A kept transaction outlives whole producer ids; a retry is one of the last that was given out."""
    world.hold(ProducerIdentity(7, EPOCH_MAX - 1))
    assert world.init() == given(101, 0, (7, EPOCH_MAX - 1))
    for epoch in range(1, EPOCH_MAX):
        assert world.init().producer_epoch == epoch
    last = ProducerIdentity(101, EPOCH_MAX - 1)
    assert world.end(last) == given(102, 0)
    assert world.end(last) == given(102, 0)
    assert world.end(ProducerIdentity(7, EPOCH_MAX - 1)).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    world.load()
    assert world.end(last) == given(102, 0)


def test_one_that_names_itself_aborts_what_was_kept_for_it(world: World) -> None:
    """As after any error: it asks for the next epoch (KIP-360), and the transaction is none of its own."""
    world.hold(ProducerIdentity(7, 5))
    assert world.init() == given(7, 6, (7, 5))
    own = InitProducerId("tx", 60_000, ProducerIdentity(7, 6), is_two_phase=True)
    zombie = own._replace(expected=ProducerIdentity(7, 5))
    assert world.init(zombie) == ProducerResult(ErrorCode.PRODUCER_FENCED)
    assert world.init(own) == ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert world.init(own) == given(7, 7)
    assert {committed for _, _, committed in world.markers} == {False}
    assert world.init(zombie) == ProducerResult(ErrorCode.PRODUCER_FENCED)


def test_what_is_refused(world: World) -> None:
    world.hold(ProducerIdentity(7, 5))
    assert world.init(KEEP._replace(expected=ProducerIdentity(7, 5))).error is ErrorCode.INVALID_REQUEST
    assert world.init(KEEP._replace(is_two_phase=False, timeout_ms=0)).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    usual = World(config=TransactionConfig())
    assert usual.init().error is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert usual.init(KEEP._replace(is_two_phase=False)) == given(101, 0)


def test_time_ends_only_what_has_a_time_out(world: World) -> None:
    world.hold(ProducerIdentity(7, 5))
    assert TIME_OUTS not in world.timers
    assert world.run(world.shard.on_timer(TIME_OUTS, LATER), LATER) == []
    assert world.transaction.state is TransactionState.ONGOING
    # Who comes without two-phase commit does not take it from a transaction that may be prepared.
    assert world.init(KEEP._replace(is_two_phase=False)) == given(7, 6, (7, 5))
    world.load()
    world.run(world.shard.on_timer(TIME_OUTS, LATER), LATER)
    assert world.transaction.state is TransactionState.ONGOING
    assert world.end(ProducerIdentity(7, 6)) == given(7, 7)


def test_one_with_a_time_out_is_aborted_for_whom_it_was_kept_too(world: World) -> None:
    world.hold(ProducerIdentity(7, 5), timeout_ms=60_000)
    assert TIME_OUTS in world.timers
    assert world.init(KEEP._replace(is_two_phase=False)) == given(7, 6, (7, 5))
    world.run(world.shard.on_timer(TIME_OUTS, LATER), LATER)
    assert world.transaction.state is TransactionState.COMPLETE_ABORT
    assert {identity for _, identity, _ in world.markers} == {(7, 6)}
    assert world.end(ProducerIdentity(7, 6)) == ProducerResult(ErrorCode.PRODUCER_FENCED)
    assert world.init() == given(7, 8)


def test_one_without_two_phase_commit_is_given_it_when_it_is_kept(world: World) -> None:
    world.hold(ProducerIdentity(7, 5), timeout_ms=60_000)
    assert world.init() == given(7, 6, (7, 5))
    world.run(world.shard.on_timer(TIME_OUTS, LATER), LATER)
    assert world.transaction.state is TransactionState.ONGOING


def test_a_producer_that_is_faster_than_the_markers_comes_again(world: World) -> None:
    """It was told its next identity, another id even, before the end was carried out."""
    last = ProducerIdentity(7, EPOCH_MAX - 1)
    world.hold(last)
    unmarked = [
        action
        for action in world.shard.end_txn(EndTxn("tx", last, committed=True, client_version=2), NOW, 0)
        if isinstance(action, AllocateProducerId)
    ]
    [append] = world.shard.on_producer_id(unmarked[0].token, 101, ErrorCode.NONE, NOW)
    assert isinstance(append, Append)
    answer, _markers = world.shard.on_appended(append.token, ErrorCode.NONE, NOW)
    assert isinstance(answer, Answer)
    assert answer.response == given(101, 0)
    after = ProducerIdentity(101, 0)
    assert world.add(after) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.end(after, committed=False) == ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert world.init() == ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)


# The coordinator dies


class Engine:
    """An engine with a database of its own, in which it notes what is prepared before anything is committed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.prepared: ProducerIdentity | None = None
        self.is_done = False

    def run(self) -> None:
        """What it does from its start on, after a crash as well."""
        result = self._patiently(KEEP)
        client = ProducerIdentity(result.producer_id, result.producer_epoch)
        if result.ongoing != NO_IDENTITY:
            is_prepared = result.ongoing == self.prepared
            client = self._end(client, committed=is_prepared)
            self.is_done |= is_prepared
        elif self.prepared is not None:
            # Committed before it crashed, as nobody else ends what is prepared.
            self.is_done = True
        if self.is_done:
            return
        assert self.world.add(client) is ErrorCode.NONE
        self.prepared = client
        self._end(client, committed=True)
        self.is_done = True

    def _patiently(self, ask: InitProducerId) -> ProducerResult:
        result = self.world.init(ask)
        assert result.error is ErrorCode.NONE
        return result

    def _end(self, client: ProducerIdentity, *, committed: bool) -> ProducerIdentity:
        result = self.world.end(client, committed=committed)
        assert result.error is ErrorCode.NONE
        return ProducerIdentity(result.producer_id, result.producer_epoch)


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("first_epoch", [0, EPOCH_MAX - 4, EPOCH_MAX - 3, EPOCH_MAX - 2, EPOCH_MAX - 1])
def test_an_engine_commits_once_wherever_the_coordinator_dies(first_epoch: int, is_written: bool) -> None:
    """Two deaths at every pair of steps: what the engine has prepared is committed, everywhere, and once."""
    steps = 0
    for first_death in count(1):
        for second_death in count(1):
            died = _die_and_check(first_epoch, first_death, second_death, is_written=is_written)
            if not all(died):
                break
        if not died[0]:
            break
        steps += 1
    assert steps >= 8, "an engine takes so many at least"


def _die_and_check(first_epoch: int, *deaths_at: int, is_written: bool) -> list[bool]:
    """Let the coordinator die at these steps of its lives; whether it lived to see them."""
    world = World(is_written_when_it_dies=is_written)
    idle = Transaction(
        transactional_id="tx", producer_id=7, producer_epoch=first_epoch, timeout_ms=NO_TIMEOUT_MS, last_update_ms=0
    )
    world.log.append(encode_transaction(idle))
    engine = Engine(world)
    died = []
    for death_at in (*deaths_at, -1):
        world.steps, world.dies_at = 0, death_at
        try:
            world.load()
            engine.run()
            died.append(False)
        except Died:
            died.append(True)
    assert engine.is_done
    _check_committed_once(world, engine)
    return died[:-1]


def _check_committed_once(world: World, engine: Engine) -> None:
    assert engine.prepared is not None
    commits = {(partition, identity) for partition, identity, committed in world.markers if committed}
    assert {partition for partition, _ in commits} == PARTITIONS, "a partition has no marker"
    assert len({identity for _, identity in commits}) == 1, "another transaction was committed, too"
    [(producer_id, producer_epoch)] = {identity for _, identity in commits}
    assert (producer_id, producer_epoch - 1) == engine.prepared, "the markers are not those of what was prepared"
    aborted = {identity for _, identity, committed in world.markers if not committed}
    assert (producer_id, producer_epoch) not in aborted
