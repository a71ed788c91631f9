"""Brokers that are gone get fenced: keys that vanish, registrations without a key, and new controllers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack

import pytest

from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.controller import BrokerInfo, ClusterImage, Controller, NewTopic, layout
from tidelog.controller.broker_watch import BrokerWatch
from tidelog.controller.membership import Member, Membership
from tidelog.metadata.faulty import Faults, FaultyStore
from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.store import Check, Op, Session, Store, TxnResult
from tidelog.protocol import ErrorCode, KafkaError

MakeController = Callable[..., Controller]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(poll_interval_ms=5)


class Cluster:
    """One controller and its watch, and other brokers that are members only."""

    def __init__(
        self, store: Store, controller: Controller, closing: AsyncExitStack, *, silence_max_ms: float = 1e9
    ) -> None:
        """These brokers ask no questions, which matters after `silence_max_ms`."""
        self.store = store
        self.controller = controller
        self.watch = BrokerWatch(controller, store, 0, silence_max_ms=silence_max_ms)
        self.closing = closing
        self.members: dict[int, Membership] = {}

    async def start(self) -> None:
        await self.controller.start()
        self.watch.start()
        self.closing.push_async_callback(self.watch.close)
        assert self.controller.membership.current is not None
        await self.register(0, self.controller.membership.current.incarnation)

    async def join(self, node_id: int) -> Member:
        membership = self.members[node_id] = Membership(self.store, node_id, ttl_ms=60_000)
        self.closing.push_async_callback(membership.close)
        await membership.join()
        assert membership.current is not None
        return membership.current

    async def register(self, node_id: int, incarnation: uuid.UUID) -> None:
        await self.watch.confirm(node_id, incarnation)
        broker = BrokerInfo(node_id, -1, (Endpoint(PLAINTEXT, "host", 9092),), incarnation=incarnation)
        await self.controller.register_broker(broker, clean_shutdown=True)

    async def fenced(self, *node_ids: int) -> None:
        await fenced(self.controller, *node_ids)


async def fenced(controller: Controller, *node_ids: int) -> None:
    """Wait until these brokers are fenced, and no others."""

    def is_so(image: ClusterImage) -> bool:
        return {broker.node_id for broker in image.brokers.values() if broker.fenced} == set(node_ids)

    assert await controller.view.wait_for(is_so, 20), controller.image.brokers


@pytest.fixture
def cluster(store: MemoryStore, make_controller: MakeController, closing: AsyncExitStack) -> Cluster:
    return Cluster(store, make_controller(store), closing)


def watches(store: MemoryStore) -> set[str]:
    return set(store._changes._watches.values())


async def test_a_broker_whose_key_vanishes_is_fenced(cluster: Cluster) -> None:
    await cluster.start()
    for node_id in (1, 2):
        await cluster.register(node_id, (await cluster.join(node_id)).incarnation)
    (created,) = await cluster.controller.create_topics([NewTopic("a", assignments={0: (1, 2)})])
    assert created.error is ErrorCode.NONE
    await cluster.members[1].close()
    await cluster.fenced(1)
    assert cluster.controller.image.topics["a"].partitions[0].leader == 2
    # It comes back, and is fenced again when it goes.
    await cluster.register(1, (await cluster.join(1)).incarnation)
    await cluster.fenced()
    await cluster.members[1].close()
    await cluster.fenced(1)


async def test_a_broker_that_lost_its_session_is_fenced_though_it_is_back(cluster: Cluster) -> None:
    await cluster.start()
    member = await cluster.join(1)
    await cluster.register(1, member.incarnation)
    member.report_lost()
    again = await cluster.members[1].wait_for_next(member)
    await cluster.fenced(1)
    await cluster.register(1, again.incarnation)
    await cluster.fenced()


async def test_a_controller_with_a_new_session_is_not_fenced_while_its_watch_shows_the_old_one(
    cluster: Cluster,
) -> None:
    await cluster.start()
    await cluster.register(1, (await cluster.join(1)).incarnation)
    seen = await cluster.watch._live.wait_for(lambda live: live is not None and 1 in live)
    assert seen is not None
    cluster.watch._live.set({**seen, 0: uuid.uuid4()})
    assert list(cluster.watch._gone()) == []
    # Others are known by what was seen of them only.
    cluster.watch._live.set({**seen, 1: uuid.uuid4()})
    assert list(cluster.watch._gone()) == [1]


async def test_a_broker_that_died_while_it_registered_is_fenced(cluster: Cluster) -> None:
    await cluster.start()
    member = await cluster.join(1)
    await cluster.watch.confirm(1, member.incarnation)
    await cluster.members[1].close()
    async with asyncio.timeout(20):
        await cluster.watch._live.wait_for(lambda live: live is not None and 1 not in live)
    broker = BrokerInfo(1, -1, (Endpoint(PLAINTEXT, "host", 9092),), incarnation=member.incarnation)
    await cluster.controller.register_broker(broker, clean_shutdown=True)
    await cluster.fenced(1)


async def test_an_incarnation_that_holds_no_key_is_not_registered(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.controller.broker_watch.SEEN_WITHIN_S", 0.02)
    await cluster.start()
    await cluster.join(1)
    for node_id in (0, 1, 2):
        with pytest.raises(KafkaError) as caught:
            await cluster.watch.confirm(node_id, uuid.uuid4())
        assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION


async def test_one_broker_alone_watches_nothing(cluster: Cluster, store: MemoryStore) -> None:
    await cluster.start()
    await cluster.controller.create_topics([NewTopic("a")])
    assert not watches(store)
    await cluster.register(1, (await cluster.join(1)).incarnation)
    assert layout.LIVE in watches(store)


@pytest.mark.parametrize("seed", range(10))
async def test_a_new_controller_fences_those_who_died_with_the_old_one(
    seed: int, store: MemoryStore, make_controller: MakeController, closing: AsyncExitStack
) -> None:
    old = Cluster(store, make_controller(store), closing)
    await old.start()
    for node_id in (1, 2):
        await old.register(node_id, (await old.join(node_id)).incarnation)
    await old.watch.close()
    await old.members[1].close()
    faulty = FaultyStore(store, Faults(unknown=0.2, stale_read=0.5, late_watch=0.5), seed)
    controller = make_controller(faulty, 3)
    await controller.start()
    watch = BrokerWatch(controller, faulty, 3)
    closing.push_async_callback(watch.close)
    watch.start()
    await old.controller.close()
    await controller.wait_until_active()
    await fenced(controller, 0, 1)
    session: Session = (await old.members[2].wait()).session
    assert not session.lost.is_set()


SILENCE_MS = 90


async def ask_again_and_again(controller: Controller, *node_ids: int) -> None:
    """Brokers that are in touch: one of their questions waits at any time."""
    with ExitStack() as questions:
        for node_id in node_ids:
            questions.enter_context(controller.contact.asking(node_id))
        await asyncio.Event().wait()


async def test_a_broker_that_is_alive_and_cut_off_is_fenced(
    store: MemoryStore, make_controller: MakeController, closing: AsyncExitStack
) -> None:
    cluster = Cluster(store, make_controller(store), closing, silence_max_ms=SILENCE_MS)
    await cluster.start()
    talking = asyncio.create_task(ask_again_and_again(cluster.controller, 1))
    for node_id in (1, 2):
        await cluster.register(node_id, (await cluster.join(node_id)).incarnation)
    (created,) = await cluster.controller.create_topics([NewTopic("a", assignments={0: (2, 1)})])
    assert created.error is ErrorCode.NONE
    await cluster.fenced(2)
    assert cluster.controller.image.topics["a"].partitions[0].leader == 1
    # Of two that are left, the controller is the one that stays.
    await cluster.members[2].close()
    async with asyncio.timeout(20):
        await cluster.watch._live.wait_for(lambda live: live is not None and 2 not in live)
    talking.cancel()
    await cluster.fenced(1, 2)
    assert cluster.controller.is_active


class SlowStore(MemoryStore):
    """A store that takes as long for a transaction as one on a disk or across a network."""

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        await asyncio.sleep(0.01)
        return await super().txn(checks, ops)


async def test_a_controller_that_hears_of_too_few_leaves_the_role_to_another(
    make_controller: MakeController, closing: AsyncExitStack
) -> None:
    store = SlowStore(poll_interval_ms=5)
    cluster = Cluster(store, make_controller(store), closing, silence_max_ms=SILENCE_MS)
    await cluster.start()
    other = make_controller(store, 1)
    await other.start()
    assert other.membership.current is not None
    members = {1: other.membership.current, 2: await cluster.join(2)}
    with cluster.controller.contact.asking(1), cluster.controller.contact.asking(2):
        for node_id, member in members.items():
            await cluster.register(node_id, member.incarnation)
    await asyncio.wait_for(other.wait_until_active(), 20)
    assert not cluster.controller.is_active
    # Nobody was fenced by the one that was cut off.
    assert not any(broker.fenced for broker in other.image.brokers.values())
    await asyncio.wait_for(cluster.controller.location.wait_for(lambda at: at is not None and at.node_id == 1), 20)


async def test_a_controller_that_loses_one_broker_after_another_leaves_the_role_to_one_of_them(
    make_controller: MakeController, closing: AsyncExitStack
) -> None:
    store = SlowStore(poll_interval_ms=5)
    cluster = Cluster(store, make_controller(store), closing, silence_max_ms=SILENCE_MS)
    await cluster.start()
    other = make_controller(store, 1)
    await other.start()
    assert other.membership.current is not None
    with cluster.controller.contact.asking(1):
        with cluster.controller.contact.asking(2):
            await cluster.register(1, other.membership.current.incarnation)
            await cluster.register(2, (await cluster.join(2)).incarnation)
        await cluster.fenced(2)
        assert cluster.controller.is_active
    await asyncio.wait_for(other.wait_until_active(), 20)
    assert not cluster.controller.is_active
    # The one that was still in touch is not fenced by the controller that was cut off.
    assert not other.image.brokers[1].fenced


async def test_a_controller_in_touch_with_one_of_two_stays_whatever_the_other_does(
    store: MemoryStore, make_controller: MakeController, closing: AsyncExitStack
) -> None:
    cluster = Cluster(store, make_controller(store), closing, silence_max_ms=SILENCE_MS)
    await cluster.start()
    talking = asyncio.create_task(ask_again_and_again(cluster.controller, 1))
    for node_id in (1, 2):
        await cluster.register(node_id, (await cluster.join(node_id)).incarnation)
    await cluster.fenced(2)
    # It is started again, and reads its logs for so long that it has not asked anything yet.
    await cluster.members[2].close()
    again = await cluster.join(2)
    async with asyncio.timeout(20):
        await cluster.watch._live.wait_for(lambda live: live is not None and live.get(2) == again.incarnation)
    talking.cancel()
    await cluster.fenced(1, 2)
    assert cluster.controller.is_active


async def test_a_controller_that_stepped_down_stands_again_where_nobody_else_does(
    store: MemoryStore, make_controller: MakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.controller.controller.STEP_BACK_S", 0.1)
    controller = make_controller(store)
    await controller.start()
    epoch = controller.epoch
    await controller.step_down("a test")
    assert not controller.is_active
    await asyncio.wait_for(controller.wait_until_active(), 20)
    assert controller.epoch == epoch + 1
    (created,) = await controller.create_topics([NewTopic("a", partitions=1, replication_factor=1)])
    assert created.error is not ErrorCode.NOT_CONTROLLER
