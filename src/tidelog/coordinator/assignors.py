"""The coordinator's own assignors for groups of the new protocol (KIP-848): who gets which partitions.

What always holds: every partition of a subscribed topic goes to exactly one of the members that subscribe to it; the
result depends only on the input. `uniform` balances the counts and moves as few partitions as possible; `range` gives
each member a contiguous range of every topic, and the same range of topics with the same members and partition counts,
so that records with the same key in several topics go to the same member.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final

from tidelog.common.light_dataclass import dataclass

Partitions = Mapping[uuid.UUID, frozenset[int]]
"""Partitions by topic id."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as the assignors see it; `current` is its target so far."""

    topic_ids: frozenset[uuid.UUID]
    instance_id: str | None = None
    current: Partitions = field(default_factory=dict)


Assignor = Callable[[Mapping[str, Subscriber], Mapping[uuid.UUID, int]], dict[str, dict[uuid.UUID, frozenset[int]]]]
"""Members by id, and the topics that any of them subscribes to with their partition counts."""


def assign_range(
    members: Mapping[str, Subscriber], partition_counts: Mapping[uuid.UUID, int]
) -> dict[str, dict[uuid.UUID, frozenset[int]]]:
    # Static members sort by their instance ids, so that one that comes back with a new member id gets the same.
    ordered = sorted(members, key=lambda member_id: (members[member_id].instance_id or member_id, member_id))
    assigned: dict[str, dict[uuid.UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    for topic_id, count in partition_counts.items():
        subscribers = [member_id for member_id in ordered if topic_id in members[member_id].topic_ids]
        if not subscribers:
            continue
        share, extra = divmod(count, len(subscribers))
        first = 0
        for position, member_id in enumerate(subscribers):
            end = first + share + (position < extra)
            if end > first:
                assigned[member_id][topic_id] = frozenset(range(first, end))
            first = end
    return assigned


def assign_uniform(
    members: Mapping[str, Subscriber], partition_counts: Mapping[uuid.UUID, int]
) -> dict[str, dict[uuid.UUID, frozenset[int]]]:
    if not members:
        return {}
    kept = _keep_current(members, partition_counts)
    owned = {member_id: sum(map(len, partitions.values())) for member_id, partitions in kept.items()}
    _place_free(members, partition_counts, kept, owned)
    _even_out(members, partition_counts, kept, owned)
    return {
        member_id: {topic_id: frozenset(numbers) for topic_id, numbers in partitions.items() if numbers}
        for member_id, partitions in kept.items()
    }


_Kept = dict[str, dict[uuid.UUID, set[int]]]


def _keep_current(members: Mapping[str, Subscriber], partition_counts: Mapping[uuid.UUID, int]) -> _Kept:
    """What members have and may keep; a partition claimed by two stays with the first."""
    taken: set[tuple[uuid.UUID, int]] = set()
    kept: _Kept = {}
    for member_id in sorted(members):
        member = members[member_id]
        own: dict[uuid.UUID, set[int]] = {}
        for topic_id, numbers in member.current.items():
            count = partition_counts.get(topic_id, 0)
            if topic_id in member.topic_ids and count:
                own[topic_id] = {n for n in numbers if n < count and (topic_id, n) not in taken}
                taken.update((topic_id, number) for number in own[topic_id])
        kept[member_id] = own
    return kept


def _place_free(
    members: Mapping[str, Subscriber], partition_counts: Mapping[uuid.UUID, int], kept: _Kept, owned: dict[str, int]
) -> None:
    """Give every unassigned partition to the subscriber with the fewest."""
    subscribers = _subscribers(members, partition_counts)
    # Topics with few subscribers first: the others leave more ways to balance.
    for topic_id in sorted(partition_counts, key=lambda topic_id: (len(subscribers[topic_id]), topic_id)):
        ready = [(owned[member_id], member_id) for member_id in subscribers[topic_id]]
        if not ready:
            continue
        heapq.heapify(ready)
        taken = set().union(*(kept[member_id].get(topic_id, ()) for member_id in subscribers[topic_id]))
        for number in range(partition_counts[topic_id]):
            if number in taken:
                continue
            _, member_id = ready[0]
            kept[member_id].setdefault(topic_id, set()).add(number)
            owned[member_id] += 1
            heapq.heapreplace(ready, (owned[member_id], member_id))


def _even_out(
    members: Mapping[str, Subscriber], partition_counts: Mapping[uuid.UUID, int], kept: _Kept, owned: dict[str, int]
) -> None:
    """Move partitions one by one from members that have at least two more than another eligible member.

    Each move reduces the sum of the squared counts, so this terminates; a topic is revisited only after a move.
    """
    subscribers = _subscribers(members, partition_counts)
    unsettled = True
    while unsettled:
        unsettled = False
        for topic_id in sorted(partition_counts):
            candidates = subscribers[topic_id]
            if len(candidates) < 2:
                continue
            unsettled |= _even_out_topic(topic_id, candidates, kept, owned)


def _even_out_topic(topic_id: uuid.UUID, candidates: list[str], kept: _Kept, owned: dict[str, int]) -> bool:
    poorest = [(owned[member_id], member_id) for member_id in candidates]
    richest = [(-owned[member_id], member_id) for member_id in candidates if kept[member_id].get(topic_id)]
    heapq.heapify(poorest)
    heapq.heapify(richest)
    moved = False
    while richest:
        most, giver = richest[0]
        least, taker = poorest[0]
        if owned[taker] != least:
            heapq.heapreplace(poorest, (owned[taker], taker))
        elif owned[giver] != -most:
            heapq.heapreplace(richest, (-owned[giver], giver))
        elif owned[giver] - owned[taker] < 2:
            break
        else:
            numbers = kept[giver][topic_id]
            number = max(numbers)
            numbers.remove(number)
            kept[taker].setdefault(topic_id, set()).add(number)
            owned[giver] -= 1
            owned[taker] += 1
            moved = True
            heapq.heapreplace(poorest, (owned[taker], taker))
            if numbers:
                heapq.heapreplace(richest, (-owned[giver], giver))
            else:
                heapq.heappop(richest)
    return moved


def _subscribers(
    members: Mapping[str, Subscriber], partition_counts: Mapping[uuid.UUID, int]
) -> dict[uuid.UUID, list[str]]:
    ordered = sorted(members)
    return {
        topic_id: [member_id for member_id in ordered if topic_id in members[member_id].topic_ids]
        for topic_id in partition_counts
    }


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the names under which members ask for them; the first one configured is the default."""
