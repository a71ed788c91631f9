"""How much memory coordinators keep for clients, and how much they may.

Whoever can reach a broker can make it remember things: members with whatever they say about themselves, ids that were
given out and never used, offsets of groups that nobody is a member of, transactional ids. All of it is counted, by an
estimate that is rather too high, and refused when a group or all groups together would grow too large.

What always holds: a budget is the sum of what its shards hold. A shard is counted once it is loaded, because loading
runs in a thread; what it finds in its log is counted even if that exceeds the limit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from sys import getsizeof
from typing import Final

logger = logging.getLogger(__name__)

GROUP_BYTES: Final = 4_000
"""A group without members: the object, its members' tables and its history."""
MEMBER_BYTES: Final = 2_000
"""A member without what it says about itself: the object, its timers and the request that waits."""
PENDING_BYTES: Final = 1_000
"""An id that was given out, without its text: tables and a timer."""
TRANSACTION_BYTES: Final = 1_000
"""A transactional id without its name and its partitions."""
PARTITION_BYTES: Final = 200
"""A partition of a transaction."""
OFFSETS_BYTES: Final = 1_000
"""A group's table of offsets without their topics, and the group's name apart."""
OFFSETS_TOPIC_BYTES: Final = 400
"""A topic in that table, without its name."""
OFFSET_BYTES: Final = 250
"""A committed offset without its metadata."""
PENDING_OFFSET_BYTES: Final = 400
"""An offset in an open transaction, without its metadata and its topic."""

_PENDING_SHARE: Final = 4
"""Ids that nobody has joined with yet may take a quarter of the memory, as clients use theirs at once."""
_MEMBERS_SHARE: Final = 4
"""A quarter of the memory for offsets is kept for groups with members: to commit for any other group costs nothing."""


def text_bytes(texts: Iterable[str | None]) -> int:
    return sum(map(getsizeof, texts))


class MemoryBudget:
    """The bytes that all shards of a coordinator hold together."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def has_room(self, size_bytes: int, *, kept_bytes: int = 0) -> bool:
        """Whether it may grow by so much; `kept_bytes` are for others."""
        return self.used_bytes + size_bytes <= self.limit_bytes - kept_bytes


class ShardMemory:
    """The bytes that one shard holds."""

    __slots__ = ("_is_counted", "budget", "used_bytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.used_bytes = 0
        self._is_counted = False

    def add(self, size_bytes: int) -> None:
        """The shard holds so many bytes more, or less if the number is negative."""
        self.used_bytes += size_bytes
        if self._is_counted:
            self.budget.used_bytes += size_bytes

    def count(self) -> None:
        """The shard is loaded: its bytes belong to the budget from now on."""
        self._is_counted = True
        self.budget.used_bytes += self.used_bytes

    def release(self) -> None:
        """The shard is given up, with everything it held."""
        if self._is_counted:
            self._is_counted = False
            self.budget.used_bytes -= self.used_bytes


class Footprint:
    """The bytes of one group, charged to its shard while the group is one of the shard's."""

    __slots__ = ("_memory", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._memory: ShardMemory | None = None

    def add(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        if self._memory is not None:
            self._memory.add(size_bytes)

    def charge_to(self, memory: ShardMemory | None) -> None:
        if self._memory is not None:
            self._memory.add(-self.size_bytes)
        self._memory = memory
        if memory is not None:
            memory.add(self.size_bytes)


class PendingIds:
    """Member ids that were given out (KIP-394) and nobody has joined with yet, over all groups of a shard.

    Giving one out costs a client nothing, so the oldest are forgotten when there are too many. A client that comes
    with an id that was forgotten gets UNKNOWN_MEMBER_ID and asks for another.
    """

    def __init__(self, budget: MemoryBudget) -> None:
        self._memory = ShardMemory(budget)
        self._sizes: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, group_id: str, member_id: str, *, group_is_new: bool) -> None:
        size_bytes = PENDING_BYTES + text_bytes((group_id, member_id)) + (GROUP_BYTES if group_is_new else 0)
        self._sizes[group_id, member_id] = size_bytes
        self._memory.add(size_bytes)

    def discard(self, group_id: str, member_id: str) -> None:
        self._memory.add(-self._sizes.pop((group_id, member_id), 0))

    def oldest_in_excess(self) -> tuple[str, str] | None:
        """The group and id to forget next; None while there is room, or nothing but the newest id."""
        budget = self._memory.budget
        return next(iter(self._sizes)) if budget.used_bytes > budget.limit_bytes and len(self._sizes) > 1 else None

    def count(self) -> None:
        self._memory.count()

    def release(self) -> None:
        self._memory.release()


class GroupMemory:
    """What all groups of a broker may hold: members, ids that were given out, and offsets, each in its own budget."""

    def __init__(self, limit_bytes: int, offsets_limit_bytes: int) -> None:
        self.groups = MemoryBudget(limit_bytes)
        self.pending_ids = MemoryBudget(limit_bytes // _PENDING_SHARE)
        self.offsets = MemoryBudget(offsets_limit_bytes)
        self._warned_at_bytes: int | None = None

    def has_room_for_offsets(self, size_bytes: int, *, has_members: bool) -> bool:
        """Whether a group may commit so many bytes more."""
        kept_bytes = 0 if has_members else self.offsets.limit_bytes // _MEMBERS_SHARE
        has_room = self.offsets.has_room(size_bytes, kept_bytes=kept_bytes)
        if not has_room:
            self._warn()
        return has_room

    def _warn(self) -> None:
        """Once, and again when a tenth of it has been free meanwhile."""
        used_bytes = self.offsets.used_bytes
        if self._warned_at_bytes is None or used_bytes < self._warned_at_bytes * 0.9:
            logger.warning(
                "committed offsets take %d bytes: offsets of further partitions are refused. "
                "Delete groups that nobody uses, or raise tidelog.group.offsets.max.bytes",
                used_bytes,
            )
        self._warned_at_bytes = used_bytes
