"""Blocks are used again, but never while somebody can still see their contents."""

from __future__ import annotations

import pyarrow as pa

from tidelog.common.recycled_memory import RecycledMemory


def test_memory_is_used_again_when_nobody_has_it() -> None:
    memory = RecycledMemory()
    block = memory.take(1000)
    place = id(block)
    assert id(memory.take(1000)) != place, "it is still in use"
    kept = pa.Array.from_buffers(pa.uint8(), 1000, [None, pa.py_buffer(block)]).slice(10, 5)
    del block
    assert id(memory.take(800)) != place, "an Arrow array still has it"
    del kept
    assert place in {id(memory.take(900)), id(memory.take(900))}
    assert len(memory.take(100)) < 1000, "a block that is far too large is not given"


def test_a_view_keeps_its_block() -> None:
    memory = RecycledMemory()
    block = memory.take(1000)
    place = id(block)
    view = memoryview(block)[10:20]
    part = view[:5]
    del block, view
    assert id(memory.take(1000)) != place
    del part
    assert place in {id(memory.take(1000)), id(memory.take(1000))}


def test_only_the_last_blocks_are_kept_and_none_too_large() -> None:
    memory = RecycledMemory(blocks_max=2, block_bytes_max=1000)
    blocks = [memory.take(1000) for _ in range(3)]
    places = [id(block) for block in blocks]
    blocks.clear()
    large = memory.take(1001)
    assert len(large) == 1001
    assert [id(block) for block in (memory.take(1000), memory.take(1000))] == places[1:]


def test_forgotten_blocks_are_not_given_out() -> None:
    memory = RecycledMemory()
    block = memory.take(1000)
    memory.forget()
    assert memory.take(1000) is not block
