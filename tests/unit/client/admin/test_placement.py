"""Plans of which brokers hold which partitions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.address import Address
from tidelog.client.admin.placement import Move, PlacementError, balance, drain
from tidelog.client.types import Node, PartitionMetadata, TopicMetadata, TopicPartition
from tidelog.common.ids import ZERO_UUID


def nodes_of(*ids: int, racks: dict[int, str] | None = None) -> list[Node]:
    return [Node(node_id, Address("127.0.0.1", 9092), (racks or {}).get(node_id)) for node_id in ids]


def topic_of(name: str, *assigned: tuple[int, ...]) -> TopicMetadata:
    partitions = tuple(
        PartitionMetadata(index, replicas[0], 0, replicas, replicas) for index, replicas in enumerate(assigned)
    )
    return TopicMetadata(name, ZERO_UUID, False, partitions)


def test_an_emptied_broker_holds_nothing_and_the_rest_stays() -> None:
    topic = topic_of("t", (1, 2), (2, 3), (3, 1), (2, 1))
    moves = drain([topic], nodes_of(1, 2, 3, 4), [3])
    assert {move.partition.partition: move.after for move in moves} == {1: (2, 4), 2: (4, 1)}
    assert (moves[1].adding, moves[1].removing) == ((4,), (3,))


def test_an_emptied_broker_needs_others_to_take_its_replicas() -> None:
    with pytest.raises(PlacementError, match="partition t-0 has replication factor 3; 2 brokers would be left"):
        drain([topic_of("t", (1, 2, 3))], nodes_of(1, 2, 3), [2])


def test_a_replica_moves_to_a_rack_of_its_own() -> None:
    racks = {1: "a", 2: "b", 3: "a", 4: "b"}
    (move,) = drain([topic_of("t", (1, 2))], nodes_of(1, 2, 3, 4, racks=racks), [2])
    assert move.after == (1, 4)


def test_a_new_broker_gets_its_share() -> None:
    topic = topic_of("t", *[(1, 2), (2, 1)] * 3)
    after = apply([topic], balance([topic], nodes_of(1, 2, 3)))
    held = Counter(node_id for replicas in after.values() for node_id in replicas)
    assert held == {1: 4, 2: 4, 3: 4}
    assert Counter(replicas[0] for replicas in after.values()) == {1: 2, 2: 2, 3: 2}


def test_what_is_balanced_stays() -> None:
    assert balance([topic_of("t", (1, 2), (2, 3), (3, 1))], nodes_of(1, 2, 3)) == []


def apply(topics: list[TopicMetadata], moves: list[Move]) -> dict[TopicPartition, tuple[int, ...]]:
    after = {
        TopicPartition(topic.name, partition.partition): partition.replicas
        for topic in topics
        for partition in topic.partitions
    }
    for move in moves:
        assert after[move.partition] == move.before
        after[move.partition] = move.after
    return after


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[TopicMetadata], list[Node]]:
    ids = list(range(1, draw(st.integers(2, 6)) + 1))
    racks = {node_id: draw(st.sampled_from(["a", "b", "c"])) for node_id in ids} if draw(st.booleans()) else {}
    factor = draw(st.integers(1, len(ids)))
    assigned = draw(st.lists(st.permutations(ids).map(lambda order: tuple(order[:factor])), min_size=1, max_size=30))
    return [topic_of("t", *assigned)], nodes_of(*ids, racks=racks)


@given(clusters(), st.data())
def test_plans_of_any_cluster(cluster: tuple[list[TopicMetadata], list[Node]], data: st.DataObject) -> None:
    topics, nodes = cluster
    ids = [node.node_id for node in nodes]
    rack_of = {node.node_id: node.rack for node in nodes}
    balanced = apply(topics, balance(topics, nodes))
    before = apply(topics, [])
    for partition, replicas in balanced.items():
        assert len(set(replicas)) == len(replicas) == len(before[partition])
        assert set(replicas) <= set(ids)
        assert len({rack_of[node_id] for node_id in replicas}) >= len({rack_of[n] for n in before[partition]})
    led = Counter(replicas[0] for replicas in balanced.values())
    held = Counter(node_id for replicas in balanced.values() for node_id in replicas)
    if not any(rack_of.values()):
        assert max(held[node_id] for node_id in ids) - min(held[node_id] for node_id in ids) <= 1
    if len(before[TopicPartition("t", 0)]) == len(ids):
        assert max(led[node_id] for node_id in ids) - min(led[node_id] for node_id in ids) <= 1

    emptied = data.draw(st.sampled_from(ids))
    if len(before[TopicPartition("t", 0)]) < len(ids):
        drained = apply(topics, drain(topics, nodes, [emptied]))
        for partition, replicas in drained.items():
            assert emptied not in replicas
            assert len(set(replicas)) == len(replicas) == len(before[partition])
            if emptied not in before[partition]:
                assert replicas == before[partition]
