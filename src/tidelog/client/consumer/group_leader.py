"""The work of a classic group's leader: assigning the partitions, and noticing when the topics have changed.

What always holds: a plan that reaches the coordinator names only members and assigns no partition twice. In a
cooperative group it assigns no partition that another member still owns. An assignor that breaks this is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog.client.consumer.assignors import Assignor, MemberSubscription, TopicLayout
from tidelog.client.consumer.member_bytes import write_assignment
from tidelog.client.errors import ClientError
from tidelog.client.types import TopicPartition
from tidelog.protocol.messages.k14_sync_group import SyncGroupRequestAssignment


class GroupLeader:
    """The leader of one generation."""

    def __init__(self, members: Mapping[str, MemberSubscription], *, skips_plan: bool) -> None:
        self._members = members
        # The coordinator's plan is still valid: a static leader came back and nothing else changed (KIP-814).
        self._skips_plan = skips_plan
        self._partition_counts: dict[str, int] = {}
        self.topics = frozenset(topic for member in members.values() for topic in member.topics)

    def share_out(
        self, assignor: Assignor, layout: TopicLayout, *, is_cooperative: bool
    ) -> list[SyncGroupRequestAssignment]:
        """The plan; raises whatever the assignor raises, and ClientError for an invalid plan."""
        self._partition_counts = {topic: layout.partition_counts.get(topic, 0) for topic in self.topics}
        if self._skips_plan:
            return []
        plan = assignor.assign(layout, self._members)
        self._check(plan)
        if is_cooperative:
            self._check_nothing_is_taken(plan)
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=write_assignment(plan.get(member_id, ())))
            for member_id in self._members
        ]

    def changed(self, partition_counts: Mapping[str, int]) -> list[str]:
        """The topics whose number of partitions has changed since the plan was made."""
        planned = self._partition_counts
        return sorted(topic for topic, count in partition_counts.items() if planned.get(topic, count) != count)

    def _check(self, plan: Mapping[str, Sequence[TopicPartition]]) -> None:
        strangers = sorted(set(plan) - set(self._members))
        if strangers:
            raise ClientError(f"it assigned partitions to {', '.join(strangers)}, which are not members")
        owners: dict[TopicPartition, str] = {}
        for member_id, partitions in plan.items():
            for partition in partitions:
                if owners.setdefault(partition, member_id) != member_id:
                    raise ClientError(f"it assigned {partition} to both {owners[partition]} and {member_id}")

    def _check_nothing_is_taken(self, plan: Mapping[str, Sequence[TopicPartition]]) -> None:
        owners = {partition: member_id for member_id, partitions in plan.items() for partition in partitions}
        for member_id, member in self._members.items():
            for partition in member.owned:
                owner = owners.get(partition, member_id)
                if owner != member_id and partition not in self._members[owner].owned:
                    raise ClientError(
                        f"it gave {partition} to {owner} while {member_id} owns it; a cooperative assignor "
                        "must revoke a partition before it moves"
                    )
