"""The state that all requests to one partition of __consumer_offsets share: groups, offsets, writes on their way.

What always holds: a group id is known when it has a group object, or offsets, or both.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.coordinator.appends import Appends
from tidelog.coordinator.config import GroupConfig, GroupImage
from tidelog.coordinator.group import Group
from tidelog.coordinator.offsets import GroupOffsets


class ShardState:
    """What `shard` and the parts it is made of read and change; `image` is replaced when topics change."""

    def __init__(self, partition: int, config: GroupConfig, image: GroupImage) -> None:
        self.partition = partition
        self.config = config
        self.image = image
        self.groups: dict[str, Group] = {}
        # Offsets outlive group objects: a group may be loaded after its offsets, or become one of another kind.
        self.offsets: dict[str, GroupOffsets] = {}
        self.appends = Appends()

    def offsets_of(self, group_id: str) -> GroupOffsets:
        """The offsets of a group, to be added to."""
        offsets = self.offsets.get(group_id)
        if offsets is None:
            offsets = self.offsets[group_id] = GroupOffsets()
        return offsets

    def is_known(self, group_id: str) -> bool:
        return group_id in self.groups or group_id in self.offsets

    def group_ids(self) -> Iterator[str]:
        yield from self.groups
        for group_id in self.offsets:
            if group_id not in self.groups:
                yield group_id
