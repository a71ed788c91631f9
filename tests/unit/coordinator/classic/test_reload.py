"""A classic group after its coordinator moved: what was written is there, and members go on without noticing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.coordinator.group_records import GroupMetadataKey, GroupMetadataValue, encode_record
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k13_leave_group import MemberIdentity

if TYPE_CHECKING:
    from tests.unit.coordinator.classic.conftest import Coordinator


def test_members_go_on_with_fresh_sessions(coordinator: Coordinator) -> None:
    leader, follower = coordinator.form(2, session_ms=10_000)
    before = coordinator.group.describe()
    coordinator.advance(9_999)
    coordinator.crash()
    assert coordinator.group.describe() == before
    assert coordinator.group.members.leader_id == leader
    coordinator.advance(9_999)
    assert coordinator.heartbeat(follower, 1) == ErrorCode.NONE
    coordinator.advance(1)
    assert [member.member_id for member in coordinator.group.members] == [follower]


def test_a_generation_without_an_assignment_never_was(coordinator: Coordinator) -> None:
    leader, follower = coordinator.form(2)
    coordinator.join(leader)
    coordinator.join(follower)
    assert coordinator.group.generation_id == 2
    coordinator.crash()
    assert (coordinator.group.state, coordinator.group.generation_id) == ("Stable", 1)
    assert coordinator.synced(coordinator.sync(leader, 2)).error_code == ErrorCode.ILLEGAL_GENERATION
    coordinator.finish_rebalance([coordinator.join(leader), coordinator.join(follower)])


def test_ids_that_were_given_out_are_forgotten(coordinator: Coordinator) -> None:
    coordinator.form(1)
    pending = coordinator.new_id()
    coordinator.crash()
    assert coordinator.joined(coordinator.join(pending)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_newest_record_counts_and_a_tombstone_ends_the_group(coordinator: Coordinator) -> None:
    (member_id,) = coordinator.form(1)
    coordinator.leave(MemberIdentity(member_id=member_id))
    coordinator.crash()
    assert coordinator.group.state == "Empty"
    coordinator.log += coordinator.group.tombstones()
    coordinator.crash()
    assert not coordinator.has_group


def test_a_crash_before_emptiness_is_written_brings_the_members_back_for_a_session(coordinator: Coordinator) -> None:
    (member_id,) = coordinator.form(1, session_ms=10_000)
    coordinator.holds_writes = True
    coordinator.leave(MemberIdentity(member_id=member_id))
    assert coordinator.group.state == "Empty"
    coordinator.decide_write(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert coordinator.group.state == "Empty"
    coordinator.holds_writes = False
    coordinator.crash()
    assert coordinator.group.state == "Stable"
    coordinator.advance(10_000)
    assert coordinator.group.state == "Empty"


def test_a_record_of_an_old_broker(coordinator: Coordinator) -> None:
    value = GroupMetadataValue(protocol_type="consumer", generation=7, protocol=None, leader=None)
    coordinator.log.append(encode_record(GroupMetadataKey(group="readers"), value))
    coordinator.crash()
    assert (coordinator.group.state, coordinator.group.generation_id) == ("Empty", 7)
    coordinator.finish_rebalance([coordinator.join(version=0)])
    assert coordinator.group.generation_id == 8


def test_the_new_coordinator_says_that_it_is_new(coordinator: Coordinator) -> None:
    leader, follower = coordinator.form(2)
    coordinator.crash()
    (entry,) = coordinator.group.history
    assert (entry.trigger.cause, entry.generation_id) == ("coordinator moved", 1)
    assert (entry.members_before, entry.members_after) == (2, 2)
    coordinator.finish_rebalance([coordinator.join(leader), coordinator.join(follower)])
    assert [entry.trigger.cause for entry in coordinator.group.history] == ["coordinator moved", "leader rejoined"]
