"""What a rebalance tells the user's code: the listener, and the calls made to it.

What always holds: a call to a listener is only made while the user is inside `poll()`, `close()` or `unsubscribe()`, so
a listener never runs beside the user's own code; partitions are told revoked or lost before they leave the assignment,
and assigned after they joined it.

When which method is called:

- classic group, eager assignors (range, round-robin, sticky): all owned partitions are revoked before the member joins
  anew, then all of the new assignment is told as assigned;
- classic group, cooperative-sticky: what goes elsewhere is revoked after the join, and what is new is told as assigned,
  with no partitions where nothing is new; a topic that is no longer subscribed to is revoked before the join;
- the consumer protocol: what the coordinator takes away is revoked, what it gives is assigned, each time it says so;
- when the member was thrown out of the group (it was silent for too long, or polled too late) its partitions may have
  another owner already: they are told lost, not revoked, and nothing is committed for them.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from tidelog.client.types import TopicPartition


class RebalanceListener:
    """Subclass it and override what is of interest; an AsyncConsumer also takes coroutine methods.

    An exception from a listener reaches the user from the `poll()` that made the call, once the rebalance has gone on.
    """

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """These partitions are now read by this consumer; positions may be sought here."""
        return None

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """These partitions are about to go to another member; this is the last moment to commit for them."""
        return None

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> Awaitable[None] | None:
        """These partitions are gone already: what is committed for them is refused. By default as if revoked."""
        return self.on_partitions_revoked(partitions)


class RebalanceEvent(enum.StrEnum):
    ASSIGNED = "on_partitions_assigned"
    REVOKED = "on_partitions_revoked"
    LOST = "on_partitions_lost"


@dataclass(frozen=True, slots=True)
class UserCall:
    """One call to be made of a listener where the user's code may run."""

    listener: RebalanceListener
    event: RebalanceEvent
    partitions: tuple[TopicPartition, ...]

    def __call__(self) -> Awaitable[None] | None:
        """Make the call; what it returns is to be awaited if it can be."""
        method = getattr(self.listener, self.event.value)
        result: Awaitable[None] | None = method(self.partitions)
        return result

    def __str__(self) -> str:
        named = ", ".join(str(partition) for partition in self.partitions) or "no partitions"
        return f"{type(self.listener).__name__}.{self.event.value}({named})"
