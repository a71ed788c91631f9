"""What calls about consumer groups take and give: plain rows without behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.client.types import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as ListGroups tells it; state and type are "" from brokers that don't say."""

    group_id: str
    protocol_type: str
    state: str
    type: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, and what it reads."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    # None where members share out something else than partitions, or the bytes can't be read.
    assignment: Sequence[TopicPartition] | None
    subscribed_topics: Sequence[str]
    # What the coordinator wants it to have; the same as the assignment in classic groups.
    target_assignment: Sequence[TopicPartition] | None = None
    member_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One generation of a group, and why there was a new one."""

    generation: int
    cause: str
    reason: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    began_at_ms: int
    stood_still_ms: int  # -1 while consumers still wait
    members_before: int
    members_after: int


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator knows it."""

    group_id: str
    type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator_id: int
    members: Sequence[GroupMember]
    group_epoch: int = -1
    # None from brokers that keep no history.
    history: Sequence[Rebalance] | None = None
