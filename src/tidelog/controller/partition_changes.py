"""What happens to one partition: pure functions from its state and the rules to its next state.

What always holds: every change raises partition_epoch by one; leader_epoch rises by one when the leader changes (to
none too), when the leader's broker restarts, and when a replica is removed from the assignment; the same object comes
back when nothing changes. A leader is in the ISR, the ISR is within the replicas, and ISR and ELR have no member in
common. All functions end in `conclude`, which completes a reassignment, keeps the ELR and elects: none can forget it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tidelog.controller.elections import Rules, elect
from tidelog.controller.image import NO_LEADER, BrokerInfo, LeaderRecoveryState, PartitionState
from tidelog.controller.requests import UNKNOWN_EPOCH, ElectionType, IsrChange, IsrMember
from tidelog.protocol import ErrorCode, KafkaError


def conclude(
    before: PartitionState,
    draft: PartitionState,
    rules: Rules,
    *,
    preferred: bool = False,
    unsure: Collection[int] = (),
    new_leader_epoch: bool = False,
) -> PartitionState:
    """The state that follows from a draft of it: with its reassignment, ELR, leader and epochs as they should be.

    `unsure` members may have lost committed records, so they are not eligible; `new_leader_epoch` asks for one even if
    the leader stays.
    """
    draft = _complete_reassignment(draft, rules)
    draft = _with_elr(before, draft, rules, unsure)
    # An election may leave the leader alone in the ISR, which is all that some reassignments wait for.
    draft = _complete_reassignment(elect(draft, rules, preferred=preferred), rules)
    if draft.elr and _may_commit(draft, rules):
        # Elected from the ELR, and enough on its own: the others will lack what it commits.
        draft = replace(draft, elr=())
    draft = replace(draft, last_leader=_last_leader(before, draft))
    is_replica_removed = not set(before.replicas) <= set(draft.replicas)
    if draft.leader != before.leader or is_replica_removed or new_leader_epoch:
        draft = replace(draft, leader_epoch=before.leader_epoch + 1)
    return before if draft == before else replace(draft, partition_epoch=before.partition_epoch + 1)


def without_brokers(state: PartitionState, node_ids: Collection[int], rules: Rules) -> PartitionState:
    """The state once these brokers are fenced: they leave the ISR, and others lead what they led."""
    if state.leader not in node_ids and not any(member in node_ids for member in state.isr):
        return state
    return conclude(state, replace(state, isr=_without(state.isr, node_ids)), rules)


def in_controlled_shutdown(state: PartitionState, node_id: int, rules: Rules) -> PartitionState:
    """The state once this broker is about to stop: it hands over and leaves the ISR.

    What nobody else can lead yet it leads on. Should another replica catch up meanwhile, `with_isr` hands over to it.
    """
    # Never by an unclean election: this broker is coming back, and has all that was committed.
    after = without_brokers(state, {node_id}, replace(rules, unclean=False))
    return state if after.leader == NO_LEADER else after


def after_registration(
    state: PartitionState, node_id: int, rules: Rules, *, clean_shutdown: bool, same_disks: bool = True
) -> PartitionState:
    """The state after this broker has restarted; the same object if it is not a replica.

    What it led, it leads (or hands over) under a new leader epoch, so requests that were meant for the broker before
    its restart are refused.
    """
    if node_id not in state.replicas:
        return state
    draft = state if clean_shutdown else _without_unsure_member(state, node_id, same_disks=same_disks)
    if was_leader := state.leader == node_id:
        # As if it had been seen to go: the leadership ends, then the ordinary election follows.
        draft = replace(draft, leader=NO_LEADER)
    is_unsure = draft.isr != state.isr or draft.elr != state.elr
    after = conclude(state, draft, rules, unsure={node_id} if is_unsure else (), new_leader_epoch=was_leader)
    is_empty = not clean_shutdown and not same_disks and state.replicas != (node_id,)
    return replace(after, last_leader=NO_LEADER) if is_empty and after.last_leader == node_id else after


def check_isr_change(state: PartitionState, change: IsrChange, sender: int, brokers: Mapping[int, BrokerInfo]) -> None:
    """Refuse an AlterPartition of a partition by raising KafkaError; the order of the checks matters to its sender."""
    members = [member.node_id for member in change.isr]
    if change.leader_epoch > state.leader_epoch or change.partition_epoch > state.partition_epoch:
        # The sender has heard from a controller that was elected after this one.
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "The leader knows a newer state than this controller.")
    if change.leader_epoch < state.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"The leader epoch is {state.leader_epoch}.")
    is_withdrawal = sender in state.isr and set(members) == set(_without(state.isr, {sender}))
    if sender != state.leader and not is_withdrawal:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The leader is broker {state.leader}.")
    if change.partition_epoch < state.partition_epoch:
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"The partition epoch is {state.partition_epoch}.")
    if len(set(members)) != len(members) or not set(members) <= set(state.replicas):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{members} is not a set of the replicas {list(state.replicas)}.")
    if not members:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The ISR would be empty.")
    # Who leaves itself out can't be written: a leader resigns, to somebody who is in sync.
    if state.leader not in members and not set(members) <= set(state.isr):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The ISR {members} is without its leader.")
    if state.leader not in members and not any(member in brokers and brokers[member].is_active for member in members):
        raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"None of {members} can lead now.")
    if change.recovery is LeaderRecoveryState.RECOVERING:
        # A leader that was elected uncleanly recovers before anybody counts as in sync with it (KIP-704).
        if len(members) > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A leader that recovers is alone in its ISR.")
        if state.recovery is LeaderRecoveryState.RECOVERED:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The leader has recovered already.")
    reasons = [reason for member in change.isr if (reason := _ineligibility(member, state.leader, brokers)) is not None]
    if reasons:
        raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"Replicas that may not be in the ISR: {', '.join(reasons)}.")


def _ineligibility(member: IsrMember, leader: int, brokers: Mapping[int, BrokerInfo]) -> str | None:
    """Why a replica may not be in an ISR: a dead or restarted one must not count as in sync (KIP-841, KIP-903)."""
    broker = brokers.get(member.node_id)
    if broker is None:
        return f"{member.node_id} (not registered)"
    if broker.fenced:
        return f"{member.node_id} (fenced)"
    # A leader that shuts down is in its ISR until it has handed over.
    if broker.in_controlled_shutdown and member.node_id != leader:
        return f"{member.node_id} (shutting down)"
    if member.broker_epoch not in (UNKNOWN_EPOCH, broker.epoch):
        return f"{member.node_id} (epoch {member.broker_epoch} instead of {broker.epoch})"
    return None


def with_isr(
    state: PartitionState, isr: tuple[int, ...], recovery: LeaderRecoveryState, rules: Rules, *, sender: int
) -> PartitionState:
    """The state with the ISR that was asked for (KIP-497), once `check_isr_change` has let it pass.

    A sender that leaves itself out can't write, as its disk has failed or is full. If it leads, it resigns, and leads
    again only after it has caught up.
    """
    unsure = () if sender in isr else (sender,)
    if state.leader not in rules.active and any(member in rules.active for member in isr):
        # The leader is shutting down and waited for somebody to hand over to.
        isr = _without(isr, {state.leader})
    return conclude(state, replace(state, isr=isr, recovery=recovery), rules, unsure=unsure)


def after_election(state: PartitionState, election_type: ElectionType, rules: Rules) -> PartitionState:
    """The state after an election that somebody asked for; raises KafkaError if there is nothing or nobody to elect."""
    is_preferred = election_type is ElectionType.PREFERRED
    if state.leader in rules.unfenced and (not is_preferred or state.leader == state.replicas[0]):
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELECTION_NOT_NEEDED.description)
    after = conclude(state, state, replace(rules, unclean=not is_preferred), preferred=is_preferred)
    if after.leader in (state.leader, NO_LEADER):
        code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if is_preferred else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        raise KafkaError(code, code.description)
    return after


def reassigned(state: PartitionState, target: Sequence[int], rules: Rules) -> PartitionState:
    """The state on its way to these replicas, or already there (KIP-455); raises KafkaError.

    It keeps what it has until the target is in sync. A target that replaces an earlier one starts from the original
    replicas: those that were only being added leave at once.
    """
    original = original_replicas(state)
    removing = tuple(sorted(node_id for node_id in original if node_id not in target))
    adding = tuple(sorted(node_id for node_id in target if node_id not in original))
    replicas = (*target, *removing)
    dropped = _without(state.replicas, replicas)
    isr, elr = _without(state.isr, dropped), _without(state.elr, dropped)
    draft = replace(state, replicas=replicas, isr=isr, elr=elr, adding=adding, removing=removing)
    after = conclude(state, draft, rules)
    loses_leader = after.leader == NO_LEADER and state.leader != NO_LEADER
    loses_copies = bool(state.isr or state.elr) and not (isr or elr)
    if (loses_leader or loses_copies) and not rules.unclean:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Only replicas that would leave ({list(dropped)}) have all records, so this would need an unclean "
            "leader election. Let the reassignment finish, or allow unclean.leader.election.enable for the topic.",
        )
    return after


def original_replicas(state: PartitionState) -> tuple[int, ...]:
    """The replicas that a partition goes back to when its reassignment is cancelled."""
    return _without(state.replicas, state.adding)


def reconsidered(state: PartitionState, rules: Rules) -> PartitionState:
    """The state after a change of the topic's settings: a lower min.insync.replicas ends the ELR, for instance."""
    return conclude(state, state, rules)


def _complete_reassignment(state: PartitionState, rules: Rules) -> PartitionState:
    """Once the target replicas are all in sync, only they remain (KIP-455)."""
    if not state.is_reassigned:
        return state
    target = _without(state.replicas, state.removing)
    if not set(target) <= set(state.isr) or not any(node_id in rules.active for node_id in target):
        return state
    isr, elr = _without(state.isr, state.removing), _without(state.elr, state.removing)
    return replace(state, replicas=target, isr=isr, elr=elr, adding=(), removing=())


def _with_elr(before: PartitionState, draft: PartitionState, rules: Rules, unsure: Collection[int]) -> PartitionState:
    """With the eligible leader replicas: those that left the ISR since it fell below its minimum (KIP-966).

    Nothing is committed with so few members, so whoever leaves then, or left since, has all that ever was.
    """
    if _may_commit(draft, rules):
        return replace(draft, elr=()) if draft.elr else draft
    elr = tuple(
        node_id
        for node_id in draft.replicas
        if node_id not in draft.isr and node_id not in unsure and (node_id in draft.elr or node_id in before.isr)
    )
    return draft if set(elr) == set(draft.elr) else replace(draft, elr=elr)


def _may_commit(state: PartitionState, rules: Rules) -> bool:
    """Whether the ISR is large enough for records to be committed."""
    return len(state.isr) >= min(rules.min_insync_replicas, len(state.replicas))


def _without_unsure_member(state: PartitionState, node_id: int, *, same_disks: bool) -> PartitionState:
    """Without a replica that may have lost acknowledged records with its page cache (KIP-966).

    Where no other replica is in the ISR or the ELR, the last leader stays: nobody has more than it, and without it the
    partition would never come back. With new disks it has nothing, and others may have old records.
    """
    # A sole replica knows itself which of its files are missing: nobody else could have them.
    keeps_files = same_disks or state.replicas == (node_id,)
    if not keeps_files and state.last_leader == node_id:
        state = replace(state, last_leader=NO_LEADER)
    isr, elr = _without(state.isr, {node_id}), _without(state.elr, {node_id})
    if len(isr) == len(state.isr) and len(elr) == len(state.elr):
        return state
    # Records from before last leaders were noted don't say who it was.
    led_last = state.leader == node_id or state.last_leader in (node_id, NO_LEADER)
    if keeps_files and led_last and not (isr or elr):
        return state
    return replace(state, isr=isr, elr=elr)


def _last_leader(before: PartitionState, after: PartitionState) -> int:
    """Who led a partition that has no leader now."""
    if after.leader != NO_LEADER:
        return NO_LEADER
    return after.last_leader if before.leader == NO_LEADER else before.leader


def _without(members: tuple[int, ...], gone: Collection[int]) -> tuple[int, ...]:
    return tuple(member for member in members if member not in gone)
