"""Assignors: the results of Java's for range and round-robin, evenness and stickiness for the others."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.consumer.assignors import (
    Assignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    TopicLayout,
)
from tidelog.client.consumer.group_settings import choose_assignors
from tidelog.client.consumer.sticky_assignors import (
    CooperativeStickyAssignor,
    StickyAssignor,
    read_previous,
    write_previous,
)
from tidelog.client.errors import ConfigError
from tidelog.client.types import TopicPartition

Plan = Mapping[str, Sequence[TopicPartition]]


def subscribed(**members: str) -> dict[str, MemberSubscription]:
    return {member_id: MemberSubscription(frozenset(topics.split())) for member_id, topics in members.items()}


def short(plan: Plan) -> dict[str, str]:
    return {member_id: " ".join(str(each) for each in sorted(partitions)) for member_id, partitions in plan.items()}


# Worked out by hand from the rules of Java's client.


@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        ({"t": 3}, {"a": "t"}, {"a": "t-0 t-1 t-2"}),
        ({"t": 3}, {"b": "t", "a": "t"}, {"a": "t-0 t-1", "b": "t-2"}),
        ({"t": 1}, {"a": "t", "b": "t"}, {"a": "t-0", "b": ""}),
        ({"t": 3, "u": 3}, {"a": "t u", "b": "t u"}, {"a": "t-0 t-1 u-0 u-1", "b": "t-2 u-2"}),
        ({"t": 3, "u": 2}, {"a": "t", "b": "t u", "c": "t"}, {"a": "t-0", "b": "t-1 u-0 u-1", "c": "t-2"}),
        ({"t": 7}, {"a": "t", "b": "t", "c": "t"}, {"a": "t-0 t-1 t-2", "b": "t-3 t-4", "c": "t-5 t-6"}),
        ({"t": 2}, {"a": "t missing", "b": "missing"}, {"a": "t-0 t-1", "b": ""}),
        ({}, {"a": "t"}, {"a": ""}),
    ],
)
def test_range(counts: dict[str, int], members: dict[str, str], expected: dict[str, str]) -> None:
    assert short(RangeAssignor().assign(TopicLayout(counts), subscribed(**members))) == expected


@pytest.mark.parametrize(
    ("counts", "members", "expected"),
    [
        ({"t": 3}, {"a": "t", "b": "t"}, {"a": "t-0 t-2", "b": "t-1"}),
        ({"t": 3, "u": 3}, {"a": "t u", "b": "t u"}, {"a": "t-0 t-2 u-1", "b": "t-1 u-0 u-2"}),
        (
            {"t": 1, "u": 2, "v": 3},
            {"a": "t", "b": "t u", "c": "t u v"},
            {"a": "t-0", "b": "u-0", "c": "u-1 v-0 v-1 v-2"},
        ),
        ({"t": 2}, {"a": "t", "b": "t", "c": "t"}, {"a": "t-0", "b": "t-1", "c": ""}),
        ({}, {"a": "t"}, {"a": ""}),
    ],
)
def test_round_robin(counts: dict[str, int], members: dict[str, str], expected: dict[str, str]) -> None:
    assert short(RoundRobinAssignor().assign(TopicLayout(counts), subscribed(**members))) == expected


def test_static_members_come_first_in_the_order_of_their_instance_ids() -> None:
    members = {
        "a": MemberSubscription(frozenset({"t"})),
        "z": MemberSubscription(frozenset({"t"}), instance_id="1"),
        "y": MemberSubscription(frozenset({"t"}), instance_id="2"),
    }
    for assignor in (RangeAssignor(), RoundRobinAssignor()):
        plan = assignor.assign(TopicLayout({"t": 3}), members)
        assert short(plan) == {"z": "t-0", "y": "t-1", "a": "t-2"}


def racks(rows: Mapping[str, str]) -> dict[TopicPartition, frozenset[str]]:
    """For each topic the racks of its partitions, as "ab bc" for two partitions with two replicas each."""
    return {
        TopicPartition(topic, number): frozenset(each)
        for topic, text in rows.items()
        for number, each in enumerate(text.split())
    }


@pytest.mark.parametrize(
    ("counts", "rows", "expected"),
    [
        # Each reads what is in its own rack.
        ({"t": 4}, {"t": "b a b a"}, {"m1": "t-1 t-3", "m2": "t-0 t-2"}),
        # As many as without racks, even if more are near.
        ({"t": 4}, {"t": "a a a b"}, {"m1": "t-0 t-1", "m2": "t-2 t-3"}),
        # All replicas everywhere: as without racks.
        ({"t": 4}, {"t": "ab ab ab ab"}, {"m1": "t-0 t-1", "m2": "t-2 t-3"}),
        # Topics with as many partitions and the same readers stay together.
        ({"t": 2, "u": 2}, {"t": "b a", "u": "b a"}, {"m1": "t-1 u-1", "m2": "t-0 u-0"}),
        ({"t": 2, "u": 2}, {"t": "b a", "u": "a b"}, {"m1": "t-0 u-0", "m2": "t-1 u-1"}),
    ],
)
def test_range_prefers_replicas_in_the_members_own_rack(
    counts: dict[str, int], rows: dict[str, str], expected: dict[str, str]
) -> None:
    topics = frozenset(counts)
    members = {"m1": MemberSubscription(topics, rack="a"), "m2": MemberSubscription(topics, rack="b")}
    assert short(RangeAssignor().assign(TopicLayout(counts, racks(rows)), members)) == expected


# The sticky ones


def loads_by_topics(plan: Plan, members: Mapping[str, MemberSubscription]) -> dict[frozenset[str], list[int]]:
    loads: dict[frozenset[str], list[int]] = {}
    for member_id, member in members.items():
        loads.setdefault(member.topics, []).append(len(plan[member_id]))
    return loads


def check_whole(plan: Plan, layout: TopicLayout, members: Mapping[str, MemberSubscription]) -> None:
    read = {topic for member in members.values() for topic in member.topics}
    given_out = [partition for partitions in plan.values() for partition in partitions]
    wanted = [partition for topic in read for partition in layout.partitions(topic)]
    assert sorted(given_out) == sorted(wanted)
    for member_id, partitions in plan.items():
        assert {partition.topic for partition in partitions} <= members[member_id].topics


_TOPICS = st.dictionaries(st.sampled_from(["t", "u", "v"]), st.integers(0, 12), min_size=1)
_MEMBERS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.frozensets(st.sampled_from(["t", "u", "v"]), min_size=1), min_size=1
)


@settings(max_examples=150, deadline=None)
@given(_TOPICS, _MEMBERS, _MEMBERS)
def test_sticky_is_whole_even_and_keeps_what_it_can(
    counts: dict[str, int], before: dict[str, frozenset[str]], after: dict[str, frozenset[str]]
) -> None:
    layout = TopicLayout(counts)
    first = {member_id: MemberSubscription(topics) for member_id, topics in before.items()}
    old = StickyAssignor().assign(layout, first)
    check_whole(old, layout, first)
    second = {
        member_id: MemberSubscription(topics, user_data=write_previous(old.get(member_id, ()), 1))
        for member_id, topics in after.items()
    }
    new = StickyAssignor().assign(layout, second)
    check_whole(new, layout, second)
    for loads in [*loads_by_topics(old, first).values(), *loads_by_topics(new, second).values()]:
        assert max(loads) - min(loads) <= 1
    if before == after:
        assert new == old
    # No swaps: where a partition moved away from a member that may still read it, that member did not get another.
    for member_id in set(old) & set(new):
        kept_from = {each for each in old[member_id] if each.topic in second[member_id].topics}
        lost = kept_from - set(new[member_id])
        gained = set(new[member_id]) - set(old[member_id])
        if len({frozenset(topics) for topics in after.values()}) == 1:
            assert not (lost and gained)


@settings(max_examples=150, deadline=None)
@given(_TOPICS, _MEMBERS, _MEMBERS)
def test_cooperative_takes_away_first_and_gives_in_the_next_rebalance(
    counts: dict[str, int], before: dict[str, frozenset[str]], after: dict[str, frozenset[str]]
) -> None:
    layout = TopicLayout(counts)
    owned: dict[str, Sequence[TopicPartition]] = dict(
        CooperativeStickyAssignor().assign(
            layout, {each: MemberSubscription(topics) for each, topics in before.items()}
        )
    )
    alike = len(set(after.values())) == 1
    for generation in range(1, 8):
        members = {
            member_id: MemberSubscription(
                topics,
                tuple(each for each in owned.get(member_id, ()) if each.topic in topics),
                generation,
            )
            for member_id, topics in after.items()
        }
        plan = CooperativeStickyAssignor().assign(layout, members)
        for member_id, partitions in plan.items():
            others = {each for other, member in members.items() if other != member_id for each in member.owned}
            assert not set(partitions) & others
        owned = dict(plan)
        if all(set(member.owned) == set(plan[member_id]) for member_id, member in members.items()):
            break
        # Where all read the same, the second rebalance ends it; otherwise one may open the way for another.
        assert generation <= (2 if alike else 4)
    check_whole(owned, layout, members)
    for loads in loads_by_topics(owned, members).values():
        assert max(loads) - min(loads) <= 1


def test_of_two_claims_the_later_generation_counts() -> None:
    partition = TopicPartition("t", 0)
    topics = frozenset({"t"})
    members = {
        "a": MemberSubscription(topics, (partition,), generation=4),
        "b": MemberSubscription(topics, (partition,), generation=5),
    }
    assert short(CooperativeStickyAssignor().assign(TopicLayout({"t": 1}), members)) == {"a": "", "b": "t-0"}


def test_two_claims_of_one_generation_are_both_void() -> None:
    partition = TopicPartition("t", 0)
    members = {each: MemberSubscription(frozenset({"t"}), (partition,), generation=4) for each in "ab"}
    assert short(CooperativeStickyAssignor().assign(TopicLayout({"t": 1}), members)) == {"a": "", "b": ""}


def test_generations_of_older_members_are_in_their_user_data() -> None:
    partition = TopicPartition("t", 0)
    topics = frozenset({"t"})
    members = {
        "a": MemberSubscription(topics, (partition,), user_data=struct.pack(">i", 6)),
        "b": MemberSubscription(topics, (partition,), generation=5),
    }
    assert short(CooperativeStickyAssignor().assign(TopicLayout({"t": 1}), members)) == {"a": "t-0", "b": ""}


def test_user_data_is_as_javas_client_writes_it() -> None:
    partitions = [TopicPartition("t", 1), TopicPartition("t", 3), TopicPartition("u", 0)]
    data = bytes.fromhex(
        "00000002"  # two topics
        "0001 74 00000002 00000001 00000003"
        "0001 75 00000001 00000000"
        "00000007"  # generation
    )
    assert write_previous(partitions, 7) == data
    assert read_previous(data) == (partitions, 7)
    assert read_previous(data[:-4]) == (partitions, -1)
    sticky = StickyAssignor()
    assert sticky.user_data(frozenset({"t"})) is None
    sticky.on_assignment(partitions, 7)
    assert sticky.user_data(frozenset({"t"})) == data
    cooperative = CooperativeStickyAssignor()
    assert cooperative.user_data(frozenset()) == b"\xff\xff\xff\xff"
    cooperative.on_assignment(partitions, 7)
    assert cooperative.user_data(frozenset()) == b"\x00\x00\x00\x07"


@given(st.binary(max_size=60))
def test_user_data_that_cannot_be_read_counts_as_nothing(data: bytes) -> None:
    partitions, generation = read_previous(data)
    assert isinstance(generation, int)
    assert all(isinstance(each, TopicPartition) for each in partitions)


def test_strategies_by_name_class_and_instance() -> None:
    class Own(Assignor):
        name = "own"

        def assign(self, layout: TopicLayout, members: Mapping[str, MemberSubscription]) -> Plan:
            return {}

    chosen = choose_assignors(["range", "org.apache.kafka.clients.consumer.StickyAssignor", Own])
    assert [assignor.name for assignor in chosen] == ["range", "sticky", "own"]
    assert choose_assignors([chosen[2]])[0] is chosen[2]


@pytest.mark.parametrize(
    ("strategy", "text"),
    [(["cooperative-stick"], "did you mean cooperative-sticky"), ([], "no assignor"), ([3], "is not an assignor")],
)
def test_strategies_that_are_none(strategy: list[object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        choose_assignors(strategy)
    with pytest.raises(ConfigError, match="twice"):
        choose_assignors(["range", "range"])
