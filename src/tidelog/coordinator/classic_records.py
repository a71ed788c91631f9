"""A classic group as a record, and a record as a group: one record holds a generation with all its members.

What always holds: a group restored from a record writes the same record again. Who is waiting, who is about to join,
and which protocols members support besides the chosen one is not stored. A record with members but no leader belongs to
a group that has yet to rebalance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidelog.coordinator.actions import GroupRecord
from tidelog.coordinator.classic_member import ClassicMember
from tidelog.coordinator.group_records import GroupMetadataKey, GroupMetadataMember, GroupMetadataValue, encode_record

if TYPE_CHECKING:
    from tidelog.coordinator.classic_group import ClassicGroup


def group_record(
    group: ClassicGroup, members: Iterable[ClassicMember], leader_id: str | None, assignment: Mapping[str, bytes]
) -> GroupRecord:
    """The record of the current generation with these members and their assignments by member id."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=leader_id,
        current_state_timestamp=group.state_since_ms,
        members=[
            GroupMetadataMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name),
                assignment=assignment[member.member_id],
            )
            for member in members
        ],
    )
    return encode_record(GroupMetadataKey(group=group.group_id), value)


def members_of(value: GroupMetadataValue) -> Iterable[ClassicMember]:
    """The members in a record."""
    for stored in value.members:
        yield ClassicMember(
            member_id=stored.member_id,
            group_instance_id=stored.group_instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            rebalance_timeout_ms=rebalance_timeout_ms(stored.rebalance_timeout, stored.session_timeout),
            session_timeout_ms=stored.session_timeout,
            # It names the other protocols it supports when it rejoins.
            protocols=((value.protocol or "", bytes(stored.subscription)),),
            assignment=bytes(stored.assignment),
        )


def rebalance_timeout_ms(announced_ms: int, session_timeout_ms: int) -> int:
    """Clients and records from before KIP-62 have one timeout for both, and -1 here."""
    return session_timeout_ms if announced_ms < 0 else announced_ms
