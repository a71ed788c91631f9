"""Which brokers the controller has not heard of for too long, though the metadata store shows them as alive.

What always holds: time is counted in turns of the controller's own event loop, so that a controller that stood still
does not find that everybody else was silent. A broker is in contact while one of its questions waits for an answer, and
for some turns after that. What follows from silence is up to `broker_watch`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

SILENT_TURNS: Final = 9
"""A broker is silent after this many turns without a question."""


class BrokerContact:
    """Questions of brokers, as far as they concern who asks."""

    def __init__(self) -> None:
        self._asking: Counter[int] = Counter()
        self._silent_turns: Counter[int] = Counter()

    def forget(self) -> None:
        """A new controller gives everyone the time to find it."""
        self._silent_turns.clear()

    @contextmanager
    def asking(self, node_id: int) -> Iterator[None]:
        """Around the time in which a question of this broker waits for its answer."""
        self._asking[node_id] += 1
        try:
            yield
        finally:
            self._asking[node_id] -= 1
            self._silent_turns[node_id] = 0

    def take_turn(self, node_ids: Iterable[int]) -> set[int]:
        """Count another turn; returns who of these brokers is silent."""
        silent = set()
        for node_id in node_ids:
            self._silent_turns[node_id] = 0 if self._asking[node_id] else self._silent_turns[node_id] + 1
            if self._silent_turns[node_id] >= SILENT_TURNS:
                silent.add(node_id)
        return silent
