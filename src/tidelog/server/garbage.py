"""Keeps the pauses of Python's garbage collector short in a process with many long-lived objects.

What always holds: an object that survives a full collection is not scanned by later ones, so their time depends on what
is new, not on all that the broker holds; so does when the next one is due. (A hundred thousand objects take about ten
milliseconds, and nobody is served meanwhile.)

Nearly all of the broker's objects are freed by their reference counts and don't need the collector. Cycles that become
garbage after they were set aside are found only by a scan of everything, which takes half a second with 30,000 open
partitions. It is done when there may be something to find: such garbage makes the process hold ever more blocks of
memory, so nothing is scanned until they are half as many again as after the last scan, and at most once an hour. A
broker that holds as much as before is never scanned; one that grows, for whatever reason, is each time it has grown by
half, so 30,000 more partitions cost a few scans in its life and not one an hour. Old garbage never takes more blocks
than half of what the broker held at the last scan, or what came up within an hour. Large buffers are not counted, only
the objects that refer to them.

New objects are looked at in larger and fewer portions than usual, so that those of a request for thousands of
partitions are mostly gone before they are looked at: a produce to 2,000 partitions spent a tenth to a fifth of its time
in the collector.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Mapping

_LOOK_AT_ALL_EVERY_S = 3600.0
_LOOK_AT_ALL_GROWTH = 1.5
_OLDEST_GENERATION = 2

# After how many new objects the youngest are collected, and after how many more collections of one generation the next
# older one is; Python's defaults are 700, 10 and 10. A full collection is due as often as by default, after some
# 90,000.
_THRESHOLDS = (10_000, 1, 1)


class GarbagePauses:
    """Exempts survivors from later collections. Call `start` and `stop` on the event loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        monotonic_s: Callable[[], float] = time.monotonic,
        allocated_blocks: Callable[[], int] = sys.getallocatedblocks,
    ) -> None:
        """Counting the allocated blocks goes through pools of them, and takes under a millisecond."""
        self._loop = loop
        self._monotonic_s = monotonic_s
        self._allocated_blocks = allocated_blocks
        self._looked_at_all_s = monotonic_s()
        self._blocks = 0
        self._thresholds_before = gc.get_threshold()

    def start(self) -> None:
        gc.collect()
        gc.freeze()
        _forget_size()
        self._blocks = self._allocated_blocks()
        self._thresholds_before = gc.get_threshold()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        gc.callbacks.remove(self._on_collection)
        gc.set_threshold(*self._thresholds_before)
        gc.unfreeze()

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if phase != "stop" or info["generation"] != _OLDEST_GENERATION:
            return
        gc.freeze()
        now_s = self._monotonic_s()
        if (
            now_s - self._looked_at_all_s > _LOOK_AT_ALL_EVERY_S
            and self._allocated_blocks() > self._blocks * _LOOK_AT_ALL_GROWTH
        ):
            self._looked_at_all_s = now_s
            # Not from here: a collection is just ending, in whatever thread it ran.
            self._loop.call_soon_threadsafe(self._look_at_all)

    def _look_at_all(self) -> None:
        gc.unfreeze()
        # Its end freezes what is left.
        gc.collect()
        _forget_size()
        self._blocks = self._allocated_blocks()


def _forget_size() -> None:
    """Have the collector know that hardly anything is left to look at, once all is frozen.

    It puts a full collection off until a quarter as much is new as the last one looked at. After one of everything that
    would be a quarter of all that the broker holds, which may never come together.
    """
    gc.collect()
