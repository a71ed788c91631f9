"""What follows from one operation having ended before another one started."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidelog.torture.check_columns import Operations


def below_what_was_known(
    operations: Operations, known: Iterable[tuple[int, int]], shown: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int, int, int]]:
    """Operations that show less than others had been told before they started.

    Both are pairs of an operation and a level, such as an offset. Yields the earlier operation with its level, and the
    later one with its lower level.
    """
    start_ns, end_ns = operations.start_ns, operations.end_ns
    by_end = sorted(known, key=lambda one: end_ns[one[0]])
    witness, highest, place = -1, -1, 0
    for operation, level in sorted(shown, key=lambda one: start_ns[one[0]]):
        start = start_ns[operation]
        while place < len(by_end) and end_ns[by_end[place][0]] < start:
            if by_end[place][1] > highest:
                witness, highest = by_end[place]
            place += 1
        if highest > level:
            yield witness, highest, operation, level
