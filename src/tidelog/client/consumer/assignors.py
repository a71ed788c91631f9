"""Partition assignment in a classic group: assignors, which the group's leader runs for all its members.

What always holds: range and round-robin produce the same assignment as Apache Kafka's Java client for the same members
and topics, so a mixed group is stable whoever leads it. Every partition of a subscribed topic has exactly one owner,
and the owner is a subscriber. An assignor makes no requests and does not know the time. The sticky assignors are in
`sticky_assignors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Protocol, runtime_checkable

from tidelog.client.types import TopicPartition
from tidelog.common.light_dataclass import dataclass

NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member tells the group's leader."""

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()  # its current partitions; none for eager members, which give all up first
    generation: int = NO_GENERATION  # the generation in which it got them
    user_data: bytes | None = None  # defined by the chosen assignor
    instance_id: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """The group's topics as the cluster has them now; topics that don't exist are left out."""

    partition_counts: Mapping[str, int]
    # The racks that hold a replica of a partition, if brokers report their racks.
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic; none if it doesn't exist."""
        return [TopicPartition(topic, number) for number in range(self.partition_counts.get(topic, 0))]


@runtime_checkable
class Assignor(Protocol):
    """Chooses the owners of partitions. To write your own, subclass this, give it a `name`, and define `assign`.

    All members of a group must have an assignor of that name. One instance serves one consumer, so it may keep state.
    With `is_cooperative`, members keep reading during a rebalance. `assign` must then leave out every partition that
    moves but is still owned by another member; it is assigned in the next rebalance, which follows immediately.
    """

    name: str
    is_cooperative: bool = False

    def assign(
        self, layout: TopicLayout, members: Mapping[str, MemberSubscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """The partitions of each member, by member id; called only on the leader."""
        ...

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        """Data for the leader's assignor besides this member's subscription; sent with every join."""
        return None

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        """Called on every member with its new assignment."""
        return None


class RangeAssignor(Assignor):
    """Gives each member an equal range of every topic; equal partition numbers stay together across topics."""

    name = "range"

    def assign(
        self, layout: TopicLayout, members: Mapping[str, MemberSubscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        order = _in_order(members)
        shares = [
            _TopicShares(
                layout, topic, [member_id for member_id in order if topic in members[member_id].topics], members
            )
            for topic in sorted(_known_topics(layout, members))
        ]
        assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        if any(share.knows_racks for share in shares):
            _assign_by_rack(shares, assigned)
        for share in shares:
            share.assign_ranges(assigned, by_rack=False)
        for partitions in assigned.values():
            partitions.sort()
        return assigned


class RoundRobinAssignor(Assignor):
    """Deals out all partitions of all topics to the members in turn."""

    name = "roundrobin"

    def assign(
        self, layout: TopicLayout, members: Mapping[str, MemberSubscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        order = _in_order(members)
        assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        turn = 0
        for topic in sorted(_known_topics(layout, members), key=_java_key):
            for partition in layout.partitions(topic):
                while topic not in members[order[turn % len(order)]].topics:
                    turn += 1
                assigned[order[turn % len(order)]].append(partition)
                turn += 1
        return assigned


class _TopicShares:
    """One topic under the range assignor: the partitions left, and how many more each member may get."""

    def __init__(
        self, layout: TopicLayout, topic: str, order: list[str], members: Mapping[str, MemberSubscription]
    ) -> None:
        self.order = order
        self.unassigned = dict.fromkeys(layout.partitions(topic))
        self.partition_count = len(self.unassigned)
        self.topic = topic
        self._share, self._extra = divmod(self.partition_count, len(order))
        self._given = dict.fromkeys(order, 0)
        self.member_racks = {member_id: members[member_id].rack or None for member_id in order}
        self._racks = {partition: layout.racks.get(partition, frozenset()) for partition in self.unassigned}
        wanted = {rack for rack in self.member_racks.values() if rack is not None}
        present = frozenset().union(*self._racks.values())
        # Racks don't help if no member shares one with a replica, or if every partition is in all racks.
        self.knows_racks = bool(wanted & present) and any(racks != present for racks in self._racks.values())

    def room(self, member_id: str) -> int:
        return max(0, self._share + (1 if self._extra > 0 else 0) - self._given[member_id])

    def racks_match(self, member_id: str, partition: TopicPartition) -> bool:
        rack = self.member_racks[member_id]
        return rack is None or rack in self._racks[partition]

    def give(
        self, member_id: str, partitions: Iterable[TopicPartition], assigned: dict[str, list[TopicPartition]]
    ) -> None:
        for partition in partitions:
            assigned[member_id].append(partition)
            self._given[member_id] += 1
            del self.unassigned[partition]
        if self._given[member_id] > self._share:
            self._extra -= 1

    def assign_ranges(self, assigned: dict[str, list[TopicPartition]], *, by_rack: bool) -> None:
        for member_id in self.order:
            fitting = [each for each in self.unassigned if not by_rack or self.racks_match(member_id, each)]
            chosen = fitting[: self.room(member_id)]
            if chosen:
                self.give(member_id, chosen, assigned)


def _assign_by_rack(shares: list[_TopicShares], assigned: dict[str, list[TopicPartition]]) -> None:
    """First assign what a replica in the member's own rack can serve (KIP-881), co-partitioned topics together."""
    alike: dict[tuple[tuple[tuple[str, str | None], ...], int], list[_TopicShares]] = {}
    for share in shares:
        if not any(share.member_racks.values()):
            continue  # none of its subscribers reports a rack
        alike.setdefault((tuple(share.member_racks.items()), share.partition_count), []).append(share)
    for (_, partition_count), together in alike.items():
        if len(together) > 1:
            _assign_copartitioned(together, partition_count, assigned)
        elif together[0].knows_racks:
            together[0].assign_ranges(assigned, by_rack=True)


def _assign_copartitioned(
    together: list[_TopicShares], partition_count: int, assigned: dict[str, list[TopicPartition]]
) -> None:
    remaining = list(together[0].order)
    for number in range(partition_count):
        fitting = (
            member_id
            for member_id in remaining
            if all(
                share.racks_match(member_id, TopicPartition(share.topic, number)) and share.room(member_id) > 0
                for share in together
            )
        )
        member_id = next(fitting, None)
        if member_id is None:
            continue
        for share in together:
            share.give(member_id, [TopicPartition(share.topic, number)], assigned)
        if not any(share.room(member_id) > 0 for share in together):
            remaining.remove(member_id)


def _known_topics(layout: TopicLayout, members: Mapping[str, MemberSubscription]) -> set[str]:
    subscribed = {topic for member in members.values() for topic in member.topics}
    return {topic for topic in subscribed if layout.partition_counts.get(topic, 0) > 0}


def _in_order(members: Mapping[str, MemberSubscription]) -> list[str]:
    """Static members by instance id, then the others by member id, so a restart changes little."""

    def key(member_id: str) -> tuple[bool, bytes]:
        instance_id = members[member_id].instance_id
        return (instance_id is None, _java_key(member_id if instance_id is None else instance_id))

    return sorted(members, key=key)


def _java_key(text: str) -> bytes:
    """Java compares strings by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")
