"""A bounded cache that loads each entry once.

What always holds: it is thread-safe. At most `size` entries are kept, and the oldest go first. Threads that want the
same missing entry at once wait for one of them to load it, while others are not held up. Failures are not cached.
Lookups take no lock, since serializers make one for every record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class BoundedCache(Generic[KeyT, ValueT]):
    """Up to `size` entries, each valid for `lifetime_s` seconds, or forever."""

    def __init__(
        self, size: int, *, lifetime_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._size = size
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._entries: dict[KeyT, tuple[ValueT, float]] = {}
        self._loading: dict[KeyT, threading.Lock] = {}
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get_or_load(self, key: KeyT, load: Callable[[], ValueT]) -> ValueT:
        """The entry, loaded with `load` if it is missing or too old."""
        entry = self._fresh(key)
        if entry is not None:
            return entry[0]
        with self._guard:
            turn = self._loading.setdefault(key, threading.Lock())
        with turn:
            entry = self._fresh(key)
            if entry is not None:
                return entry[0]
            try:
                value = load()
                self.put(key, value)
            finally:
                with self._guard:
                    self._loading.pop(key, None)
        return value

    def put(self, key: KeyT, value: ValueT) -> None:
        with self._guard:
            # A reloaded entry counts as the newest.
            self._entries.pop(key, None)
            while len(self._entries) >= self._size:
                del self._entries[next(iter(self._entries))]
            self._entries[key] = (value, self._clock())

    def clear(self) -> None:
        with self._guard:
            self._entries.clear()

    def _fresh(self, key: KeyT) -> tuple[ValueT, float] | None:
        entry = self._entries.get(key)
        if entry is not None and self._lifetime_s is not None and self._clock() - entry[1] >= self._lifetime_s:
            return None
        return entry
