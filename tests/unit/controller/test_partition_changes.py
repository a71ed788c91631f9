"""What happens to one partition when brokers go, stop, come back, or its leader asks for another ISR."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.controller.elections import Rules
from tidelog.controller.image import NO_LEADER, BrokerInfo, LeaderRecoveryState, PartitionState
from tidelog.controller.partition_changes import (
    after_election,
    after_registration,
    check_isr_change,
    conclude,
    in_controlled_shutdown,
    original_replicas,
    reassigned,
    reconsidered,
    with_isr,
    without_brokers,
)
from tidelog.controller.requests import ElectionType, IsrChange, IsrMember
from tidelog.protocol import ErrorCode, KafkaError

RECOVERED, RECOVERING = LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING


def partition(
    replicas: tuple[int, ...], isr: tuple[int, ...], leader: int, elr: tuple[int, ...] = ()
) -> PartitionState:
    return PartitionState(replicas, isr, leader, leader_epoch=5, partition_epoch=8, elr=elr)


def rules(*active: int, leaving: tuple[int, ...] = (), min_isr: int = 1, unclean: bool = False) -> Rules:
    return Rules(active, (*active, *leaving), min_isr, unclean)


def epochs(state: PartitionState) -> tuple[int, int]:
    return state.leader_epoch, state.partition_epoch


# Fencing


def test_a_fenced_leader_hands_over_and_leaves_the_isr() -> None:
    state = without_brokers(partition((1, 2, 3), (1, 2, 3), 1), {1}, rules(2, 3, min_isr=2))
    assert (state.leader, state.isr, state.elr, epochs(state)) == (2, (2, 3), (), (6, 9))


def test_a_fenced_follower_leaves_the_isr_under_the_same_leader_epoch() -> None:
    state = without_brokers(partition((1, 2, 3), (1, 2, 3), 1), {3}, rules(1, 2, min_isr=2))
    assert (state.leader, state.isr, state.elr, epochs(state)) == (1, (1, 2), (), (5, 9))


def test_who_leaves_an_isr_below_its_minimum_is_eligible() -> None:
    state = without_brokers(partition((1, 2, 3), (1, 2), 1), {1}, rules(2, 3, min_isr=2))
    assert (state.leader, state.isr, state.elr, epochs(state)) == (2, (2,), (1,), (6, 9))
    state = without_brokers(state, {2}, rules(3, min_isr=2))
    assert (state.leader, state.isr, state.elr, epochs(state)) == (NO_LEADER, (), (1, 2), (7, 10))


def test_the_minimum_is_never_more_than_there_are_replicas() -> None:
    state = without_brokers(partition((1, 2), (1, 2), 1), {2}, rules(1, min_isr=3))
    assert (state.isr, state.elr) == ((1,), (2,))
    assert with_isr(state, (1, 2), RECOVERED, rules(1, 2, min_isr=3), sender=1).elr == ()


def test_a_leader_from_the_elr_that_may_commit_alone_ends_the_elr() -> None:
    """The others will lack what it commits, so they must not be elected after it."""
    state = partition((1, 2, 3), (), NO_LEADER, elr=(2, 3))
    after = reconsidered(state, rules(2, 3, min_isr=1))
    assert (after.leader, after.isr, after.elr, epochs(after)) == (2, (2,), (), (6, 9))
    after = without_brokers(after, {2}, rules(3, min_isr=1))
    assert (after.leader, after.isr, after.elr) == (NO_LEADER, (), (2,))


def test_an_eligible_replica_leads_when_the_last_in_sync_is_fenced() -> None:
    state = without_brokers(partition((1, 2, 3), (1,), 1, elr=(3,)), {1}, rules(2, 3, min_isr=2))
    assert (state.leader, state.isr, state.elr, epochs(state)) == (3, (3,), (1,), (6, 9))


def test_the_last_in_sync_stays_eligible_and_comes_back() -> None:
    state = without_brokers(partition((1, 2), (1,), 1), {1}, rules(2))
    assert (state.leader, state.isr, state.elr, epochs(state)) == (NO_LEADER, (), (1,), (6, 9))
    back = after_registration(state, 1, rules(1, 2), clean_shutdown=True)
    assert (back.leader, back.isr, back.elr, epochs(back)) == (1, (1,), (), (7, 10))


def test_several_brokers_are_fenced_by_one_election() -> None:
    state = without_brokers(partition((1, 2, 3), (1, 2, 3), 1), {1, 2}, rules(3, min_isr=2))
    assert (state.leader, state.isr, state.elr, epochs(state)) == (3, (3,), (1, 2), (6, 9))


def test_fencing_leaves_partitions_alone_in_which_the_broker_is_not_in_sync() -> None:
    state = partition((1, 2, 3), (1,), 1, elr=(3,))
    assert without_brokers(state, {2, 3}, rules(1, min_isr=2)) is state


def test_fencing_elects_uncleanly_only_where_that_is_allowed() -> None:
    state = without_brokers(partition((1, 2), (1,), 1), {1}, rules(2, unclean=True))
    assert (state.leader, state.isr, state.elr, state.recovery) == (2, (2,), (), RECOVERING)


# Controlled shutdown


def test_a_broker_that_shuts_down_hands_over_and_leaves_the_isr() -> None:
    state = in_controlled_shutdown(partition((1, 2, 3), (1, 2, 3), 1), 1, rules(2, 3, leaving=(1,), min_isr=2))
    assert (state.leader, state.isr, state.elr, epochs(state)) == (2, (2, 3), (), (6, 9))
    follower = in_controlled_shutdown(partition((2, 1), (2, 1), 2), 1, rules(2, leaving=(1,), min_isr=2))
    assert (follower.leader, follower.isr, follower.elr, epochs(follower)) == (2, (2,), (1,), (5, 9))


@pytest.mark.parametrize("unclean", [False, True])
def test_it_leads_on_what_nobody_else_can(unclean: bool) -> None:
    state = partition((1, 2), (1,), 1)
    assert in_controlled_shutdown(state, 1, rules(2, leaving=(1,), unclean=unclean)) is state


def test_nothing_is_handed_to_a_broker_that_shuts_down_too() -> None:
    state = in_controlled_shutdown(partition((1, 2, 3), (1, 2, 3), 1), 1, rules(3, leaving=(1, 2)))
    assert (state.leader, state.isr) == (3, (2, 3))
    both = partition((1, 2), (1, 2), 1)
    assert in_controlled_shutdown(both, 1, rules(leaving=(1, 2))) is both


def test_it_hands_over_to_an_eligible_replica() -> None:
    state = in_controlled_shutdown(partition((1, 2), (1,), 1, elr=(2,)), 1, rules(2, leaving=(1,), min_isr=2))
    assert (state.leader, state.isr, state.elr) == (2, (2,), (1,))


def test_it_hands_over_as_soon_as_another_replica_has_caught_up() -> None:
    state = with_isr(partition((1, 2), (1,), 1), (1, 2), RECOVERED, rules(2, leaving=(1,), min_isr=2), sender=1)
    assert (state.leader, state.isr, state.elr, epochs(state)) == (2, (2,), (1,), (6, 9))


# Registration


@pytest.mark.parametrize("clean", [True, False])
def test_the_only_replica_leads_again_under_a_new_epoch(clean: bool) -> None:
    state = after_registration(partition((1,), (1,), 1), 1, rules(1), clean_shutdown=clean)
    assert (state.leader, state.isr, epochs(state)) == (1, (1,), (6, 9))


def test_a_partition_without_the_broker_is_left_alone() -> None:
    state = partition((2, 3), (2, 3), 2)
    assert after_registration(state, 1, rules(1, 2, 3), clean_shutdown=False) is state


def test_a_follower_that_stopped_cleanly_changes_nothing() -> None:
    state = partition((2, 1), (2, 1), 2)
    assert after_registration(state, 1, rules(1, 2), clean_shutdown=True) is state


def test_a_follower_that_crashed_leaves_isr_and_elr() -> None:
    two = rules(1, 2, min_isr=2)
    state = after_registration(partition((2, 1), (2, 1), 2), 1, two, clean_shutdown=False)
    assert (state.isr, state.elr, state.leader, epochs(state)) == ((2,), (), 2, (5, 9))
    state = after_registration(partition((2, 1), (2,), 2, elr=(1,)), 1, two, clean_shutdown=False)
    assert (state.isr, state.elr) == ((2,), ())


def test_a_leader_that_crashed_hands_over_to_a_replica_in_sync() -> None:
    state = after_registration(partition((1, 2), (1, 2), 1), 1, rules(1, 2), clean_shutdown=False)
    assert (state.leader, state.isr, epochs(state)) == (2, (2,), (6, 9))


def test_a_leader_that_crashed_waits_for_the_replica_that_has_everything() -> None:
    fenced = without_brokers(partition((1, 2), (1, 2), 1), {1, 2}, rules(min_isr=2))
    state = after_registration(fenced, 1, rules(1, min_isr=2), clean_shutdown=False)
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (), (2,))
    back = after_registration(state, 2, rules(1, 2, min_isr=2), clean_shutdown=True)
    assert (back.leader, back.isr, back.elr) == (2, (2,), ())


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_the_last_leader_leads_again_when_all_have_crashed(first: int, second: int) -> None:
    """Whoever comes back: others may lack what it had, and it lacks nothing that they had (KIP-966)."""
    fenced = without_brokers(partition((1, 2), (1, 2), 1), {1, 2}, rules(min_isr=2))
    assert (fenced.leader, fenced.last_leader) == (NO_LEADER, 1)
    one_back = after_registration(fenced, first, rules(first, min_isr=2), clean_shutdown=False)
    assert (one_back.leader, one_back.isr, one_back.elr) == (NO_LEADER, (), (second,))
    state = after_registration(one_back, second, rules(1, 2, min_isr=2), clean_shutdown=False)
    assert (state.leader, state.isr, state.elr, state.recovery) == (1, (1,), (), RECOVERED)
    assert state.last_leader == NO_LEADER


def test_a_last_leader_with_new_disks_does_not_lead_again() -> None:
    fenced = without_brokers(partition((1, 2), (1, 2), 1), {1, 2}, rules(min_isr=2))
    back = after_registration(fenced, 1, rules(1, min_isr=2), clean_shutdown=False, same_disks=False)
    assert (back.leader, back.elr, back.last_leader) == (NO_LEADER, (2,), NO_LEADER)
    state = after_registration(back, 2, rules(1, 2, min_isr=2), clean_shutdown=False)
    assert (state.leader, state.isr) == (2, (2,))


def test_a_leader_that_restarts_with_new_disks_is_forgotten() -> None:
    state = after_registration(
        partition((1, 2), (1,), 1, elr=(2,)), 1, rules(1, min_isr=2), clean_shutdown=False, same_disks=False
    )
    assert (state.leader, state.elr, state.last_leader) == (NO_LEADER, (2,), NO_LEADER)


def test_the_last_eligible_leads_after_a_crash_where_the_last_leader_is_not_known() -> None:
    state = after_registration(partition((1, 2), (), NO_LEADER, elr=(2,)), 2, rules(1, 2), clean_shutdown=False)
    assert (state.leader, state.isr) == (2, (2,))


def test_a_broker_with_new_disks_has_nothing_to_lead_with() -> None:
    state = after_registration(partition((1, 2), (1,), 1), 1, rules(1, 2), clean_shutdown=False, same_disks=False)
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (), ())
    unclean = rules(1, 2, unclean=True)
    state = after_registration(state, 2, unclean, clean_shutdown=True)
    assert (state.recovery, state.isr) == (RECOVERING, (state.leader,))


def test_a_leaderless_partition_gets_its_leader_back() -> None:
    state = after_registration(partition((1, 2), (1,), NO_LEADER), 1, rules(1), clean_shutdown=True)
    assert (state.leader, epochs(state)) == (1, (6, 9))


# The leader's wishes


def test_the_isr_grows_and_shrinks_under_the_same_leader_epoch() -> None:
    three = rules(1, 2, 3, min_isr=2)
    state = with_isr(partition((1, 2, 3), (1, 2), 1), (1, 2, 3), RECOVERED, three, sender=1)
    assert (state.isr, epochs(state)) == ((1, 2, 3), (5, 9))
    state = with_isr(state, (1,), RECOVERED, three, sender=1)
    assert (state.isr, state.elr, epochs(state)) == ((1,), (2, 3), (5, 10))
    state = with_isr(state, (1, 3), RECOVERED, three, sender=1)
    assert (state.isr, state.elr, epochs(state)) == ((1, 3), (), (5, 11))


def test_asking_for_what_is_changes_nothing() -> None:
    state = partition((1, 2, 3), (1, 2), 1)
    assert with_isr(state, (1, 2), RECOVERED, rules(1, 2), sender=1) is state


def test_a_leader_that_recovered_says_so() -> None:
    state = replace(partition((1, 2), (1,), 1), recovery=RECOVERING)
    recovered = with_isr(state, (1,), RECOVERED, rules(1, 2), sender=1)
    assert (recovered.recovery, epochs(recovered)) == (RECOVERED, (5, 9))


def test_a_lower_minimum_ends_the_elr() -> None:
    state = partition((1, 2), (1,), 1, elr=(2,))
    assert reconsidered(state, rules(1, 2, min_isr=2)) is state
    assert reconsidered(state, rules(1, 2, min_isr=1)).elr == ()


def test_allowing_unclean_elections_brings_a_partition_back() -> None:
    state = partition((1, 2), (), NO_LEADER, elr=(1,))
    elected = reconsidered(state, rules(2, unclean=True))
    assert (elected.leader, elected.isr, elected.elr, epochs(elected)) == (2, (2,), (), (6, 9))


# Elections that somebody asks for


def test_the_preferred_leader_takes_over_from_a_leader_that_is_there() -> None:
    state = after_election(partition((1, 2), (2, 1), 2), ElectionType.PREFERRED, rules(1, 2))
    assert (state.leader, state.isr, epochs(state)) == (1, (2, 1), (6, 9))


def test_an_unclean_election_takes_any_replica_but_an_eligible_one_first() -> None:
    state = after_election(partition((1, 2, 3), (), NO_LEADER, elr=(1,)), ElectionType.UNCLEAN, rules(3))
    assert (state.leader, state.isr, state.elr, state.recovery) == (3, (3,), (), RECOVERING)
    state = after_election(partition((1, 2, 3), (), NO_LEADER, elr=(3,)), ElectionType.UNCLEAN, rules(1, 3))
    assert (state.leader, state.isr, state.recovery) == (3, (3,), RECOVERED)


@pytest.mark.parametrize(
    ("state", "election_type", "active", "code"),
    [
        (partition((1, 2), (1, 2), 1), ElectionType.PREFERRED, (1, 2), ErrorCode.ELECTION_NOT_NEEDED),
        (partition((1, 2), (1, 2), 2), ElectionType.UNCLEAN, (1, 2), ErrorCode.ELECTION_NOT_NEEDED),
        (partition((1, 2), (2,), 2), ElectionType.PREFERRED, (1, 2), ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (partition((1, 2), (1, 2), 2), ElectionType.PREFERRED, (2,), ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (
            partition((1, 2), (), NO_LEADER, elr=(1,)),
            ElectionType.PREFERRED,
            (2,),
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ),
        (
            partition((1, 2), (), NO_LEADER, elr=(1,)),
            ElectionType.UNCLEAN,
            (3,),
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ),
    ],
)
def test_elections_without_an_outcome(
    state: PartitionState, election_type: ElectionType, active: tuple[int, ...], code: ErrorCode
) -> None:
    # A preferred election is never unclean, whatever the topic allows.
    with pytest.raises(KafkaError) as caught:
        after_election(state, election_type, rules(*active, unclean=True))
    assert caught.value.code is code


# Reassignment


def moved(state: PartitionState) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return state.replicas, state.adding, state.removing


ALL = rules(1, 2, 3, 4, 5, 6, min_isr=2)


def test_a_move_begins_with_old_and_new_replicas_and_ends_in_one_step() -> None:
    state = reassigned(partition((1, 2, 3), (1, 2, 3), 1), (4, 5, 3), ALL)
    assert (moved(state), state.isr, epochs(state)) == (((4, 5, 3, 1, 2), (4, 5), (1, 2)), (1, 2, 3), (5, 9))
    state = with_isr(state, (1, 2, 3, 4), RECOVERED, ALL, sender=1)
    assert (moved(state), epochs(state)) == (((4, 5, 3, 1, 2), (4, 5), (1, 2)), (5, 10))
    state = with_isr(state, (1, 2, 3, 4, 5), RECOVERED, ALL, sender=1)
    assert (moved(state), state.isr, state.elr, state.leader) == (((4, 5, 3), (), ()), (3, 4, 5), (), 4)
    assert epochs(state) == (6, 11)


def test_a_leader_that_stays_gets_a_new_epoch_when_replicas_leave() -> None:
    state = reassigned(partition((1, 2), (1, 2), 1), (1, 3), ALL)
    state = with_isr(state, (1, 2, 3), RECOVERED, ALL, sender=1)
    assert (moved(state), state.isr, state.leader, epochs(state)) == (((1, 3), (), ()), (1, 3), 1, (6, 10))


def test_the_replication_factor_grows_once_the_new_replica_is_in_sync() -> None:
    state = reassigned(partition((1,), (1,), 1), (1, 2, 3), ALL)
    assert moved(state) == ((1, 2, 3), (2, 3), ())
    state = with_isr(state, (1, 2, 3), RECOVERED, ALL, sender=1)
    assert (moved(state), epochs(state)) == (((1, 2, 3), (), ()), (5, 10))


def test_the_replication_factor_shrinks_at_once_if_the_rest_is_in_sync() -> None:
    state = reassigned(partition((1, 2, 3), (1, 2, 3), 3), (2, 1), ALL)
    assert (moved(state), state.isr, state.leader, epochs(state)) == (((2, 1), (), ()), (1, 2), 2, (6, 9))
    waiting = reassigned(partition((1, 2, 3), (1, 3), 3), (2, 1), ALL)
    assert (moved(waiting), waiting.isr, waiting.leader) == (((2, 1, 3), (), (3,)), (1, 3), 3)
    done = with_isr(waiting, (1, 2, 3), RECOVERED, ALL, sender=1)
    assert (moved(done), done.leader) == (((2, 1), (), ()), 2)


def test_another_order_of_the_same_replicas_is_taken_at_once() -> None:
    state = reassigned(partition((1, 2, 3), (1, 2), 1), (3, 2, 1), ALL)
    assert (moved(state), state.leader, epochs(state)) == (((3, 2, 1), (), ()), 1, (5, 9))
    assert reassigned(state, (3, 2, 1), ALL) is state


def test_the_same_target_again_changes_nothing() -> None:
    state = reassigned(partition((1, 2), (1, 2), 1), (3, 4), ALL)
    assert reassigned(state, (3, 4), ALL) is state


def test_a_cancelled_move_leads_back_to_where_it_began() -> None:
    state = reassigned(partition((1, 2), (1, 2), 1), (3, 4), ALL)
    state = with_isr(state, (1, 2, 3), RECOVERED, ALL, sender=1)
    back = reassigned(state, original_replicas(state), ALL)
    assert (moved(back), back.isr, back.leader, epochs(back)) == (((1, 2), (), ()), (1, 2), 1, (6, 11))


def test_cancelling_takes_the_leadership_back() -> None:
    state = replace(partition((3, 1, 2), (3, 1), 3), adding=(3,), removing=(1, 2))
    back = reassigned(state, original_replicas(state), ALL)
    assert (moved(back), back.isr, back.elr, back.leader) == (((1, 2), (), ()), (1,), (), 1)


def test_another_target_starts_from_the_original_replicas() -> None:
    state = reassigned(partition((1, 2), (1, 2), 1), (3, 4), ALL)
    state = with_isr(state, (1, 2, 3), RECOVERED, ALL, sender=1)
    state = reassigned(state, (1, 5), ALL)
    assert (moved(state), state.isr, epochs(state)) == (((1, 5, 2), (5,), (2,)), (1, 2), (6, 11))
    assert original_replicas(state) == (1, 2)


@pytest.mark.parametrize(("isr", "elr", "leader"), [((3,), (), 3), ((), (3,), NO_LEADER)])
def test_the_only_replica_with_all_records_is_not_let_go(
    isr: tuple[int, ...], elr: tuple[int, ...], leader: int
) -> None:
    state = replace(partition((3, 1), isr, leader, elr), adding=(3,), removing=(1,))
    for target in ((1,), (1, 4)):
        with pytest.raises(KafkaError) as caught:
            reassigned(state, target, ALL)
        assert caught.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    unclean = reassigned(state, (1,), replace(ALL, unclean=True))
    assert (moved(unclean), unclean.leader, unclean.recovery) == (((1,), (), ()), 1, RECOVERING)


def test_an_eligible_replica_may_take_over_from_one_that_is_let_go() -> None:
    state = replace(partition((3, 1), (3,), 3, elr=(1,)), adding=(3,), removing=(1,))
    back = reassigned(state, (1,), ALL)
    assert (moved(back), back.isr, back.leader, back.recovery) == (((1,), (), ()), (1,), 1, RECOVERED)
    with pytest.raises(KafkaError):
        reassigned(state, (1,), rules(3, min_isr=2))


def test_a_move_ends_only_when_somebody_can_lead() -> None:
    state = replace(partition((2, 1), (1,), 1), adding=(2,), removing=(1,))
    done = with_isr(state, (1, 2), RECOVERED, rules(1, 2), sender=1)
    assert (moved(done), done.leader) == (((2,), (), ()), 2)
    leaving = conclude(state, replace(state, isr=(1, 2)), rules(1, leaving=(2,)))
    assert (moved(leaving), leaving.leader) == (((2, 1), (2,), (1,)), 1)


def test_a_move_outlives_the_death_of_a_new_replica() -> None:
    state = reassigned(partition((1, 2), (1, 2), 1), (3, 4), ALL)
    state = without_brokers(with_isr(state, (1, 2, 3), RECOVERED, ALL, sender=1), {3}, rules(1, 2, 4, min_isr=2))
    assert (moved(state), state.isr) == (((3, 4, 1, 2), (3, 4), (1, 2)), (1, 2))


# Checks of AlterPartition

BROKERS = {n: BrokerInfo(n, 70 + n, (Endpoint(PLAINTEXT, "host", 9090 + n),)) for n in (1, 2, 3)}
BROKERS[3] = replace(BROKERS[3], fenced=True)
BROKERS[4] = BrokerInfo(4, 74, (Endpoint(PLAINTEXT, "host", 9094),), in_controlled_shutdown=True)
STATE = partition((1, 2, 3, 4, 5), (1, 2), 1)


def change(
    *members: int | tuple[int, int],
    leader_epoch: int = 5,
    partition_epoch: int = 8,
    recovery: LeaderRecoveryState = RECOVERED,
) -> IsrChange:
    isr = [IsrMember(each) if isinstance(each, int) else IsrMember(*each) for each in members]
    return IsrChange(uuid.UUID(int=1), 0, leader_epoch, partition_epoch, isr, recovery)


def refusal(asked: IsrChange, state: PartitionState = STATE, sender: int = 1) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        check_isr_change(state, asked, sender, BROKERS)
    return caught.value.code


def test_a_leader_may_ask_for_live_replicas_with_their_epochs() -> None:
    check_isr_change(STATE, change((1, 71), (2, 72)), 1, BROKERS)
    check_isr_change(STATE, change(1, 2), 1, BROKERS)


# Each row is wrong in all ways of the rows after it, too, so the rows show the order.
WRONG = [
    (change(9, leader_epoch=6, partition_epoch=7), 2, ErrorCode.NOT_CONTROLLER),
    (change(9, leader_epoch=4, partition_epoch=9), 2, ErrorCode.NOT_CONTROLLER),
    (change(9, leader_epoch=4, partition_epoch=7), 2, ErrorCode.FENCED_LEADER_EPOCH),
    (change(9, partition_epoch=7), 2, ErrorCode.INVALID_REQUEST),
    (change(9, partition_epoch=7), 1, ErrorCode.INVALID_UPDATE_VERSION),
    (change(1, 9, (2, 60)), 1, ErrorCode.INVALID_REQUEST),
    (change(1, 1, (2, 60)), 1, ErrorCode.INVALID_REQUEST),
    (change(), 1, ErrorCode.INVALID_REQUEST),
    (change(2, 5), 1, ErrorCode.INVALID_REQUEST),
    (change(1, (2, 60), recovery=RECOVERING), 1, ErrorCode.INVALID_REQUEST),
    (change((1, 60), recovery=RECOVERING), 1, ErrorCode.INVALID_REQUEST),
    (change(1, (2, 60)), 1, ErrorCode.INELIGIBLE_REPLICA),
    (change((2, 60)), 1, ErrorCode.INELIGIBLE_REPLICA),
    (change(1, (3, 73)), 1, ErrorCode.INELIGIBLE_REPLICA),
    (change(1, (4, 74)), 1, ErrorCode.INELIGIBLE_REPLICA),
    (change(1, 5), 1, ErrorCode.INELIGIBLE_REPLICA),
]


@pytest.mark.parametrize(("asked", "sender", "code"), WRONG)
def test_checks_and_their_order(asked: IsrChange, sender: int, code: ErrorCode) -> None:
    assert refusal(asked, sender=sender) is code


def test_a_recovering_leader_stays_alone_until_it_has_recovered() -> None:
    state = replace(STATE, isr=(1,), recovery=RECOVERING)
    assert refusal(change(1, 2, recovery=RECOVERING), state) is ErrorCode.INVALID_REQUEST
    check_isr_change(state, change(1, recovery=RECOVERING), 1, BROKERS)
    check_isr_change(state, change(1, 2), 1, BROKERS)


def test_a_leader_that_shuts_down_may_still_let_others_in() -> None:
    state = replace(STATE, isr=(4,), leader=4)
    check_isr_change(state, change((4, 74), (2, 72)), 4, BROKERS)


def test_a_follower_may_only_leave_an_isr() -> None:
    """Its disk has failed or is full, so it is not eligible either. Whoever leads, the leader epoch stays."""
    check_isr_change(STATE, change((1, 71)), 2, BROKERS)
    after = with_isr(STATE, (1,), RECOVERED, rules(1, 2, min_isr=2), sender=2)
    assert (after.leader, after.isr, after.elr) == (1, (1,), ())
    assert epochs(after) == (5, 9)
    for members in (((2, 72),), ((1, 71), (2, 72)), ((1, 71), (3, 73))):
        assert refusal(change(*members), sender=2) is ErrorCode.INVALID_REQUEST
    outside = replace(STATE, isr=(1,))
    assert refusal(change((1, 71)), outside, sender=2) is ErrorCode.INVALID_REQUEST
    assert refusal(change((1, 71), leader_epoch=4), sender=2) is ErrorCode.FENCED_LEADER_EPOCH


def test_a_leader_may_resign_to_those_who_are_in_sync() -> None:
    """Its disk has failed, so it is not eligible either, however few are left."""
    check_isr_change(STATE, change((2, 72)), 1, BROKERS)
    after = with_isr(STATE, (2,), RECOVERED, rules(1, 2, min_isr=2), sender=1)
    assert (after.leader, after.isr, after.elr) == (2, (2,), ())
    assert epochs(after) == (6, 9)
    nobody = partition((1, 4), (1, 4), 1)
    assert refusal(change((4, 74)), nobody) is ErrorCode.INELIGIBLE_REPLICA
