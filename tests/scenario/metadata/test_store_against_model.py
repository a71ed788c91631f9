"""Random histories over SQLite, held against the model in memory: every answer and every state must be equal."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tidelog.common.clock import VirtualClock
from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.sqlite import SqliteStore
from tidelog.metadata.store import ABSENT, Check, Del, Op, Put, Session, SessionLost, Store, TxnResult

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
        path = Path(self._directory.name) / "metadata.db"
        self._store = SqliteStore(path, clock_ms=self._clock.monotonic_ms)
        self._opened: list[Session] = []

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

    @rule(pair=sessions)
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

    @rule()
    def barrier(self) -> None:
        assert self._run(self._model.barrier()) == self._run(self._store.barrier())

    @invariant()
    def states_are_equal(self) -> None:
        for prefix in ("", "a/", "b"):
            model, store = self._run(self._model.list(prefix)), self._run(self._store.list(prefix))
            assert [(k, r.value, r.token, r.rev, r.created, r.owner is None) for k, r in model.items()] == [
                (k, r.value, r.token, r.rev, r.created, r.owner is None) for k, r in store.items()
            ]

    def _transact_both(self, checks: dict[str, str], model_ops: Sequence[Op], store_ops: Sequence[Op]) -> None:
        model = self._transact(self._model, checks, model_ops)
        store = self._transact(self._store, checks, store_ops)
        if isinstance(model, SessionLost):
            assert isinstance(store, SessionLost)
        else:
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


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
