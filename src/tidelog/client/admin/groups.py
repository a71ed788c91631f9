"""Calls about consumer groups: list, describe, remove members, delete.

What always holds: requests about one group go to its coordinator, which is looked up again after it moves. Groups of
both protocols are described in the same form. Nothing here joins a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidelog.client.admin.asking import at_brokers, at_coordinators
from tidelog.client.admin.group_descriptions import describe_classic_group, describe_consumer_group
from tidelog.client.admin.results import Results
from tidelog.client.admin.types import GroupDescription, GroupListing
from tidelog.client.errors import ClientError, UnsupportedVersionError, raise_for
from tidelog.client.network.cluster import Cluster
from tidelog.client.network.connection import Connection
from tidelog.client.network.routing import KeyType, at_coordinator
from tidelog.protocol.messages.k13_leave_group import (
    LEAVE_GROUP,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from tidelog.protocol.messages.k16_list_groups import LIST_GROUPS, ListGroupsRequest, ListGroupsResponse
from tidelog.protocol.messages.k42_delete_groups import DELETE_GROUPS, DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.protocol.messages.k69_consumer_group_describe import CONSUMER_GROUP_DESCRIBE

_STATES_FROM = 4
_TYPES_FROM = 5
_SEVERAL_MEMBERS_FROM = 3


async def list_groups(
    cluster: Cluster, *, states: Sequence[str], types: Sequence[str], protocol_types: Sequence[str]
) -> list[GroupListing]:
    async def ask(connection: Connection, node_id: int) -> list[GroupListing]:
        version = connection.version_for(LIST_GROUPS)
        if (states and version < _STATES_FROM) or (types and version < _TYPES_FROM):
            asked = "states" if states and version < _STATES_FROM else "types"
            raise UnsupportedVersionError(f"broker {node_id} can't list groups by their {asked}")
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        response = await connection.request(LIST_GROUPS, request, ListGroupsResponse, version=version)
        raise_for(response.error_code, subject=f"broker {node_id}")
        return [
            GroupListing(row.group_id, row.protocol_type, row.group_state, row.group_type, node_id)
            for row in response.groups
            if not protocol_types or row.protocol_type in protocol_types
        ]

    by_broker = await at_brokers(cluster, ask)
    return sorted(
        (listing for listings in by_broker.values() for listing in listings), key=lambda listing: listing.group_id
    )


async def describe_consumer_groups(
    cluster: Cluster, group_ids: Iterable[str], *, include_history: bool
) -> Results[str, GroupDescription]:
    async def ask(connection: Connection, node_id: int, group_id: str) -> GroupDescription:
        described = None
        if connection.supports(CONSUMER_GROUP_DESCRIBE):
            described = await describe_consumer_group(connection, node_id, group_id, include_history)
        return described or await describe_classic_group(connection, node_id, group_id, include_history)

    return await at_coordinators(cluster, KeyType.GROUP, group_ids, ask)


async def delete_consumer_groups(cluster: Cluster, group_ids: Iterable[str]) -> Results[str, None]:
    async def ask(connection: Connection, _: int, group_id: str) -> None:
        request = DeleteGroupsRequest(groups_names=[group_id])
        response = await connection.request(DELETE_GROUPS, request, DeleteGroupsResponse)
        for row in response.results:
            raise_for(row.error_code, subject=f"group {group_id}")

    return await at_coordinators(cluster, KeyType.GROUP, group_ids, ask)


async def remove_members_from_consumer_group(
    cluster: Cluster, group_id: str, group_instance_ids: Sequence[str] | None, reason: str | None
) -> Results[str, None]:
    if group_instance_ids is not None:
        members = [MemberIdentity(group_instance_id=instance_id) for instance_id in dict.fromkeys(group_instance_ids)]
    else:
        described = (await describe_consumer_groups(cluster, [group_id], include_history=False))[group_id]
        members = [
            MemberIdentity(member_id=member.member_id)
            if member.group_instance_id is None
            else MemberIdentity(group_instance_id=member.group_instance_id)
            for member in described.members
        ]
    for member in members:
        member.reason = reason

    async def ask(connection: Connection, _: int) -> Results[str, None]:
        version = connection.version_for(LEAVE_GROUP)
        if version < _SEVERAL_MEMBERS_FROM:
            raise UnsupportedVersionError(f"broker at {connection.address} can't remove members of a group on request")
        request = LeaveGroupRequest(group_id=group_id, members=members)
        response = await connection.request(LEAVE_GROUP, request, LeaveGroupResponse, version=version)
        raise_for(response.error_code, subject=f"group {group_id}")
        values: dict[str, None] = {}
        errors: dict[str, ClientError] = {}
        for row in response.members:
            key = row.group_instance_id or row.member_id
            try:
                raise_for(row.error_code, subject=f"group {group_id}, member {key}")
            except ClientError as error:
                errors[key] = error
            else:
                values[key] = None
        return Results((member.group_instance_id or member.member_id for member in members), values, errors)

    if not members:
        return Results((), {})
    return await at_coordinator(cluster, KeyType.GROUP, group_id, ask)
