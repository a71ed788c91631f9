"""Who leads a partition: the order of election, and what a broker's registration changes.

What always holds: every change raises partition_epoch, a change of leader (to none too) raises leader_epoch; an
election never adds a member to an ISR, except that ISR = {leader} where the ISR was empty. Pure functions of states and
of the set of live brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from tidelog.controller.image import NO_LEADER, LeaderRecoveryState, PartitionState, TopicImage


def elect(state: PartitionState, live: Collection[int], *, unclean: bool = False) -> PartitionState:
    """The state with the leader it should have; the same object when nothing changes."""
    if state.leader in live and state.leader in state.isr:
        return state
    for node_id in state.replicas:
        if node_id in state.isr and node_id in live:
            return _with_leader(state, node_id)
    if not any(node_id in live for node_id in state.isr):
        # The ISR has nobody left to lead. A member of the ELR has all that was committed too (KIP-966).
        for node_id in state.replicas:
            if not state.isr and node_id in state.elr and node_id in live:
                elr = tuple(member for member in state.elr if member != node_id)
                return _with_leader(replace(state, isr=(node_id,), elr=elr), node_id)
        for node_id in state.replicas:
            if unclean and node_id in live:
                recovering = LeaderRecoveryState.RECOVERING
                return _with_leader(replace(state, isr=(node_id,), elr=(), recovery=recovering), node_id)
    return state if state.leader == NO_LEADER else _with_leader(state, NO_LEADER)


def _with_leader(state: PartitionState, leader: int) -> PartitionState:
    return replace(state, leader=leader, leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1)


def after_registration(
    state: PartitionState, node_id: int, live: Collection[int], *, clean_shutdown: bool, unclean: bool = False
) -> PartitionState:
    """The state after this broker has restarted; the same object if it is not a replica.

    What it led, it leads (or hands over) under a new leader epoch, so requests that were meant for the broker before
    its restart are refused.
    """
    if node_id not in state.replicas:
        return state
    before = state
    if not clean_shutdown:
        state = _without_unsure_member(state, node_id)
    if before.leader == node_id:
        # As if it had been seen to go: the leadership ends, then the ordinary election follows.
        state = replace(state, leader=NO_LEADER)
    elected = elect(state, live, unclean=unclean)
    if elected.leader_epoch != before.leader_epoch or elected is before:
        return elected
    lost_leader = before.leader == node_id
    return replace(
        elected,
        leader_epoch=before.leader_epoch + (1 if lost_leader else 0),
        partition_epoch=before.partition_epoch + 1,
    )


def _without_unsure_member(state: PartitionState, node_id: int) -> PartitionState:
    """Without a replica that may have lost acknowledged records with its page cache (KIP-966).

    Where no other replica is in the ISR or the ELR it stays: it is the last known leader, nobody has more than it,
    and without it the partition would never come back.
    """
    isr = tuple(member for member in state.isr if member != node_id)
    elr = tuple(member for member in state.elr if member != node_id)
    if (len(isr) == len(state.isr) and len(elr) == len(state.elr)) or not (isr or elr):
        return state
    return replace(state, isr=isr, elr=elr)


def registration_changes(
    topics: Mapping[str, TopicImage],
    node_id: int,
    live: Collection[int],
    *,
    clean_shutdown: bool,
    unclean_allowed: Callable[[str], bool],
) -> Iterator[tuple[TopicImage, TopicImage]]:
    """The topics that change when this broker has restarted, before and after the change."""
    for topic in topics.values():
        unclean = unclean_allowed(topic.name)
        partitions = tuple(
            after_registration(state, node_id, live, clean_shutdown=clean_shutdown, unclean=unclean)
            for state in topic.partitions
        )
        if any(new is not old for new, old in zip(partitions, topic.partitions, strict=True)):
            yield topic, replace(topic, partitions=partitions)
