"""Group descriptions from coordinators: one form for classic groups and those of the new protocol (KIP-848)."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.client.admin.types import GroupDescription, GroupMember, Rebalance
from tidelog.client.errors import BrokerError, raise_for
from tidelog.client.network.connection import Connection
from tidelog.client.types import TopicPartition
from tidelog.protocol import ErrorCode, ProtocolError
from tidelog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    MessageT,
    read_member_bytes,
)
from tidelog.protocol.messages.k15_describe_groups import (
    DESCRIBE_GROUPS,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidelog.protocol.messages.k15_describe_groups import DescribedGroupMember as ClassicMember
from tidelog.protocol.messages.k69_consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tidelog.protocol.messages.k69_consumer_group_describe import Member as ConsumerMember
from tidelog.protocol.messages.rebalance_history import RebalanceEntry

CLASSIC = "classic"
CONSUMER = "consumer"
CONSUMER_PROTOCOL_TYPE = "consumer"
DEAD = "Dead"


async def describe_consumer_group(
    connection: Connection, node_id: int, group_id: str, with_history: bool
) -> GroupDescription | None:
    """A group of the new protocol; None if the group is not one."""
    request = ConsumerGroupDescribeRequest(group_ids=[group_id], include_history=with_history)
    response = await connection.request(CONSUMER_GROUP_DESCRIBE, request, ConsumerGroupDescribeResponse)
    for row in response.groups:
        if row.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            return None
        raise_for(row.error_code, row.error_message, subject=f"group {group_id}")
        return GroupDescription(
            group_id=row.group_id,
            type=CONSUMER,
            state=row.group_state,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            assignor=row.assignor_name,
            coordinator_id=node_id,
            members=[_consumer_member(member) for member in row.members],
            group_epoch=row.group_epoch,
            history=_history(row.history),
        )
    return None


def _consumer_member(member: ConsumerMember) -> GroupMember:
    return GroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        assignment=_partitions(member.assignment),
        subscribed_topics=list(member.subscribed_topic_names)
        + ([member.subscribed_topic_regex] if member.subscribed_topic_regex else []),
        target_assignment=_partitions(member.target_assignment),
        member_epoch=member.member_epoch,
    )


def _partitions(assignment: Assignment) -> list[TopicPartition]:
    return sorted(
        TopicPartition(topic.topic_name, partition)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )


async def describe_classic_group(
    connection: Connection, node_id: int, group_id: str, with_history: bool
) -> GroupDescription:
    request = DescribeGroupsRequest(groups=[group_id], include_history=with_history)
    response = await connection.request(DESCRIBE_GROUPS, request, DescribeGroupsResponse)
    for row in response.groups:
        raise_for(row.error_code, row.error_message, subject=f"group {group_id}")
        if row.group_state == DEAD:  # how brokers before 4.0 report a missing group
            break
        return GroupDescription(
            group_id=row.group_id,
            type=CLASSIC,
            state=row.group_state,
            protocol_type=row.protocol_type,
            assignor=row.protocol_data,
            coordinator_id=node_id,
            members=[_classic_member(member, row.protocol_type) for member in row.members],
            history=_history(row.history),
        )
    raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, "there is no such group", subject=f"group {group_id}")


def _classic_member(member: ClassicMember, protocol_type: str) -> GroupMember:
    assignment: list[TopicPartition] | None = None
    topics: list[str] = []
    if protocol_type == CONSUMER_PROTOCOL_TYPE:
        assigned = _embedded(ConsumerProtocolAssignment, member.member_assignment)
        if assigned is not None:
            assignment = sorted(
                TopicPartition(row.topic, partition)
                for row in assigned.assigned_partitions
                for partition in row.partitions
            )
        subscription = _embedded(ConsumerProtocolSubscription, member.member_metadata)
        topics = [] if subscription is None else list(subscription.topics)
    return GroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        assignment=assignment,
        subscribed_topics=topics,
        target_assignment=assignment,
    )


def _embedded(cls: type[MessageT], data: bytes) -> MessageT | None:
    """The metadata a member sent to its group; None if it can't be read."""
    try:
        return read_member_bytes(cls, data)
    except ProtocolError:
        return None


def _history(entries: Sequence[RebalanceEntry]) -> list[Rebalance] | None:
    if not entries:
        return None
    return [
        Rebalance(
            generation=entry.generation,
            cause=entry.cause,
            reason=entry.reason,
            member_id=entry.member_id,
            group_instance_id=entry.group_instance_id,
            client_id=entry.client_id,
            client_host=entry.client_host,
            began_at_ms=entry.began_at_ms,
            stood_still_ms=entry.stood_still_ms,
            members_before=entry.members_before,
            members_after=entry.members_after,
        )
        for entry in entries
    ]
