"""The controller over a store as weak as the contract allows: nothing is lost, done twice or written by the deposed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tidelog.common.clock import VirtualClock
from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.controller import Controller, NewPartitions, NewTopic, layout
from tidelog.controller.image import BrokerInfo
from tidelog.controller.layout import ControllerLocation
from tidelog.controller.ledger import Ledger, NotControllerError, Write
from tidelog.metadata.faulty import Faults, FaultySession, FaultyStore
from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.store import Check, Del, MetadataStoreError, Op, Put, TxnResult, Unknown
from tidelog.protocol import ErrorCode, KafkaError

MakeController = Callable[..., Controller]
LOCATION = ControllerLocation(0, -1, "host", 9092)
BROKER = BrokerInfo(0, -1, (Endpoint(PLAINTEXT, "host", 9092),))


SEEDS = range(25)


@pytest.fixture
def store(clock: VirtualClock) -> MemoryStore:
    return MemoryStore(clock, poll_interval_ms=5)


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - the condition is of several objects, none of which tells
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"waited 20 s in vain: {what}") from None


@pytest.mark.parametrize("seed", SEEDS)
async def test_unknown_outcomes_are_settled(seed: int, store: MemoryStore, make_controller: MakeController) -> None:
    faulty = FaultyStore(store, Faults(unknown=0.3, stale_read=0.5), seed)
    controller = make_controller(faulty)
    await controller.start()
    await controller.register_broker(BROKER, clean_shutdown=True)
    epoch = controller.epoch
    blocks = []
    for n in range(15):
        (created,) = await controller.create_topics([NewTopic(f"t{n}", 70)])
        assert created.error is ErrorCode.NONE
        blocks.append(await controller.allocate_producer_ids())
        if n % 3 == 0:
            (deleted,) = await controller.delete_topics([f"t{n}"])
            assert deleted.error is ErrorCode.NONE
    assert controller.epoch == epoch
    ids = [number for block in blocks for number in block]
    assert len(set(ids)) == len(ids)
    await controller.close()
    reader = make_controller(store)
    await reader.start()
    assert reader.image.topics == controller.image.topics
    assert list(reader.image.topics) == sorted(f"t{n}" for n in range(15) if n % 3)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_lost_session_is_followed_by_a_new_election(
    seed: int, store: MemoryStore, make_controller: MakeController
) -> None:
    faulty = FaultyStore(store, Faults(session_lost=0.5, unknown=0.2, late_watch=0.5), seed)
    controller = make_controller(faulty)
    await controller.start()
    await controller.register_broker(BROKER, clean_shutdown=True)
    await controller.create_topics([NewTopic("a")])
    epoch = controller.epoch
    for session in faulty._sessions.values():
        session.lose()
    await until(lambda: controller.epoch > epoch, "a new election")
    assert list(controller.image.topics) == ["a"]
    assert not controller.image.brokers[0].fenced
    (created,) = await controller.create_topics([NewTopic("b")])
    assert created.error is ErrorCode.NONE


async def test_a_change_waits_for_the_election_that_follows_a_lost_session(
    store: MemoryStore, make_controller: MakeController
) -> None:
    faulty = FaultyStore(store)
    controller = make_controller(faulty)
    await controller.start()
    await controller.register_broker(BROKER, clean_shutdown=True)
    for n in range(5):
        for session in faulty._sessions.values():
            session.lose()
        # These come before the loss is noticed, between it and the next election, or after that.
        for turn in range(10):
            (created,) = await controller.create_topics([NewTopic(f"t-{n}-{turn}")])
            assert created.error is ErrorCode.NONE, created.message
            await controller.allocate_producer_ids()
    await until(lambda: controller.epoch > 1, "a new election")


async def deposed(make_controller: MakeController, store: FaultyStore) -> Controller:
    """A controller that has lost its session and asks the store for another one."""
    controller = make_controller(store)
    await controller.start()
    await controller.register_broker(BROKER, clean_shutdown=True)
    for session in store._sessions.values():
        session.lose()
    await until(lambda: not controller.is_active, "the loss of the session")
    return controller


async def test_a_change_waits_no_longer_than_its_time_out(store: MemoryStore, make_controller: MakeController) -> None:
    class HangingStore(FaultyStore):
        async def session(self, ttl_ms: float) -> FaultySession:
            if self._sessions:
                await asyncio.Event().wait()
            return await super().session(ttl_ms)

    controller = await deposed(make_controller, HangingStore(store))
    (refused,) = await controller.create_topics([NewTopic("a")], timeout_s=0.02)
    assert (refused.error, refused.message) == (ErrorCode.NOT_CONTROLLER, "No controller was elected in time.")
    waiting = [asyncio.create_task(controller.create_topics([NewTopic("a")], timeout_s=60)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await controller.close()
    (refused,) = await waiting[1]
    assert (refused.error, refused.message) == (ErrorCode.NOT_CONTROLLER, "This broker is shutting down.")
    assert waiting[0].cancelled()


async def test_a_change_is_told_why_there_is_no_election(store: MemoryStore, make_controller: MakeController) -> None:
    class FullStore(FaultyStore):
        async def session(self, ttl_ms: float) -> FaultySession:
            if self._sessions:
                raise MetadataStoreError("the disk is full")
            return await super().session(ttl_ms)

    controller = await deposed(make_controller, FullStore(store))
    (refused,) = await controller.create_topics([NewTopic("a")])
    assert (refused.error, refused.message) == (ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")


@pytest.mark.parametrize("seed", SEEDS)
async def test_two_controllers_never_both_write(seed: int, store: MemoryStore, make_controller: MakeController) -> None:
    faults = Faults(unknown=0.2, stale_read=0.5, late_watch=0.5, session_lost=0.05)
    stores = [FaultyStore(store, faults, seed + n) for n in range(2)]
    controllers = [make_controller(each, node_id) for node_id, each in enumerate(stores)]
    names = iter(f"t{n}" for n in range(10_000))
    acknowledged: list[str] = []
    blocks: list[range] = []

    async def write(controller: Controller) -> None:
        await controller.start()
        while len(acknowledged) < 30:
            try:
                await controller.register_broker(BROKER, clean_shutdown=True)
                name = next(names)
                (result,) = await controller.create_topics([NewTopic(name, 1)])
                if result.error is ErrorCode.NONE:
                    acknowledged.append(name)
                blocks.append(await controller.allocate_producer_ids())
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
            await asyncio.sleep(0)

    async def depose() -> None:
        while len(acknowledged) < 30:
            for session in stores[len(acknowledged) % 2]._sessions.values():
                session.lose()
            await asyncio.sleep(0.002)

    tasks = [asyncio.create_task(work) for work in (depose(), *(write(each) for each in controllers))]
    await tasks[0]
    for task in tasks[1:]:
        # One of them may still be waiting for its election.
        task.cancel()
    await asyncio.wait(tasks)
    for controller in controllers:
        await controller.close()
    reader = make_controller(store, 9)
    await reader.start()
    assert set(acknowledged) <= set(reader.image.topics)
    ids = [number for block in blocks for number in block]
    assert len(set(ids)) == len(ids)


async def test_a_deposed_controller_can_write_nothing(
    store: MemoryStore, clock: VirtualClock, make_controller: MakeController
) -> None:
    old, new = make_controller(store, 0), make_controller(store, 1)
    await old.start()
    await old.register_broker(BROKER, clean_shutdown=True)
    clock.advance(ms=30_000)
    await new.start()
    assert not new.is_active
    # The old one sleeps through its session's end: its heartbeat, every 20 s, does not come in this test.
    clock.advance(ms=30_000)
    await new.wait_until_active()
    assert (old.epoch, new.epoch) == (1, 2)
    (refused,) = await old.create_topics([NewTopic("a")])
    assert refused.error is ErrorCode.NOT_CONTROLLER
    assert not old.is_active
    assert await store.list("topics/") == {}
    with pytest.raises(KafkaError):
        await old.register_broker(BROKER, clean_shutdown=True)


async def test_a_second_controller_waits_its_turn(store: MemoryStore, make_controller: MakeController) -> None:
    first, second = make_controller(store, 0), make_controller(store, 1)
    await first.start()
    await second.start()
    assert not second.is_active
    (refused,) = await second.create_topics([NewTopic("a")])
    assert (refused.error, refused.message) == (ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
    location = await second.location.wait_for(lambda location: location is not None)
    assert location is not None
    assert (location.node_id, location.epoch) == (0, 1)
    await first.close()
    await second.wait_until_active()
    assert second.image.controller_id == 1
    assert second.location.value == ControllerLocation(1, 2, "", 0)


async def test_a_role_that_is_held_already_is_taken_anew(store: MemoryStore) -> None:
    """As after an election whose outcome was unknown: nobody else could ever be elected."""
    session = await store.session(60_000)
    first = await Ledger.elect(store, session, LOCATION)
    second = await Ledger.elect(store, session, LOCATION)
    assert first is not None
    assert second is not None
    assert (first.epoch, second.epoch) == (1, 2)
    with pytest.raises(NotControllerError):
        await first.write([Write("a", {})])
    await first.release()  # without effect
    other = await store.session(60_000)
    assert await Ledger.elect(store, other, LOCATION) is None
    await second.release()
    third = await Ledger.elect(store, other, LOCATION)
    assert third is not None
    assert third.epoch == 3
    await session.close()
    await other.close()
    with pytest.raises(NotControllerError) as caught:
        await Ledger.elect(store, session, LOCATION)
    assert caught.value.is_session_lost


async def test_a_write_that_comes_late_cannot_happen_after_it_was_settled(store: MemoryStore) -> None:
    session = await store.session(60_000)
    ledger = await Ledger.elect(store, session, LOCATION)
    assert ledger is not None
    late: list[tuple[list[Check], list[Op]]] = []
    txn = store.txn

    async def lose_track_once(checks: list[Check], ops: list[Op]) -> TxnResult:
        if not late:
            late.append((checks, ops))
            return Unknown()
        return await txn(checks, ops)

    store.txn = lose_track_once  # type: ignore[assignment, method-assign]  # the fault of this test alone
    await ledger.write([Write("a", {"n": 1})])
    before = await store.get("a")
    assert not isinstance(await txn(*late[0]), Unknown)
    assert await store.get("a") == before
    await session.close()


async def test_what_a_crash_left_of_a_topic_is_removed(
    store: MemoryStore, make_controller: MakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic of 7,000 partitions takes two transactions; the crash comes between them."""
    controller = make_controller(store)
    await controller.start()
    await controller.register_broker(BROKER, clean_shutdown=True)
    await controller.create_topics([NewTopic("small", 1)])
    txn = store.txn
    left: list[str] = []

    async def fail_at_the_topic(checks: list[Check], ops: list[Op]) -> TxnResult:
        if any(op.key.startswith("topics/") for op in ops):
            left.extend(await store.list("partitions/"))  # now: the next controller removes it soon
            raise MetadataStoreError("the crash")
        return await txn(checks, ops)

    with monkeypatch.context() as patched:
        patched.setattr(store, "txn", fail_at_the_topic)
        (refused,) = await controller.create_topics([NewTopic("big", 7_000)])
    assert (refused.error, refused.message) == (ErrorCode.KAFKA_STORAGE_ERROR, "the crash")
    assert len(left) > 1
    await until(lambda: controller.is_active, "the controller stands for election again")
    assert list(controller.image.topics) == ["small"]
    assert len(await store.list("partitions/")) == 1
    (created,) = await controller.create_topics([NewTopic("big", 7_000)])
    assert created.error is ErrorCode.NONE


async def test_what_a_crash_left_of_a_growth_is_overwritten(
    store: MemoryStore, make_controller: MakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = make_controller(store)
    await controller.start()
    await controller.register_broker(BROKER, clean_shutdown=True)
    await controller.create_topics([NewTopic("a", 10)])
    txn = store.txn

    async def fail_at_the_topic(checks: list[Check], ops: list[Op]) -> TxnResult:
        if any(op.key.startswith("topics/") for op in ops):
            raise MetadataStoreError("the crash")
        return await txn(checks, ops)

    with monkeypatch.context() as patched:
        patched.setattr(store, "txn", fail_at_the_topic)
        (refused,) = await controller.create_partitions([NewPartitions("a", 8_000)])
    assert refused.error is ErrorCode.KAFKA_STORAGE_ERROR
    await until(lambda: controller.is_active, "the controller stands for election again")
    assert len(controller.image.topics["a"].partitions) == 10
    for count in (20, 100, 8_000):
        (grown,) = await controller.create_partitions([NewPartitions("a", count)])
        assert grown.error is ErrorCode.NONE
    await controller.close()
    again = make_controller(store)
    await again.start()
    assert again.image.topics["a"] == controller.image.topics["a"]


async def test_a_topic_whose_states_are_missing_stops_the_start(
    store: MemoryStore, make_controller: MakeController
) -> None:
    controller = make_controller(store)
    await controller.start()
    await controller.register_broker(BROKER, clean_shutdown=True)
    await controller.create_topics([NewTopic("a", 100)])
    await controller.close()
    await store.txn([], [Del(layout.chunk_key(controller.image.topics["a"].topic_id, 1))])
    with pytest.raises(MetadataStoreError, match="topic 'a' is damaged"):
        await make_controller(store).start()


async def test_a_newer_layout_is_refused(store: MemoryStore, make_controller: MakeController) -> None:
    await store.txn([], [Put(layout.CLUSTER, layout.encode({"id": "x", "version": 99}))])
    with pytest.raises(MetadataStoreError, match="layout version 99"):
        await make_controller(store).start()


async def test_the_ledger_refuses_once_another_is_elected(store: MemoryStore) -> None:
    first_session, second_session = await store.session(60_000), await store.session(60_000)
    first = await Ledger.elect(store, first_session, LOCATION)
    assert first is not None
    assert await Ledger.elect(store, second_session, LOCATION) is None
    await first_session.close()
    second = await Ledger.elect(store, second_session, LOCATION)
    assert second is not None
    with pytest.raises(NotControllerError):
        await first.write([Write("a", {})])
    await second.write([Write("a", {})])
    await second_session.close()
