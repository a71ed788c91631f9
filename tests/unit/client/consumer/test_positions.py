"""Where partitions get their positions from, and what a new leader with less of the log does to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, cast

import pytest

from tidelog.client.consumer import positions
from tidelog.client.consumer.offsets_lookup import EpochEnd, epoch_ends
from tidelog.client.consumer.positions import PositionKeeper
from tidelog.client.consumer.settings import ConsumerSettings
from tidelog.client.consumer.subscription import SubscriptionState
from tidelog.client.errors import BrokerError, ClientError, LogTruncationError, NoOffsetError
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.metadata_cache import MetadataCache
from tidelog.client.types import (
    ClusterMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from tidelog.common.clock import VirtualClock
from tidelog.common.ids import ZERO_UUID
from tidelog.protocol import Api, ErrorCode
from tidelog.protocol.messages.k23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
NOW_MS = 1_000_000
ASK_THE_LEADERS = epoch_ends


class FakeCluster:
    """One broker that leads everything, in an epoch that the metadata may not show yet."""

    def __init__(self) -> None:
        self.metadata = MetadataCache()
        self.epoch = 1
        self.offline: list[TopicPartition] = []
        self.lead(1)

    async def by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[dict[int, list[TopicPartition]], list[BaseException]]:
        refused = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE)
        wanted = list(partitions)
        led = [partition for partition in wanted if partition not in self.offline]
        return {1: led} if led else {}, [refused for partition in wanted if partition in self.offline]

    async def connection_to(self, node_id: int) -> FakeCluster:
        return self

    def forget(self, name: str) -> None:
        self.lead(self.epoch)

    def supports(self, api: Api) -> bool:
        return True

    async def request(
        self, api: Api, request: OffsetForLeaderEpochRequest, response_class: type
    ) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            rows = [
                EpochEndOffset(partition=row.partition, error_code=ErrorCode.FENCED_LEADER_EPOCH)
                if row.current_leader_epoch < self.epoch
                else EpochEndOffset(partition=row.partition, leader_epoch=row.leader_epoch, end_offset=1_000)
                for row in topic.partitions
            ]
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows))
        return OffsetForLeaderEpochResponse(topics=topics)

    def lead(self, epoch: int) -> None:
        self.epoch = max(epoch, self.epoch)
        rows = tuple(PartitionMetadata(number, 1, epoch, (1,), (1,)) for number in range(2))
        topic = TopicMetadata("t", ZERO_UUID, False, rows)
        self.metadata.remember(ClusterMetadata("c", 1, {}, {"t": topic}), everything=True)


class World:
    """A keeper, and what leaders and the group would answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
        self.cluster = FakeCluster()
        self.subscription = SubscriptionState()
        self.settings = ConsumerSettings.read({"retry.backoff.ms": 0, "retry.backoff.max.ms": 0}, options)
        self.committed: dict[TopicPartition, OffsetAndMetadata | None] = {}
        self.offsets: dict[tuple[TopicPartition, int], int] = {}
        self.refused: list[TopicPartition] = []
        self.ends: dict[TopicPartition, EpochEnd] = {}
        self.asked_epochs: list[Mapping[TopicPartition, int]] = []
        self.failures: list[ClientError] = []
        monkeypatch.setattr(positions, "list_offsets", self._list_offsets)
        monkeypatch.setattr(positions, "epoch_ends", self._epoch_ends)

    async def _list_offsets(
        self, cluster: object, timestamps: Mapping[TopicPartition, int], **_: object
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        found = {
            key: OffsetAndTimestamp(self.offsets[key, at], at, 1)
            for key, at in timestamps.items()
            if key not in self.refused
        }
        if not found:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, subject=str(self.refused[0]))
        return found

    async def _epoch_ends(
        self, cluster: object, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochEnd]:
        self.asked_epochs.append(epochs)
        return self.ends

    async def _committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if self.failures:
            raise self.failures.pop(0)
        return {partition: self.committed.get(partition) for partition in partitions}

    def keeper(self) -> PositionKeeper:
        return PositionKeeper(
            cast(Cluster, self.cluster),
            self.settings,
            self.subscription,
            VirtualClock(NOW_MS),
            committed=self._committed,
            on_found=lambda: None,
            on_error=lambda: None,
        )

    def run(self, steps: Callable[[PositionKeeper], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            keeper = self.keeper()
            try:
                async with asyncio.timeout(10):
                    await steps(keeper)
            finally:
                await keeper.close()

        asyncio.run(main())

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():  # noqa: ASYNC110 - what is waited for is the keeper's own next step
            await asyncio.sleep(0)


def test_committed_offsets_come_first_then_the_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, auto_offset_reset="earliest")
    world.committed[A] = OffsetAndMetadata(42, 1)
    world.offsets[B, -2] = 5
    world.failures.append(BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE))  # passes
    world.subscription.assign_manually([A, B])

    async def steps(keeper: PositionKeeper) -> None:
        await world.until(lambda: world.subscription.position(A) is not None)
        await world.until(lambda: world.subscription.position(B) is not None)
        assert (world.subscription.position(A), world.subscription.position(B)) == (42, 5)

    world.run(steps)


def test_a_duration_goes_back_from_now_and_may_end_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, auto_offset_reset="by_duration:PT10S")
    world.offsets = {(A, NOW_MS - 10_000): 7, (B, NOW_MS - 10_000): -1, (B, -1): 99}
    world.subscription.assign_manually([A, B])

    async def steps(keeper: PositionKeeper) -> None:
        await world.until(lambda: world.subscription.position(B) is not None)
        assert (world.subscription.position(A), world.subscription.position(B)) == (7, 99)

    world.run(steps)


def test_one_partition_without_a_leader_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, auto_offset_reset="latest")
    world.offsets = {(A, -1): 1, (B, -1): 2}
    world.refused = [A]
    world.subscription.assign_manually([A, B])

    async def steps(keeper: PositionKeeper) -> None:
        await world.until(lambda: world.subscription.position(B) is not None)
        assert world.subscription.position(A) is None
        world.refused = []
        await world.until(lambda: world.subscription.position(A) is not None)

    world.run(steps)


def test_without_a_policy_each_attempt_tells_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, auto_offset_reset="none")
    world.subscription.assign_manually([A])

    async def steps(keeper: PositionKeeper) -> None:
        for _ in range(2):
            await world.until(lambda: keeper.errors)
            for _ in range(20):
                await asyncio.sleep(0)
            (error,) = keeper.errors
            assert isinstance(error, NoOffsetError)
            keeper.errors.clear()
            keeper.wake()
        world.committed[A] = OffsetAndMetadata(3)
        keeper.wake()
        await world.until(lambda: world.subscription.position(A) == 3)

    world.run(steps)


def test_an_error_that_a_seek_has_settled_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, auto_offset_reset="none")
    world.subscription.assign_manually([A])

    async def steps(keeper: PositionKeeper) -> None:
        await world.until(lambda: keeper.errors)
        world.subscription.seek(A, 7)
        assert keeper.take_error() is None
        world.subscription.assign_manually([A, B])
        keeper.wake()
        await world.until(lambda: keeper.errors)
        assert "t-1" in str(keeper.take_error())

    world.run(steps)


def new_leader(world: World, end: EpochEnd, *, fetched_to: int = 120) -> None:
    """Partition A was read up to 100 and fetched up to 120 in epoch 4; then a leader comes whose log ends otherwise."""
    world.cluster.lead(4)
    world.subscription.assign_manually([A])
    world.subscription.seek(A, 100, 4)
    state = world.subscription.state(A)
    state.checked_leader_epoch = 4
    assert world.subscription.fetched(state, state.version, 100, fetched_to, 4)
    world.ends[A] = end
    world.cluster.lead(5)


@pytest.mark.parametrize(
    ("end", "position", "fetch_offset"),
    [
        (EpochEnd(4, 120, 5), 100, 120),  # all is there
        (EpochEnd(4, 110, 5), 100, 100),  # only what was fetched ahead is gone
        (EpochEnd(3, 80, 5), 80, 80),  # what was read is gone: go on where the logs part
        (EpochEnd(-1, -1, 5), 7, 7),  # the leader knows no such epoch: the policy says where
    ],
)
def test_a_new_leader_is_asked_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, end: EpochEnd, position: int, fetch_offset: int
) -> None:
    world = World(monkeypatch, auto_offset_reset="earliest")
    world.offsets[A, -2] = 7
    new_leader(world, end)

    async def steps(keeper: PositionKeeper) -> None:
        state = world.subscription.state(A)
        await world.until(lambda: not keeper.has_work)
        assert (world.subscription.position(A), state.fetch_offset) == (position, fetch_offset)
        assert world.asked_epochs[0] == {A: 4}

    world.run(steps)


def test_a_leader_that_has_moved_twice_is_asked_in_its_latest_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses the epoch that the metadata showed at first, and would refuse it however often it is asked."""
    world = World(monkeypatch)
    monkeypatch.setattr(positions, "epoch_ends", ASK_THE_LEADERS)
    new_leader(world, EpochEnd(4, 120, 5))
    world.cluster.epoch = 6

    async def steps(keeper: PositionKeeper) -> None:
        await world.until(lambda: world.subscription.state(A).checked_leader_epoch == 6)
        assert (world.subscription.position(A), world.subscription.state(A).fetch_offset) == (100, 120)

    world.run(steps)


def test_one_partition_without_a_leader_leaves_the_others_to_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    monkeypatch.setattr(positions, "epoch_ends", ASK_THE_LEADERS)
    world.cluster.offline = [B]
    world.subscription.assign_manually([A, B])
    for partition in (A, B):
        world.subscription.seek(partition, 100, 1)
    world.cluster.lead(2)

    async def steps(keeper: PositionKeeper) -> None:
        await world.until(lambda: world.subscription.state(A).checked_leader_epoch == 2)
        assert world.subscription.state(B).checked_leader_epoch < 2
        world.cluster.offline = []
        await world.until(lambda: world.subscription.state(B).checked_leader_epoch == 2)

    world.run(steps)


def test_without_a_policy_lost_records_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, auto_offset_reset="none")
    new_leader(world, EpochEnd(3, 80, 5))

    async def steps(keeper: PositionKeeper) -> None:
        await world.until(lambda: keeper.errors)
        assert isinstance(keeper.errors[0], LogTruncationError)
        assert "t-0 at 80" in str(keeper.errors[0])
        assert world.subscription.position(A) == 100
        world.subscription.seek(A, 80)
        assert not keeper.has_work

    world.run(steps)
