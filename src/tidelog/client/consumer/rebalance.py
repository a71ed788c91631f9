"""Rebalance listeners: how user code learns about a rebalance, and when each method is called.

What always holds: a call to a listener is only made while the user is inside `poll()`, `close()` or `unsubscribe()`, so
a listener never runs concurrently with the user's own code. Partitions are reported as revoked or lost before they
leave the assignment, and as assigned after they have joined it.

When each method is called:

- classic group, eager assignors (range, round-robin, sticky): all owned partitions are revoked before the member
  rejoins, then the whole new assignment is reported as assigned;
- classic group, cooperative-sticky: partitions that move elsewhere are revoked after the join, and new ones are
  reported as assigned (an empty list if there are none); a topic that was unsubscribed from is revoked before the join;
- the consumer protocol: partitions that the coordinator takes away are revoked, and those it adds are assigned, each
  time it says so;
- if the member was removed from the group (it was silent for too long, or polled too late), its partitions may already
  have another owner: they are reported as lost, not revoked, and nothing is committed for them.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Sequence

from tidelog.client.types import TopicPartition
from tidelog.common.light_dataclass import dataclass


class RebalanceListener:
    """Subclass it and override what you need; an AsyncConsumer also accepts coroutine methods.

    If a listener raises, the `poll()` that called it raises the exception, after the rebalance has continued.
    """

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """This consumer now reads these partitions; this is the place to seek."""
        return None

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """These partitions are about to go to another member; this is the last chance to commit for them."""
        return None

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """These partitions are already gone; commits for them fail. Calls `on_partitions_revoked` by default."""
        return self.on_partitions_revoked(partitions)


class RebalanceEvent(enum.StrEnum):
    ASSIGNED = "on_partitions_assigned"
    REVOKED = "on_partitions_revoked"
    LOST = "on_partitions_lost"


@dataclass(frozen=True, slots=True)
class UserCall:
    """One call to a listener, to be made where the user's code may run."""

    listener: RebalanceListener
    event: RebalanceEvent
    partitions: tuple[TopicPartition, ...]

    def __call__(self) -> Awaitable[None] | None:
        """Make the call; an awaitable result must be awaited."""
        method = getattr(self.listener, self.event.value)
        result: Awaitable[None] | None = method(self.partitions)
        return result

    def __str__(self) -> str:
        named = ", ".join(str(partition) for partition in self.partitions) or "no partitions"
        return f"{type(self.listener).__name__}.{self.event.value}({named})"
