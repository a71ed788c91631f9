"""Chooses the partition of a record that names none: by its key, sticky, round-robin, or by a custom rule.

What always holds: a key goes to the partition that Kafka's clients choose for it, by murmur2, for the same number of
partitions. Records without a key stay with one partition until `batch.size` bytes have gone there and its batch is
full, or at most twice as many bytes. The next one is chosen at random, less likely the more batches wait for it
(KIP-794). Partitions without a leader, or of a broker that isn't accepting anything, are left out while there are
others.
"""

from __future__ import annotations

import itertools
import random
import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from tidelog.records.kernel_build import TopicSlots

_UNBOUNDED = 0x7FFFFFFFFFFFFFFF


class Partitioner(Protocol):
    """A custom rule. It is called in the thread of `send`, with key and value as bytes."""

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        """A number from 0 to `partitions` - 1."""
        ...


class RoundRobinPartitioner:
    """Each topic's partitions in turn, ignoring the key. Batches fill more slowly than with the sticky choice."""

    def __init__(self) -> None:
        self._turns: dict[str, itertools.count[int]] = {}
        self._lock = threading.Lock()

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        with self._lock:
            turns = self._turns.get(topic)
            if turns is None:
                turns = self._turns[topic] = itertools.count(random.randrange(partitions))
            return next(turns) % partitions


class PartitionLoad(NamedTuple):
    """An eligible partition, and how many batches wait for it."""

    partition: int
    waiting_batches: int


class StickyChoice:
    """Where the keyless records of one topic go. The appender's slots hold the current choice."""

    def __init__(self, slots: TopicSlots, batch_size: int, random_source: random.Random | None = None) -> None:
        self._slots = slots
        self._batch_size = batch_size
        self._random = random_source or random.Random()
        self._is_chosen = False

    @property
    def is_due(self) -> bool:
        """Whether enough has gone to the current partition, or none was chosen yet."""
        return not self._is_chosen or self._slots.sticky_bytes >= self._batch_size

    def start_over(self) -> None:
        """Drop the current choice."""
        self._is_chosen = False

    def move(self, loads: Sequence[PartitionLoad]) -> int:
        """Choose among these partitions."""
        partition = self.pick(loads)
        self._slots.stick_to(partition, 2 * self._batch_size if len(loads) > 1 else _UNBOUNDED)
        self._is_chosen = True
        return partition

    def pick(self, loads: Sequence[PartitionLoad]) -> int:
        """A random one, with a weight of one plus how much shorter its queue is than the longest."""
        if len(loads) == 1:
            return loads[0].partition
        longest = max(load.waiting_batches for load in loads)
        bounds = list(accumulate(longest + 1 - load.waiting_batches for load in loads))
        return loads[bisect_right(bounds, self._random.randrange(bounds[-1]))].partition
