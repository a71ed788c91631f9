"""The sticky assignors: as even as possible, and within that, as close to the previous assignment as possible.

What always holds: two members that read the same topics never differ by more than one partition. A partition stays with
its member as long as the balance allows. The eager assignor learns from the user data what a member had, the
cooperative one from what the member still owns. Both read and write the format of Apache Kafka's Java client, so groups
may mix clients. The plan may differ from the one that a Java leader would make, which is fine because only a group's
leader makes plans.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from tidelog.client.consumer.assignors import NO_GENERATION, Assignor, MemberSubscription, TopicLayout
from tidelog.client.types import TopicPartition, group_by_topic

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class StickyAssignor(Assignor):
    """Sticky in an eager group: members give up everything before they join, and report what they had."""

    name = "sticky"

    def __init__(self) -> None:
        self._previous: tuple[TopicPartition, ...] | None = None
        self._generation = NO_GENERATION

    def assign(
        self, layout: TopicLayout, members: Mapping[str, MemberSubscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        claims = {member_id: read_previous(member.user_data) for member_id, member in members.items()}
        return _plan(layout, members, claims)

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        return None if self._previous is None else write_previous(self._previous, self._generation)

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        self._previous = tuple(partitions)
        self._generation = generation


class CooperativeStickyAssignor(Assignor):
    """Sticky and incremental: members keep reading what stays; what moves is revoked first, then assigned (KIP-429)."""

    name = "cooperative-sticky"
    is_cooperative = True

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def assign(
        self, layout: TopicLayout, members: Mapping[str, MemberSubscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        claims = {member_id: (member.owned, _generation_of(member)) for member_id, member in members.items()}
        plan = _plan(layout, members, claims)
        accepted = _accepted_owners(claims)
        claimants: dict[TopicPartition, set[str]] = {}
        for member_id, member in members.items():
            for partition in member.owned:
                claimants.setdefault(partition, set()).add(member_id)
        return {
            member_id: [
                partition
                for partition in partitions
                if accepted.get(partition) == member_id or not claimants.get(partition)
            ]
            for member_id, partitions in plan.items()
        }

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        # Since version 2 the subscription has its own field for the generation; older leaders read it from here.
        return _INT32.pack(self._generation)

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:
        self._generation = generation


_Claim = tuple[Sequence[TopicPartition], int]


def _generation_of(member: MemberSubscription) -> int:
    if member.generation != NO_GENERATION or member.user_data is None or len(member.user_data) < _INT32.size:
        return member.generation
    generation: int = _INT32.unpack_from(member.user_data)[0]
    return generation


def _accepted_owners(claims: Mapping[str, _Claim]) -> dict[TopicPartition, str]:
    """Who owns each partition: the latest generation's claim wins; two claims of the same generation cancel out."""
    latest: dict[TopicPartition, tuple[int, str | None]] = {}
    for member_id, (partitions, generation) in claims.items():
        for partition in partitions:
            other = latest.get(partition)
            if other is None or generation > other[0]:
                latest[partition] = (generation, member_id)
            elif generation == other[0]:
                latest[partition] = (generation, None)
    return {partition: owner for partition, (_, owner) in latest.items() if owner is not None}


def _plan(
    layout: TopicLayout, members: Mapping[str, MemberSubscription], claims: Mapping[str, _Claim]
) -> dict[str, list[TopicPartition]]:
    """Assign all partitions to the members, whatever has to move."""
    plan = _Plan(layout, members)
    plan.keep(_accepted_owners(claims))
    plan.assign_rest()
    plan.even_out()
    return plan.result()


class _Plan:
    """A plan in the making: who has what, and who may have what."""

    def __init__(self, layout: TopicLayout, members: Mapping[str, MemberSubscription]) -> None:
        self._order = sorted(members)
        self._subscribers: dict[str, list[str]] = {}
        for member_id in self._order:
            for topic in members[member_id].topics:
                if layout.partition_counts.get(topic, 0) > 0:
                    self._subscribers.setdefault(topic, []).append(member_id)
        # Topics with the same readers have the same least loaded reader; there are few such sets.
        self._readers = {topic: tuple(member_ids) for topic, member_ids in self._subscribers.items()}
        self._layout = layout
        self._members = members
        # By member and topic, to find a partition of a given topic directly.
        self._held: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in self._order}
        self._loads = dict.fromkeys(self._order, 0)
        self._owners: dict[TopicPartition, str] = {}
        self._previous: Mapping[TopicPartition, str] = {}

    def keep(self, owners: Mapping[TopicPartition, str]) -> None:
        """Leave every partition where it is, provided that it exists and its owner still wants the topic."""
        self._previous = owners
        kept: dict[str, list[TopicPartition]] = {member_id: [] for member_id in self._order}
        for partition in sorted(owners):
            member_id = owners[partition]
            exists = partition.partition < self._layout.partition_counts.get(partition.topic, 0)
            if exists and partition.topic in self._members[member_id].topics:
                kept[member_id].append(partition)
        shares = self._shares({member_id: len(partitions) for member_id, partitions in kept.items()})
        for member_id, partitions in kept.items():
            for partition in partitions[: shares.get(member_id)]:
                self._give(partition, member_id)

    def _shares(self, kept: Mapping[str, int]) -> dict[str, int]:
        """If all read the same topics, how many each may keep, so that nothing has to be moved one by one later.

        If the total doesn't divide evenly, the members that have the most may keep the extra ones.
        """
        if len({member.topics for member in self._members.values()}) != 1:
            return {}
        total = sum(self._layout.partition_counts[topic] for topic in self._subscribers)
        share, extra = divmod(total, len(self._order))
        by_load = sorted(self._order, key=lambda member_id: -kept[member_id])
        return {member_id: share + (1 if rank < extra else 0) for rank, member_id in enumerate(by_load)}

    def assign_rest(self) -> None:
        """Assign unowned partitions to the least loaded eligible members; those that few may have come first."""
        topics = sorted(self._subscribers, key=lambda topic: (len(self._subscribers[topic]), topic))
        for topic in topics:
            subscribers = self._subscribers[topic]
            for partition in self._layout.partitions(topic):
                if partition not in self._owners:
                    self._give(partition, min(subscribers, key=self._loads.__getitem__))

    def even_out(self) -> None:
        """Move partitions from more to less loaded members until no move improves the balance.

        Each move takes from the most loaded member that can be relieved, so that nobody gives up more than necessary.
        Every move lowers the sum of the squares of the loads, so this ends.
        """
        stuck: set[str] = set()
        while len(stuck) < len(self._order):
            heaviest = max((each for each in self._order if each not in stuck), key=self._loads.__getitem__)
            if self._relieve(heaviest):
                stuck.clear()
            else:
                stuck.add(heaviest)

    def _relieve(self, member_id: str) -> bool:
        """Move one partition from the member to the least loaded one, if that has at least two fewer."""
        best: tuple[int, bool, str, str] | None = None
        lightest_readers: dict[tuple[str, ...], str] = {}
        for topic in self._held[member_id]:
            readers = self._readers[topic]
            lightest = lightest_readers.get(readers)
            if lightest is None:
                # They are sorted, so this picks the first of equals.
                lightest = lightest_readers[readers] = min(readers, key=self._loads.__getitem__)
            if self._loads[lightest] + 1 < self._loads[member_id]:
                choice = (self._loads[lightest], not self._has_newcomer(member_id, topic), topic, lightest)
                if best is None or choice < best:
                    best = choice
        if best is None:
            return False
        _, _, topic, lightest = best
        self._move(self._cheapest(member_id, topic), lightest)
        return True

    def _has_newcomer(self, member_id: str, topic: str) -> bool:
        """Whether the member holds a partition of the topic that it did not have before: moving it costs nothing."""
        numbers = self._held[member_id][topic]
        return any(self._previous.get(TopicPartition(topic, number)) != member_id for number in numbers)

    def _cheapest(self, member_id: str, topic: str) -> TopicPartition:
        numbers = self._held[member_id][topic]
        for number in reversed(numbers):
            if self._previous.get(TopicPartition(topic, number)) != member_id:
                return TopicPartition(topic, number)
        return TopicPartition(topic, numbers[-1])

    def _give(self, partition: TopicPartition, member_id: str) -> None:
        self._owners[partition] = member_id
        self._held[member_id].setdefault(partition.topic, []).append(partition.partition)
        self._loads[member_id] += 1

    def _move(self, partition: TopicPartition, member_id: str) -> None:
        old = self._owners[partition]
        numbers = self._held[old][partition.topic]
        numbers.remove(partition.partition)
        if not numbers:
            del self._held[old][partition.topic]
        self._loads[old] -= 1
        self._give(partition, member_id)

    def result(self) -> dict[str, list[TopicPartition]]:
        return {
            member_id: sorted(TopicPartition(topic, number) for topic, numbers in held.items() for number in numbers)
            for member_id, held in self._held.items()
        }


def write_previous(partitions: Sequence[TopicPartition], generation: int) -> bytes:
    """The user data of the eager sticky assignor: the member's previous partitions, and in which generation."""
    topics = group_by_topic(partitions)
    parts = [_INT32.pack(len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts += [_INT16.pack(len(name)), name, _INT32.pack(len(numbers)), *(_INT32.pack(number) for number in numbers)]
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


def read_previous(data: bytes | None) -> _Claim:
    """A member's previous partitions. Members before Kafka 2.3 sent no generation; unreadable data counts as empty."""
    if not data:
        return (), NO_GENERATION
    try:
        partitions, position = _read_topics(data)
        generation: int = _INT32.unpack_from(data, position)[0] if position < len(data) else NO_GENERATION
    except (struct.error, UnicodeDecodeError, ValueError):
        return (), NO_GENERATION
    return partitions, generation


def _read_topics(data: bytes) -> tuple[list[TopicPartition], int]:
    partitions: list[TopicPartition] = []
    (topic_count,), position = _INT32.unpack_from(data), _INT32.size
    for _ in range(topic_count):
        (size,) = _INT16.unpack_from(data, position)
        position += _INT16.size
        if size < 0 or position + size > len(data):
            raise ValueError("the topic's name runs past the end of the data")
        topic = data[position : position + size].decode()
        position += size
        (count,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        if count < 0 or position + count * _INT32.size > len(data):
            raise ValueError("the partitions run past the end of the data")
        for _ in range(count):
            partitions.append(TopicPartition(topic, _INT32.unpack_from(data, position)[0]))
            position += _INT32.size
    return partitions, position
