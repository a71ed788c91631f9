"""Why a group rebalanced: for each of its latest generations the cause, whose doing it was, and the time stood still.

What always holds: at most 50 generations are kept, in memory only, so that a new coordinator starts with one entry that
says so. A rebalance has one cause, the first; whatever else happens before the next generation is formed joins it. Time
stood still counts from the first need since members last had their parts, over generations that never got so far.
It does not decide anything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.protocol.messages.rebalance_history import RebalanceEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidelog.coordinator.actions import Now

GENERATIONS_KEPT: Final = 50
"""Enough to see a group that rebalances again and again, at some kilobytes a group."""


class RebalanceCause(StrEnum):
    """What made a rebalance necessary, in words for people."""

    MEMBER_JOINED = "member joined"
    MEMBER_LEFT = "member left"
    MEMBER_TIMED_OUT = "member timed out"
    SUBSCRIPTION_CHANGED = "subscription changed"
    PARTITIONS_GREW = "partitions grew"
    # The leader may ask for a rebalance at any time: it has seen something that the coordinator can't.
    LEADER_REJOINED = "leader rejoined"
    # As members of a cooperative group do, once they have given up what they are to hand over.
    MEMBER_REJOINED = "member rejoined"
    COORDINATOR_MOVED = "coordinator moved"
    ASSIGNMENT_NOT_STORED = "assignment not stored"
    GROUP_TOO_LARGE = "group too large"


class RebalanceTrigger(NamedTuple):
    """A cause and whose doing it was; the reason is what the client itself gave (KIP-800)."""

    cause: RebalanceCause
    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    reason: str = ""


@dataclass(slots=True)
class Rebalance:
    """One generation and how it came about."""

    generation_id: int
    trigger: RebalanceTrigger
    # When the rebalance became necessary, by the wall clock.
    began_ms: int
    members_before: int
    members_after: int
    # Until the last member had its part; None while none has.
    stood_still_ms: float | None = None


class _Need(NamedTuple):
    """A rebalance that no generation has come of yet."""

    trigger: RebalanceTrigger
    began_ms: int


class RebalanceHistory:
    """The latest generations of one group."""

    def __init__(self) -> None:
        self._generations: deque[Rebalance] = deque(maxlen=GENERATIONS_KEPT)
        self._need: _Need | None = None
        self._standing_since_ms: float | None = None
        self._latest_since_ms = 0.0

    def __iter__(self) -> Iterator[Rebalance]:
        """The generations, oldest first."""
        return iter(self._generations)

    def __len__(self) -> int:
        return len(self._generations)

    def rows(self) -> list[RebalanceEntry]:
        """The generations as descriptions of the group carry them."""
        return [
            RebalanceEntry(
                generation=rebalance.generation_id,
                cause=rebalance.trigger.cause.value,
                reason=rebalance.trigger.reason,
                member_id=rebalance.trigger.member_id,
                group_instance_id=rebalance.trigger.group_instance_id,
                client_id=rebalance.trigger.client_id,
                client_host=rebalance.trigger.client_host,
                began_at_ms=rebalance.began_ms,
                stood_still_ms=-1 if rebalance.stood_still_ms is None else round(rebalance.stood_still_ms),
                members_before=rebalance.members_before,
                members_after=rebalance.members_after,
            )
            for rebalance in self._generations
        ]

    def needed(self, trigger: RebalanceTrigger, now: Now) -> None:
        """A rebalance is needed; does nothing while one is already on its way to its generation."""
        if self._need is None:
            self._need = _Need(trigger, now.wall_ms)
        if self._standing_since_ms is None:
            self._standing_since_ms = now.monotonic_ms

    def formed(self, generation_id: int, members: int, now: Now) -> None:
        """The members of the next generation are known."""
        if self._need is None:
            raise RuntimeError(f"generation {generation_id} came of no rebalance")
        need, self._need = self._need, None
        self._latest_since_ms = now.monotonic_ms if self._standing_since_ms is None else self._standing_since_ms
        members_before = self._generations[-1].members_after if self._generations else 0
        self._generations.append(Rebalance(generation_id, need.trigger, need.began_ms, members_before, members))

    def served(self, now: Now) -> None:
        """A member of the latest generation was told its part."""
        self._generations[-1].stood_still_ms = now.monotonic_ms - self._latest_since_ms

    def settled(self) -> None:
        """Members go on with their work; the next need begins a new time of standing still."""
        self._standing_since_ms = None

    def moved(self, generation_id: int, members: int, now: Now) -> None:
        """This coordinator took the group over as it was; what came before is not known here."""
        trigger = RebalanceTrigger(RebalanceCause.COORDINATOR_MOVED)
        self._latest_since_ms = now.monotonic_ms
        self._generations.append(Rebalance(generation_id, trigger, now.wall_ms, members, members))
