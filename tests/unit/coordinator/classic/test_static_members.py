"""Static members of a classic group: a restart within the session moves nothing, and one process is the instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.coordinator.config import GroupConfig
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k13_leave_group import MemberIdentity

if TYPE_CHECKING:
    from tests.unit.coordinator.classic.conftest import Coordinator

Subscribe = Callable[..., bytes]


@pytest.fixture
def ids(coordinator: Coordinator) -> dict[str, str]:
    """A stable group of the instances "one", which leads, and "two"."""
    return form(coordinator)


def form(coordinator: Coordinator) -> dict[str, str]:
    joins = {instance: coordinator.join(instance=instance) for instance in ("one", "two")}
    coordinator.finish_rebalance(list(joins.values()))
    return {instance: coordinator.joined(exchange).member_id for instance, exchange in joins.items()}


def test_a_bounce_keeps_generation_and_assignment(coordinator: Coordinator, ids: dict[str, str]) -> None:
    before = coordinator.group.describe()
    joined = coordinator.joined(coordinator.join(instance="two"))
    assert (joined.error_code, joined.generation_id, joined.leader) == (ErrorCode.NONE, 1, ids["one"])
    assert joined.member_id not in ids.values()
    assert coordinator.synced(coordinator.sync(joined.member_id, 1, instance="two")).assignment == b"part 1"
    after = coordinator.group.describe()
    assert [member.member_assignment for member in after.members] == [
        member.member_assignment for member in before.members
    ]
    assert coordinator.heartbeat(ids["one"], 1, instance="one") == ErrorCode.NONE
    assert len(coordinator.group.history) == 1


def test_who_uses_the_old_id_is_fenced(coordinator: Coordinator, ids: dict[str, str]) -> None:
    new_id = coordinator.joined(coordinator.join(instance="two")).member_id
    old_id = ids["two"]
    assert coordinator.heartbeat(old_id, 1, instance="two") == ErrorCode.FENCED_INSTANCE_ID
    assert coordinator.synced(coordinator.sync(old_id, 1, instance="two")).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert coordinator.joined(coordinator.join(old_id, instance="two")).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert coordinator.group.check_offset_commit(old_id, "two", 1, 9) == ErrorCode.FENCED_INSTANCE_ID
    left = coordinator.leave(MemberIdentity(member_id=old_id, group_instance_id="two"))
    assert left.members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert coordinator.heartbeat(old_id, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(new_id, 1, instance="two") == ErrorCode.NONE


def test_a_leader_that_comes_back_is_told_to_skip_the_assignment(coordinator: Coordinator, ids: dict[str, str]) -> None:
    joined = coordinator.joined(coordinator.join(instance="one", version=9))
    assert joined.skip_assignment
    assert joined.leader == joined.member_id
    assert {member.group_instance_id for member in joined.members} == {"one", "two"}
    assert coordinator.synced(coordinator.sync(joined.member_id, 1, instance="one")).assignment == b"part 0"


def test_an_older_leader_that_comes_back_does_not_learn_that_it_leads(
    coordinator: Coordinator, ids: dict[str, str]
) -> None:
    joined = coordinator.joined(coordinator.join(instance="one", version=8))
    assert not joined.skip_assignment
    assert (joined.leader, joined.members) == (ids["one"], [])
    # It still leads: when it joins again, all do.
    assert coordinator.is_waiting(coordinator.join(joined.member_id, instance="one", version=8))


def test_a_follower_is_not_told_to_skip_anything(coordinator: Coordinator, ids: dict[str, str]) -> None:
    assert not coordinator.joined(coordinator.join(instance="two", version=9)).skip_assignment


def test_a_bounce_is_written_before_it_is_answered(coordinator: Coordinator, ids: dict[str, str]) -> None:
    coordinator.holds_writes = True
    waiting = coordinator.join(instance="two")
    assert coordinator.is_waiting(waiting)
    assert coordinator.heartbeat(ids["two"], 1, instance="two") == ErrorCode.NONE
    coordinator.decide_write()
    new_id = coordinator.joined(waiting).member_id
    coordinator.crash()
    assert coordinator.heartbeat(new_id, 1, instance="two") == ErrorCode.NONE
    assert coordinator.heartbeat(ids["two"], 1, instance="two") == ErrorCode.FENCED_INSTANCE_ID


def test_a_bounce_that_can_not_be_written_changes_nothing(coordinator: Coordinator, ids: dict[str, str]) -> None:
    coordinator.holds_writes = True
    waiting = coordinator.join(instance="two")
    coordinator.decide_write(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert coordinator.joined(waiting).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.heartbeat(ids["two"], 1, instance="two") == ErrorCode.NONE


def test_bounces_wait_for_each_other(coordinator: Coordinator, ids: dict[str, str]) -> None:
    coordinator.holds_writes = True
    bounces = [coordinator.join(instance=instance) for instance in ("one", "two", "two")]
    coordinator.decide_write()
    assert [coordinator.is_waiting(exchange) for exchange in bounces] == [False, True, True]
    coordinator.decide_write()
    coordinator.decide_write()
    new_ids = [coordinator.joined(exchange).member_id for exchange in bounces]
    coordinator.crash()
    # What is written last has what was written before it.
    assert coordinator.heartbeat(new_ids[0], 1, instance="one") == ErrorCode.NONE
    assert coordinator.heartbeat(new_ids[1], 1, instance="two") == ErrorCode.FENCED_INSTANCE_ID
    assert coordinator.heartbeat(new_ids[2], 1, instance="two") == ErrorCode.NONE


def test_a_bounce_whose_group_moved_on_takes_part_in_the_rebalance(
    coordinator: Coordinator, ids: dict[str, str]
) -> None:
    coordinator.holds_writes = True
    waiting = coordinator.join(instance="two")
    leader = coordinator.join(ids["one"], instance="one")
    coordinator.decide_write()
    coordinator.holds_writes = False
    assert coordinator.finish_rebalance([leader, waiting]) == 2


def test_waiting_bounces_are_told_when_the_coordinator_goes(coordinator: Coordinator, ids: dict[str, str]) -> None:
    coordinator.holds_writes = True
    bounces = [coordinator.join(instance=instance) for instance in ("one", "two")]
    coordinator.unload()
    assert {coordinator.joined(exchange).error_code for exchange in bounces} == {ErrorCode.NOT_COORDINATOR}


def test_other_topics_or_protocols_rebalance(
    coordinator: Coordinator, ids: dict[str, str], subscribe: Subscribe
) -> None:
    owned = {"range": subscribe("t", version=1, rest=b"\xff\xff\xff\xff\x00\x00\x00\x00")}
    assert coordinator.joined(coordinator.join(instance="two", protocols=owned)).generation_id == 1
    waiting = coordinator.join(instance="two", protocols={"range": subscribe("t", "u")})
    assert coordinator.is_waiting(waiting)
    coordinator.finish_rebalance([coordinator.join(ids["one"], instance="one"), waiting])
    assert [*coordinator.group.history][-1].trigger.cause == "subscription changed"


def test_a_bounce_while_members_join_fences_the_join_that_waits(coordinator: Coordinator, ids: dict[str, str]) -> None:
    coordinator.leave(MemberIdentity(group_instance_id="two"))
    leaving = coordinator.join(instance="two")
    bounced = coordinator.join(instance="two")
    fenced = coordinator.joined(leaving)
    assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert coordinator.is_waiting(bounced)
    assert coordinator.finish_rebalance([coordinator.join(ids["one"], instance="one"), bounced]) == 2


def test_a_bounce_during_the_sync_fences_it_and_begins_anew(coordinator: Coordinator) -> None:
    joins = {instance: coordinator.join(instance=instance) for instance in ("one", "two")}
    coordinator.advance(6_000)
    ids = {instance: coordinator.joined(exchange).member_id for instance, exchange in joins.items()}
    waiting = coordinator.sync(ids["two"], 1, instance="two")
    bounced = coordinator.join(instance="two")
    assert coordinator.synced(waiting).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert coordinator.synced(coordinator.sync(ids["one"], 1, instance="one")).error_code == (
        ErrorCode.REBALANCE_IN_PROGRESS
    )
    assert coordinator.finish_rebalance([coordinator.join(ids["one"], instance="one"), bounced]) == 2


def test_a_bounce_before_the_sync_is_not_waited_for_twice(coordinator: Coordinator) -> None:
    joins = [coordinator.join(instance=name, rebalance_ms=10_000, session_ms=60_000) for name in ("one", "two")]
    coordinator.advance(6_000)
    coordinator.sync(coordinator.joined(joins[0]).member_id, 1, instance="one")
    bounced = coordinator.joined(coordinator.join(instance="two", rebalance_ms=10_000, session_ms=60_000))
    assert bounced.generation_id == 1
    assert not coordinator.group.members.pending_sync
    coordinator.advance(59_999)
    assert coordinator.group.state == "Stable"


def test_a_static_member_that_does_not_join_again_is_kept_for_its_session(coordinator: Coordinator) -> None:
    joins = [coordinator.join(instance=name, rebalance_ms=10_000, session_ms=30_000) for name in ("one", "two")]
    coordinator.finish_rebalance(joins)
    leader_id = coordinator.joined(joins[0]).member_id
    leader = coordinator.join(leader_id, instance="one", rebalance_ms=10_000, session_ms=30_000)
    coordinator.advance(10_000)
    assert [member.group_instance_id for member in coordinator.joined(leader).members] == ["one", "two"]
    coordinator.sync(leader_id, 2, {coordinator.joined(joins[1]).member_id: b"its part"}, instance="one")
    assert coordinator.group.state == "Stable"
    # It does not ask for its part either: when the time for that is over it is given up.
    coordinator.advance(10_000)
    assert [member.group_instance_id for member in coordinator.group.members] == ["one"]


def test_when_nobody_joins_again_the_join_phase_goes_on(coordinator: Coordinator) -> None:
    joins = [coordinator.join(instance=name, rebalance_ms=10_000, session_ms=60_000) for name in ("one", "two")]
    coordinator.finish_rebalance(joins)
    coordinator.leave(MemberIdentity(group_instance_id="one"))
    coordinator.advance(25_000)
    assert coordinator.group.state == "PreparingRebalance"
    back = coordinator.join(instance="two", rebalance_ms=10_000)
    assert coordinator.joined(back).generation_id == 2


def test_an_administrator_removes_an_instance(coordinator: Coordinator, ids: dict[str, str]) -> None:
    left = coordinator.leave(MemberIdentity(group_instance_id="two"), MemberIdentity(group_instance_id="three"))
    assert [(member.group_instance_id, member.error_code) for member in left.members] == [
        ("two", ErrorCode.NONE),
        ("three", ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    assert coordinator.heartbeat(ids["two"], 1, instance="two") == ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(ids["one"], 1, instance="one") == ErrorCode.REBALANCE_IN_PROGRESS


def test_an_instance_comes_back_to_a_full_group(new_coordinator: type[Coordinator]) -> None:
    coordinator = new_coordinator(GroupConfig(group_max_size=2))
    form(coordinator)
    assert coordinator.joined(coordinator.join(instance="two")).error_code == ErrorCode.NONE
    assert coordinator.joined(coordinator.join(instance="three")).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_bounce_after_the_session_is_a_new_member(coordinator: Coordinator, ids: dict[str, str]) -> None:
    coordinator.advance(5_000)
    coordinator.heartbeat(ids["one"], 1, instance="one")
    coordinator.advance(5_000)
    waiting = coordinator.join(instance="two")
    assert coordinator.is_waiting(waiting)
    assert coordinator.finish_rebalance([coordinator.join(ids["one"], instance="one"), waiting]) == 2
