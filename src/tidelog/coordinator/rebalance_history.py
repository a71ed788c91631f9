"""Why a group rebalanced: for each of its latest generations the cause, the member, and how long it stood still.

What always holds: at most 50 generations are kept, in memory only, so a new coordinator starts with one entry that says
so. A rebalance has one cause, the first; anything else that happens before the next generation forms is part of it. The
time counts from the first cause since members last had their partitions, across generations that never got that far.
It makes no decisions.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from tidelog.common.light_dataclass import dataclass
from tidelog.protocol.messages.rebalance_history import RebalanceEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidelog.coordinator.actions import Now

GENERATIONS_KEPT: Final = 50
"""Enough to see a group that rebalances again and again, at some kilobytes a group."""
_CHARACTERS_KEPT: Final = 200
"""Of names and reasons that clients give, which may be 32 kB long."""


class RebalanceCause(StrEnum):
    """What triggered a rebalance, in words for people."""

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
    """A cause and the member behind it; the reason is the one the client gave (KIP-800)."""

    cause: RebalanceCause
    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    reason: str = ""

    def clipped(self) -> RebalanceTrigger:
        """The same, with texts truncated that are too long to keep."""
        instance_id = self.group_instance_id
        return self._replace(
            member_id=self.member_id[-_CHARACTERS_KEPT:],  # its end is what tells members apart
            group_instance_id=None if instance_id is None else instance_id[:_CHARACTERS_KEPT],
            client_id=self.client_id[:_CHARACTERS_KEPT],
            reason=self.reason[:_CHARACTERS_KEPT],
        )


@dataclass(slots=True)
class Rebalance:
    """One generation and how it came about."""

    generation_id: int
    trigger: RebalanceTrigger
    # When the rebalance became necessary, by the wall clock.
    began_ms: int
    members_before: int
    members_after: int
    # Until the last member had its partitions; None if none has yet.
    stood_still_ms: float | None = None


class _Need(NamedTuple):
    """A rebalance that has not led to a generation yet."""

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
        """The generations in the format used by group descriptions."""
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
        """A rebalance is needed; does nothing if one is already in progress."""
        if self._need is None:
            self._need = _Need(trigger.clipped(), now.wall_ms)
        if self._standing_since_ms is None:
            self._standing_since_ms = now.monotonic_ms

    def formed(self, generation_id: int, members: int, now: Now) -> None:
        """The members of the next generation are known."""
        if self._need is None:
            raise RuntimeError(f"generation {generation_id} does not come from a rebalance")
        need, self._need = self._need, None
        self._latest_since_ms = now.monotonic_ms if self._standing_since_ms is None else self._standing_since_ms
        members_before = self._generations[-1].members_after if self._generations else 0
        self._generations.append(Rebalance(generation_id, need.trigger, need.began_ms, members_before, members))

    def served(self, now: Now) -> None:
        """A member of the latest generation got its partitions."""
        self._generations[-1].stood_still_ms = now.monotonic_ms - self._latest_since_ms

    def settled(self) -> None:
        """Members are working again; the next cause starts a new measurement."""
        self._standing_since_ms = None

    def moved(self, generation_id: int, members: int, now: Now) -> None:
        """This coordinator took over the group as it was; earlier history is unknown."""
        trigger = RebalanceTrigger(RebalanceCause.COORDINATOR_MOVED)
        self._latest_since_ms = now.monotonic_ms
        self._generations.append(Rebalance(generation_id, trigger, now.wall_ms, members, members))
