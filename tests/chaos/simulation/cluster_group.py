"""Members of a group in a simulated cluster, and who of them owns what.

What always holds: an owner is who was told that a partition is its own and was not told otherwise since. Somebody whom
the coordinator has removed may believe so for a while, which is nobody's fault; nobody else may, and such a former
owner can commit nothing. Whoever takes a partition over begins where the last acknowledged commit ended, or later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from cluster_invariants import Invariant
from cluster_workload import SOURCE, Notes, client_settings
from tidelog import AsyncConsumer, RebalanceListener
from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition

GROUP = "readers"
# Whoever is paused while it does what it does with records goes on with a commit of them.
_PROCESSING_S = 0.5


class Ownership:
    """Who owns which partition of a group, as its members were told."""

    def __init__(self, notes: Notes, find_members: Callable[[], frozenset[str] | None]) -> None:
        """`find_members` gives the member ids that the coordinator knows now; None while there is no coordinator."""
        self._notes = notes
        self._find_members = find_members
        self._owners: dict[int, dict[Member, None]] = {}
        # Who was given a partition last, and which of all hand-overs that was.
        self._last: dict[int, tuple[int, Member]] = {}
        self._handovers = 0
        self._committed: Counter[int] = Counter()
        self._floors: dict[tuple[Member, int], int] = {}

    @property
    def handovers(self) -> int:
        return self._handovers

    def on_assigned(self, member: Member, partitions: Sequence[int]) -> None:
        known = self._find_members()
        for partition in partitions:
            owners = self._owners.setdefault(partition, {})
            for other in owners:
                self._notes.violations.unless(
                    known is None or not {member.member_id, other.member_id} <= known or other is member,
                    Invariant.OWNERS,
                    f"{member} was given {SOURCE}-{partition}, which {other} still has",
                )
            owners[member] = None
            self._floors[member, partition] = self._committed[partition]
            self._handovers += 1
            if known is None:
                # It may have been removed already, by a coordinator that is gone.
                self._last.pop(partition, None)
            elif member.member_id in known:
                self._last[partition] = self._handovers, member

    def on_revoked(self, member: Member, partitions: Sequence[int]) -> None:
        for partition in partitions:
            self._owners.get(partition, {}).pop(member, None)

    def on_gone(self, member: Member) -> None:
        for owners in self._owners.values():
            owners.pop(member, None)

    def on_read(self, member: Member, partition: int, offset: int) -> None:
        floor = self._floors.get((member, partition), 0)
        self._notes.violations.unless(
            offset >= floor,
            Invariant.OFFSETS,
            f"{member} reads {SOURCE}-{partition} from {offset} on, although {floor} was committed before",
        )

    def on_committed(self, member: Member, offsets: dict[int, int], asked_at: int) -> None:
        """A commit was acknowledged that was asked for after so many hand-overs."""
        for partition, offset in offsets.items():
            handover, owner = self._last.get(partition, (0, member))
            # Who is given it while the commit is on its way may find it done.
            self._notes.violations.unless(
                owner is member or handover > asked_at,
                Invariant.FORMER,
                f"{member} could commit {SOURCE}-{partition}, which {owner} had been given before",
            )
            self._committed[partition] = max(self._committed[partition], offset)


class Member(RebalanceListener):
    """One consumer of a group that processes, then commits."""

    def __init__(self, name: str, bootstrap: str, notes: Notes, ownership: Ownership, *, protocol: str) -> None:
        self._name = name
        self._notes = notes
        self._ownership = ownership
        self._consumer: AsyncConsumer | None = None
        self._settings = client_settings(bootstrap) | {
            "group.id": GROUP,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.max.wait.ms": 200,
        }
        if protocol == "classic":
            self._settings |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}

    def __repr__(self) -> str:
        return f"<{self._name} {self.member_id}>"

    @property
    def member_id(self) -> str:
        return "" if self._consumer is None else self._consumer.group_metadata().member_id

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._ownership.on_assigned(self, [each.partition for each in partitions])

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._ownership.on_revoked(self, [each.partition for each in partitions])

    async def run(self, is_done: Callable[[], bool]) -> None:
        async with AsyncConsumer(self._settings) as consumer:
            self._consumer = consumer
            consumer.subscribe([SOURCE], listener=self)
            while not is_done():
                try:
                    await self._take(consumer)
                except ClientError as error:
                    # A commit of somebody who is no longer a member, or a coordinator that moves: read on.
                    self._notes.errors.append(f"{self}: {error!r}")
                    await asyncio.sleep(0.1)

    async def _take(self, consumer: AsyncConsumer) -> None:
        records = await consumer.poll(timeout=0.5)
        offsets: dict[int, int] = {}
        for record in records:
            assert record.value is not None
            self._ownership.on_read(self, record.partition, record.offset)
            self._notes.on_read(SOURCE, record.partition, record.offset, record.value)
            self._notes.grouped.add(record.value)
            offsets[record.partition] = record.offset + 1
        if records:
            await asyncio.sleep(_PROCESSING_S)
            asked_at = self._ownership.handovers
            await consumer.commit({TopicPartition(SOURCE, index): offset for index, offset in offsets.items()})
            self._ownership.on_committed(self, offsets, asked_at)
