"""Plans which brokers should hold which partitions: to empty a broker, or to spread replicas and leaders evenly.

What always holds: a plan keeps the number of replicas of each partition. It never names a broker twice, or one that is
not among those given. Replicas that are on different racks stay on different racks where possible. It moves as little
as it can: a replica that may stay, stays. These are pure functions; nothing is requested or changed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from tidelog.client.types import Node, TopicMetadata, TopicPartition
from tidelog.common.light_dataclass import dataclass

Replicas = tuple[int, ...]


class PlacementError(Exception):
    """No such plan exists; the message says why."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition whose replicas change."""

    partition: TopicPartition
    before: Replicas
    after: Replicas

    @property
    def adding(self) -> Replicas:
        return tuple(node_id for node_id in self.after if node_id not in self.before)

    @property
    def removing(self) -> Replicas:
        return tuple(node_id for node_id in self.before if node_id not in self.after)


def drain(topics: Iterable[TopicMetadata], nodes: Sequence[Node], emptied: Collection[int]) -> list[Move]:
    """Moves that leave nothing on these brokers."""
    targets = [node for node in nodes if node.node_id not in emptied]
    state = _State(topics, nodes)
    moves = []
    for partition, before in state.replicas.items():
        if not set(before) & set(emptied):
            continue
        if len(before) > len(targets):
            raise PlacementError(
                f"partition {partition} has replication factor {len(before)}; {len(targets)} brokers would be left"
            )
        after = list(before)
        for position, node_id in enumerate(before):
            if node_id in emptied:
                others = [other for other in after if other not in emptied]
                after[position] = state.best_target(targets, others, leads=position == 0)
                state.move(node_id, after[position], leads=position == 0)
        moves.append(Move(partition, before, tuple(after)))
    return moves


def balance(topics: Iterable[TopicMetadata], nodes: Sequence[Node]) -> list[Move]:
    """Moves that give each broker as equal a share as possible of replicas and of preferred leaders."""
    state = _State(topics, nodes)
    after = {partition: list(replicas) for partition, replicas in state.replicas.items()}
    lost = drain(topics, nodes, set(state.held) - {node.node_id for node in nodes})
    for move in lost:
        for position, (old, new) in enumerate(zip(move.before, move.after, strict=True)):
            if old != new:
                after[move.partition][position] = new
                state.move(old, new, leads=position == 0)
    _spread_replicas(state, after, nodes)
    _spread_leaders(state, after, nodes)
    return [
        Move(partition, before, tuple(after[partition]))
        for partition, before in state.replicas.items()
        if before != tuple(after[partition])
    ]


class _State:
    """How much each broker holds and should lead, while a plan is being made."""

    def __init__(self, topics: Iterable[TopicMetadata], nodes: Iterable[Node]) -> None:
        self.racks: Mapping[int, str | None] = {node.node_id: node.rack for node in nodes}
        self.replicas: dict[TopicPartition, Replicas] = {
            TopicPartition(topic.name, partition.partition): partition.replicas
            for topic in topics
            for partition in topic.partitions
        }
        self.held: Counter[int] = Counter(dict.fromkeys(self.racks, 0))
        self.led: Counter[int] = Counter(dict.fromkeys(self.racks, 0))
        for replicas in self.replicas.values():
            self.held.update(replicas)
            self.led[replicas[0]] += 1

    def move(self, old: int, new: int, *, leads: bool) -> None:
        self.held[old] -= 1
        self.held[new] += 1
        if leads:
            self.led[old] -= 1
            self.led[new] += 1

    def best_target(self, targets: Iterable[Node], replicas: Collection[int], *, leads: bool) -> int:
        """The least loaded broker that may hold this partition, in a rack of its own if there is one."""
        free = [node.node_id for node in targets if node.node_id not in replicas]
        used = {self.racks.get(node_id) for node_id in replicas} - {None}
        return min(
            free,
            key=lambda node_id: (
                self.racks[node_id] in used,
                self.led[node_id] if leads else 0,
                self.held[node_id],
                node_id,
            ),
        )


def _spread_replicas(state: _State, after: Mapping[TopicPartition, list[int]], nodes: Sequence[Node]) -> None:
    """Move replicas from the fullest to the emptiest broker while that makes the spread more even."""
    ids = [node.node_id for node in nodes]
    while True:
        fullest, emptiest = max(ids, key=state.held.__getitem__), min(ids, key=state.held.__getitem__)
        if state.held[fullest] - state.held[emptiest] <= 1:
            return
        found = next(
            (
                replicas
                for replicas in after.values()
                if fullest in replicas and emptiest not in replicas and _keeps_racks(state, replicas, fullest, emptiest)
            ),
            None,
        )
        if found is None:
            return
        position = found.index(fullest)
        found[position] = emptiest
        state.move(fullest, emptiest, leads=position == 0)


def _keeps_racks(state: _State, replicas: Sequence[int], old: int, new: int) -> bool:
    """Whether the new broker leaves the partition on as many racks as the old one."""
    before = {state.racks.get(node_id) for node_id in replicas}
    moved = {state.racks.get(new if node_id == old else node_id) for node_id in replicas}
    return len(moved) >= len(before)


def _spread_leaders(state: _State, after: Mapping[TopicPartition, list[int]], nodes: Sequence[Node]) -> None:
    """Reorder replicas, which moves no data, while that spreads leadership more evenly.

    Leadership is passed along a chain of partitions, because the broker with too many may share no partition with the
    one with too few.
    """
    ids = [node.node_id for node in nodes]
    while True:
        chain = _leader_chain(state, after, ids)
        if chain is None:
            return
        for partition, new in chain:
            replicas = after[partition]
            old = replicas[0]
            replicas.remove(new)
            replicas.insert(0, new)
            state.led[old] -= 1
            state.led[new] += 1


def _leader_chain(
    state: _State, after: Mapping[TopicPartition, list[int]], ids: Sequence[int]
) -> list[tuple[TopicPartition, int]] | None:
    """Partitions and their new leaders: one broker leads one fewer, and one with at least two fewer gains one."""
    links: dict[int, dict[int, TopicPartition]] = {}
    for partition, replicas in after.items():
        for follower in replicas[1:]:
            links.setdefault(replicas[0], {}).setdefault(follower, partition)
    for start in sorted(ids, key=lambda node_id: -state.led[node_id]):
        reached: dict[int, tuple[int, TopicPartition] | None] = {start: None}
        queue = [start]
        for node_id in queue:
            if state.led[start] - state.led[node_id] >= 2:
                chain = []
                link = reached[node_id]
                while link is not None:
                    previous, partition = link
                    chain.append((partition, node_id))
                    node_id, link = previous, reached[previous]
                return chain
            for follower, partition in links.get(node_id, {}).items():
                if follower not in reached:
                    reached[follower] = (node_id, partition)
                    queue.append(follower)
    return None
