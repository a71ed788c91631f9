"""Why a group rebalanced: the cause, whose doing it was, and how long consumers stood still."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.coordinator.actions import Now
from tidelog.coordinator.rebalance_history import (
    GENERATIONS_KEPT,
    Rebalance,
    RebalanceCause,
    RebalanceHistory,
    RebalanceTrigger,
)
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k13_leave_group import MemberIdentity

if TYPE_CHECKING:
    from tests.unit.coordinator.classic.conftest import Coordinator


def latest(coordinator: Coordinator) -> Rebalance:
    *_, entry = coordinator.group.history
    return entry


def test_a_join(coordinator: Coordinator) -> None:
    began = coordinator.now
    (member_id,) = coordinator.form(1)
    entry = latest(coordinator)
    assert entry.trigger == RebalanceTrigger(
        RebalanceCause.MEMBER_JOINED, member_id, client_id="client", client_host="/127.0.0.1"
    )
    assert (entry.generation_id, entry.members_before, entry.members_after) == (1, 0, 1)
    assert entry.began_ms == began.wall_ms
    assert entry.stood_still_ms == 3_000


def test_a_leave_tells_the_reason(coordinator: Coordinator) -> None:
    first, second = coordinator.form(2)
    coordinator.leave(MemberIdentity(member_id=first, reason="the consumer is being closed"))
    coordinator.advance(2_000)
    coordinator.finish_rebalance([coordinator.join(second)])
    entry = latest(coordinator)
    assert (entry.trigger.cause, entry.trigger.member_id) == (RebalanceCause.MEMBER_LEFT, first)
    assert entry.trigger.reason == "the consumer is being closed"
    assert (entry.members_before, entry.members_after, entry.stood_still_ms) == (2, 1, 2_000)


def test_a_time_out(coordinator: Coordinator) -> None:
    first, second = coordinator.form(2)
    coordinator.advance(5_000)
    coordinator.heartbeat(second, 1)
    coordinator.advance(5_000)
    coordinator.finish_rebalance([coordinator.join(second)])
    assert latest(coordinator).trigger.cause == RebalanceCause.MEMBER_TIMED_OUT
    assert latest(coordinator).trigger.member_id == first


def test_an_instance_is_named(coordinator: Coordinator) -> None:
    coordinator.finish_rebalance([coordinator.join(instance="one", reason="begins")])
    trigger = latest(coordinator).trigger
    assert (trigger.group_instance_id, trigger.reason) == ("one", "begins")


@pytest.mark.parametrize(
    ("grown", "reason", "cause"),
    [
        (False, None, RebalanceCause.LEADER_REJOINED),
        (True, None, RebalanceCause.PARTITIONS_GREW),
        (False, "cached metadata has changed from v1 to v2", RebalanceCause.PARTITIONS_GREW),
    ],
)
def test_a_leader_that_joins_again(
    coordinator: Coordinator, grown: bool, reason: str | None, cause: RebalanceCause
) -> None:
    (leader,) = coordinator.form(1)
    if grown:
        coordinator.grow("t", 8)
    coordinator.finish_rebalance([coordinator.join(leader, reason=reason)])
    assert latest(coordinator).trigger.cause == cause
    coordinator.finish_rebalance([coordinator.join(leader)])
    assert latest(coordinator).trigger.cause == RebalanceCause.LEADER_REJOINED


def test_a_member_that_gave_up_partitions_joins_again(
    coordinator: Coordinator, subscribe: Callable[..., bytes]
) -> None:
    leader, follower = coordinator.form(2)
    owned = {"range": subscribe("t", version=1, rest=b"\xff\xff\xff\xff\x00\x00\x00\x00")}
    waiting = coordinator.join(follower, protocols=owned, reason="need to revoke partitions and re-join")
    coordinator.finish_rebalance([coordinator.join(leader), waiting])
    assert latest(coordinator).trigger.cause == RebalanceCause.MEMBER_REJOINED


def test_the_first_cause_counts_and_time_goes_on_over_generations_without_an_assignment(
    coordinator: Coordinator,
) -> None:
    leader, follower = coordinator.form(2, session_ms=60_000)
    newcomer = coordinator.new_id()
    coordinator.join(newcomer, session_ms=60_000)
    coordinator.join(leader, session_ms=60_000)
    coordinator.advance(1_000)
    coordinator.join(follower, session_ms=60_000)
    assert (latest(coordinator).generation_id, latest(coordinator).stood_still_ms) == (2, None)
    assert latest(coordinator).trigger.member_id == newcomer
    coordinator.advance(1_000)
    coordinator.leave(MemberIdentity(member_id=newcomer))
    coordinator.advance(1_000)
    coordinator.finish_rebalance([coordinator.join(leader), coordinator.join(follower)])
    entry = latest(coordinator)
    assert (entry.generation_id, entry.trigger.cause, entry.stood_still_ms) == (3, RebalanceCause.MEMBER_LEFT, 3_000)


def test_the_last_one_to_sync_ends_the_time(coordinator: Coordinator) -> None:
    leader, follower = coordinator.form(2)
    joins = [coordinator.join(leader), coordinator.join(follower)]
    assert not any(coordinator.is_waiting(exchange) for exchange in joins)
    coordinator.sync(leader, 2, {follower: b"late"})
    assert latest(coordinator).stood_still_ms == 0
    coordinator.advance(4_000)
    assert coordinator.synced(coordinator.sync(follower, 2)).error_code == ErrorCode.NONE
    assert latest(coordinator).stood_still_ms == 4_000
    coordinator.advance(1_000)
    coordinator.sync(follower, 2)
    assert latest(coordinator).stood_still_ms == 4_000


def test_an_empty_group_stands_still_for_nobody(coordinator: Coordinator) -> None:
    (member_id,) = coordinator.form(1)
    coordinator.leave(MemberIdentity(member_id=member_id))
    assert (latest(coordinator).members_after, latest(coordinator).stood_still_ms) == (0, None)
    coordinator.advance(60_000)
    coordinator.form(1)
    assert latest(coordinator).stood_still_ms == 3_000


def test_only_the_latest_are_kept() -> None:
    history = RebalanceHistory()
    for generation_id in range(1, 200):
        history.needed(RebalanceTrigger(RebalanceCause.MEMBER_JOINED), Now(0.0, 0))
        history.formed(generation_id, 1, Now(0.0, 0))
        history.settled()
    assert len(history) == GENERATIONS_KEPT
    assert [entry.generation_id for entry in history] == list(range(150, 200))


def test_a_generation_comes_of_a_need() -> None:
    with pytest.raises(RuntimeError, match="generation 1"):
        RebalanceHistory().formed(1, 1, Now(0.0, 0))
