"""A broker's session and its key: who may have a node id, lost sessions, and stores that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack

import pytest

from tidelog.common.ids import ZERO_UUID
from tidelog.controller import layout
from tidelog.controller.membership import Membership, NodeIdTakenError, is_same_process, live_incarnation
from tidelog.metadata.faulty import Faults, FaultySession, FaultyStore
from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.store import Check, MetadataStoreError, Op, Session, Snapshot, Store, TxnResult

TTL_MS = 60_000
KEY = layout.live_key(3)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(poll_interval_ms=5)


def membership(store: Store, closing: AsyncExitStack, ttl_ms: float = TTL_MS) -> Membership:
    made = Membership(store, 3, ttl_ms=ttl_ms)
    closing.push_async_callback(made.close)
    return made


async def test_a_member_holds_the_key_of_its_node_id_until_it_closes(
    store: MemoryStore, closing: AsyncExitStack
) -> None:
    member = membership(store, closing)
    await member.join()
    current = member.current
    assert current is not None
    rec = await store.get(KEY)
    assert rec is not None
    assert (live_incarnation(rec), rec.owner) == (current.incarnation, current.session.id)
    assert await member.wait() is current
    await member.close()
    assert member.current is None
    assert await store.get(KEY) is None


async def test_a_node_id_that_is_taken_is_refused(store: MemoryStore, closing: AsyncExitStack) -> None:
    await membership(store, closing).join()
    sessions = set(store._sessions)
    # Twice as long as a session of its own would last, and a little more: the other one may have just died.
    with pytest.raises(NodeIdTakenError, match="node id 3 is used by another running broker"):
        await membership(store, closing, ttl_ms=-495).join()
    assert set(store._sessions) == sessions


async def test_a_start_is_patient_for_two_sessions_from_when_it_reached_the_store(
    store: MemoryStore, closing: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await membership(store, closing).join()
    loop = asyncio.get_running_loop()
    real = store.session
    reached_s, deadlines_s = [], []

    async def session(ttl_ms: float) -> Session:
        await asyncio.sleep(0.01)  # the store is far away
        reached_s.append(loop.time())
        return await real(ttl_ms)

    async def wait_for_owner(_: Membership, key: str, session: Session, deadline_s: float) -> None:
        deadlines_s.append(deadline_s)
        raise NodeIdTakenError(key)

    monkeypatch.setattr(store, "session", session)
    monkeypatch.setattr(Membership, "_wait_for_owner_to_go", wait_for_owner)
    with pytest.raises(NodeIdTakenError):
        await membership(store, closing).join()
    # An election of ZooKeeper's gives the session of a broker that was killed its whole time again.
    assert deadlines_s[0] >= reached_s[0] + 2 * TTL_MS / 1000


async def test_a_start_waits_on_while_the_store_can_not_be_watched(
    store: MemoryStore, closing: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.controller.membership._RETRY_PAUSE_S", 0.001)
    first = membership(store, closing)
    await first.join()
    real = store.watch
    has_failed = asyncio.Event()

    async def watch(prefix: str) -> AsyncGenerator[Snapshot, None]:
        if not has_failed.is_set():
            has_failed.set()
            raise MetadataStoreError("ConnectionLoss")
        async for snapshot in real(prefix):
            yield snapshot

    monkeypatch.setattr(store, "watch", watch)
    second = membership(store, closing)
    joining = asyncio.create_task(second.join())
    await asyncio.wait_for(has_failed.wait(), 20)
    await first.close()
    await asyncio.wait_for(joining, 20)
    assert second.current is not None


async def test_a_node_id_is_free_once_its_owner_is_gone(store: MemoryStore, closing: AsyncExitStack) -> None:
    first, second = membership(store, closing), membership(store, closing)
    await first.join()
    joining = asyncio.create_task(second.join())
    await asyncio.sleep(0.02)
    assert not joining.done()
    await first.close()
    await joining
    rec = await store.get(KEY)
    assert rec is not None
    assert second.current is not None
    assert live_incarnation(rec) == second.current.incarnation


@pytest.mark.parametrize("seed", range(20))
async def test_a_lost_session_is_followed_by_another_incarnation(
    seed: int, store: MemoryStore, closing: AsyncExitStack
) -> None:
    faulty = FaultyStore(store, Faults(unknown=0.5, session_lost=0.2, stale_read=0.5, late_watch=0.5), seed)
    member = membership(faulty, closing)
    await member.join()
    seen = set()
    for turn in range(5):
        current = await member.wait()
        seen.add(current.incarnation)
        rec = await store.get(KEY)
        assert rec is not None
        assert (live_incarnation(rec), rec.owner) == (current.incarnation, current.session.id)
        if turn % 2:
            faulty._sessions[current.session.id].lose()
        else:
            current.report_lost()
        assert current.is_lost
        assert member.current is None
        await member.wait_for_next(current)
    assert len(seen) == 5


async def test_a_store_that_fails_is_told_and_tried_again(
    store: MemoryStore, closing: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailingStore(FaultyStore):
        is_failing = False

        async def session(self, ttl_ms: float) -> FaultySession:
            if self.is_failing:
                raise MetadataStoreError("the disk is full")
            return await super().session(ttl_ms)

    monkeypatch.setattr("tidelog.controller.membership._RETRY_PAUSE_S", 0.001)
    failing = FailingStore(store)
    member = membership(failing, closing)
    await member.join()
    current = member.current
    assert current is not None
    failing.is_failing = True
    current.report_lost()
    await current.wait_until_lost()
    await member._state.wait_for(lambda state: state is not current)
    with pytest.raises(MetadataStoreError, match="the disk is full"):
        await member.wait()
    failing.is_failing = False
    assert (await member.wait_for_next(current)).incarnation != current.incarnation


async def test_a_failed_join_leaves_no_session(store: MemoryStore, closing: AsyncExitStack) -> None:
    class FailingStore(FaultyStore):
        async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
            raise MetadataStoreError("the disk is full")

    with pytest.raises(MetadataStoreError, match="the disk is full"):
        await membership(FailingStore(store), closing).join()
    assert not store._sessions


async def test_a_member_leaves_though_the_store_is_away(
    store: MemoryStore, closing: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that stops, or gives up its start, then ends as it should; the store ends the session in time."""
    member = membership(store, closing)
    await member.join()

    async def fail(_: str) -> None:
        raise MetadataStoreError("nobody answers")

    with monkeypatch.context() as patches:
        patches.setattr(store, "end_session", fail)
        await member.close()
    assert "leaves its session to end by itself: nobody answers" in caplog.text


async def test_sessions_of_one_process_can_be_told_from_those_of_another(
    store: MemoryStore, closing: AsyncExitStack
) -> None:
    """A process that lost its session has lost none of its records, whatever it has heard of its registrations."""
    member = membership(store, closing)
    await member.join()
    first = member.current
    assert first is not None
    first.report_lost()
    second = await member.wait_for_next(first)
    assert second.incarnation != first.incarnation
    assert is_same_process(second.incarnation, first.incarnation)
    await member.close()
    restarted = membership(store, closing)
    await restarted.join()
    assert restarted.current is not None
    assert not is_same_process(restarted.current.incarnation, second.incarnation)
    assert not is_same_process(ZERO_UUID, ZERO_UUID)
