"""Where the replicas of new partitions go: spread over brokers and racks, away from brokers that are gone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.controller.image import BrokerInfo
from tidelog.controller.placement import place_replicas
from tidelog.protocol import ErrorCode, KafkaError


def brokers(racks: str, *, fenced: str = "", leaving: str = "") -> list[BrokerInfo]:
    """Brokers 0, 1, ... on racks of these letters ("-": none); those at the marked places are not active."""
    return [
        BrokerInfo(
            node_id,
            1,
            (Endpoint(PLAINTEXT, "host", 9092),),
            rack=None if rack == "-" else rack,
            fenced=str(node_id) in fenced,
            in_controlled_shutdown=str(node_id) in leaving,
        )
        for node_id, rack in enumerate(racks)
    ]


@pytest.mark.parametrize("first", [0, 1, 7, 2**127])
@pytest.mark.parametrize("racks", ["------", "AABBCC", "ABABAB", "AABBC-"])
def test_leaders_and_replicas_are_spread_evenly(racks: str, first: int) -> None:
    placed = place_replicas(brokers(racks), 60, 3, first)
    assert Counter(replicas[0] for replicas in placed) == dict.fromkeys(range(6), 10)
    assert Counter(node_id for replicas in placed for node_id in replicas) == dict.fromkeys(range(6), 30)


@pytest.mark.parametrize("racks", ["----", "ABCD", "AABB"])
def test_the_followers_of_one_leader_are_all_that_may_be(racks: str) -> None:
    for first in (0, 1, 7, 2**127):
        placed = place_replicas(brokers(racks), 12, 2, first)
        followers = {replicas[1] for replicas in placed if replicas[0] == 0}
        assert followers == {n for n in range(1, 4) if racks[n] != racks[0] or racks[0] == "-"}


def test_small_racks_are_used_evenly_within() -> None:
    placed = place_replicas(brokers("AAAABB"), 360, 2, 0)
    held = Counter(node_id for replicas in placed for node_id in replicas)
    assert held[4] == held[5] == 180
    assert max(held[n] for n in range(4)) - min(held[n] for n in range(4)) <= 2


def test_one_broker_without_a_rack_makes_racks_meaningless() -> None:
    placed = place_replicas(brokers("AAB-"), 24, 2, 0)
    assert (0, 1) in placed


def test_brokers_that_are_not_active_get_nothing_while_others_suffice() -> None:
    placed = place_replicas(brokers("AABB", fenced="1", leaving="2"), 8, 2, 0)
    assert {tuple(sorted(replicas)) for replicas in placed} == {(0, 3)}
    assert Counter(replicas[0] for replicas in placed) == {0: 4, 3: 4}


def test_a_topic_can_be_created_while_a_broker_restarts() -> None:
    placed = place_replicas(brokers("ABC", fenced="1"), 6, 3, 0)
    assert all(sorted(replicas) == [0, 1, 2] for replicas in placed)
    assert Counter(replicas[0] for replicas in placed) == {0: 3, 2: 3}
    assert all(replicas[2] == 1 for replicas in placed)


def test_of_those_that_are_not_active_all_get_their_share() -> None:
    placed = place_replicas(brokers("-----", fenced="34"), 10, 4, 0)
    assert Counter(replicas[3] for replicas in placed) == {3: 5, 4: 5}


@pytest.mark.parametrize(
    ("given_brokers", "factor"), [(brokers("---"), 4), (brokers("---"), 0), (brokers("--", fenced="0", leaving="1"), 1)]
)
def test_impossible_replication_factors(given_brokers: list[BrokerInfo], factor: int) -> None:
    with pytest.raises(KafkaError) as caught:
        place_replicas(given_brokers, 1, factor, 0)
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


@given(
    st.text("ABC", min_size=1, max_size=7),
    st.integers(1, 30),
    st.integers(0, 2**128),
    st.data(),
    st.sets(st.integers(0, 6)),
)
def test_replicas_are_distinct_and_on_as_many_racks_as_there_are(
    racks: str, partitions: int, first: int, data: st.DataObject, fenced: set[int]
) -> None:
    cluster = brokers(racks, fenced="".join(map(str, fenced - {0})))
    factor = data.draw(st.integers(1, len(racks)))
    placed = place_replicas(cluster, partitions, factor, first)
    active = {broker.node_id for broker in cluster if broker.is_active}
    usable = active if factor <= len(active) else set(range(len(racks)))
    leaders = Counter(replicas[0] for replicas in placed)
    assert len(placed) == partitions
    assert set(leaders) <= active
    assert max(leaders.values()) - min(leaders[node_id] for node_id in active) <= 1
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert set(replicas) <= usable
        assert set(replicas) >= active or factor <= len(active)
        if factor <= len(active):
            assert len({racks[n] for n in replicas}) == min(factor, len({racks[n] for n in active}))
