"""What survives is not looked at again and again, and garbage still goes."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from tidelog.server.garbage import GarbagePauses


class _Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _collector_is_put_back() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_survives_a_collection_is_set_aside() -> None:
    async def main() -> None:
        pauses = GarbagePauses(asyncio.get_running_loop())
        pauses.start()
        try:
            kept = [_Node() for _ in range(1000)]
            before = gc.get_freeze_count()
            gc.collect()
            assert gc.get_freeze_count() >= before + len(kept)
        finally:
            pauses.stop()

    asyncio.run(main())


def test_the_objects_of_a_large_request_are_not_looked_at_while_it_runs() -> None:
    async def main() -> None:
        before = gc.get_threshold()
        pauses = GarbagePauses(asyncio.get_running_loop())
        pauses.start()
        try:
            collections = [each["collections"] for each in gc.get_stats()]
            answers = [[number] for number in range(5000)]
            assert [each["collections"] for each in gc.get_stats()] == collections
            assert len(answers) == 5000
        finally:
            pauses.stop()
        assert gc.get_threshold() == before

    asyncio.run(main())


def test_new_garbage_goes_at_once_and_old_garbage_when_memory_has_grown() -> None:
    now_s, blocks = 0.0, 1000

    async def main() -> None:
        nonlocal now_s, blocks
        pauses = GarbagePauses(asyncio.get_running_loop(), lambda: now_s, lambda: blocks)
        pauses.start()
        try:
            new = weakref.ref(_Node())
            gc.collect()
            assert new() is None
            node: _Node | None = _Node()
            old = weakref.ref(node)
            gc.collect()
            node = None
            await collected()
            assert old() is not None, "it was set aside while it was in use"
            now_s += 3601.0
            blocks = 1500
            await collected()
            assert old() is not None, "nothing is scanned that has hardly grown"
            blocks = 1501
            await collected()
            assert old() is None
        finally:
            pauses.stop()

    asyncio.run(main())


def test_what_has_grown_is_scanned_once_and_not_twice_an_hour() -> None:
    now_s, blocks = 0.0, 1000

    async def main() -> None:
        nonlocal now_s, blocks
        pauses = GarbagePauses(asyncio.get_running_loop(), lambda: now_s, lambda: blocks)
        pauses.start()

        async def is_scanned() -> bool:
            old = _abandoned()
            await collected()
            return old() is None

        try:
            now_s, blocks = 3601.0, 2000
            assert await is_scanned()
            now_s = 7202.0
            assert not await is_scanned(), "it holds as much as after the last scan"
            blocks = 3001
            assert await is_scanned()
            blocks = 10_000
            assert not await is_scanned(), "it was scanned less than an hour ago"
            now_s = 10_803.0
            assert await is_scanned()
        finally:
            pauses.stop()

    asyncio.run(main())


def test_abandoned_cycles_show_in_the_count_that_is_watched() -> None:
    async def main() -> None:
        now_s = 0.0
        pauses = GarbagePauses(asyncio.get_running_loop(), lambda: now_s)
        pauses.start()
        try:
            count = sys.getallocatedblocks()
            nodes = [_Node() for _ in range(count // 2)]
            last = weakref.ref(nodes[-1])
            gc.collect()
            nodes.clear()
            now_s = 3601.0
            await collected()
            assert last() is None
        finally:
            pauses.stop()

    asyncio.run(main())


def _abandoned() -> weakref.ref[_Node]:
    """A cycle that becomes garbage after it was set aside."""
    node = _Node()
    gc.collect()
    return weakref.ref(node)


async def collected() -> None:
    """A full collection, and what it has the loop do."""
    gc.collect()
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_a_full_collection_is_due_by_what_is_new() -> None:
    """However much was in memory at the start, or when all of it was looked at last."""
    now_s, blocks = 0.0, 1000

    def full_collections() -> int:
        return int(gc.get_stats()[2]["collections"])

    def collects_soon() -> bool:
        before = full_collections()
        new: list[list[int]] = []
        while full_collections() == before and len(new) < 120_000:
            new.append([])
        return full_collections() > before

    async def main() -> None:
        nonlocal now_s, blocks
        held: list[list[int]] = [[] for _ in range(600_000)]
        pauses = GarbagePauses(asyncio.get_running_loop(), lambda: now_s, lambda: blocks)
        pauses.start()
        try:
            assert collects_soon()
            now_s += 3601.0
            blocks = 2000
            await collected()
            assert collects_soon()
            assert len(held) == 600_000
        finally:
            pauses.stop()

    asyncio.run(main())


def test_after_the_stop_nothing_is_set_aside() -> None:
    async def main() -> None:
        pauses = GarbagePauses(asyncio.get_running_loop())
        pauses.start()
        pauses.stop()
        gc.collect()
        assert gc.get_freeze_count() == 0

    asyncio.run(main())
