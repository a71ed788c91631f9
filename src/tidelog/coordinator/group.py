"""What every kind of group can be asked, so that offsets, lists and deletions need not know which kind it is.

What always holds: a group object has members or had some; offsets that were committed without any membership belong to
a group id without a group object, which clients see as an empty classic group (Kafka calls it a simple group).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from tidelog.protocol import ErrorCode

if TYPE_CHECKING:
    from tidelog.coordinator.actions import Action, GroupRecord, Now, TimerKey
    from tidelog.coordinator.config import GroupImage
    from tidelog.coordinator.memory import Footprint
    from tidelog.coordinator.offsets import CommittedOffset
    from tidelog.coordinator.rebalance_history import RebalanceHistory
    from tidelog.protocol.messages.k15_describe_groups import DescribedGroup


class GroupType(StrEnum):
    """The kinds of groups, as ListGroups calls them, in small letters as Kafka does."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of groups whose members subscribe to topics; others, as Kafka Connect's, share out other things."""

EMPTY = "Empty"
DEAD = "Dead"


class Group(Protocol):
    """One group, of whatever kind."""

    group_id: str
    history: RebalanceHistory
    footprint: Footprint

    @property
    def type(self) -> GroupType: ...

    @property
    def protocol_type(self) -> str:
        """What its members share out; "" while it never had one."""
        ...

    @property
    def state(self) -> str:
        """The state as ListGroups names it: Empty, Stable, PreparingRebalance, Assigning, ..."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether offsets of this topic are in use: a member subscribes to it, or what members want is not known."""
        ...

    def is_subscribed_to_any(self, topics: frozenset[str]) -> bool:
        """Whether offsets of any of these topics are in use."""
        ...

    def expires_from_ms(self, offset: CommittedOffset) -> int | None:
        """The wall-clock time from which the retention of an offset counts; None while it can't expire.

        Asked only for topics to which the group is not subscribed.
        """
        ...

    def check_offset_commit(
        self, member_id: str, group_instance_id: str | None, generation_or_epoch: int, api_version: int
    ) -> ErrorCode:
        """Whether this member may commit offsets now."""
        ...

    def check_txn_offset_commit(
        self, member_id: str, group_instance_id: str | None, generation_or_epoch: int
    ) -> ErrorCode:
        """Whether this member may commit offsets in a transaction now; clients before KIP-447 name no member."""
        ...

    def on_offset_commit(self, member_id: str, now: Now) -> list[Action]:
        """A commit that may be made was asked for; it shows that the member is alive."""
        ...

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether this member may read offsets now."""
        ...

    def check_offset_delete(self) -> ErrorCode:
        """Whether offsets of topics that it is not subscribed to may be deleted."""
        ...

    def check_delete(self) -> ErrorCode:
        """Whether the group may be deleted."""
        ...

    def tombstones(self) -> list[GroupRecord]:
        """The records that delete the group itself, its offsets aside."""
        ...

    def on_deleted(self) -> list[Action]:
        """The group was deleted: whoever waits is answered, timers are cancelled."""
        ...

    def describe(self) -> DescribedGroup:
        """The answer of DescribeGroups."""
        ...

    def on_timer(self, key: TimerKey, now: Now) -> list[Action]:
        """A timer of this group is due; the key is the one it was set with."""
        ...

    def on_loaded(self, now: Now) -> list[Action]:
        """All records were replayed, and from now on this broker is the coordinator."""
        ...

    def on_unloaded(self, error: ErrorCode) -> list[Action]:
        """This broker is no longer the coordinator: whoever waits is told that error."""
        ...

    def on_topics_changed(self, image: GroupImage, now: Now) -> list[Action]:
        """Topics were made, deleted or given more partitions."""
        ...
