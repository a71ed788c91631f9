"""What the coordinator knows about its environment: its settings, and the topics of the cluster.

What always holds: a GroupConfig is immutable; fields are named after the settings, with '_' for '.', and have Kafka's
defaults. Which one is a group's may change at any time, so groups of the new protocol look it up when they need it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from tidelog.common.light_dataclass import dataclass

_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The settings of groups and of their offsets."""

    offset_metadata_max_bytes: int = 4096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    # Classic groups.
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = _INT_MAX
    # What the members of one group, and of all groups, may make the coordinator remember.
    tidelog_group_max_bytes: int = 8 * 1024 * 1024
    tidelog_group_coordinator_max_bytes: int = 256 * 1024 * 1024
    tidelog_group_offsets_max_bytes: int = 256 * 1024 * 1024
    # Groups of the new consumer protocol (KIP-848).
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = _INT_MAX
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_assignment_interval_ms: int = 1_000
    group_consumer_regex_refresh_interval_ms: int = 600_000

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000


class GroupConfigs:
    """The settings of each group: those of the broker, save for groups that have some of their own."""

    def __init__(self, common: GroupConfig, own: Callable[[str], Mapping[str, Any]] | None = None) -> None:
        """`own` looks up what a group has of its own, by the name of GroupConfig's field."""
        self.common = common
        self._look_up = own
        self._known: dict[str, GroupConfig] = {}

    def of(self, group_id: str) -> GroupConfig:
        """What counts for the group now."""
        known = self._known.get(group_id)
        if known is not None:
            return known
        own = self._look_up(group_id) if self._look_up is not None else None
        if not own:
            return self.common
        config = self._known[group_id] = replace(self.common, **own)
        return config

    def look_up_again(self) -> None:
        """Some groups may have other settings from now on."""
        self._known.clear()


class GroupImage(Protocol):
    """The topics of the cluster at one moment; a change of them comes as another image."""

    def topic_id(self, name: str) -> uuid.UUID | None:
        """The id of the topic of that name, or None where there is none."""
        ...

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """The name of the topic of that id, or None where there is none."""
        ...

    def partition_count(self, name: str) -> int:
        """How many partitions the topic of that name has; 0 where there is none."""
        ...

    def partition_racks(self, name: str) -> tuple[frozenset[str], ...]:
        """For each partition the racks of the brokers that hold it; brokers without a rack are left out."""
        ...

    def topic_names(self) -> Collection[str]:
        """All topics, internal ones included."""
        ...
