"""What removes offsets: expiry, deleted topics, OffsetDelete and DeleteGroups; and what a crash finds afterwards."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tidelog.coordinator.actions import Client, GroupRecord
from tidelog.coordinator.config import GroupConfig
from tidelog.protocol import ErrorCode, ProtocolError
from tidelog.protocol.codec import encode
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tidelog.protocol.messages.k13_leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.protocol.messages.k14_sync_group import SyncGroupRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.coordinator.offsets.conftest import Offsets, Topics

    from tidelog.protocol.messages.k08_offset_commit import OffsetCommitRequest

    MakeRequest = Callable[..., OffsetCommitRequest]

CLIENT = Client("client", "/127.0.0.1", 3)


def join(offsets: Offsets, group_id: str, topic: str) -> str:
    """Make a consumer of this topic the only member of the group; returns its id."""
    metadata = b"\0\0" + encode(ConsumerProtocolSubscription(topics=[topic]), 0)
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )
    exchange = offsets.submit(lambda number: offsets.shard.join(request, CLIENT, offsets.now, number))
    offsets.advance(minutes=0.1)
    joined = offsets.answer(JoinGroupResponse, exchange)
    assert joined.error_code == 0
    sync = SyncGroupRequest(group_id=group_id, generation_id=joined.generation_id, member_id=joined.member_id)
    offsets.submit(lambda number: offsets.shard.sync(sync, offsets.now, number))
    return joined.member_id


def leave(offsets: Offsets, group_id: str, member_id: str) -> None:
    request = LeaveGroupRequest(group_id=group_id, members=[MemberIdentity(member_id=member_id)])
    offsets.submit_prepared(offsets.shard.leave(request, CLIENT))


def test_offsets_without_members_expire_after_their_commit(offsets: Offsets, commit_request: MakeRequest) -> None:
    offsets.commit(commit_request("g", "t", {0: 5}))
    offsets.advance(days=6)
    offsets.commit(commit_request("g", "t", {1: 6}))
    offsets.advance(days=1, minutes=11)
    assert offsets.fetch_all("g") == {("t", 1): 6}
    assert offsets.log[-1].value is None
    offsets.advance(days=6)
    assert offsets.shard.list_groups([], []) == []
    offsets.crash()
    assert offsets.fetch_all("g") == {}


def test_old_clients_say_themselves_how_long(offsets: Offsets, commit_request: MakeRequest) -> None:
    offsets.commit(commit_request("g", "t", {0: 5}, retention_time_ms=60_000), version=4)
    offsets.commit(commit_request("g", "t", {1: 6}, retention_time_ms=10 * 24 * 3_600_000), version=4)
    offsets.crash()
    assert offsets.fetch_all("g") == {("t", 0): 5, ("t", 1): 6}
    offsets.advance(minutes=10.1)
    assert offsets.fetch_all("g") == {("t", 1): 6}
    offsets.advance(days=8)
    assert offsets.fetch_all("g") == {("t", 1): 6}


def test_a_time_that_no_record_can_hold_is_as_good_as_for_ever(offsets: Offsets, commit_request: MakeRequest) -> None:
    offsets.commit(commit_request("g", "t", {0: 5}, retention_time_ms=2**63 - 1), version=4)
    offsets.crash()
    offsets.advance(days=400)
    assert offsets.fetch_all("g") == {("t", 0): 5}


def test_a_refused_tombstone_is_written_at_the_next_look(offsets: Offsets, commit_request: MakeRequest) -> None:
    offsets.commit(commit_request("g", "t", {0: 5}))
    offsets.holds_writes = True
    offsets.advance(days=7, minutes=11)
    while offsets.writes:
        offsets.decide(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert offsets.fetch_all("g") == {("t", 0): 5}
    offsets.holds_writes = False
    offsets.advance(minutes=11)
    assert offsets.fetch_all("g") == {}


def test_offsets_of_a_group_with_members_expire_only_for_topics_it_does_not_read(
    make_offsets: type[Offsets], commit_request: MakeRequest
) -> None:
    offsets = make_offsets(GroupConfig(offsets_retention_minutes=20))
    offsets.commit(commit_request("g", "t", {0: 5}))
    offsets.commit(commit_request("g", "u", {0: 6}))
    member_id = join(offsets, "g", "t")
    offsets.advance(minutes=25)
    assert offsets.fetch_all("g") == {("t", 0): 5}
    leave(offsets, "g", member_id)
    offsets.advance(minutes=15)
    assert offsets.fetch_all("g") == {("t", 0): 5}
    offsets.advance(minutes=16)
    assert offsets.fetch_all("g") == {}
    offsets.advance(minutes=11)
    assert offsets.shard.list_groups([], []) == []
    offsets.crash()
    assert offsets.shard.list_groups([], []) == []


def test_a_deleted_topic_takes_its_offsets_along(
    offsets: Offsets, commit_request: MakeRequest, make_topics: type[Topics]
) -> None:
    for group_id in ("g", "h"):
        offsets.commit(commit_request(group_id, "t", {0: 5, 1: 6}))
    offsets.commit(commit_request("g", "u", {0: 7}))
    offsets.change_topics(make_topics({"u": 1}))
    assert (offsets.fetch_all("g"), offsets.fetch_all("h")) == ({("u", 0): 7}, {})
    assert [row.group_id for row in offsets.shard.list_groups([], [])] == ["g"]
    offsets.crash()
    assert offsets.fetch_all("g") == {("u", 0): 7}


def test_a_topic_made_anew_does_not_inherit_offsets(
    offsets: Offsets, commit_request: MakeRequest, make_topics: type[Topics]
) -> None:
    """Whether the coordinator saw it happen, or only finds the id changed when it loads."""
    offsets.commit(commit_request("g", "t", {0: 5}))
    offsets.change_topics(make_topics({"t": 3, "u": 1}, 1))
    assert offsets.fetch_all("g") == {}
    offsets.commit(commit_request("g", "t", {0: 8}))
    offsets.image = make_topics({"t": 3, "u": 1}, 2)
    offsets.crash()
    assert offsets.fetch_all("g") == {}
    assert offsets.log[-1].value is None


def test_topics_that_grow_or_are_added_change_nothing(
    offsets: Offsets, commit_request: MakeRequest, make_topics: type[Topics]
) -> None:
    offsets.commit(commit_request("g", "t", {0: 5}))
    written = len(offsets.log)
    offsets.change_topics(make_topics({"t": 9, "u": 1, "new": 1}))
    assert offsets.commit(commit_request("g", "t", {8: 1})) == [0]
    assert len(offsets.log) == written + 1


def test_offset_delete(offsets: Offsets, commit_request: MakeRequest) -> None:
    assert offsets.delete_offsets("g", "t", 0) == (69, [])
    offsets.commit(commit_request("g", "t", {0: 5, 1: 6}))
    assert offsets.delete_offsets("g", "t", 0, 2, 3) == (0, [0, 0, 3])
    assert offsets.fetch_all("g") == {("t", 1): 6}
    offsets.crash()
    assert offsets.fetch_all("g") == {("t", 1): 6}


def test_a_group_without_offsets_is_known_until_the_next_look(offsets: Offsets, commit_request: MakeRequest) -> None:
    for group_id in ("emptied", "deleted"):
        offsets.commit(commit_request(group_id, "t", {0: 5}))
        assert offsets.delete_offsets(group_id, "t", 0) == (0, [0])
        assert offsets.delete_offsets(group_id, "t", 0) == (0, [0])
    assert [row.group_id for row in offsets.shard.list_groups([], [])] == ["emptied", "deleted"]
    assert offsets.delete_group("deleted") is ErrorCode.NONE
    assert offsets.delete_group("deleted") is ErrorCode.GROUP_ID_NOT_FOUND
    offsets.advance(minutes=10.1)
    assert offsets.delete_offsets("emptied", "t", 0) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    assert offsets.shard.list_groups([], []) == []


def test_offset_delete_spares_what_members_read(offsets: Offsets, commit_request: MakeRequest) -> None:
    offsets.commit(commit_request("g", "t", {0: 5}))
    offsets.commit(commit_request("g", "u", {0: 6}))
    join(offsets, "g", "t")
    assert offsets.delete_offsets("g", "t", 0) == (0, [86])
    assert offsets.delete_offsets("g", "u", 0) == (0, [0])
    assert offsets.fetch_all("g") == {("t", 0): 5}


def test_delete_groups(offsets: Offsets, commit_request: MakeRequest) -> None:
    assert offsets.delete_group("g") == 69
    offsets.commit(commit_request("g", "t", {0: 5, 1: 6}))
    member_id = join(offsets, "g", "t")
    assert offsets.delete_group("g") == 68
    leave(offsets, "g", member_id)
    assert offsets.delete_group("g") == 0
    assert offsets.shard.list_groups([], []) == []
    offsets.crash()
    assert offsets.shard.list_groups([], []) == []
    assert offsets.fetch_all("g") == {}


def test_a_group_whose_deletion_was_not_written_stays(offsets: Offsets, commit_request: MakeRequest) -> None:
    offsets.commit(commit_request("g", "t", {0: 5}))
    offsets.holds_writes = True
    exchange = offsets.submit(lambda number: offsets.shard.delete_group("g", number))
    offsets.decide(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert offsets.answer(ErrorCode, exchange) == 15
    assert offsets.fetch_all("g") == {("t", 0): 5}


def test_thousands_of_offsets_are_deleted_in_batches_that_any_topic_takes(
    offsets: Offsets, commit_request: MakeRequest, make_topics: type[Topics]
) -> None:
    offsets.change_topics(make_topics({"t": 20_000}))
    offsets.commit(commit_request("g", "t", dict.fromkeys(range(20_000), 1)))
    offsets.holds_writes = True
    exchange = offsets.submit(lambda number: offsets.shard.delete_group("g", number))
    assert len(offsets.writes) > 2
    for write in offsets.writes:
        assert sum(len(record.key) for record in write.records) < 300_000
    while offsets.writes:
        assert exchange not in offsets.answers
        offsets.decide()
    assert offsets.answer(ErrorCode, exchange) == 0
    assert offsets.fetch_all("g") == {}


def test_lists_are_filtered_by_state_and_type(offsets: Offsets, commit_request: MakeRequest) -> None:
    offsets.commit(commit_request("simple", "t", {0: 5}))
    join(offsets, "joined", "t")

    def listed(states: list[str], types: list[str]) -> list[tuple[str, str, str, str]]:
        return [
            (row.group_id, row.protocol_type, row.group_state, row.group_type)
            for row in sorted(offsets.shard.list_groups(states, types), key=lambda row: row.group_id)
        ]

    simple, joined = ("simple", "", "Empty", "classic"), ("joined", "consumer", "Stable", "classic")
    assert listed([], []) == [joined, simple]
    assert listed(["Empty"], []) == [simple]
    assert listed(["stable", "Dead"], ["classic"]) == [joined]
    assert listed([], ["Consumer"]) == []
    assert listed(["NoSuchState"], []) == []


def test_descriptions_of_groups_without_members(offsets: Offsets, commit_request: MakeRequest) -> None:
    offsets.commit(commit_request("simple", "t", {0: 5}))
    found, missing = offsets.shard.describe_group("simple"), offsets.shard.describe_group("none")
    assert (found.error_code, found.group_state, found.members) == (0, "Empty", [])
    assert (missing.error_code, missing.group_state, missing.error_message) == (69, "Dead", "Group none not found.")


def test_records_of_unknown_types_are_left_aside_with_one_warning(
    offsets: Offsets, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for offset in range(3):
            offsets.shard.replay(GroupRecord(b"\x00\x0bxyz", b"whatever"), offset)
    assert len(caplog.records) == 1
    assert "type 11" in caplog.text


@pytest.mark.parametrize(
    "record",
    [
        GroupRecord(b"\x00", b""),
        GroupRecord(b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", b"\x00"),
        GroupRecord(b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00", b"\x00\x09123"),
        GroupRecord(b"\x00\x01\x00\x01g", b"\x00\x04"),
    ],
)
def test_records_that_make_no_sense_are_refused(offsets: Offsets, record: GroupRecord) -> None:
    with pytest.raises(ProtocolError):
        offsets.shard.replay(record, 0)
