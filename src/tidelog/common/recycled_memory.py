"""Large blocks of memory that are used again and again.

What always holds: a block is given out only while nobody else holds it or a view of it; that relies on CPython's
reference counts and its interpreter lock. A block has at least the size asked for, at most twice that, and leftover
contents. Any thread may let go of a block; the object itself is used by one thread at a time.
"""

from __future__ import annotations

import sys


def _references(blocks: list[bytearray], number: int) -> int:
    return sys.getrefcount(blocks[number])


# Besides the list's own, calls may add references or not: that differs between versions of Python.
_REFERENCES_WHEN_FREE = _references([bytearray()], 0)


class RecycledMemory:
    """Blocks for data of similar sizes that come one after another.

    The system zeroes fresh memory page by page, which costs more than copying into it. The last `blocks_max` blocks are
    kept, none larger than `block_bytes_max`.
    """

    def __init__(self, blocks_max: int = 4, block_bytes_max: int = 16 * 1024 * 1024) -> None:
        self._blocks_max = blocks_max
        self._block_bytes_max = block_bytes_max
        self._blocks: list[bytearray] = []

    @property
    def held_bytes(self) -> int:
        """The size of all blocks together, free or not."""
        return sum(len(block) for block in self._blocks)

    def take(self, size: int) -> bytearray:
        """A block of at least that size, with leftover contents."""
        for number in range(len(self._blocks)):
            fits = size <= len(self._blocks[number]) <= 2 * size
            if fits and _references(self._blocks, number) == _REFERENCES_WHEN_FREE:
                block = self._blocks.pop(number)
                self._blocks.append(block)  # recently used ones stay longest
                return block
        block = bytearray(size)
        if size <= self._block_bytes_max:
            self._blocks.append(block)
            del self._blocks[: -self._blocks_max]
        return block

    def forget(self) -> None:
        """Free all blocks that nobody holds, and let go of the others."""
        self._blocks.clear()
