"""What strangers can make the coordinator remember by committing offsets for groups that nobody is a member of."""

from __future__ import annotations

import logging
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from tidelog.coordinator.actions import Client
from tidelog.coordinator.config import GroupConfig
from tidelog.coordinator.memory import GroupMemory, MemoryBudget, ShardMemory
from tidelog.coordinator.shard import GroupShard
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.protocol.messages.k14_sync_group import SyncGroupRequest
from tidelog.protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.coordinator.offsets.conftest import Offsets, Topics

    MakeRequest = Callable[..., OffsetCommitRequest]

LIMIT_BYTES = 400_000
REFUSED = ErrorCode.INVALID_COMMIT_OFFSET_SIZE


@pytest.fixture
def narrow(make_offsets: type[Offsets]) -> Offsets:
    return make_offsets(GroupConfig(tidelog_group_offsets_max_bytes=LIMIT_BYTES))


def used_bytes(offsets: Offsets) -> int:
    return offsets.shard.state.offsets_memory.budget.used_bytes


def fill(offsets: Offsets, commit_request: MakeRequest) -> int:
    """Commit for made-up groups until one is refused; how many were accepted."""
    for number in range(10_000):
        [code] = offsets.commit(commit_request(f"made-up-{number}", "t", {0: 1}, metadata="x" * 4000))
        if code:
            assert code == REFUSED
            return number
    raise AssertionError("nothing was ever refused")


def commit_in_transaction(offsets: Offsets, producer_id: int, group_id: str, *, metadata: str = "") -> int:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=metadata)
    topic = TxnOffsetCommitRequestTopic(name="t", partitions=[partition])
    request = TxnOffsetCommitRequest(group_id=group_id, producer_id=producer_id, topics=[topic])
    exchange = offsets.submit_prepared(offsets.shard.txn_offset_commit(request, None, offsets.now))
    return offsets.answer(TxnOffsetCommitResponse, exchange).topics[0].partitions[0].error_code


def test_made_up_groups_are_refused_when_they_take_too_much(narrow: Offsets, commit_request: MakeRequest) -> None:
    count = fill(narrow, commit_request)
    assert 20 < count < LIMIT_BYTES / 4000
    assert used_bytes(narrow) <= LIMIT_BYTES
    assert narrow.fetch(f"made-up-{count}", "t", 0) == [(-1, 0)]
    # Nothing is written for what is refused, so a restart finds as much.
    before = used_bytes(narrow)
    narrow.crash()
    assert used_bytes(narrow) == before


def test_offsets_that_exist_can_still_be_moved(narrow: Offsets, commit_request: MakeRequest) -> None:
    narrow.commit(commit_request("old", "t", {0: 1}))
    fill(narrow, commit_request)
    assert narrow.commit(commit_request("old", "t", {0: 2})) == [0]
    assert narrow.commit(commit_request("made-up-0", "t", {0: 2}, metadata="y" * 4000)) == [0]
    assert narrow.commit(commit_request("old", "t", {0: 3}, metadata="y" * 4000)) == [REFUSED]
    assert narrow.fetch("old", "t", 0) == [(2, 0)]


def test_members_have_room_that_strangers_cannot_take(narrow: Offsets, commit_request: MakeRequest) -> None:
    fill(narrow, commit_request)
    join = JoinGroupRequest(
        group_id="ours",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    joining = narrow.submit(lambda exchange: narrow.shard.join(join, Client("c", "h", 3), narrow.now, exchange))
    narrow.advance(minutes=0.06)
    member_id = narrow.answer(JoinGroupResponse, joining).member_id
    sync = SyncGroupRequest(group_id="ours", generation_id=1, member_id=member_id)
    narrow.submit(lambda exchange: narrow.shard.sync(sync, narrow.now, exchange))
    request = commit_request("ours", "t", {0: 7}, generation=1, member_id=member_id, metadata="z" * 4000)
    assert narrow.commit(request) == [0]
    assert narrow.commit(commit_request("theirs", "t", {0: 7}, metadata="z" * 4000)) == [REFUSED]
    assert used_bytes(narrow) <= LIMIT_BYTES


def test_one_large_request_is_refused_in_part(narrow: Offsets, make_topics: type[Topics]) -> None:
    narrow.change_topics(make_topics({"t": 10_000}))
    partitions = [OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in range(5_000)]
    topic = OffsetCommitRequestTopic(name="t", partitions=partitions)
    codes = narrow.commit(OffsetCommitRequest(group_id="g", topics=[topic]))
    accepted = codes.count(0)
    assert 500 < accepted < 2_000
    assert codes == [0] * accepted + [REFUSED] * (5_000 - accepted)
    assert len(narrow.fetch_all("g")) == accepted


def test_commits_that_are_being_written_count_already(narrow: Offsets, commit_request: MakeRequest) -> None:
    narrow.holds_writes = True
    exchanges = [
        narrow.send_commit(commit_request(f"made-up-{number}", "t", {0: 1}, metadata="x" * 4000))
        for number in range(200)
    ]
    assert 0 < len(narrow.writes) < LIMIT_BYTES / 4000
    assert used_bytes(narrow) <= LIMIT_BYTES
    while narrow.writes:
        narrow.decide(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert len(narrow.answers) == len(exchanges)
    assert used_bytes(narrow) == 0


def test_everything_is_given_back(narrow: Offsets, commit_request: MakeRequest) -> None:
    count = fill(narrow, commit_request)
    assert narrow.delete_group("made-up-0") == ErrorCode.NONE
    assert narrow.delete_offsets("made-up-1", "t", 0) == (0, [0])
    narrow.commit(commit_request("made-up-2", "t", {0: 1}))
    assert commit_in_transaction(narrow, 7, "made-up-3") == 0
    assert commit_in_transaction(narrow, 7, "made-up-3", metadata="again") == 0
    narrow.shard.on_txn_marker(7, committed=True)
    assert commit_in_transaction(narrow, 8, "made-up-4") == 0
    narrow.shard.on_txn_marker(8, committed=False)
    assert used_bytes(narrow) > 0
    narrow.advance(days=8)
    assert count > 5
    assert used_bytes(narrow) == 0
    assert not narrow.shard.state.offsets


def test_offsets_in_open_transactions_count(narrow: Offsets) -> None:
    codes = [commit_in_transaction(narrow, number, f"g{number % 3}", metadata="x" * 4000) for number in range(200)]
    accepted = codes.count(0)
    assert 20 < accepted < LIMIT_BYTES / 4000
    assert codes == [0] * accepted + [REFUSED] * (200 - accepted)
    for number in range(200):
        narrow.shard.on_txn_marker(number, committed=True)
    assert used_bytes(narrow) < 20_000, "three groups have one offset each"


def test_a_shard_counts_from_its_loading_to_its_end(commit_request: MakeRequest, make_offsets: type[Offsets]) -> None:
    offsets = make_offsets()
    for number in range(5):
        offsets.commit(commit_request(f"g{number}", "t", {0: 1, 1: 1}))
    memory = GroupMemory(1_000_000, 1_000_000)
    shard = GroupShard(0, GroupConfig(), offsets.image, memory)
    for position, record in enumerate(offsets.log):
        shard.replay(record, position)
    assert memory.offsets.used_bytes == 0, "it is loaded in a thread"
    list(shard.on_loaded(offsets.now))
    assert memory.offsets.used_bytes == used_bytes(offsets) > 0
    shard.on_unloaded(ErrorCode.NOT_COORDINATOR)
    assert memory.offsets.used_bytes == 0


def test_the_estimate_is_not_too_low(commit_request: MakeRequest, make_offsets: type[Offsets]) -> None:
    offsets = make_offsets()
    tracemalloc.start()
    try:
        for number in range(300):
            offsets.commit(commit_request(f"group {number}", "t", {0: 1_000 + number, 1: 2_000, 2: 3_000}))
            offsets.commit(commit_request(f"group {number}", "u", {0: 1_000 + number}, metadata=f"{number}" * 100))
            offsets.log.clear()
            offsets.answers.clear()
        traced_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert traced_bytes < used_bytes(offsets) < 2 * traced_bytes


def test_the_first_refusal_is_logged(
    narrow: Offsets, commit_request: MakeRequest, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        fill(narrow, commit_request)
        assert narrow.commit(commit_request("one-more", "t", {0: 1}, metadata="x" * 4000)) == [REFUSED]
    assert [record.message for record in caplog.records if "tidelog.group.offsets.max.bytes" in record.message] == [
        f"committed offsets take {used_bytes(narrow)} bytes: offsets of further partitions are refused. "
        "Delete groups that nobody uses, or raise tidelog.group.offsets.max.bytes"
    ]


def test_a_shard_that_was_given_up_counts_no_more() -> None:
    """Something of it may still be on its way, such as the end of a write."""
    budget = MemoryBudget(1_000)
    given_up, other = ShardMemory(budget), ShardMemory(budget)
    for memory in (given_up, other):
        memory.add(100)
        memory.count()
    given_up.release()
    given_up.add(50)
    given_up.release()
    assert budget.used_bytes == 100
