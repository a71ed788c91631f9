"""The order of election, and what a broker's start does to the partitions it has a part in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.controller.elections import after_registration, elect
from tidelog.controller.image import NO_LEADER, LeaderRecoveryState, PartitionState


def partition(
    replicas: tuple[int, ...], isr: tuple[int, ...], leader: int, elr: tuple[int, ...] = ()
) -> PartitionState:
    return PartitionState(replicas, isr, leader, leader_epoch=5, partition_epoch=8, elr=elr)


def test_a_valid_leader_is_kept() -> None:
    state = partition((1, 2, 3), (3, 2, 1), 2)
    assert elect(state, {1, 2, 3}) is state


def test_the_first_assigned_replica_in_sync_and_alive_follows() -> None:
    elected = elect(partition((1, 2, 3), (3, 2), 1), {2, 3})
    assert (elected.leader, elected.isr, elected.leader_epoch, elected.partition_epoch) == (2, (3, 2), 6, 9)
    assert elect(partition((1, 2, 3), (3, 2), 1), {1, 3}).leader == 3


def test_an_eligible_replica_leads_when_the_isr_is_empty() -> None:
    elected = elect(partition((1, 2, 3), (), NO_LEADER, elr=(3, 2)), {2, 3})
    assert (elected.leader, elected.isr, elected.elr) == (2, (2,), (3,))
    assert elected.recovery is LeaderRecoveryState.RECOVERED


def test_a_replica_out_of_sync_leads_only_where_that_is_allowed() -> None:
    state = partition((1, 2, 3), (1,), 1)
    offline = elect(state, {2, 3})
    assert (offline.leader, offline.isr, offline.leader_epoch) == (NO_LEADER, (1,), 6)
    elected = elect(state, {2, 3}, unclean=True)
    assert (elected.leader, elected.isr) == (2, (2,))
    assert elected.recovery is LeaderRecoveryState.RECOVERING


def test_without_a_candidate_a_leaderless_partition_stays_as_it_is() -> None:
    state = partition((1, 2), (1,), NO_LEADER)
    assert elect(state, {2}) is state
    assert elect(state, {3}, unclean=True) is state


REPLICAS = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(tuple)


@given(st.data(), REPLICAS, st.sets(st.integers(0, 5)), st.booleans())
def test_an_election_adds_nobody_to_an_isr_and_moves_epochs_forward(
    data: st.DataObject, replicas: tuple[int, ...], live: set[int], unclean: bool
) -> None:
    isr = tuple(data.draw(st.lists(st.sampled_from(replicas), unique=True)))
    state = partition(replicas, isr, data.draw(st.sampled_from([NO_LEADER, *isr])))
    elected = elect(state, live, unclean=unclean)
    if elected is not state:
        assert elected.partition_epoch == state.partition_epoch + 1
        assert elected.leader_epoch == state.leader_epoch + 1
        assert elected.leader != state.leader
    if elected.recovery is LeaderRecoveryState.RECOVERED:
        assert set(elected.isr) <= set(state.isr)
    if elected.leader != NO_LEADER:
        assert elected.leader in live
        assert elected.leader in elected.isr


@pytest.mark.parametrize("clean", [True, False])
def test_the_only_replica_leads_again_under_a_new_epoch(clean: bool) -> None:
    state = after_registration(partition((1,), (1,), 1), 1, {1}, clean_shutdown=clean)
    assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (1, (1,), 6, 9)


def test_a_partition_without_the_broker_is_left_alone() -> None:
    state = partition((2, 3), (2, 3), 2)
    assert after_registration(state, 1, {1, 2, 3}, clean_shutdown=False) is state


def test_a_follower_that_stopped_cleanly_changes_nothing() -> None:
    state = partition((2, 1), (2, 1), 2)
    assert after_registration(state, 1, {1, 2}, clean_shutdown=True) is state


def test_a_follower_that_crashed_leaves_isr_and_elr() -> None:
    state = after_registration(partition((2, 1), (2, 1), 2), 1, {1, 2}, clean_shutdown=False)
    assert (state.isr, state.leader, state.leader_epoch, state.partition_epoch) == ((2,), 2, 5, 9)
    state = after_registration(partition((2, 1), (2,), 2, elr=(1,)), 1, {1, 2}, clean_shutdown=False)
    assert (state.isr, state.elr) == ((2,), ())


def test_a_leader_that_crashed_hands_over_to_a_replica_in_sync() -> None:
    state = after_registration(partition((1, 2), (1, 2), 1), 1, {1, 2}, clean_shutdown=False)
    assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (2, (2,), 6, 9)


def test_a_leader_that_crashed_waits_for_the_replica_that_has_everything() -> None:
    state = after_registration(partition((1, 2), (1, 2), 1), 1, {1}, clean_shutdown=False)
    assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (NO_LEADER, (2,), 6, 9)


def test_a_leaderless_partition_gets_its_leader_back() -> None:
    state = after_registration(partition((1, 2), (1,), NO_LEADER), 1, {1}, clean_shutdown=True)
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (1, 6, 9)
