"""Keeps the pauses of Python's garbage collector short in a process that holds much for a long time.

What always holds: what has survived a full collection is not looked at by the next ones, so their time follows what was
made since, not what the broker holds: a hundred thousand objects take some ten milliseconds, in which nobody is served.
What became garbage in a cycle after that is found by a look at everything, at most once an hour. Nearly all of the
broker's objects go by their reference counts and need no collector.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Mapping

_LOOK_AT_ALL_EVERY_S = 3600.0
_OLDEST_GENERATION = 2


class GarbagePauses:
    """Sets aside what survives; `start` and `stop` it on the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._monotonic_s = monotonic_s
        self._looked_at_all_s = monotonic_s()

    def start(self) -> None:
        gc.collect()
        gc.freeze()
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
            # Not inside a collection, of which this is the end; it may run in any thread.
            self._loop.call_soon_threadsafe(_look_at_all)


def _look_at_all() -> None:
    gc.unfreeze()
    gc.collect()
