"""Tracks which records of a partition are done, and up to where that may be committed.

What always holds: no unfinished record lies before the offset to commit, whatever the order in which records finish.
Gaps between offsets, as compaction and transactions leave them, do not hold it up.
"""

from __future__ import annotations

from collections import deque

from tidelog.client.types import OffsetAndMetadata, TopicPartition


class OffsetProgress:
    """The records of one partition, from its assignment until it is revoked."""

    __slots__ = (
        "_done_epoch",
        "_done_offset",
        "_epochs",
        "_finished",
        "_pending",
        "begun",
        "committed",
        "in_flight",
        "is_given_up",
        "partition",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        # Set once the partition belongs to another member: records finished after that no longer count.
        self.is_given_up = False
        # The last commit; None before the first.
        self.committed: OffsetAndMetadata | None = None
        # The last offset that was started: records before it that are missing here are gaps.
        self.begun = -1
        # Records that are being worked on, or will be.
        self.in_flight = 0
        self._done_offset = -1
        self._done_epoch = -1
        self._pending: deque[int] = deque()
        self._epochs: deque[int] = deque()
        self._finished: set[int] = set()

    def take(self, offset: int, leader_epoch: int) -> None:
        """The consumer returned a record; offsets only increase."""
        self.in_flight += 1
        self._pending.append(offset)
        self._epochs.append(leader_epoch)

    def finish(self, offset: int) -> None:
        self._finished.add(offset)
        while self._pending and self._pending[0] in self._finished:
            first = self._pending.popleft()
            self._finished.remove(first)
            self._done_offset, self._done_epoch = first + 1, self._epochs.popleft()

    @property
    def done(self) -> OffsetAndMetadata | None:
        """The offset that may be committed; None before the first record is done."""
        return None if self._done_offset < 0 else OffsetAndMetadata(self._done_offset, self._done_epoch)

    @property
    def uncommitted(self) -> int:
        """Records that a crash would repeat: those not done, and those done after one that is not."""
        return len(self._pending)
