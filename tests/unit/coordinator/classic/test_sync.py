"""The assignment of a classic group: who waits for it, who gets it, and what is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidelog.coordinator.group_records import decode_record
from tidelog.protocol import ErrorCode

if TYPE_CHECKING:
    from tests.unit.coordinator.classic.conftest import Coordinator


@pytest.fixture
def pair(coordinator: Coordinator) -> list[str]:
    """Leader and follower of a generation that waits for its assignment."""
    ids = [coordinator.new_id() for _ in range(2)]
    for member_id in ids:
        coordinator.join(member_id)
    coordinator.advance(6_000)
    assert coordinator.group.state == "CompletingRebalance"
    return ids


def test_followers_wait_for_the_leader(coordinator: Coordinator, pair: list[str]) -> None:
    leader, follower = pair
    waiting = coordinator.sync(follower, 1)
    assert coordinator.is_waiting(waiting)
    by_leader = coordinator.sync(leader, 1, {leader: b"even", follower: b"odd"})
    assert coordinator.synced(waiting).assignment == b"odd"
    assert coordinator.synced(by_leader).assignment == b"even"
    told = coordinator.synced(waiting)
    assert (told.protocol_type, told.protocol_name) == ("consumer", "range")
    assert coordinator.group.state == "Stable"


def test_a_late_follower_gets_its_part_at_once(coordinator: Coordinator, pair: list[str]) -> None:
    leader, follower = pair
    coordinator.sync(leader, 1, {leader: b"even", follower: b"odd"})
    assert coordinator.synced(coordinator.sync(follower, 1)).assignment == b"odd"


def test_whom_the_leader_forgets_has_nothing(coordinator: Coordinator, pair: list[str]) -> None:
    leader, follower = pair
    coordinator.sync(leader, 1, {leader: b"all", "a stranger": b"?"})
    assert coordinator.synced(coordinator.sync(follower, 1)).assignment == b""


def test_nobody_gets_a_part_before_it_is_written(coordinator: Coordinator, pair: list[str]) -> None:
    leader, follower = pair
    coordinator.holds_writes = True
    syncs = [coordinator.sync(follower, 1), coordinator.sync(leader, 1, {leader: b"even", follower: b"odd"})]
    assert all(coordinator.is_waiting(exchange) for exchange in syncs)
    assert coordinator.group.state == "CompletingRebalance"
    coordinator.decide_write()
    assert [coordinator.synced(exchange).assignment for exchange in syncs] == [b"odd", b"even"]
    _key, value = decode_record(coordinator.log[-1]) or (None, None)
    assert value is not None
    assert (value.generation, value.leader, value.protocol) == (1, leader, "range")
    assert {member.member_id: member.assignment for member in value.members} == {leader: b"even", follower: b"odd"}


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_assignment_that_can_not_be_written_is_given_to_nobody(
    coordinator: Coordinator, pair: list[str], failure: ErrorCode, told: ErrorCode
) -> None:
    leader, follower = pair
    coordinator.holds_writes = True
    syncs = [coordinator.sync(follower, 1), coordinator.sync(leader, 1, {leader: b"even", follower: b"odd"})]
    coordinator.decide_write(failure)
    assert [coordinator.synced(exchange).error_code for exchange in syncs] == [told, told]
    assert coordinator.group.state == "PreparingRebalance"
    coordinator.holds_writes = False
    coordinator.finish_rebalance([coordinator.join(member_id) for member_id in pair])
    assert coordinator.group.generation_id == 2
    assert coordinator.group.history
    assert [*coordinator.group.history][-1].trigger.cause == "assignment not stored"


def test_a_join_during_the_write_makes_the_assignment_void(coordinator: Coordinator, pair: list[str]) -> None:
    leader, follower = pair
    newcomer = coordinator.new_id()
    coordinator.holds_writes = True
    syncs = [coordinator.sync(follower, 1), coordinator.sync(leader, 1, {leader: b"even", follower: b"odd"})]
    coordinator.join(newcomer)
    assert {coordinator.synced(exchange).error_code for exchange in syncs} == {ErrorCode.REBALANCE_IN_PROGRESS}
    coordinator.decide_write()
    assert coordinator.group.state == "PreparingRebalance"
    assert coordinator.synced(coordinator.sync(follower, 1)).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_an_assignment_is_not_handed_out_in_the_next_generation(coordinator: Coordinator, pair: list[str]) -> None:
    leader, follower = pair
    coordinator.holds_writes = True
    coordinator.sync(leader, 1, {leader: b"old", follower: b"old"})
    newcomer = coordinator.join(version=3)
    for member_id in pair:
        coordinator.join(member_id)
    assert coordinator.joined(newcomer).generation_id == 2
    waiting = coordinator.sync(follower, 2)
    coordinator.decide_write()
    assert coordinator.is_waiting(waiting)
    coordinator.sync(leader, 2, {follower: b"new"})
    coordinator.decide_write()
    assert coordinator.synced(waiting).assignment == b"new"


def test_a_leader_that_asks_again_during_the_write_gets_what_is_written(
    coordinator: Coordinator, pair: list[str]
) -> None:
    leader, _follower = pair
    coordinator.holds_writes = True
    first = coordinator.sync(leader, 1, {leader: b"first"})
    second = coordinator.sync(leader, 1, {leader: b"second"})
    assert coordinator.synced(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert len(coordinator.writes) == 1
    coordinator.decide_write()
    assert coordinator.synced(second).assignment == b"first"


def test_a_sync_that_is_sent_again_is_answered_on_the_newest(coordinator: Coordinator, pair: list[str]) -> None:
    leader, follower = pair
    first, second = coordinator.sync(follower, 1), coordinator.sync(follower, 1)
    assert coordinator.synced(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.sync(leader, 1, {follower: b"odd"})
    assert coordinator.synced(second).assignment == b"odd"


def test_who_may_not_sync(coordinator: Coordinator, pair: list[str]) -> None:
    leader, _ = pair
    for exchange, error in (
        (coordinator.sync("stranger", 1), ErrorCode.UNKNOWN_MEMBER_ID),
        (coordinator.sync(leader, 0), ErrorCode.ILLEGAL_GENERATION),
        (coordinator.sync(leader, 1, protocol_type="connect"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (coordinator.sync(leader, 1, protocol_name="sticky"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (coordinator.sync(leader, 1, instance="one"), ErrorCode.UNKNOWN_MEMBER_ID),
        (coordinator.sync(leader, 1, group="other"), ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        assert coordinator.synced(exchange).error_code == error


def test_a_sync_while_members_join_is_told_so(coordinator: Coordinator) -> None:
    leader, follower = coordinator.form(2)
    coordinator.join(leader)
    assert coordinator.synced(coordinator.sync(follower, 1)).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_never_sync_are_dropped_at_the_rebalance_timeout(coordinator: Coordinator) -> None:
    ids = [coordinator.new_id() for _ in range(2)]
    for member_id in ids:
        coordinator.join(member_id, rebalance_ms=20_000, session_ms=60_000)
    coordinator.advance(6_000)
    waiting = coordinator.sync(ids[1], 1)
    coordinator.advance(19_999)
    assert coordinator.is_waiting(waiting)
    coordinator.advance(1)
    # The leader is gone, and with it all hope for an assignment.
    assert coordinator.synced(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.finish_rebalance([coordinator.join(ids[1])])
    assert [member.member_id for member in coordinator.group.members] == [ids[1]]
    assert coordinator.group.members.leader_id == ids[1]


def test_a_leader_that_dies_before_it_syncs_is_followed_by_another(coordinator: Coordinator) -> None:
    ids = [coordinator.new_id() for _ in range(2)]
    for member_id in ids:
        coordinator.join(member_id, session_ms=10_000)
    coordinator.advance(6_000)
    waiting = coordinator.sync(ids[1], 1)
    coordinator.advance(10_000)
    assert coordinator.synced(waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.finish_rebalance([coordinator.join(ids[1])])
    assert coordinator.group.members.leader_id == ids[1]
