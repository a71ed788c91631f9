"""Strongly connected components: beside a slow definition, on random graphs, and on a graph too deep to recurse."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.torture.check_cycles import knots, shortest_cycle

GRAPHS = st.dictionaries(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=4), max_size=10)


def reachable(graph: dict[int, list[int]], start: int) -> set[int]:
    """What can be reached from a node in one step or more."""
    seen: set[int] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += graph.get(node, ())
    return seen


@given(GRAPHS)
def test_knots_are_the_nodes_that_reach_each_other(graph: dict[int, list[int]]) -> None:
    reach = {node: reachable(graph, node) for node in range(10)}
    expected = {
        frozenset(other for other in range(10) if other in reach[node] and node in reach[other])
        for node in range(10)
        if node in reach[node]
    }
    shown = [frozenset(knot) for knot in knots(graph)]
    assert set(shown) == expected
    assert len(shown) == len(expected)


@given(GRAPHS)
def test_a_shortest_cycle_goes_along_edges_back_to_its_start(graph: dict[int, list[int]]) -> None:
    for knot in knots(graph):
        for start in knot:
            cycle = shortest_cycle(graph, knot, start)
            assert cycle[0] == start
            assert len(set(cycle)) == len(cycle)
            for node, following in zip(cycle, [*cycle[1:], start], strict=True):
                assert following in graph[node]


def test_a_long_chain_does_not_recurse() -> None:
    graph = {node: [node + 1] for node in range(200_000)}
    assert list(knots(graph)) == []
    graph[200_000] = [0]
    assert [len(knot) for knot in knots(graph)] == [200_001]
