"""How many producers the partitions of a broker remember.

What always holds: a partition that would remember more than `per_partition_max` producers forgets the one that was
silent for longest, and so does the largest partition when all together would remember more than `total_max`; a producer
with an open transaction is never forgotten for another one. A producer that was forgotten may go on writing: only a
retry of a batch that is already in the log is then no longer recognised. It counts and chooses; the states forget.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.log.producer_state import ProducerState

PER_PARTITION_MAX: Final = 20_000
TOTAL_MAX: Final = 500_000

_CROWDED: Final = 1_000
"""A partition with at least this many producers has to forget some when all partitions together have too many."""

_SHARE_FORGOTTEN: Final = 16
"""The largest partition forgets this part of its producers at once, so that it is not looked for at every append."""


class ProducerLimits:
    """The limits of one broker, and what counts towards them."""

    def __init__(self, per_partition_max: int = PER_PARTITION_MAX, total_max: int = TOTAL_MAX) -> None:
        self.per_partition_max = per_partition_max
        self._total_max = total_max
        self._total = 0
        self._crowded: set[ProducerState] = set()
        self._guard = threading.Lock()  # logs are opened and closed by threads

    @property
    def total(self) -> int:
        return self._total

    def note(self, state: ProducerState, change: int) -> None:
        """Producers were added, or forgotten if the number is negative. Callable from any thread."""
        with self._guard:
            self._total += change
            if len(state) >= _CROWDED:
                self._crowded.add(state)
            else:
                self._crowded.discard(state)

    @property
    def is_exceeded(self) -> bool:
        """Whether all partitions together remember too many."""
        return self._total > self._total_max

    def shrink_largest(self, state: ProducerState) -> None:
        """Let the largest state forget producers, or this one where none is large. On the event loop."""
        with self._guard:
            largest = max(self._crowded, key=len, default=state)
        largest.forget_oldest(max(len(largest) // _SHARE_FORGOTTEN, 1))
