"""Large requests are prepared in steps: nothing of them shows before they are carried out, and what changed counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import pytest

from tidelog.common.steps import Steps, run_through
from tidelog.coordinator.actions import Action, Client, Now, Prepared
from tidelog.coordinator.config import GroupConfig
from tidelog.protocol import ErrorCode
from tidelog.protocol.codec import encode
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.protocol.messages.k08_offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidelog.protocol.messages.k13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidelog.protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

if TYPE_CHECKING:
    from tests.unit.coordinator.offsets.conftest import Offsets, Topics

    MakeRequest = Callable[..., OffsetCommitRequest]

T = TypeVar("T")

MANY = 1000
CLIENT = Client("client", "/127.0.0.1", 8)
ASK_AGAIN = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.fixture
def offsets(make_offsets: type[Offsets]) -> Offsets:
    offsets = make_offsets()
    return with_topics(offsets)


def with_topics(offsets: Offsets) -> Offsets:
    offsets.change_topics(topics(offsets, 0))
    return offsets


def topics(offsets: Offsets, generation: int) -> Topics:
    return type(offsets.image)({"t": MANY, "u": MANY}, generation)


def prepared(steps: Steps[Prepared], meanwhile: Callable[[], object]) -> Prepared:
    """What comes out of the steps if something happens between the first and the second."""
    next(steps)
    meanwhile()
    return run_through(steps)


def carry_out(offsets: Offsets, prepared: Prepared, kind: type[T]) -> T:
    def ask(exchange: int) -> list[Action]:
        return prepared(Now(offsets.now_ms, 0), exchange)

    return offsets.answer(kind, offsets.submit(ask))


def commit_codes(offsets: Offsets, prepared: Prepared) -> set[int]:
    response = carry_out(offsets, prepared, OffsetCommitResponse)
    return {row.error_code for topic in response.topics for row in topic.partitions}


def txn_commit(group_id: str, generation: int = -1, member_id: str = "") -> TxnOffsetCommitRequest:
    rows = [TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=3) for index in range(MANY)]
    topic = TxnOffsetCommitRequestTopic(name="t", partitions=rows)
    return TxnOffsetCommitRequest(
        group_id=group_id, producer_id=7, generation_id=generation, member_id=member_id, topics=[topic]
    )


def delete_request(topic: str) -> OffsetDeleteRequest:
    rows = [OffsetDeleteRequestPartition(partition_index=index) for index in range(MANY)]
    return OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name=topic, partitions=rows)])


def join(offsets: Offsets, topic: str) -> None:
    metadata = b"\0\0" + encode(ConsumerProtocolSubscription(topics=[topic]), 0)
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )
    client = Client("client", "/127.0.0.1", 3)
    offsets.submit(lambda number: offsets.shard.join(request, client, offsets.now, number))
    offsets.advance(minutes=0.1)


def test_a_step_is_small_and_shows_nothing(offsets: Offsets, commit_request: MakeRequest) -> None:
    request = commit_request("g", "t", dict.fromkeys(range(MANY), 5))
    steps = offsets.shard.offset_commit(request, CLIENT, offsets.now)
    for count in range(MANY):
        try:
            next(steps)
        except StopIteration as end:
            assert count >= MANY / 50
            ready: Prepared = end.value
            break
        assert offsets.fetch_all("g") == {}
        assert not offsets.writes
    assert commit_codes(offsets, ready) == {0}
    assert len(offsets.fetch_all("g")) == MANY
    assert offsets.batches == 1


def test_an_abandoned_request_leaves_nothing(offsets: Offsets, commit_request: MakeRequest) -> None:
    before = offsets.shard.state.offsets_memory.used_bytes
    steps = offsets.shard.offset_commit(commit_request("g", "t", dict.fromkeys(range(MANY), 5)), CLIENT, offsets.now)
    next(steps)
    steps.close()
    run_through(offsets.shard.offset_commit(commit_request("g", "t", {0: 1}), CLIENT, offsets.now))
    assert offsets.shard.state.offsets_memory.used_bytes == before


def test_a_group_that_got_members_meanwhile_refuses(offsets: Offsets, commit_request: MakeRequest) -> None:
    request = commit_request("g", "t", dict.fromkeys(range(MANY), 5))
    steps = offsets.shard.offset_commit(request, CLIENT, offsets.now)
    ready = prepared(steps, lambda: join(offsets, "t"))
    assert commit_codes(offsets, ready) == {ErrorCode.UNKNOWN_MEMBER_ID}
    assert offsets.fetch_all("g") == {}


def test_a_transaction_of_a_member_that_is_gone_is_refused(offsets: Offsets) -> None:
    join(offsets, "t")
    member_id = next(iter(offsets.shard.state.groups["g"].describe().members)).member_id
    leave = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
    steps = offsets.shard.txn_offset_commit(txn_commit("g", 1, member_id), None, offsets.now)
    client = Client("client", "/127.0.0.1", 5)
    ready = prepared(steps, lambda: offsets.submit_prepared(offsets.shard.leave(leave, client)))
    response = carry_out(offsets, ready, TxnOffsetCommitResponse)
    codes = {row.error_code for topic in response.topics for row in topic.partitions}
    assert len(codes) == 1
    assert ErrorCode.NONE not in codes
    assert offsets.fetch("g", "t", 0, require_stable=True) == [(-1, 0)]


def test_topics_that_were_deleted_meanwhile(offsets: Offsets, commit_request: MakeRequest) -> None:
    """Nobody inherits the offsets of a topic, even if another one has its name by then."""
    request = commit_request("g", "t", dict.fromkeys(range(MANY), 5))
    steps = offsets.shard.offset_commit(request, CLIENT, offsets.now)
    ready = prepared(steps, lambda: offsets.change_topics(topics(offsets, 1)))
    assert commit_codes(offsets, ready) == {ASK_AGAIN}
    assert offsets.fetch_all("g") == {}


def test_other_topics_may_change_meanwhile(offsets: Offsets, commit_request: MakeRequest) -> None:
    request = commit_request("g", "t", dict.fromkeys(range(MANY), 5))
    steps = offsets.shard.offset_commit(request, CLIENT, offsets.now)
    only_t = type(offsets.image)({"t": MANY})
    assert commit_codes(offsets, prepared(steps, lambda: offsets.change_topics(only_t))) == {0}


def test_memory_that_others_took_meanwhile(make_offsets: type[Offsets], commit_request: MakeRequest) -> None:
    offsets = with_topics(make_offsets(GroupConfig(tidelog_group_offsets_max_bytes=500_000)))
    request = commit_request("g", "t", dict.fromkeys(range(MANY), 5))
    ready = run_through(offsets.shard.offset_commit(request, CLIENT, offsets.now))
    assert set(offsets.commit(commit_request("other", "t", dict.fromkeys(range(MANY), 5)))) == {0}
    assert commit_codes(offsets, ready) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert offsets.fetch_all("g") == {}


def test_offsets_of_a_member_that_came_meanwhile_stay(offsets: Offsets, commit_request: MakeRequest) -> None:
    offsets.commit(commit_request("g", "t", dict.fromkeys(range(MANY), 5)))
    steps = offsets.shard.offset_delete(delete_request("t"))
    ready = prepared(steps, lambda: join(offsets, "t"))
    assert carry_out(offsets, ready, OffsetDeleteResponse).error_code == ASK_AGAIN
    assert len(offsets.fetch_all("g")) == MANY
    again = carry_out(offsets, run_through(offsets.shard.offset_delete(delete_request("t"))), OffsetDeleteResponse)
    assert {row.error_code for row in again.topics[0].partitions} == {ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}


def test_offsets_are_deleted_whoever_reads_another_topic(offsets: Offsets, commit_request: MakeRequest) -> None:
    offsets.commit(commit_request("g", "t", dict.fromkeys(range(MANY), 5)))
    steps = offsets.shard.offset_delete(delete_request("t"))
    ready = prepared(steps, lambda: join(offsets, "u"))
    assert carry_out(offsets, ready, OffsetDeleteResponse).error_code == 0
    assert offsets.fetch_all("g") == {}


def test_a_group_that_was_deleted_meanwhile(offsets: Offsets, commit_request: MakeRequest) -> None:
    offsets.commit(commit_request("g", "t", dict.fromkeys(range(MANY), 5)))
    steps = offsets.shard.offset_delete(delete_request("t"))
    ready = prepared(steps, lambda: offsets.delete_group("g"))
    assert carry_out(offsets, ready, OffsetDeleteResponse).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_members_leave_together(offsets: Offsets) -> None:
    join(offsets, "t")
    group = offsets.shard.state.groups["g"]
    member_id = group.describe().members[0].member_id
    leaving = [MemberIdentity(member_id=each) for each in ("a", member_id, "b")]
    steps = offsets.shard.leave(LeaveGroupRequest(group_id="g", members=leaving), Client("client", "/127.0.0.1", 5))
    for _ in leaving:
        next(steps)
        assert not group.is_empty
    response = carry_out(offsets, run_through(steps), LeaveGroupResponse)
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert [row.error_code for row in response.members] == [unknown, ErrorCode.NONE, unknown]
    assert group.is_empty
