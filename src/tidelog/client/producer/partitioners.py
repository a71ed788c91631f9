"""Which partition a record goes to where it does not say so itself: by its key, sticky, in turns, or by an own rule.

What always holds: a key goes to the partition that Kafka's clients pick for it, by murmur2, for the same number of
partitions. Records without a key stay with one partition until `batch.size` bytes have gone there and its batch is
full, or twice as many bytes at most; the next one is chosen at random, and the less likely the more batches wait for it
(KIP-794); partitions without a leader, or of a broker that takes nothing, are left out while there are others.
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
    """An own rule. It is called in the thread of `send`, with key and value as bytes."""

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        """A number from 0 to `partitions` - 1."""
        ...


class RoundRobinPartitioner:
    """The partitions of each topic in turns, whatever the key. Batches fill more slowly than with the sticky choice."""

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
    """A partition that could be chosen, and how many batches wait for it."""

    partition: int
    waiting_batches: int


class StickyChoice:
    """Where the keyless records of one topic go. The slots of the appender hold the present choice."""

    def __init__(self, slots: TopicSlots, batch_size: int, random_source: random.Random | None = None) -> None:
        self._slots = slots
        self._batch_size = batch_size
        self._random = random_source or random.Random()
        self._is_chosen = False

    @property
    def is_due(self) -> bool:
        """Whether enough has gone to the present partition, or none was chosen yet."""
        return not self._is_chosen or self._slots.sticky_bytes >= self._batch_size

    def start_over(self) -> None:
        """The present choice counts no more."""
        self._is_chosen = False

    def move(self, loads: Sequence[PartitionLoad]) -> int:
        """Choose among these partitions."""
        partition = self.pick(loads)
        self._slots.stick_to(partition, 2 * self._batch_size if len(loads) > 1 else _UNBOUNDED)
        self._is_chosen = True
        return partition

    def pick(self, loads: Sequence[PartitionLoad]) -> int:
        """One at random, each as likely as its queue is shorter than the longest one, plus one."""
        if len(loads) == 1:
            return loads[0].partition
        longest = max(load.waiting_batches for load in loads)
        bounds = list(accumulate(longest + 1 - load.waiting_batches for load in loads))
        return loads[bisect_right(bounds, self._random.randrange(bounds[-1]))].partition
