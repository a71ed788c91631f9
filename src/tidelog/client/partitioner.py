"""Which partition a record goes to: by the hash of its key, as Java's client does it, or sticky without a key.

What always holds: a key goes to the partition that every Kafka client with murmur2 picks for it, for the same number
of partitions; keyless records stay with one partition until its batch is full, so that batches are large.
"""

from __future__ import annotations

import random

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's Java client, as an unsigned number."""
    length = len(data)
    value = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ word
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    # Java clears the sign bit instead of taking the absolute value, which has no positive form for the smallest int.
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyChoice:
    """The partition for keyless records of one topic; `move` picks another when a batch is full."""

    def __init__(self, partitions: int, random_source: random.Random | None = None) -> None:
        self._random = random_source or random.Random()
        self._partitions = partitions
        self.partition = self._random.randrange(partitions)

    def move(self) -> None:
        if self._partitions > 1:
            step = self._random.randrange(1, self._partitions)
            self.partition = (self.partition + step) % self._partitions
