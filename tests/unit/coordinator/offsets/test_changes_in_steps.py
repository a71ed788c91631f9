"""Many offsets change in steps: between two of them others are served, and what they do is neither lost nor undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.common.steps import run_through
from tidelog.coordinator.actions import Client
from tidelog.coordinator.consumer_group import ConsumerGroup
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k08_offset_commit import OffsetCommitRequest
from tidelog.protocol.messages.k09_offset_fetch import OffsetFetchRequestGroup
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidelog.protocol.messages.k68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from tests.unit.coordinator.offsets.conftest import Offsets, Topics

    MakeRequest = Callable[..., OffsetCommitRequest]

MANY = 2_000
PRODUCER_ID = 7
ASK_AGAIN = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.fixture
def offsets(make_offsets: type[Offsets], make_topics: type[Topics]) -> Offsets:
    offsets = make_offsets()
    offsets.change_topics(make_topics({"t": MANY, "u": 1}))
    offsets.holds_work = True
    return offsets


def commit_many(offsets: Offsets, commit_request: MakeRequest, group_id: str = "g") -> None:
    assert set(offsets.commit(commit_request(group_id, "t", dict.fromkeys(range(MANY), 5)))) == {0}


def commit_many_in_transaction(offsets: Offsets) -> None:
    rows = [TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=9) for index in range(MANY)]
    request = TxnOffsetCommitRequest(
        group_id="g", producer_id=PRODUCER_ID, topics=[TxnOffsetCommitRequestTopic(name="t", partitions=rows)]
    )
    offsets.submit_prepared(offsets.shard.txn_offset_commit(request, None, offsets.now))


def start_deletion(offsets: Offsets, group_id: str = "g") -> int:
    return offsets.submit(lambda exchange: offsets.shard.delete_group(group_id, exchange))


def reloaded(offsets: Offsets, group_id: str = "g") -> dict[tuple[str, int], int]:
    offsets.holds_work = False
    offsets.crash()
    return offsets.fetch_all(group_id)


# Deleting a group


def test_a_group_is_deleted_in_steps(offsets: Offsets, commit_request: MakeRequest) -> None:
    commit_many(offsets, commit_request)
    exchange = start_deletion(offsets)
    batches = offsets.batches
    steps = 0
    while offsets.step():
        steps += 1
        assert offsets.batches - batches <= steps  # one write a step at most
    assert steps > 5
    assert offsets.answer(ErrorCode, exchange) is ErrorCode.NONE
    assert offsets.delete_group("g") is ErrorCode.GROUP_ID_NOT_FOUND
    assert offsets.shard.state.offsets_memory.used_bytes == 0
    assert reloaded(offsets) == {}


def test_nobody_sees_half_a_group(offsets: Offsets, commit_request: MakeRequest) -> None:
    commit_many(offsets, commit_request)
    commit_many(offsets, commit_request, "other")
    exchange = start_deletion(offsets)
    while exchange not in offsets.answers:
        assert set(offsets.shard.state.changing) == {"g"}
        assert offsets.delete_group("g") is ASK_AGAIN
        assert offsets.step()
    assert not offsets.shard.state.changing
    assert len(offsets.fetch_all("other")) == MANY


def test_while_offsets_change_requests_about_them_are_refused(offsets: Offsets, commit_request: MakeRequest) -> None:
    commit_many(offsets, commit_request)
    offsets.shard.state.begin_change("g")
    assert offsets.commit(commit_request("g", "t", {0: 6})) == [ASK_AGAIN]
    assert offsets.delete_offsets("g", "t", 0) == (ASK_AGAIN, [])
    group = OffsetFetchRequestGroup(group_id="g", topics=None)
    assert run_through(offsets.shard.offset_fetch(group, require_stable=False)).error_code == ASK_AGAIN
    assert txn_commit_error(offsets) == ASK_AGAIN
    assert join_error(offsets) == ASK_AGAIN
    assert consumer_join_error(offsets) == ASK_AGAIN
    assert offsets.commit(commit_request("other", "t", {0: 6})) == [0]
    offsets.shard.state.end_change("g")
    assert offsets.commit(commit_request("g", "t", {0: 6})) == [0]
    assert txn_commit_error(offsets) == 0
    assert consumer_join_error(offsets) == 0


def txn_commit_error(offsets: Offsets) -> int:
    topic = TxnOffsetCommitRequestTopic(name="t", partitions=[TxnOffsetCommitRequestPartition(committed_offset=1)])
    request = TxnOffsetCommitRequest(group_id="g", producer_id=PRODUCER_ID, topics=[topic])
    exchange = offsets.submit_prepared(offsets.shard.txn_offset_commit(request, None, offsets.now))
    return offsets.answer(TxnOffsetCommitResponse, exchange).topics[0].partitions[0].error_code


def join_error(offsets: Offsets) -> int:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    request = JoinGroupRequest(group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols)
    client = Client("client", "/127.0.0.1", 5)
    exchange = offsets.submit(lambda number: offsets.shard.join(request, client, offsets.now, number))
    return offsets.answer(JoinGroupResponse, exchange).error_code


def consumer_join_error(offsets: Offsets) -> int:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", rebalance_timeout_ms=1_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    client = Client("client", "/127.0.0.1", 1)
    exchange = offsets.submit(lambda number: offsets.shard.consumer_heartbeat(request, client, offsets.now, number))
    return offsets.answer(ConsumerGroupHeartbeatResponse, exchange).error_code


def test_a_fetch_that_saw_both_sides_of_a_change_is_refused(offsets: Offsets, commit_request: MakeRequest) -> None:
    commit_many(offsets, commit_request)
    steps = offsets.shard.offset_fetch(OffsetFetchRequestGroup(group_id="g", topics=None), require_stable=False)
    next(steps)
    start_deletion(offsets)
    answer = run_through(steps)
    assert (answer.error_code, answer.topics) == (ASK_AGAIN, [])


def test_a_deletion_that_fails_half_way(offsets: Offsets, commit_request: MakeRequest) -> None:
    """What is in memory is what the log holds, and the group can be deleted again."""
    commit_many(offsets, commit_request)
    exchange = start_deletion(offsets)
    offsets.step()
    offsets.holds_writes = True
    while offsets.step():
        pass
    offsets.decide(ErrorCode.NOT_ENOUGH_REPLICAS)
    while offsets.writes:
        assert exchange not in offsets.answers
        offsets.decide()
    assert offsets.answer(ErrorCode, exchange) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not offsets.shard.state.changing
    left = offsets.fetch_all("g")
    assert 0 < len(left) < MANY
    assert reloaded(offsets) == left
    offsets.holds_writes = False
    assert offsets.delete_group("g") is ErrorCode.NONE
    assert reloaded(offsets) == {}


@pytest.mark.parametrize("count", [1, MANY])
def test_a_commit_that_is_undecided_is_not_lost(offsets: Offsets, commit_request: MakeRequest, count: int) -> None:
    assert set(offsets.commit(commit_request("g", "t", dict.fromkeys(range(count), 5)))) == {0}
    offsets.holds_writes = True
    exchange = offsets.send_commit(commit_request("g", "t", {0: 6}))
    assert offsets.delete_group("g") is ASK_AGAIN
    offsets.decide()
    assert exchange in offsets.answers
    assert offsets.fetch("g", "t", 0) == [(6, 0)]
    offsets.holds_writes = False
    offsets.holds_work = False
    assert offsets.delete_group("g") is ErrorCode.NONE


def test_what_a_transaction_commits_meanwhile_goes_with_its_group(offsets: Offsets) -> None:
    commit_many_in_transaction(offsets)
    exchange = start_deletion(offsets)
    offsets.step()
    offsets._carry_out(offsets.shard.on_txn_marker(PRODUCER_ID, committed=True))
    offsets.finish_work()
    assert offsets.answer(ErrorCode, exchange) is ErrorCode.NONE
    assert not offsets.shard.state.changing
    assert offsets.fetch_all("g") == {}
    assert offsets.shard.state.offsets_memory.used_bytes == 0


# The end of a transaction


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_ends_in_steps(offsets: Offsets, commit_request: MakeRequest, committed: bool) -> None:
    commit_many(offsets, commit_request)
    commit_many_in_transaction(offsets)
    offsets._carry_out(offsets.shard.on_txn_marker(PRODUCER_ID, committed=committed))
    assert set(offsets.shard.state.changing) == {"g"}
    offsets.finish_work()
    assert not offsets.shard.state.changing
    assert set(offsets.fetch_all("g").values()) == {9 if committed else 5}
    assert offsets.fetch("g", "t", 0, require_stable=True) == [(9 if committed else 5, 0)]


def test_a_short_transaction_ends_at_once(offsets: Offsets) -> None:
    rows = [TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=9)]
    topic = TxnOffsetCommitRequestTopic(name="t", partitions=rows)
    request = TxnOffsetCommitRequest(group_id="g", producer_id=PRODUCER_ID, topics=[topic])
    offsets.submit_prepared(offsets.shard.txn_offset_commit(request, None, offsets.now))
    assert offsets.shard.on_txn_marker(PRODUCER_ID, committed=True) == []
    assert not offsets.shard.state.changing
    assert offsets.fetch("g", "t", 0) == [(9, 0)]


# Time and topics


def test_offsets_that_are_committed_meanwhile_do_not_expire(offsets: Offsets, commit_request: MakeRequest) -> None:
    commit_many(offsets, commit_request)
    offsets.advance(days=8)
    offsets.step()
    for partition in (0, MANY - 1):
        assert offsets.commit(commit_request("g", "t", {partition: 6})) == [0]
    offsets.finish_work()
    assert offsets.fetch_all("g") == {("t", 0): 6, ("t", MANY - 1): 6}
    assert reloaded(offsets) == {("t", 0): 6, ("t", MANY - 1): 6}


def test_a_commit_that_is_undecided_keeps_its_offset(offsets: Offsets, commit_request: MakeRequest) -> None:
    """The deletion would come after it in the log."""
    commit_many(offsets, commit_request)
    offsets.holds_writes = True
    offsets.send_commit(commit_request("g", "t", {0: 6}))
    offsets.advance(days=8)
    offsets.finish_work()
    while offsets.writes:
        offsets.decide()
    assert offsets.fetch("g", "t", 0) == [(6, 0)]
    assert reloaded(offsets)["t", 0] == 6


def test_a_topic_of_the_same_name_does_not_inherit(
    offsets: Offsets, commit_request: MakeRequest, make_topics: type[Topics]
) -> None:
    commit_many(offsets, commit_request)
    offsets.change_topics(make_topics({"t": MANY}, 1))
    assert offsets.fetch("g", "t", 0, 1) == [(-1, 0), (-1, 0)]
    assert offsets.fetch_all("g") == {}
    offsets.step()
    assert offsets.commit(commit_request("g", "t", {1: 6})) == [0]
    offsets.finish_work()
    assert offsets.fetch_all("g") == {("t", 1): 6}
    assert reloaded(offsets) == {("t", 1): 6}


def test_offsets_of_a_deleted_topic_are_found_later(
    offsets: Offsets, commit_request: MakeRequest, make_topics: type[Topics]
) -> None:
    """While the group was being changed, they could not be deleted."""
    commit_many(offsets, commit_request)
    offsets.shard.state.begin_change("g")
    offsets.change_topics(make_topics({"u": 1}))
    offsets.finish_work()
    offsets.shard.state.end_change("g")
    assert offsets.shard.state.offsets_memory.used_bytes > 0
    offsets.advance(minutes=11)
    offsets.finish_work()
    offsets.advance(minutes=11)
    offsets.finish_work()
    assert offsets.shard.state.offsets_memory.used_bytes == 0
    assert "g" not in offsets.shard.state.offsets


def test_many_groups_expire_in_steps(offsets: Offsets, commit_request: MakeRequest) -> None:
    for number in range(50):
        assert offsets.commit(commit_request(f"g{number}", "u", {0: 1})) == [0]
    offsets.advance(days=8)
    batches = offsets.batches
    offsets.step()
    assert offsets.batches - batches <= 1
    offsets.finish_work()
    assert offsets.shard.state.offsets == {}


def test_writes_are_small_however_long_names_are(offsets: Offsets, commit_request: MakeRequest) -> None:
    group_id = "g" * 8_000
    commit_many(offsets, commit_request, group_id)
    offsets.holds_writes = True
    start_deletion(offsets, group_id)
    offsets.finish_work()
    sizes = [sum(len(record.key) for record in write.records) for write in offsets.writes]
    assert len(sizes) > 50
    assert max(sizes) < 300_000


def test_offsets_in_transactions_go_with_their_topic(offsets: Offsets, make_topics: type[Topics]) -> None:
    commit_many_in_transaction(offsets)
    offsets.change_topics(make_topics({"u": 1}))
    offsets.finish_work()
    offsets._carry_out(offsets.shard.on_txn_marker(PRODUCER_ID, committed=True))
    assert offsets.shard.state.offsets_memory.used_bytes == 0
    assert "g" not in offsets.shard.state.offsets


def test_a_group_is_not_removed_while_a_commit_for_it_is_undecided(
    offsets: Offsets, commit_request: MakeRequest
) -> None:
    """Its tombstone would come after the commit in the log, and take the group from members that it has by then."""
    state = offsets.shard.state
    state.put_group(ConsumerGroup("g", state.configs))
    offsets.holds_writes = True
    exchange = offsets.send_commit(commit_request("g", "t", {0: 6}))
    offsets.advance(minutes=11)
    offsets.finish_work()
    assert [write.records[0].value is None for write in offsets.writes] == [False]
    offsets.decide()
    assert exchange in offsets.answers
    assert "g" in state.groups
