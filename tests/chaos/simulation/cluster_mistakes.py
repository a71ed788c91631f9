"""Mistakes that a cluster must not make, to be made on purpose: what the simulation does not notice, it does not prove.

What always holds: each is one rule of replication that is left out, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from tidelog.broker.partition import Partition
from tidelog.controller import elections, partition_changes
from tidelog.controller.elections import Rules
from tidelog.controller.image import PartitionState
from tidelog.protocol import ErrorCode


def acknowledge_before_replication() -> AbstractContextManager[Any]:
    """acks=all is answered as soon as the leader has the records."""
    real = Partition.acknowledgement

    def acknowledgement(self: Partition, end_offset: int, leader_epoch: int, acks: int) -> ErrorCode | None:
        return ErrorCode.NONE if self.is_leader else real(self, end_offset, leader_epoch, acks)

    return mock.patch.object(Partition, "acknowledgement", acknowledgement)


def show_uncommitted_records() -> AbstractContextManager[Any]:
    """The high watermark is the end of the leader's log."""

    def advance(self: Partition) -> bool:
        before = self.log.high_watermark
        self.log.advance_high_watermark(self.log.log_end_offset)
        return self.log.high_watermark > before

    return mock.patch.object(Partition, "advance_high_watermark", advance)


def never_truncate() -> AbstractContextManager[Any]:
    """Followers keep what another leader has not got."""
    return mock.patch.object(Partition, "find_divergence", return_value=None)


def expand_too_early() -> AbstractContextManager[Any]:
    """Followers join the ISR before they have caught up."""
    real = Partition.propose_expansion

    def propose(self: Partition) -> bool:
        held = {each: follower.log_end_offset for each, follower in self.followers.items()}
        for follower in self.followers.values():
            follower.log_end_offset = max(follower.log_end_offset, self.log.log_end_offset)
        try:
            return real(self)
        finally:
            for each, end_offset in held.items():
                if each in self.followers:
                    self.followers[each].log_end_offset = end_offset

    return mock.patch.object(Partition, "propose_expansion", propose)


def elect_anybody() -> AbstractContextManager[Any]:
    """Any live replica may lead, whatever it lacks."""

    def may_lead(state: PartitionState, node_id: int, rules: Rules) -> bool:
        return node_id in rules.active and node_id in state.replicas

    return mock.patch.object(elections, "_may_lead", may_lead)


def trust_after_a_crash() -> AbstractContextManager[Any]:
    """Replicas that may have lost records with their machine's power stay in the ISR (against KIP-966)."""
    return mock.patch.object(partition_changes, "_without_unsure_member", lambda state, node_id, same_disks: state)


MISTAKES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    mistake.__name__: mistake
    for mistake in (
        acknowledge_before_replication,
        show_uncommitted_records,
        never_truncate,
        expand_too_early,
        elect_anybody,
        trust_after_a_crash,
    )
}
