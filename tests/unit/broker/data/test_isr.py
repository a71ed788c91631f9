"""Who is in sync: what a leader knows about followers, and how ISRs grow and shrink (KIP-497, KIP-903)."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from tests.unit.broker.data.test_partition import BATCH, NODE, CountingLog, counting_log, fails, state

from tidelog.broker.follower_state import UNKNOWN_OFFSET, FollowerState, ReplicationTerms
from tidelog.broker.isr_manager import IsrManager, Replica
from tidelog.broker.partition import ACKS_ALL, ACKS_LEADER, IsrOutcome, Partition, PendingIsr
from tidelog.common.clock import VirtualClock
from tidelog.common.endpoint import Endpoint
from tidelog.controller.image import BrokerInfo, PartitionState
from tidelog.log import LogConfig, PartitionLog
from tidelog.protocol import Api, ErrorCode, KafkaError
from tidelog.protocol.messages.k56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)

T = TypeVar("T")
LAG_MS = 1000
EPOCHS = {NODE: 10, 2: 20, 3: 30}


class Leader:
    """A partition that this broker leads, its clock and its cluster."""

    def __init__(self, isr: tuple[int, ...], *, log: CountingLog | None = None) -> None:
        self.clock = VirtualClock()
        self.terms = ReplicationTerms(self.clock, LAG_MS)
        self.terms.broker_epoch = EPOCHS[NODE]
        self.terms.brokers = {
            node_id: BrokerInfo(node_id, epoch, (Endpoint("PLAINTEXT", "host", 9092),))
            for node_id, epoch in EPOCHS.items()
        }
        self.log = log or CountingLog()
        self.partition = Partition("t", 0, uuid.uuid4(), _as_log(self.log), NODE, self.terms)
        self.partition.apply(PartitionState((NODE, 2, 3), isr, NODE, leader_epoch=3, partition_epoch=5))

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.partition.append(BATCH, ACKS_LEADER)

    def fetch(self, node_id: int, offset: int, *, log_start: int = 0) -> bool:
        return self.partition.update_follower(node_id, offset, log_start, EPOCHS[node_id])

    def change_broker(self, node_id: int, **fields: bool | int) -> None:
        self.terms.brokers = {**self.terms.brokers, node_id: replace(self.terms.brokers[node_id], **fields)}  # type: ignore[arg-type]

    @property
    def pending(self) -> PendingIsr:
        assert self.partition.pending_isr is not None
        return self.partition.pending_isr

    def decide(self, error: ErrorCode = ErrorCode.NONE, pending: PendingIsr | None = None) -> IsrOutcome:
        pending = pending or self.pending
        return self.partition.decide_isr(
            pending, error, leader_epoch=pending.leader_epoch, partition_epoch=pending.partition_epoch + 1
        )

    def show(self, *isr: int, elr: tuple[int, ...] = ()) -> None:
        """An image with the next state of the partition has come."""
        before = state(self.partition)
        self.partition.apply(replace(before, isr=isr, elr=elr, partition_epoch=before.partition_epoch + 1))


def _as_log(log: object) -> PartitionLog:
    return log  # type: ignore[return-value]


def test_being_caught_up_is_counted_from_the_fetch_before() -> None:
    follower = FollowerState(0, is_in_sync=False)
    assert not follower.is_caught_up(5, 0, LAG_MS, seen_ms=0)
    follower.on_fetch(0, 0, 20, leader_end_offset=5, now_ms=100)
    assert follower.caught_up_ms == -math.inf
    # It has now what the log held at 100.
    follower.on_fetch(5, 0, 20, leader_end_offset=9, now_ms=200)
    assert follower.caught_up_ms == 100
    follower.on_fetch(8, 0, 20, leader_end_offset=12, now_ms=300)
    assert follower.caught_up_ms == 100
    follower.on_fetch(12, 0, 20, leader_end_offset=12, now_ms=400)
    assert follower.caught_up_ms == 400
    assert follower.is_caught_up(13, 1400, LAG_MS, seen_ms=1400)
    assert not follower.is_caught_up(13, 1401, LAG_MS, seen_ms=1401)


def test_a_follower_at_the_end_of_an_idle_log_stays_caught_up() -> None:
    follower = FollowerState(0, is_in_sync=True)
    follower.on_fetch(3, 0, 20, leader_end_offset=3, now_ms=0)
    assert follower.is_caught_up(3, 50_000, LAG_MS, seen_ms=50_000)
    # The time to lag starts with what is appended then.
    assert follower.is_caught_up(4, 51_000, LAG_MS, seen_ms=51_000)
    assert not follower.is_caught_up(4, 51_001, LAG_MS, seen_ms=51_001)


def test_a_follower_joins_when_it_reaches_the_high_watermark() -> None:
    leader = Leader((NODE, 2))
    leader.append(5)
    leader.fetch(2, 4)
    assert leader.log.high_watermark == 4
    leader.fetch(3, 3)
    assert not leader.partition.propose_expansion()
    leader.fetch(3, 4)
    assert leader.partition.propose_expansion()
    assert [(member.node_id, member.broker_epoch) for member in leader.pending.members] == [
        (NODE, 10),
        (2, 20),
        (3, 30),
    ]
    assert (leader.pending.leader_epoch, leader.pending.partition_epoch) == (3, 5)
    # Only one change at a time.
    assert not leader.partition.propose_expansion()
    assert not leader.partition.propose_shrink()


def test_a_follower_joins_only_with_all_that_its_leader_started_with() -> None:
    """Below that, records may be committed although this leader's high watermark doesn't say so yet."""
    leader = Leader((NODE, 3), log=CountingLog(log_end_offset=10, flushed_offset=10, high_watermark=4))
    leader.fetch(2, 9)
    assert leader.log.high_watermark == 4
    assert not leader.partition.propose_expansion()
    leader.fetch(2, 10)
    assert leader.partition.propose_expansion()


def test_a_new_leadership_forgets_what_followers_fetched() -> None:
    leader = Leader((NODE, 2))
    leader.append()
    leader.fetch(2, 1)
    leader.partition.apply(replace(state(leader.partition), leader_epoch=4, partition_epoch=6))
    assert leader.partition.followers[2].log_end_offset == UNKNOWN_OFFSET


def test_who_is_about_to_join_holds_back_the_high_watermark() -> None:
    leader = Leader((NODE,))
    leader.fetch(2, 0)
    assert leader.partition.propose_expansion()
    leader.append()
    assert leader.log.high_watermark == 0
    # Whatever becomes of it: it may be in the ISR by now.
    assert leader.decide(ErrorCode.REQUEST_TIMED_OUT) is IsrOutcome.UNKNOWN
    assert leader.decide(ErrorCode.INVALID_UPDATE_VERSION) is IsrOutcome.OUTDATED
    leader.clock.advance(ms=LAG_MS + 1)
    assert not leader.partition.advance_high_watermark()
    assert leader.decide() is IsrOutcome.DECIDED
    leader.show(NODE, 2)
    assert leader.partition.isr == (NODE, 2)
    assert leader.fetch(2, 1)
    assert leader.log.high_watermark == 1


@pytest.mark.parametrize("error", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_refused_expansion_is_taken_back(error: ErrorCode) -> None:
    leader = Leader((NODE,))
    leader.fetch(2, 0)
    assert leader.partition.propose_expansion()
    leader.change_broker(2, fenced=True)
    leader.append()
    assert leader.log.high_watermark == 0
    assert leader.decide(error) is IsrOutcome.REFUSED
    assert leader.log.high_watermark == 1
    assert leader.partition.pending_isr is None


def test_only_live_brokers_in_their_current_epoch_join() -> None:
    leader = Leader((NODE,))
    leader.fetch(2, 0)
    for change in ({"fenced": True}, {"in_controlled_shutdown": True}, {"epoch": 21}):
        before = leader.terms.brokers
        leader.change_broker(2, **change)
        assert not leader.partition.propose_expansion()
        leader.terms.brokers = before
    assert leader.partition.propose_expansion()


def test_a_follower_that_keeps_up_is_waited_for_until_it_joins() -> None:
    """Otherwise it could never reach the high watermark under constant load."""
    leader = Leader((NODE,))
    leader.fetch(2, 0)
    leader.append(3)
    assert leader.log.high_watermark == 0
    leader.fetch(2, 3)
    assert leader.log.high_watermark == 3
    leader.append()
    assert leader.log.high_watermark == 3
    leader.clock.advance(ms=LAG_MS + 1)
    assert leader.partition.advance_high_watermark()
    leader.fetch(2, 4)
    leader.change_broker(2, fenced=True)
    leader.append()
    assert leader.log.high_watermark == 5


def test_a_follower_that_does_not_keep_up_leaves() -> None:
    leader = Leader((NODE, 2, 3))
    leader.append()
    leader.fetch(2, 1)
    leader.fetch(3, 0)
    leader.clock.advance(ms=LAG_MS)
    assert not leader.partition.propose_shrink()
    leader.clock.advance(ms=1)
    assert leader.partition.propose_shrink()
    assert [member.node_id for member in leader.pending.members] == [NODE, 2]
    # Until the controller agrees, the follower is in the ISR, and may be elected from it.
    assert not leader.partition.advance_high_watermark()
    assert leader.decide() is IsrOutcome.DECIDED
    assert leader.log.high_watermark == 0
    leader.show(NODE, 2)
    assert (leader.partition.isr, leader.log.high_watermark) == ((NODE, 2), 1)


def test_only_an_image_makes_a_decision_count() -> None:
    """The controller may know another min.insync.replicas, and have kept who leaves as an eligible leader (KIP-966)."""
    leader = Leader((NODE, 2))
    leader.append()
    leader.clock.advance(ms=LAG_MS + 1)
    assert leader.partition.propose_shrink()
    assert leader.decide() is IsrOutcome.DECIDED
    assert not leader.partition.advance_high_watermark()
    # One change at a time, until the image is there.
    assert not leader.partition.propose_shrink()
    leader.show(NODE, elr=(2,))
    assert leader.partition.pending_isr is None
    assert not leader.partition.advance_high_watermark()
    leader.append()
    assert leader.log.high_watermark == 0
    leader.show(NODE)
    assert leader.log.high_watermark == 2


def test_a_follower_that_never_fetched_leaves_as_well() -> None:
    leader = Leader((NODE, 2))
    assert leader.partition.followers[2].log_end_offset == UNKNOWN_OFFSET
    leader.clock.advance(ms=LAG_MS + 1)
    assert leader.partition.propose_shrink()
    assert [member.node_id for member in leader.pending.members] == [NODE]


def test_an_image_decides_what_is_pending() -> None:
    leader = Leader((NODE,))
    leader.fetch(2, 0)
    assert leader.partition.propose_expansion()
    pending = leader.pending
    leader.partition.apply(replace(state(leader.partition), isr=(NODE, 3), partition_epoch=6))
    assert leader.partition.pending_isr is None
    assert leader.decide(pending=pending) is IsrOutcome.OUTDATED
    assert leader.partition.isr == (NODE, 3)


def test_an_answer_older_than_the_image_changes_nothing() -> None:
    leader = Leader((NODE,))
    leader.fetch(2, 0)
    assert leader.partition.propose_expansion()
    pending = leader.pending
    answers: list[tuple[int, int]] = [(2, 6), (4, 6), (3, 5)]
    for leader_epoch, partition_epoch in answers:
        outcome = leader.partition.decide_isr(
            pending, ErrorCode.NONE, leader_epoch=leader_epoch, partition_epoch=partition_epoch
        )
        assert outcome is IsrOutcome.OUTDATED
    assert leader.partition.isr == (NODE,)


def test_below_min_insync_replicas_pending_members_do_not_count() -> None:
    leader = Leader((NODE,), log=CountingLog(LogConfig(min_insync_replicas=2)))
    leader.fetch(2, 0)
    assert leader.partition.propose_expansion()
    leader.append()
    leader.fetch(2, 1)
    assert leader.log.high_watermark == 0
    with fails(ErrorCode.NOT_ENOUGH_REPLICAS):
        leader.partition.append(BATCH, ACKS_ALL)
    leader.show(NODE, 2)
    assert leader.log.high_watermark == 1


def test_the_low_watermark_counts_a_follower_that_may_have_joined() -> None:
    """The controller may have agreed already, so records are deleted only once this replica has followed, too."""
    leader = Leader((NODE, 2), log=CountingLog(log_end_offset=9, flushed_offset=9, high_watermark=9))
    leader.log.log_start_offset = 5
    leader.fetch(2, 9, log_start=5)
    leader.fetch(3, 9, log_start=1)
    assert leader.partition.low_watermark == 5
    assert leader.partition.propose_expansion()
    assert leader.partition.low_watermark == 1
    assert leader.decide(ErrorCode.INELIGIBLE_REPLICA) is IsrOutcome.REFUSED
    assert leader.partition.low_watermark == 5


def test_the_high_watermark_waits_for_those_in_sync_and_about_to_join() -> None:
    leader = Leader((NODE, 2))
    leader.append(5)
    assert leader.partition.waits_for(2)
    assert not leader.partition.waits_for(3)
    leader.fetch(3, 5)
    assert leader.partition.waits_for(3)
    leader.clock.advance(ms=LAG_MS + 1)
    leader.append()
    assert not leader.partition.waits_for(3)
    leader.fetch(3, 6)
    assert leader.partition.waits_for(3)
    leader.change_broker(3, fenced=True)
    assert not leader.partition.waits_for(3)
    assert not leader.partition.waits_for(4)


def test_markers_need_as_many_replicas_as_records() -> None:
    log = CountingLog(config=LogConfig(min_insync_replicas=2))
    leader = Leader((NODE,), log=log)
    with fails(ErrorCode.NOT_ENOUGH_REPLICAS):
        leader.partition.write_txn_marker(7, 0, 1, commit=True, epoch_is_bumped=False)
    assert log.log_end_offset == 0


def test_the_low_watermark_is_that_of_the_isr() -> None:
    leader = Leader((NODE, 2), log=CountingLog(log_end_offset=9, flushed_offset=9, high_watermark=9))
    leader.log.log_start_offset = 5
    assert leader.partition.low_watermark == UNKNOWN_OFFSET
    leader.fetch(2, 9, log_start=3)
    leader.fetch(3, 0, log_start=0)
    assert leader.partition.low_watermark == 3
    leader.fetch(2, 9, log_start=7)
    assert leader.partition.low_watermark == 5
    counting_log(leader.partition).log_start_offset = 8
    assert leader.partition.low_watermark == 7


def test_a_leader_whose_disk_failed_asks_for_another_one() -> None:
    leader = Leader((NODE, 2))
    assert not leader.partition.propose_withdrawal()
    leader.partition.stop(ErrorCode.KAFKA_STORAGE_ERROR)
    assert leader.partition.propose_withdrawal()
    assert [(member.node_id, member.broker_epoch) for member in leader.pending.members] == [(2, 20)]
    assert not leader.partition.propose_withdrawal()
    # The ISR was another one by then; it asks again.
    assert leader.decide(ErrorCode.INVALID_UPDATE_VERSION) is IsrOutcome.OUTDATED
    leader.show(NODE, 2, 3)
    assert leader.partition.propose_withdrawal()
    assert leader.decide(ErrorCode.NEW_LEADER_ELECTED) is IsrOutcome.OUTDATED
    leader.partition.apply(replace(state(leader.partition), leader=2, isr=(2, 3), leader_epoch=4, partition_epoch=7))
    assert not leader.partition.propose_withdrawal()
    for isr, reason in (((NODE,), ErrorCode.KAFKA_STORAGE_ERROR), ((NODE, 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)):
        other = Leader(isr)
        other.partition.stop(reason)
        assert not other.partition.propose_withdrawal()


def test_a_follower_of_an_idle_log_counts_as_long_as_its_broker_fetches() -> None:
    """One that is cut off has left before the next record would wait for it."""
    leader = Leader((NODE, 2, 3))
    leader.append()
    for node_id in (2, 3):
        leader.terms.note_fetch(node_id)
        leader.fetch(node_id, 1)
    leader.terms.note_fetch(3, 1)  # its next fetch waits for news
    leader.clock.advance(ms=LAG_MS)
    leader.terms.note_fetch(2)
    assert not leader.partition.propose_shrink()
    leader.clock.advance(ms=LAG_MS)
    assert not leader.partition.propose_shrink()
    leader.clock.advance(ms=1)
    assert leader.partition.propose_shrink()
    assert [member.node_id for member in leader.pending.members] == [NODE, 3]
    leader.show(NODE, 3)
    leader.terms.note_fetch(3, -1)
    leader.clock.advance(ms=LAG_MS + 1)
    assert leader.partition.propose_shrink()


def test_a_replica_without_room_leaves_the_isr_and_leads_where_nobody_else_can() -> None:
    leader = Leader((NODE, 2))
    leader.partition.has_room = False
    assert leader.partition.propose_withdrawal()
    assert [member.node_id for member in leader.pending.members] == [2]
    alone = Leader((NODE,))
    alone.partition.has_room = False
    assert not alone.partition.propose_withdrawal()
    alone.append()
    # As soon as somebody else could lead, it resigns.
    alone.fetch(2, 1)
    assert alone.partition.propose_expansion()
    alone.show(NODE, 2)
    assert alone.partition.propose_withdrawal()


def test_a_follower_that_cannot_be_written_asks_to_leave_the_isr() -> None:
    for fault in ("full", "failed"):
        follower = Leader((NODE, 2))
        partition = follower.partition
        partition.apply(replace(state(partition), leader=2, leader_epoch=4, partition_epoch=6))
        if fault == "full":
            partition.has_room = False
        else:
            partition.stop(ErrorCode.KAFKA_STORAGE_ERROR)
        assert partition.propose_withdrawal()
        assert [(member.node_id, member.broker_epoch) for member in follower.pending.members] == [(2, 20)]
        assert not partition.propose_withdrawal()
        assert follower.decide(ErrorCode.INELIGIBLE_REPLICA) is IsrOutcome.REFUSED
        assert partition.propose_withdrawal()
        assert follower.decide() is IsrOutcome.DECIDED
        partition.apply(replace(state(partition), isr=(2,), partition_epoch=7))
        assert not partition.propose_withdrawal()


def test_a_follower_that_withdrew_counts_again_once_it_fetches() -> None:
    """Neither may it join again for what it held before, nor is it waited for."""
    leader = Leader((NODE, 2, 3))
    leader.append(2)
    leader.fetch(2, 2)
    leader.fetch(3, 1)
    assert leader.log.high_watermark == 1
    leader.show(NODE, 2)
    assert leader.log.high_watermark == 2
    assert not leader.partition.propose_expansion()
    assert not leader.partition.waits_for(3)
    leader.fetch(3, 2)
    assert leader.partition.propose_expansion()


def test_a_follower_that_its_leader_removed_need_not_say_again_what_it_holds() -> None:
    """It may have caught up while the controller was asked, and be at rest since then."""
    leader = Leader((NODE, 2, 3))
    leader.append()
    leader.fetch(2, 1)
    leader.clock.advance(ms=LAG_MS + 1)
    leader.fetch(2, 1)
    assert leader.partition.propose_shrink()
    leader.fetch(3, 1)
    leader.show(NODE, 2)
    assert leader.partition.propose_expansion()


def test_replicas_that_come_and_go_are_known_or_not() -> None:
    leader = Leader((NODE, 2))
    leader.fetch(2, 0)
    leader.partition.apply(replace(state(leader.partition), replicas=(NODE, 2, 4), partition_epoch=6))
    assert set(leader.partition.followers) == {2, 4}
    assert leader.partition.followers[2].log_end_offset == 0
    leader.partition.fence()
    assert not leader.partition.followers
    assert not leader.partition.propose_expansion()
    # Only a new epoch lets it lead again.
    leader.partition.apply(replace(state(leader.partition), isr=(NODE,), partition_epoch=7))
    assert not leader.partition.is_leader
    leader.partition.apply(replace(state(leader.partition), leader_epoch=4, partition_epoch=8))
    assert leader.partition.is_leader
    assert leader.partition.followers[2].log_end_offset == UNKNOWN_OFFSET


class Controller:
    """Answers AlterPartition as told, one call after another."""

    def __init__(self, *answers: Callable[[AlterPartitionRequest], AlterPartitionResponse]) -> None:
        self.answers = list(answers)
        self.requests: list[AlterPartitionRequest] = []

    async def call(self, api: Api, request: object, response_class: type[T], *, timeout_s: float) -> T:
        assert isinstance(request, AlterPartitionRequest)
        self.requests.append(request)
        await asyncio.sleep(0)
        response = self.answers.pop(0)(request)
        assert isinstance(response, response_class)
        return response


def agree(request: AlterPartitionRequest) -> AlterPartitionResponse:
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponseTopicData(
                topic_id=topic.topic_id,
                partitions=[
                    AlterPartitionResponsePartitionData(
                        partition_index=row.partition_index,
                        leader_id=request.broker_id,
                        leader_epoch=row.leader_epoch,
                        isr=[member.broker_id for member in row.new_isr_with_epochs],
                        partition_epoch=row.partition_epoch + 1,
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def fail(request: AlterPartitionRequest) -> AlterPartitionResponse:
    raise KafkaError(ErrorCode.NOT_CONTROLLER)


def refuse(request: AlterPartitionRequest) -> AlterPartitionResponse:
    return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)


def say_nothing(request: AlterPartitionRequest) -> AlterPartitionResponse:
    return AlterPartitionResponse()


def test_changes_are_sent_together_and_again_until_they_are_decided() -> None:
    async def scenario() -> None:
        leaders = [Leader((NODE,)) for _ in range(3)]
        controller = Controller(fail, refuse, say_nothing, agree, agree)
        decided: list[Replica] = []
        manager = IsrManager(NODE, leaders[0].terms, controller, decided.append)
        for leader in leaders[:2]:
            leader.fetch(2, 0)
            assert leader.partition.propose_expansion()
            manager.submit(leader.partition)
        while len(decided) < 2:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
        assert [leader.partition.isr for leader in leaders] == [(NODE,)] * 3
        assert [len(request.topics) for request in controller.requests] == [2, 2, 2, 2]
        assert {request.broker_epoch for request in controller.requests} == {10}
        leaders[2].fetch(3, 0)
        assert leaders[2].partition.propose_expansion()
        manager.submit(leaders[2].partition)
        while len(decided) < 3:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
        # None is asked for again while the image is on its way.
        assert len(controller.requests) == 5
        await manager.close()

    asyncio.run(scenario())


def test_a_change_that_comes_as_the_last_one_ends_is_sent() -> None:
    async def scenario() -> None:
        first, second = Leader((NODE,)), Leader((NODE,))
        both_decided = asyncio.Event()

        def on_changed(partition: Replica) -> None:
            if partition is first.partition:
                # Before the loop hears that the task that sent the first one has ended.
                asyncio.get_running_loop().call_soon(manager.submit, second.partition)
            else:
                both_decided.set()

        manager = IsrManager(NODE, first.terms, Controller(agree, agree), on_changed)
        for leader in (first, second):
            leader.fetch(2, 0)
            assert leader.partition.propose_expansion()
        manager.submit(first.partition)
        async with asyncio.timeout(10):
            await both_decided.wait()
        await manager.close()

    asyncio.run(scenario())


def test_nothing_is_asked_for_before_the_broker_is_registered() -> None:
    async def scenario() -> None:
        leader = Leader((NODE,))
        leader.terms.broker_epoch = -1
        controller = Controller(agree)
        decided = asyncio.Event()
        manager = IsrManager(NODE, leader.terms, controller, lambda _: decided.set())
        leader.fetch(2, 0)
        assert leader.partition.propose_expansion()
        manager.submit(leader.partition)
        await asyncio.sleep(0)
        assert not controller.requests
        leader.terms.broker_epoch = 11
        await decided.wait()
        assert controller.requests[0].broker_epoch == 11
        await manager.close()

    asyncio.run(scenario())
