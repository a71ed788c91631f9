"""Members as the client has them, against the broker's own coordinator: the ways of a group, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.client.types import TopicPartition

KINDS = ["range", "roundrobin", "sticky", "cooperative-sticky", "range,cooperative-sticky", "consumer"]

Simulate = Callable[..., Any]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_fewer_equal_and_more_members_than_partitions(simulate: Simulate, kind: str, count: int) -> None:
    group = simulate(kind, {"t": 4})
    for _ in range(count):
        group.add(["t"])
    group.settle()
    assert group.owned() == dict.fromkeys(group.wanted(), 1)
    sizes = sorted(len(each.member.owned) for each in group.members)
    assert sizes[-1] - sizes[0] <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_members_come_and_go(simulate: Simulate, kind: str) -> None:
    group = simulate(kind, {"t": 6})
    first = group.add(["t"])
    group.settle()
    second = group.add(["t"])
    group.settle()
    assert len(first.member.owned) == len(second.member.owned) == 3
    group.leave(first)
    group.settle(20_000)
    assert second.member.owned == group.wanted()


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_dies_is_replaced_when_its_session_ends(simulate: Simulate, kind: str) -> None:
    group = simulate(kind, {"t": 6})
    first, second = group.add(["t"]), group.add(["t"])
    group.settle()
    group.crash(first)
    group.settle(5_000)
    assert len(second.member.owned) == 3
    group.settle()
    assert second.member.owned == group.wanted()


@pytest.mark.parametrize("kind", KINDS)
def test_partitions_that_are_added_find_a_reader(simulate: Simulate, kind: str) -> None:
    group = simulate(kind, {"t": 2})
    group.add(["t"])
    group.add(["t"])
    group.settle()
    group.grow("t", 5)
    group.settle(20_000)
    assert group.owned() == dict.fromkeys(group.wanted(), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_that_does_not_exist_yet_is_read_once_it_does(simulate: Simulate, kind: str) -> None:
    group = simulate(kind, {})
    group.add(["t"])
    group.settle(5_000)
    assert group.owned() == {}
    group.grow("t", 2)
    group.settle(20_000)
    assert group.owned() == dict.fromkeys(group.wanted(), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_subscription_is_followed(simulate: Simulate, kind: str) -> None:
    group = simulate(kind, {"t": 2, "u": 2})
    first, second = group.add(["t"]), group.add(["t", "u"])
    group.settle()
    first.member.subscribe(frozenset({"u"}), None)
    second.member.subscribe(frozenset({"t"}), None)
    group.settle()
    assert {each.topic for each in first.member.owned} == {"u"}
    assert {each.topic for each in second.member.owned} == {"t"}
    assert group.owned() == dict.fromkeys(group.wanted(), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_that_stops_polling_loses_its_partitions_and_comes_back(simulate: Simulate, kind: str) -> None:
    group = simulate(kind, {"t": 4})
    first, second = group.add(["t"]), group.add(["t"])
    group.settle()
    mine = tuple(sorted(first.member.owned))
    group.stop_polling(first)
    # The others get what it had at once, although it still thinks to own it.
    for _ in range(60):
        while group.receive(second) or group.end_turn(second) or group.begin_turn(second) or group.send(second):
            pass
        group.advance(100)
    assert second.member.owned == group.wanted()
    first.told.clear()
    group.settle()
    assert first.told[0] == ("lost", mine)
    assert len(first.member.owned) == 2
    assert group.owned() == dict.fromkeys(group.wanted(), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_coordinator_that_moves_loses_nobody(simulate: Simulate, kind: str) -> None:
    group = simulate(kind, {"t": 4})
    first, second = group.add(["t"]), group.add(["t"])
    group.settle()
    before = first.member.owned, second.member.owned
    first.told.clear()
    group.restart_coordinator()
    group.settle()
    assert (first.member.owned, second.member.owned) == before
    assert first.told == []


@pytest.mark.parametrize("kind", ["range", "cooperative-sticky"])
def test_a_static_member_that_restarts_gets_its_partitions_without_a_rebalance(simulate: Simulate, kind: str) -> None:
    group = simulate(kind, {"t": 4})
    first, second = group.add(["t"], "one"), group.add(["t"], "two")
    group.settle()
    before = first.member.owned
    second.told.clear()
    group.leave(first)
    again = group.add(["t"], "one")
    group.settle(5_000)
    assert again.member.owned == before
    assert second.told == []


def test_a_static_member_of_the_consumer_protocol_that_restarts_gets_its_partitions(simulate: Simulate) -> None:
    group = simulate("consumer", {"t": 4})
    first, second = group.add(["t"], "one"), group.add(["t"], "two")
    group.settle()
    before = first.member.owned
    second.told.clear()
    group.leave(first)
    again = group.add(["t"], "one")
    group.settle(20_000)
    assert again.member.owned == before
    assert second.told == []


@pytest.mark.parametrize("kind", ["range", "consumer"])
def test_two_members_with_one_instance_id(simulate: Simulate, kind: str) -> None:
    """Classic: the older is shut out for good. Consumer protocol: the newer is turned away."""
    group = simulate(kind, {"t": 2})
    first, second = group.add(["t"], "one"), None
    group.settle(10_000)
    second = group.add(["t"], "one")
    group.settle(20_000)
    shut_out = first if kind == "range" else second
    kept = second if kind == "range" else first
    assert shut_out.member.error is not None
    assert "group.instance.id one" in str(shut_out.member.error)
    assert kept.member.error is None
    assert shut_out.member.owned == frozenset()
    assert kept.member.owned == group.wanted()


def test_eager_members_give_all_up_and_are_told_of_every_rebalance(simulate: Simulate) -> None:
    group = simulate("range", {"t": 2})
    first = group.add(["t"])
    group.settle()
    everything = (TopicPartition("t", 0), TopicPartition("t", 1))
    assert first.told == [("assigned", everything)]
    group.add(["t"])
    group.settle()
    assert first.told == [
        ("assigned", everything),
        ("revoked", everything),
        ("assigned", tuple(first.member.owned)),
    ]
    assert len(first.member.owned) == 1


def test_cooperative_members_keep_what_stays(simulate: Simulate) -> None:
    group = simulate("cooperative-sticky", {"t": 4})
    first = group.add(["t"])
    group.settle()
    first.told.clear()
    group.add(["t"])
    group.settle()
    gone = [partitions for event, partitions in first.told if event == "revoked"]
    assert [len(partitions) for partitions in gone] == [2]
    assert all(partitions == () for event, partitions in first.told if event == "assigned")
