"""Who leads a partition: the order of election.

What always holds: an election never adds a member to an ISR, except that ISR = {leader} where the ISR was empty or the
election was unclean; without `unclean` only a replica that has all committed records is elected, or the last leader if
every replica that had them has crashed since. Epochs are left as they are: `partition_changes` raises them once, for
all that happens to a partition in one change.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tidelog.common.light_dataclass import dataclass
from tidelog.controller.image import NO_LEADER, LeaderRecoveryState, PartitionState


@dataclass(frozen=True, slots=True)
class Rules:
    """What a partition's next state depends on besides the state itself."""

    # Brokers that may become leader: neither fenced nor shutting down.
    active: Collection[int]
    # Those, and brokers in controlled shutdown: they lead on what nobody else can.
    unfenced: Collection[int]
    # The topic's settings of these names.
    min_insync_replicas: int = 1
    unclean: bool = False


def elect(state: PartitionState, rules: Rules, *, preferred: bool = False) -> PartitionState:
    """The state with the leader it should have; the same object when nothing changes.

    With `preferred` the first assigned replica comes before the current leader.
    """
    if preferred and _may_lead(state, state.replicas[0], rules):
        return _led_by(state, state.replicas[0])
    if state.leader in state.isr and state.leader in rules.unfenced:
        return state
    for node_id in state.replicas:
        if _may_lead(state, node_id, rules):
            return _led_by(state, node_id)
    if not (state.isr or state.elr) and state.last_leader in rules.active:
        # All who had everything have crashed, itself included, and nobody was ahead of it (KIP-966).
        return replace(state, leader=state.last_leader, isr=(state.last_leader,))
    for node_id in state.replicas:
        if rules.unclean and node_id in rules.active:
            recovering = LeaderRecoveryState.RECOVERING
            return replace(state, leader=node_id, isr=(node_id,), elr=(), recovery=recovering)
    return state if state.leader == NO_LEADER else replace(state, leader=NO_LEADER)


def _may_lead(state: PartitionState, node_id: int, rules: Rules) -> bool:
    """Whether this replica is active and has all that was committed: the ELR counts once the ISR is empty (KIP-966)."""
    return node_id in rules.active and node_id in (state.isr or state.elr)


def _led_by(state: PartitionState, node_id: int) -> PartitionState:
    if node_id == state.leader:
        return state
    if node_id in state.isr:
        return replace(state, leader=node_id)
    elr = tuple(member for member in state.elr if member != node_id)
    return replace(state, leader=node_id, isr=(node_id,), elr=elr)
