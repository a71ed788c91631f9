"""The state that all requests to one partition of __consumer_offsets share: groups, offsets, unfinished writes.

What always holds: a group id is known when it has a group object, or offsets, or both. While the offsets of a group
change in steps, requests about them are refused, so nobody sees them half changed, and nobody joins the group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tidelog.coordinator.appends import Appends
from tidelog.coordinator.config import GroupConfig, GroupConfigs, GroupImage
from tidelog.coordinator.group import Group
from tidelog.coordinator.memory import Footprint, GroupMemory, PendingIds, ShardMemory
from tidelog.coordinator.offsets import GroupOffsets
from tidelog.protocol import ErrorCode


def group_memory(config: GroupConfig) -> GroupMemory:
    """What the groups of a broker with these settings may hold."""
    return GroupMemory(config.tidelog_group_coordinator_max_bytes, config.tidelog_group_offsets_max_bytes)


class ShardState:
    """What `shard` and the parts it is made of read and change; `image` is replaced when topics change."""

    def __init__(
        self,
        partition: int,
        config: GroupConfig,
        image: GroupImage,
        memory: GroupMemory | None = None,
        configs: GroupConfigs | None = None,
    ) -> None:
        """`memory` and `configs` are shared by all shards of a broker; without `memory` the shard has its own budget,
        without `configs` all groups have the same settings."""
        self.partition = partition
        self.config = config
        self.configs = configs or GroupConfigs(config)
        self.image = image
        self.groups: dict[str, Group] = {}
        # Offsets outlive group objects: a group may be loaded after its offsets, or become one of another kind.
        self.offsets: dict[str, GroupOffsets] = {}
        # Groups whose offsets are being changed in steps. Clients wait and ask again, as while the shard is loading.
        self.changing: Counter[str] = Counter()
        # How many commits of offsets each group has in the log that are not decided yet.
        self.undecided_commits: Counter[str] = Counter()
        self.appends = Appends()
        shared = memory or group_memory(config)
        self.shared_memory = shared
        self.memory = ShardMemory(shared.groups)
        self.offsets_memory = ShardMemory(shared.offsets)
        self.pending_ids = PendingIds(shared.pending_ids)

    def put_group(self, group: Group) -> None:
        """The id belongs to this group from now on."""
        known = self.groups.get(group.group_id)
        if known is not group:
            self.drop_group(group.group_id)
            self.groups[group.group_id] = group
            group.footprint.charge_to(self.memory)

    def drop_group(self, group_id: str) -> Group | None:
        """The id no longer belongs to a group; returns the one it belonged to."""
        group = self.groups.pop(group_id, None)
        if group is not None:
            group.footprint.charge_to(None)
        return group

    def check_room(self, footprint: Footprint, more_bytes: int) -> ErrorCode:
        """Whether a group may grow by this many bytes."""
        if more_bytes <= 0:
            return ErrorCode.NONE
        if footprint.size_bytes + more_bytes > self.config.tidelog_group_max_bytes:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not self.memory.budget.has_room(more_bytes):
            # Others hold the memory. Their sessions will end, so clients may retry.
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def offsets_of(self, group_id: str) -> GroupOffsets:
        """The offsets of a group, to be added to."""
        offsets = self.offsets.get(group_id)
        if offsets is None:
            offsets = self.offsets[group_id] = GroupOffsets(group_id)
            offsets.footprint.charge_to(self.offsets_memory)
        return offsets

    def drop_offsets(self, group_id: str) -> None:
        """Forget all offsets of a group, and that it had any."""
        offsets = self.offsets.pop(group_id, None)
        if offsets is not None:
            offsets.footprint.charge_to(None)

    def begin_change(self, group_id: str) -> None:
        """The group's offsets are changed in steps from now on."""
        self.changing[group_id] += 1

    def end_change(self, group_id: str) -> None:
        self.changing[group_id] -= 1
        if not self.changing[group_id]:
            del self.changing[group_id]

    def check_unchanging(self, group_id: str) -> ErrorCode:
        """The error for requests that must not see the group's offsets half changed."""
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if group_id in self.changing else ErrorCode.NONE

    def may_remove_offsets(self, group_id: str) -> bool:
        """Whether a deletion that is written now can't undo a commit: one that is undecided is in the log, too."""
        return group_id not in self.changing and group_id not in self.undecided_commits

    def is_known(self, group_id: str) -> bool:
        return group_id in self.groups or group_id in self.offsets

    def group_ids(self) -> Iterator[str]:
        yield from self.groups
        for group_id in self.offsets:
            if group_id not in self.groups:
                yield group_id
