"""Heartbeats, sessions, commits and leaves: who is a member, and until when."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k13_leave_group import MemberIdentity

if TYPE_CHECKING:
    from tests.unit.coordinator.classic.conftest import Coordinator


def test_heartbeats_in_every_state(coordinator: Coordinator) -> None:
    assert coordinator.heartbeat("anyone", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    pending = coordinator.new_id()
    assert coordinator.heartbeat(pending, 0) == ErrorCode.UNKNOWN_MEMBER_ID
    waiting = coordinator.join(pending)
    assert coordinator.heartbeat(pending, 0) == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.advance(3_000)
    assert not coordinator.is_waiting(waiting)
    assert coordinator.heartbeat(pending, 1) == ErrorCode.NONE
    assert coordinator.heartbeat(pending, 0) == ErrorCode.ILLEGAL_GENERATION
    coordinator.sync(pending, 1, {pending: b"all"})
    assert coordinator.heartbeat(pending, 1) == ErrorCode.NONE
    assert coordinator.heartbeat("stranger", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(pending, 1, instance="one") == ErrorCode.UNKNOWN_MEMBER_ID
    coordinator.leave(MemberIdentity(member_id=pending))
    assert coordinator.group.state == "Empty"
    assert coordinator.heartbeat(pending, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_ends_by_the_clock_alone(coordinator: Coordinator) -> None:
    silent, alive = coordinator.form(2, session_ms=10_000)
    coordinator.advance(6_000)
    assert coordinator.heartbeat(alive, 1) == ErrorCode.NONE
    coordinator.advance(3_999)
    assert len(coordinator.group.members) == 2
    coordinator.advance(1)
    assert [member.member_id for member in coordinator.group.members] == [alive]
    assert coordinator.heartbeat(alive, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.heartbeat(silent, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeats_keep_a_session_for_as_long_as_they_come(coordinator: Coordinator) -> None:
    (member_id,) = coordinator.form(1, session_ms=6_000)
    for _ in range(100):
        coordinator.advance(5_999)
        assert coordinator.heartbeat(member_id, 1) == ErrorCode.NONE
    coordinator.advance(6_000)
    assert coordinator.group.state == "Empty"


def test_heartbeats_set_no_timers(coordinator: Coordinator) -> None:
    (member_id,) = coordinator.form(1)
    before = dict(coordinator.timers)
    for _ in range(10):
        coordinator.now_ms += 100
        coordinator.heartbeat(member_id, 1)
    assert coordinator.timers == before


def test_a_shorter_session_counts_from_the_next_answer(coordinator: Coordinator) -> None:
    (member_id,) = coordinator.form(1, session_ms=600_000)
    coordinator.finish_rebalance([coordinator.join(member_id, session_ms=6_000)])
    coordinator.advance(6_000)
    assert coordinator.group.state == "Empty"


def test_members_that_wait_do_not_time_out(coordinator: Coordinator) -> None:
    leader, follower = coordinator.form(2, session_ms=6_000, rebalance_ms=60_000)
    waiting = coordinator.join(leader, session_ms=6_000, rebalance_ms=60_000)
    for _ in range(10):
        coordinator.advance(5_000)
        assert coordinator.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.is_waiting(waiting)
    coordinator.join(follower, session_ms=6_000, rebalance_ms=60_000)
    assert coordinator.joined(waiting).generation_id == 2
    # Now it has its session's time again, and no more.
    coordinator.advance(6_000)
    assert coordinator.group.state == "Empty"


def test_the_last_member_leaves_an_empty_group_behind(coordinator: Coordinator) -> None:
    (member_id,) = coordinator.form(1)
    answer = coordinator.leave(MemberIdentity(member_id=member_id, reason="done"))
    assert answer.members[0].error_code == ErrorCode.NONE
    group = coordinator.group
    assert (group.state, group.generation_id, group.protocol_type, group.protocol_name) == (
        "Empty",
        2,
        "consumer",
        None,
    )
    assert not [key for key in coordinator.timers if key[0] == group.group_id]
    coordinator.crash()
    assert (coordinator.group.state, coordinator.group.generation_id) == ("Empty", 2)


def test_those_who_are_left_rebalance_once(coordinator: Coordinator) -> None:
    first, second, third = coordinator.form(3)
    answer = coordinator.leave(
        MemberIdentity(member_id=first),
        MemberIdentity(member_id="stranger"),
        MemberIdentity(member_id=second),
        MemberIdentity(member_id=second),
    )
    assert [member.error_code for member in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    joined = coordinator.joined(coordinator.join(third))
    assert (joined.generation_id, joined.leader) == (2, third)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_clients_leave_alone(coordinator: Coordinator, version: int) -> None:
    (member_id,) = coordinator.form(1)
    assert coordinator.leave(member_id="stranger", version=version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.leave(member_id=member_id, version=version).error_code == ErrorCode.NONE
    assert coordinator.leave(member_id=member_id, version=version, group="x").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_a_group_that_is_not_there(coordinator: Coordinator) -> None:
    answer = coordinator.leave(MemberIdentity(member_id="a"), MemberIdentity(group_instance_id="b"))
    assert answer.error_code == ErrorCode.NONE
    assert [member.error_code for member in answer.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2


def test_whoever_leaves_while_it_waits_is_told(coordinator: Coordinator) -> None:
    leader, follower = coordinator.form(2)
    waiting = coordinator.join(leader)
    coordinator.leave(MemberIdentity(member_id=leader))
    assert coordinator.joined(waiting).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    coordinator.finish_rebalance([coordinator.join(follower)])


def test_whoever_is_removed_while_it_syncs_is_told(coordinator: Coordinator) -> None:
    ids = [coordinator.new_id() for _ in range(2)]
    for member_id in ids:
        coordinator.join(member_id)
    coordinator.advance(6_000)
    waiting = coordinator.sync(ids[1], 1)
    coordinator.leave(MemberIdentity(member_id=ids[1]))
    assert coordinator.synced(waiting).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_that_is_given_back_holds_nobody_up(coordinator: Coordinator) -> None:
    ids = coordinator.form(1)
    pending = coordinator.new_id()
    waiting = coordinator.join(ids[0])
    assert coordinator.is_waiting(waiting)
    assert coordinator.leave(MemberIdentity(member_id=pending)).members[0].error_code == ErrorCode.NONE
    assert coordinator.joined(waiting).generation_id == 2


def test_a_group_whose_only_id_is_given_back_is_forgotten(coordinator: Coordinator) -> None:
    coordinator.leave(MemberIdentity(member_id=coordinator.new_id()))
    assert not coordinator.has_group


def test_who_may_commit(coordinator: Coordinator) -> None:
    leader, follower = coordinator.form(2)
    group = coordinator.group

    def check(member_id: str, generation_id: int, instance: str | None = None) -> ErrorCode:
        return group.check_offset_commit(member_id, instance, generation_id, 9)

    assert check(leader, 1) == ErrorCode.NONE
    assert check(leader, 2) == ErrorCode.ILLEGAL_GENERATION
    assert check("stranger", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert check("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    waiting = coordinator.join(leader)
    # What was read before the rebalance may still be committed until the next generation begins.
    assert check(follower, 1) == ErrorCode.NONE
    coordinator.join(follower)
    assert not coordinator.is_waiting(waiting)
    assert check(follower, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.leave(MemberIdentity(member_id=leader), MemberIdentity(member_id=follower))
    assert check("", -1) == ErrorCode.NONE
    assert check(leader, 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_shows_that_a_member_lives(coordinator: Coordinator) -> None:
    (member_id,) = coordinator.form(1, session_ms=10_000)
    coordinator.advance(9_000)
    coordinator.group.on_offset_commit(member_id, coordinator.now)
    coordinator.advance(9_000)
    assert coordinator.heartbeat(member_id, 1) == ErrorCode.NONE


def test_what_others_may_do_with_the_group(coordinator: Coordinator, subscribe: Callable[..., bytes]) -> None:
    (member_id,) = coordinator.form(1, protocols={"range": subscribe("t", "u", version=3, rest=b"whatever")})
    group = coordinator.group
    assert group.check_delete() == ErrorCode.NON_EMPTY_GROUP
    assert group.check_offset_delete() == ErrorCode.NONE
    assert [group.is_subscribed_to(topic) for topic in "tuv"] == [True, True, False]
    coordinator.leave(MemberIdentity(member_id=member_id))
    assert group.check_delete() == ErrorCode.NONE
    assert not group.is_subscribed_to("t")
    waiting = coordinator.join(protocol_type="connect", version=3)
    coordinator.finish_rebalance([waiting])
    assert group.check_offset_delete() == ErrorCode.NON_EMPTY_GROUP
    assert not group.is_subscribed_to("t")


def test_a_subscription_that_can_not_be_read_keeps_all_topics(coordinator: Coordinator) -> None:
    coordinator.finish_rebalance([coordinator.join(protocols={"range": b"\x00\x00\x00\x00\x00\x09"}, version=3)])
    assert coordinator.group.is_subscribed_to("anything")


def test_a_description_tells_metadata_of_a_stable_group_only(coordinator: Coordinator) -> None:
    leader, _follower = coordinator.form(2)
    described = coordinator.group.describe()
    assert (described.group_state, described.protocol_type, described.protocol_data) == ("Stable", "consumer", "range")
    assert [member.member_assignment for member in described.members] == [b"part 0", b"part 1"]
    assert all(member.member_metadata for member in described.members)
    coordinator.join(leader)
    described = coordinator.group.describe()
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert {member.member_metadata for member in described.members} == {b""}


def test_everybody_who_waits_is_told_when_the_coordinator_goes(coordinator: Coordinator) -> None:
    leader, _ = coordinator.form(2)
    waiting = coordinator.join(leader)
    coordinator.unload()
    assert coordinator.joined(waiting).error_code == ErrorCode.NOT_COORDINATOR
