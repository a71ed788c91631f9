"""The order of election."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.controller.elections import Rules, elect
from tidelog.controller.image import NO_LEADER, LeaderRecoveryState, PartitionState


def partition(
    replicas: tuple[int, ...], isr: tuple[int, ...], leader: int, elr: tuple[int, ...] = ()
) -> PartitionState:
    return PartitionState(replicas, isr, leader, leader_epoch=5, partition_epoch=8, elr=elr)


def rules(*active: int, leaving: tuple[int, ...] = (), unclean: bool = False) -> Rules:
    return Rules(active, (*active, *leaving), unclean=unclean)


def test_a_valid_leader_is_kept() -> None:
    state = partition((1, 2, 3), (3, 2, 1), 2)
    assert elect(state, rules(1, 2, 3)) is state


def test_the_first_assigned_replica_in_sync_and_alive_follows() -> None:
    elected = elect(partition((1, 2, 3), (3, 2), 1), rules(2, 3))
    assert (elected.leader, elected.isr) == (2, (3, 2))
    assert elect(partition((1, 2, 3), (3, 2), 1), rules(1, 3)).leader == 3


def test_a_preferred_election_tries_the_first_replica_before_the_leader() -> None:
    state = partition((1, 2, 3), (3, 2, 1), 2)
    assert elect(state, rules(1, 2, 3), preferred=True).leader == 1
    assert elect(state, rules(2, 3), preferred=True) is state
    out_of_sync = partition((1, 2, 3), (3, 2), 2)
    assert elect(out_of_sync, rules(1, 2, 3), preferred=True) is out_of_sync
    assert elect(partition((1, 2), (2, 1), 1), rules(2), preferred=True).leader == 2


def test_an_eligible_replica_leads_when_the_isr_is_empty() -> None:
    elected = elect(partition((1, 2, 3), (), NO_LEADER, elr=(3, 2)), rules(2, 3))
    assert (elected.leader, elected.isr, elected.elr) == (2, (2,), (3,))
    assert elected.recovery is LeaderRecoveryState.RECOVERED


def test_an_eligible_replica_waits_while_the_isr_has_a_member() -> None:
    state = partition((1, 2), (1,), NO_LEADER, elr=(2,))
    assert elect(state, rules(2)) is state


def test_a_replica_out_of_sync_leads_only_where_that_is_allowed() -> None:
    state = partition((1, 2, 3), (1,), 1, elr=())
    offline = elect(state, rules(2, 3))
    assert (offline.leader, offline.isr) == (NO_LEADER, (1,))
    elected = elect(state, rules(2, 3, unclean=True))
    assert (elected.leader, elected.isr) == (2, (2,))
    assert elected.recovery is LeaderRecoveryState.RECOVERING


def test_without_a_candidate_a_leaderless_partition_stays_as_it_is() -> None:
    state = partition((1, 2), (1,), NO_LEADER)
    assert elect(state, rules(2)) is state
    assert elect(state, rules(3, unclean=True)) is state


def test_a_broker_that_shuts_down_leads_on_but_is_not_elected() -> None:
    state = partition((1, 2), (1,), 1)
    assert elect(state, rules(2, leaving=(1,), unclean=True)) is state
    assert elect(partition((1, 2), (1,), NO_LEADER), rules(2, leaving=(1,))).leader == NO_LEADER
    assert elect(partition((1, 2), (1, 2), 2), rules(2, leaving=(1,)), preferred=True).leader == 2


REPLICAS = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(tuple)


@given(st.data(), REPLICAS, st.sets(st.integers(0, 5)), st.booleans(), st.booleans())
def test_an_election_adds_nobody_to_an_isr(
    data: st.DataObject, replicas: tuple[int, ...], live: set[int], unclean: bool, preferred: bool
) -> None:
    isr = tuple(data.draw(st.lists(st.sampled_from(replicas), unique=True)))
    elr = tuple(node_id for node_id in replicas if node_id not in isr and data.draw(st.booleans()))
    state = partition(replicas, isr, data.draw(st.sampled_from([NO_LEADER, *isr])), elr)
    elected = elect(state, rules(*live, unclean=unclean), preferred=preferred)
    assert (elected is state) == (elected.leader == state.leader)
    assert set(elected.isr).isdisjoint(elected.elr)
    if elected.leader != NO_LEADER:
        assert elected.leader in live
        assert elected.leader in elected.isr
    if elected.recovery is LeaderRecoveryState.RECOVERED:
        assert set(elected.isr) <= set(state.isr or state.elr)
        assert elected.leader in (NO_LEADER, *(state.isr or state.elr))
    else:
        assert unclean
        assert elected.isr == (elected.leader,)
