"""Cycles in graphs of what must have come before what."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

Graph = Mapping[int, Sequence[int]]


def knots(graph: Graph) -> Iterator[list[int]]:
    """The sets of nodes that reach each other: strongly connected components that have a cycle (Tarjan, iterative)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    is_on_stack: set[int] = set()
    for root in graph:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        is_on_stack.add(root)
        path = [(root, iter(graph.get(root, ())))]
        while path:
            node, successors = path[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    is_on_stack.add(successor)
                    path.append((successor, iter(graph.get(successor, ()))))
                    break
                if successor in is_on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    knot = _popped(stack, is_on_stack, node)
                    if len(knot) > 1 or node in graph.get(node, ()):
                        yield knot


def _popped(stack: list[int], is_on_stack: set[int], root: int) -> list[int]:
    """Take a component off the stack."""
    knot = []
    while True:
        node = stack.pop()
        is_on_stack.discard(node)
        knot.append(node)
        if node == root:
            return knot


def shortest_cycle(graph: Graph, knot: Sequence[int], start: int) -> list[int]:
    """A shortest cycle within a knot from a node of it back to that node, which is named once."""
    inside = frozenset(knot)
    came_from: dict[int, int] = {}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for successor in graph.get(node, ()):
            if successor == start:
                cycle = [node]
                while cycle[-1] != start:
                    cycle.append(came_from[cycle[-1]])
                return cycle[::-1]
            if successor in inside and successor not in came_from:
                came_from[successor] = node
                waiting.append(successor)
    raise ValueError(f"{start} is in no cycle")
