"""Joining a classic group: ids, states, protocols, and the time that everybody has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.coordinator.config import GroupConfig
from tidelog.protocol import ErrorCode

if TYPE_CHECKING:
    from tests.unit.coordinator.classic.conftest import Coordinator

Subscribe = Callable[..., bytes]


def test_the_first_join_gets_an_id_to_come_back_with(coordinator: Coordinator) -> None:
    answer = coordinator.joined(coordinator.join(client_id="app"))
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("app-")
    waiting = coordinator.join(answer.member_id)
    assert coordinator.is_waiting(waiting)
    coordinator.advance(3_000)
    joined = coordinator.joined(waiting)
    assert (joined.error_code, joined.generation_id, joined.member_id) == (0, 1, answer.member_id)
    assert joined.leader == answer.member_id
    assert [member.member_id for member in joined.members] == [answer.member_id]


@pytest.mark.parametrize("version", [0, 3])
def test_older_clients_are_members_at_once(coordinator: Coordinator, version: int) -> None:
    waiting = coordinator.join(version=version)
    coordinator.advance(3_000)
    assert coordinator.joined(waiting).error_code == ErrorCode.NONE
    assert len(coordinator.group.members) == 1


def test_instances_are_members_at_once(coordinator: Coordinator) -> None:
    waiting = coordinator.join(instance="one")
    coordinator.advance(3_000)
    joined = coordinator.joined(waiting)
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id.startswith("one-")
    assert joined.members[0].group_instance_id == "one"


def test_an_id_that_nobody_uses_is_forgotten_and_with_it_the_group(coordinator: Coordinator) -> None:
    member_id = coordinator.new_id()
    coordinator.advance(10_001)
    assert not coordinator.has_group
    assert coordinator.joined(coordinator.join(member_id)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_what_no_group_takes(coordinator: Coordinator, options: dict[str, object], error: ErrorCode) -> None:
    answer = coordinator.joined(coordinator.join(**options))  # type: ignore[arg-type] # they are as `join` takes them
    assert answer.error_code == error
    assert not coordinator.has_group


@pytest.mark.parametrize(
    "options",
    [
        {"protocols": {"roundrobin": b""}},
        {"protocol_type": "connect"},
    ],
)
def test_a_newcomer_must_speak_as_the_members_do(coordinator: Coordinator, options: dict[str, object]) -> None:
    coordinator.form(2)
    answer = coordinator.joined(coordinator.join(**options))  # type: ignore[arg-type] # they are as `join` takes them
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert coordinator.group.state == "Stable"


@pytest.mark.parametrize("protocol_type", ["connect", "sr", "of-ours"])
def test_any_protocol_type_passes_through(coordinator: Coordinator, protocol_type: str) -> None:
    told = {"v0": b"\x00anything", "v1": b"\xff"}
    waiting = coordinator.join(protocol_type=protocol_type, protocols=told, version=3)
    coordinator.advance(3_000)
    joined = coordinator.joined(waiting)
    assert (joined.protocol_type, joined.protocol_name) == (protocol_type, "v0")
    assert joined.members[0].metadata == told["v0"]


def test_the_protocol_most_members_like_best_of_those_that_all_speak(coordinator: Coordinator) -> None:
    speakers = [["a", "b", "c"], ["c", "b"], ["b", "c"], ["c", "b", "a"]]
    joins = [coordinator.join(protocols=dict.fromkeys(names, b"x"), version=3) for names in speakers]
    coordinator.advance(3_000)
    coordinator.advance(3_000)
    # "a" is not spoken by all; "c" has two votes, as has "b", which an earlier member likes best.
    assert {coordinator.joined(exchange).protocol_name for exchange in joins} == {"b"}
    joins.append(coordinator.join(protocols={"c": b"x"}, version=3))
    for exchange in joins[:4]:
        member_id = coordinator.joined(exchange).member_id
        last = coordinator.join(member_id, protocols=dict(coordinator.group.members.get(member_id).protocols))  # type: ignore[union-attr] # it is a member
    assert coordinator.joined(last).protocol_name == "c"


def test_only_the_leader_sees_the_members(coordinator: Coordinator) -> None:
    ids = [coordinator.new_id() for _ in range(3)]
    joins = [coordinator.join(member_id) for member_id in ids]
    coordinator.advance(3_000)
    coordinator.advance(3_000)
    answers = [coordinator.joined(exchange) for exchange in joins]
    assert {answer.leader for answer in answers} == {ids[0]}
    assert [member.member_id for member in answers[0].members] == ids
    assert not answers[1].members
    assert not answers[2].members


def test_the_first_join_phase_grows_with_newcomers_up_to_the_rebalance_timeout(coordinator: Coordinator) -> None:
    first = coordinator.join(version=3, rebalance_ms=10_000)
    for _ in range(3):
        coordinator.advance(2_999)
        coordinator.join(version=3, rebalance_ms=10_000)
        coordinator.advance(1)
        assert coordinator.is_waiting(first)
    coordinator.advance(999)
    assert coordinator.is_waiting(first)
    coordinator.advance(1)
    assert coordinator.joined(first).generation_id == 1
    assert len(coordinator.group.members) == 4


def test_without_newcomers_the_first_join_phase_takes_three_seconds(coordinator: Coordinator) -> None:
    waiting = coordinator.join(version=3)
    coordinator.advance(2_999)
    assert coordinator.is_waiting(waiting)
    coordinator.advance(1)
    assert not coordinator.is_waiting(waiting)


def test_late_members_are_dropped_at_the_rebalance_timeout_and_only_those(coordinator: Coordinator) -> None:
    ids = coordinator.form(3, rebalance_ms=30_000, session_ms=60_000)
    newcomer = coordinator.join(coordinator.new_id(), rebalance_ms=20_000)
    rejoined = coordinator.join(ids[1], rebalance_ms=30_000)
    coordinator.advance(29_999)
    assert coordinator.is_waiting(newcomer)
    coordinator.advance(1)
    assert coordinator.joined(newcomer).generation_id == 2
    assert coordinator.joined(rejoined).leader == ids[1]
    assert {member.member_id for member in coordinator.group.members} == {
        ids[1],
        coordinator.joined(newcomer).member_id,
    }
    assert coordinator.joined(coordinator.join(ids[0])).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_unused_id_holds_up_the_join_phase_no_longer_than_its_session(coordinator: Coordinator) -> None:
    ids = coordinator.form(2)
    coordinator.new_id()
    joins = [coordinator.join(member_id) for member_id in ids]
    assert all(coordinator.is_waiting(exchange) for exchange in joins)
    coordinator.advance(10_000)
    assert {coordinator.joined(exchange).generation_id for exchange in joins} == {2}


def test_a_follower_that_joins_again_unchanged_gets_the_generation_there_is(coordinator: Coordinator) -> None:
    leader, follower = coordinator.form(2)
    answer = coordinator.joined(coordinator.join(follower))
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, leader)
    assert not answer.members
    assert coordinator.group.state == "Stable"


def test_a_changed_subscription_rebalances(coordinator: Coordinator, subscribe: Subscribe) -> None:
    leader, follower = coordinator.form(2)
    waiting = coordinator.join(follower, protocols={"range": subscribe("t", "u")})
    assert coordinator.is_waiting(waiting)
    assert coordinator.heartbeat(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.joined(coordinator.join(leader)).generation_id == 2
    assert [entry.trigger.cause for entry in coordinator.group.history][-1] == "subscription changed"


def test_the_leader_may_ask_for_a_rebalance_at_any_time(coordinator: Coordinator) -> None:
    leader, follower = coordinator.form(2)
    waiting = coordinator.join(leader)
    assert coordinator.heartbeat(follower, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.join(follower)
    assert coordinator.joined(waiting).generation_id == 2


def test_a_lost_answer_is_given_again_while_the_generation_completes(coordinator: Coordinator) -> None:
    ids = [coordinator.new_id() for _ in range(2)]
    for member_id in ids:
        coordinator.join(member_id)
    coordinator.advance(6_000)
    again = [coordinator.joined(coordinator.join(member_id)) for member_id in ids]
    assert [answer.generation_id for answer in again] == [1, 1]
    assert len(again[0].members) == 2
    assert not again[1].members


def test_a_join_that_is_sent_again_is_answered_on_the_newest(coordinator: Coordinator) -> None:
    leader, follower = coordinator.form(2)
    first = coordinator.join(leader)
    second = coordinator.join(leader)
    assert coordinator.joined(first).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.is_waiting(second)
    coordinator.join(follower)
    assert coordinator.joined(second).generation_id == 2


def test_a_full_group_takes_nobody_else(new_coordinator: type[Coordinator]) -> None:
    coordinator = new_coordinator(GroupConfig(group_max_size=2))
    ids = coordinator.form(2)
    refused = coordinator.joined(coordinator.join())
    assert (refused.error_code, refused.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert coordinator.heartbeat(ids[0], 1) == ErrorCode.NONE


def test_ids_that_were_given_out_do_not_make_a_group_too_large(new_coordinator: type[Coordinator]) -> None:
    coordinator = new_coordinator(GroupConfig(group_max_size=2))
    ids = [coordinator.new_id() for _ in range(3)]
    joins = [coordinator.join(member_id) for member_id in ids]
    assert coordinator.joined(joins[2]).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    coordinator.finish_rebalance(joins[:2])
    assert {member.member_id for member in coordinator.group.members} == set(ids[:2])


def test_a_group_that_became_too_large_shrinks_when_it_is_loaded(new_coordinator: type[Coordinator]) -> None:
    coordinator = new_coordinator(topics={"t": 4})
    ids = coordinator.form(3)
    coordinator.config = GroupConfig(group_max_size=2)
    coordinator.crash()
    assert coordinator.heartbeat(ids[0], 1) == ErrorCode.REBALANCE_IN_PROGRESS
    joins = [coordinator.join(member_id) for member_id in ids]
    assert coordinator.joined(joins[2]).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [coordinator.joined(exchange).generation_id for exchange in joins[:2]] == [2, 2]


def test_a_new_member_without_an_answer_is_given_up_after_five_minutes(coordinator: Coordinator) -> None:
    ids = coordinator.form(1, rebalance_ms=1_800_000, session_ms=1_800_000)
    waiting = coordinator.join(version=3, rebalance_ms=1_800_000, session_ms=1_800_000)
    coordinator.advance(299_999)
    assert coordinator.is_waiting(waiting)
    coordinator.advance(1)
    answer = coordinator.joined(waiting)
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
    assert [member.member_id for member in coordinator.group.members] == ids
