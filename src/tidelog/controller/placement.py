"""Where the replicas of new partitions go.

What always holds: a partition's replicas are on different brokers, its first one on an active broker. Brokers that are
fenced or shutting down get replicas only where there are too few active ones: a topic can be created while a broker
restarts. Leaders go round, so that all active brokers lead equally many. Where all brokers have a rack, a partition's
replicas are on as many racks as possible; a broker without one says nothing about where it is, so racks don't count.
Pure functions.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from tidelog.controller.image import BrokerInfo
from tidelog.protocol import ErrorCode, KafkaError

Replicas = tuple[int, ...]


def place_replicas(
    brokers: Collection[BrokerInfo], partitions: int, replication_factor: int, first: int
) -> list[Replicas]:
    """Replicas for new partitions, the leaders from the `first` broker on; raises KafkaError.

    The other replicas follow their leader at a distance that grows with every round, so that the partitions led by a
    broker that fails fall to all the others and not to its neighbour alone.
    """
    _check(brokers, replication_factor)
    active = _by_turns([broker for broker in brokers if broker.is_active])
    # Used up only where there are more replicas than active brokers.
    spare = _by_turns([broker for broker in brokers if not broker.is_active])
    racks = {broker.node_id: broker.rack for broker in brokers}
    if None in racks.values() or len(set(racks.values())) == 1:
        racks = {}
    from_spare = max(0, replication_factor - len(active))
    # How many replicas each broker gets. Racks of one size need no counting: the growing distance is even, too, and
    # spreads the followers of one leader better.
    held: Counter[int] = Counter()
    is_uneven = len(set(Counter(racks[node_id] for node_id in active if racks).values())) > 1
    assigned = []
    for partition in range(partitions):
        leader = (first + partition) % len(active)
        distance = first // len(active) + partition // len(active)
        replicas = [active[leader]]
        _pick(_following(active, leader, distance), replicas, replication_factor - from_spare, racks, held)
        if from_spare:
            _pick(_rotated(spare, first + partition), replicas, replication_factor, racks, held)
        if is_uneven:
            held.update(replicas)
        assigned.append(tuple(replicas))
    return assigned


def _check(brokers: Collection[BrokerInfo], replication_factor: int) -> None:
    problem = None
    if replication_factor <= 0:
        problem = "The replication factor must be larger than 0, or -1."
    elif replication_factor > len(brokers):
        problem = f"A replication factor of {replication_factor} needs as many brokers; {len(brokers)} are registered."
    elif not any(broker.is_active for broker in brokers):
        problem = "All brokers are fenced or shutting down."
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, problem)


def _by_turns(brokers: Sequence[BrokerInfo]) -> list[int]:
    """The ids of brokers in an order that takes the racks by turns, so neighbours are on different ones if they can."""
    racks: dict[str, list[int]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.node_id):
        racks.setdefault(broker.rack or "", []).append(broker.node_id)
    turns = itertools.zip_longest(*(racks[rack] for rack in sorted(racks)))
    return [node_id for turn in turns for node_id in turn if node_id is not None]


def _following(brokers: Sequence[int], leader: int, distance: int) -> Iterator[int]:
    """All brokers but the leader (its place), the one at this distance first."""
    others = len(brokers) - 1
    return (brokers[(leader + 1 + (distance + n) % others) % len(brokers)] for n in range(others))


def _rotated(brokers: Sequence[int], first: int) -> Iterator[int]:
    return (brokers[(first + n) % len(brokers)] for n in range(len(brokers)))


def _pick(
    candidates: Iterator[int],
    replicas: list[int],
    count: int,
    racks: Mapping[int, str | None],
    held: Mapping[int, int],
) -> None:
    """Add candidates until there are `count` replicas: by their order, or from racks that have the fewest of them."""
    if not racks:
        replicas.extend(itertools.islice(candidates, count - len(replicas)))
        return
    left = list(candidates)
    used = Counter(racks[node_id] for node_id in replicas)
    while len(replicas) < count:
        node_id = min(left, key=lambda node_id: (used[racks[node_id]], held[node_id]))
        left.remove(node_id)
        used[racks[node_id]] += 1
        replicas.append(node_id)
