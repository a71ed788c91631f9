"""Keeps the pauses of Python's garbage collector short in a process with many long-lived objects.

What always holds: an object that survives a full collection is not scanned by later ones, so their time depends on what
is new, not on all that the broker holds; so does when the next one is due. (A hundred thousand objects take about ten
milliseconds, and nobody is served meanwhile.) Cycles that become garbage after that are found by a scan of everything,
at most once an hour. Nearly all of the broker's objects are freed by their reference counts and don't need the
collector.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Mapping

_LOOK_AT_ALL_EVERY_S = 3600.0
_OLDEST_GENERATION = 2


class GarbagePauses:
    """Exempts survivors from later collections. Call `start` and `stop` on the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._monotonic_s = monotonic_s
        self._looked_at_all_s = monotonic_s()

    def start(self) -> None:
        gc.collect()
        gc.freeze()
        _forget_size()
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        gc.callbacks.remove(self._on_collection)
        gc.unfreeze()

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if phase != "stop" or info["generation"] != _OLDEST_GENERATION:
            return
        gc.freeze()
        now_s = self._monotonic_s()
        if now_s - self._looked_at_all_s > _LOOK_AT_ALL_EVERY_S:
            self._looked_at_all_s = now_s
            # Not from here: a collection is just ending, in whatever thread it ran.
            self._loop.call_soon_threadsafe(_look_at_all)


def _look_at_all() -> None:
    gc.unfreeze()
    # Its end freezes what is left.
    gc.collect()
    _forget_size()


def _forget_size() -> None:
    """Have the collector know that hardly anything is left to look at, once all is frozen.

    It puts a full collection off until a quarter as much is new as the last one looked at. After one of everything that
    would be a quarter of all that the broker holds, which may never come together.
    """
    gc.collect()
