"""A replica on this broker whose files could not be made, so that there is no log and nothing to serve.

What always holds: it leaves the ISR as soon as others can lead the partition; nothing else is done about it here.
"""

from __future__ import annotations

import uuid

from tidelog.broker.follower_state import ReplicationTerms
from tidelog.broker.partition import NO_EPOCH, IsrOutcome, PendingIsr, outcome_of
from tidelog.controller.image import PartitionState
from tidelog.controller.requests import IsrMember
from tidelog.protocol import ErrorCode


class UnopenedReplica:
    """What the ISR manager needs of a replica that has no log."""

    is_leader = False

    def __init__(self, topic: str, partition: int, topic_id: uuid.UUID, node_id: int, terms: ReplicationTerms) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.isr: tuple[int, ...] = ()
        self.pending_isr: PendingIsr | None = None
        self._node_id = node_id
        self._terms = terms
        self._state: PartitionState | None = None

    def apply(self, state: PartitionState) -> None:
        """Apply what the controller decided."""
        if self._state is None or state.partition_epoch > self._state.partition_epoch:
            self._state = state
            self.isr = state.isr
            self.pending_isr = None

    def propose_withdrawal(self) -> bool:
        """Ask to leave the ISR; True if there is a change to send now."""
        state = self._state
        others = tuple(member for member in self.isr if member != self._node_id)
        if state is None or self.pending_isr is not None or state.leader < 0 or not 0 < len(others) < len(self.isr):
            return False
        members = tuple(IsrMember(member, self._terms.epoch_of(member)) for member in others)
        self.pending_isr = PendingIsr(members, state.leader_epoch, state.partition_epoch)
        return True

    def decide_isr(
        self, pending: PendingIsr, error: ErrorCode, *, leader_epoch: int = NO_EPOCH, partition_epoch: int = -1
    ) -> IsrOutcome:
        """The controller has answered; the image tells what holds now."""
        if self.pending_isr is not pending:
            return IsrOutcome.OUTDATED
        outcome = outcome_of(error)
        if outcome is IsrOutcome.REFUSED:
            self.pending_isr = None
        return outcome
