"""Random histories over SQLite and ZooKeeper, held against the model in memory: all answers and states must agree."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tidelog.common.clock import VirtualClock
from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.sqlite import SqliteStore
from tidelog.metadata.store import (
    ABSENT,
    Check,
    Conflict,
    Del,
    Ok,
    Op,
    Put,
    Rec,
    Session,
    SessionLost,
    Store,
    Token,
    TxnResult,
)
from tidelog.metadata.zookeeper import ZooKeeperStore, parse_address
from tidelog.torture.zookeeper_ensemble import Ensemble

T = TypeVar("T")

KEYS = st.sampled_from(["a", "a/b", "a/c", "b", "b-2"])
# A check is about the key's current token, about a token that it does not have, or about its absence.
CHECKS = st.dictionaries(KEYS, st.sampled_from(["current", "current", "wrong", "absent"]), max_size=3)
WRITES = st.dictionaries(KEYS, st.none() | st.binary(max_size=3), max_size=3)
TTL_MS = 1_000_000.0
"""So long that no heartbeat comes by itself: time passes only where a rule says so."""


class StoreAgainstModel(RuleBasedStateMachine):
    sessions: Bundle[tuple[Session, Session]] = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._clock = VirtualClock(start_ms=0)
        self._runner = asyncio.Runner()
        self._model = MemoryStore(self._clock)
        self._store = self._open_store()
        self._opened: list[Session] = []

    def _open_store(self) -> Store:
        raise TypeError("only the classes for a store can run")

    def teardown(self) -> None:
        for session in self._opened:
            self._run(session.close())
        self._run(self._store.close())
        self._run(self._model.close())
        self._runner.close()
        self._directory.cleanup()

    @rule(checks=CHECKS, writes=WRITES)
    def transact(self, checks: dict[str, str], writes: dict[str, bytes | None]) -> None:
        ops: list[Op] = [Del(key) if value is None else Put(key, value) for key, value in writes.items()]
        self._transact_both(checks, ops, ops)

    @rule(checks=CHECKS, key=KEYS, value=st.binary(max_size=3), owners=sessions)
    def put_owned(self, checks: dict[str, str], key: str, value: bytes, owners: tuple[Session, Session]) -> None:
        self._transact_both(checks, [Put(key, value, owners[0].id)], [Put(key, value, owners[1].id)])

    @rule(target=sessions)
    def open_session(self) -> tuple[Session, Session]:
        pair = (self._run(self._model.session(TTL_MS)), self._run(self._store.session(TTL_MS)))
        self._opened += pair
        return pair

    @rule(pair=consumes(sessions))
    def close_session(self, pair: tuple[Session, Session]) -> None:
        for session in pair:
            self._run(session.close())

    @rule()
    def barrier(self) -> None:
        assert self._run(self._model.barrier()) == self._run(self._store.barrier())

    @invariant()
    def states_are_equal(self) -> None:
        for prefix in ("", "a/", "b"):
            model, store = self._run(self._model.list(prefix)), self._run(self._store.list(prefix))
            assert [(key, *self._shown(rec)) for key, rec in model.items()] == [
                (key, *self._shown(rec)) for key, rec in store.items()
            ]

    def _shown(self, rec: Rec) -> tuple[object, ...]:
        """What must be equal of a record."""
        return rec.value, rec.token, rec.rev, rec.created, rec.owner is None

    def _transact_both(self, checks: dict[str, str], model_ops: Sequence[Op], store_ops: Sequence[Op]) -> None:
        model = self._transact(self._model, checks, model_ops)
        store = self._transact(self._store, checks, store_ops)
        if isinstance(model, SessionLost):
            assert isinstance(store, SessionLost)
        else:
            self._compare(model, store)

    def _compare(self, model: TxnResult, store: TxnResult) -> None:
        assert model == store

    def _transact(self, store: Store, checks: dict[str, str], ops: Sequence[Op]) -> TxnResult:
        resolved: list[Check] = []
        for key, kind in checks.items():
            rec = self._run(store.get(key))
            current = ABSENT if rec is None else rec.token
            resolved.append((key, {"current": current, "wrong": 10**9, "absent": ABSENT}[kind]))
        return self._run(store.txn(resolved, ops))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)


class SqliteAgainstModel(StoreAgainstModel):
    """Its sessions end by the test's clock."""

    def _open_store(self) -> Store:
        return SqliteStore(Path(self._directory.name) / "metadata.db", clock_ms=self._clock.monotonic_ms)

    @rule(pair=StoreAgainstModel.sessions)
    def heartbeat(self, pair: tuple[Session, Session]) -> None:
        first, second = (self._run(session.heartbeat()) for session in pair)  # type: ignore[attr-defined]  # Lease's own
        assert first == second

    @rule(ms=st.sampled_from([400_000, 700_000]))
    def let_time_pass(self, ms: int) -> None:
        self._clock.advance(ms=ms)
        # The model ends sessions at any call; SQLite when something stands in the way, so something does.
        refused: list[Check] = [("never/there", 1)]
        self._run(self._model.txn(refused, []))
        self._run(self._store.txn(refused, []))


class ZooKeeperAgainstModel(StoreAgainstModel):
    """ZooKeeper's tokens and revisions are its own; what they say must be the same."""

    addresses: ClassVar[Iterator[str]]

    def __init__(self) -> None:
        self._tokens: dict[str, Token] = {}
        super().__init__()

    def _open_store(self) -> Store:
        return ZooKeeperStore(parse_address(next(self.addresses)), clock_ms=self._clock.monotonic_ms)

    def _shown(self, rec: Rec) -> tuple[object, ...]:
        return rec.value, rec.owner is None

    def _compare(self, model: TxnResult, store: TxnResult) -> None:
        if isinstance(model, Ok):
            assert isinstance(store, Ok)
            assert store.tokens.keys() == model.tokens.keys()
            for key, token in store.tokens.items():
                assert token != self._tokens.get(key)
                rec = self._run(self._store.get(key))
                assert rec is not None
                assert (rec.token, rec.rev) == (token, store.rev)
                self._tokens[key] = token
        else:
            # Where several keys conflict, stores need not name the same one.
            assert isinstance(model, Conflict)
            assert isinstance(store, Conflict)

    @rule()
    def barrier(self) -> None:
        self._run(self._model.barrier())
        assert self._run(self._store.barrier()) < self._run(self._store.barrier())


TestSqliteAgainstModel = SqliteAgainstModel.TestCase
TestSqliteAgainstModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.xdist_group("zookeeper")
def test_zookeeper_against_the_model(ensemble: Ensemble) -> None:
    ZooKeeperAgainstModel.addresses = (f"{ensemble.address}/model-{number}" for number in itertools.count())
    run_state_machine_as_test(
        ZooKeeperAgainstModel,
        settings=settings(max_examples=12, stateful_step_count=20, deadline=None),
    )
