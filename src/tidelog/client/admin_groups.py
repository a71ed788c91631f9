"""Calls about consumer groups: lists, descriptions, committed offsets, deletion.

What always holds: every call goes to the group's coordinator, which is looked up anew when it has moved; groups of both
protocols are described alike. Offsets are committed from outside only while the group has no members, which the
coordinator checks. It joins no group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from tidelog.client.cluster import Cluster, TopicPartition, group_by_topic
from tidelog.client.connection import Connection
from tidelog.client.errors import BrokerError, error_code, raise_for
from tidelog.client.group_types import CommittedOffset, GroupDescription, GroupListing, GroupMember, Rebalance
from tidelog.client.routing import KeyType, at_coordinator
from tidelog.protocol import ErrorCode, ProtocolError
from tidelog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    MessageT,
    read_member_bytes,
)
from tidelog.protocol.messages.k08_offset_commit import (
    OFFSET_COMMIT,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.protocol.messages.k09_offset_fetch import (
    OFFSET_FETCH,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from tidelog.protocol.messages.k15_describe_groups import (
    DESCRIBE_GROUPS,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tidelog.protocol.messages.k15_describe_groups import DescribedGroupMember as ClassicMember
from tidelog.protocol.messages.k16_list_groups import LIST_GROUPS, ListGroupsRequest, ListGroupsResponse
from tidelog.protocol.messages.k42_delete_groups import DELETE_GROUPS, DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.protocol.messages.k47_offset_delete import (
    OFFSET_DELETE,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
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

_SEVERAL_GROUPS_FROM = 8
_TOPIC_NAMES_UP_TO = 9  # from the next version on, commits and fetches name topics by id

ResultT = TypeVar("ResultT")


class GroupAdmin:
    """Calls about consumer groups over a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # Which groups there are

    def list_groups(self, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        """All groups, or those in these states and of these types, sorted by id; every broker is asked."""
        nodes = self._cluster.retry(lambda: self._cluster.refresh([])).nodes
        found: list[GroupListing] = []
        for node_id in sorted(nodes):
            found += self._cluster.retry(functools.partial(self._list_at, node_id, states, types))
        return sorted(found, key=lambda listing: listing.group_id)

    def _list_at(self, node_id: int, states: Sequence[str], types: Sequence[str]) -> list[GroupListing]:
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        response = self._cluster.connection_to(node_id).request(LIST_GROUPS, request, ListGroupsResponse)
        raise_for(response.error_code, subject=f"broker {node_id}")
        return [
            GroupListing(row.group_id, row.protocol_type, row.group_state, row.group_type, node_id)
            for row in response.groups
        ]

    def describe_group(self, group_id: str, *, history: bool = False) -> GroupDescription:
        """State, members and what each has; raises BrokerError GROUP_ID_NOT_FOUND when there is no such group."""

        def ask(connection: Connection, node_id: int) -> GroupDescription:
            described = None
            if connection.supports(CONSUMER_GROUP_DESCRIBE):
                described = _describe_consumer_group(connection, node_id, group_id, history)
            return described or _describe_classic_group(connection, node_id, group_id, history)

        return self._at_coordinator(group_id, ask)

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, BrokerError | None]:
        """Delete groups without members, with their offsets; what was refused has its error."""
        outcomes: dict[str, BrokerError | None] = {}
        for group_id in dict.fromkeys(group_ids):
            try:
                self._at_coordinator(group_id, functools.partial(_delete, group_id))
            except BrokerError as error:
                outcomes[group_id] = error
            else:
                outcomes[group_id] = None
        return outcomes

    # Committed offsets

    def committed_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """The offsets that the group has committed, of these partitions or of all; those without are left out."""
        wanted = None if partitions is None else group_by_topic(partitions)

        def ask(connection: Connection, _: int) -> dict[TopicPartition, CommittedOffset]:
            version = connection.version_for(OFFSET_FETCH, at_most=_TOPIC_NAMES_UP_TO)
            request = _offset_fetch(group_id, wanted, version)
            response = connection.request(OFFSET_FETCH, request, OffsetFetchResponse, version=version)
            found: dict[TopicPartition, CommittedOffset] = {}
            for topic, row in _committed_rows(response, group_id):
                key = TopicPartition(topic, row.partition_index)
                raise_for(row.error_code, subject=f"group {group_id}, partition {key}")
                if row.committed_offset >= 0:
                    found[key] = CommittedOffset(row.committed_offset, row.committed_leader_epoch, row.metadata or "")
            return found

        return self._at_coordinator(group_id, ask)

    def alter_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets for a group that has no members now."""
        topics = [
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offsets[TopicPartition(topic, partition)]
                    )
                    for partition in partitions
                ],
            )
            for topic, partitions in group_by_topic(offsets).items()
        ]
        request = OffsetCommitRequest(group_id=group_id, topics=topics)

        def ask(connection: Connection, _: int) -> None:
            version = connection.version_for(OFFSET_COMMIT, at_most=_TOPIC_NAMES_UP_TO)
            response = connection.request(OFFSET_COMMIT, request, OffsetCommitResponse, version=version)
            for topic in response.topics:
                for row in topic.partitions:
                    _raise_for_outside_change(row.error_code, group_id, f"{topic.name}-{row.partition_index}")

        self._at_coordinator(group_id, ask)

    def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget committed offsets of topics to which no member subscribes."""
        topics = [
            OffsetDeleteRequestTopic(
                name=topic,
                partitions=[OffsetDeleteRequestPartition(partition_index=partition) for partition in indexes],
            )
            for topic, indexes in group_by_topic(partitions).items()
        ]
        request = OffsetDeleteRequest(group_id=group_id, topics=topics)

        def ask(connection: Connection, _: int) -> None:
            response = connection.request(OFFSET_DELETE, request, OffsetDeleteResponse)
            raise_for(response.error_code, subject=f"group {group_id}")
            for topic in response.topics:
                for row in topic.partitions:
                    raise_for(row.error_code, subject=f"group {group_id}, partition {topic.name}-{row.partition_index}")

        self._at_coordinator(group_id, ask)

    def _at_coordinator(self, group_id: str, ask: Callable[[Connection, int], ResultT]) -> ResultT:
        return at_coordinator(self._cluster, KeyType.GROUP, group_id, ask)


def _delete(group_id: str, connection: Connection, _: int) -> None:
    request = DeleteGroupsRequest(groups_names=[group_id])
    response = connection.request(DELETE_GROUPS, request, DeleteGroupsResponse)
    for row in response.results:
        raise_for(row.error_code, subject=f"group {group_id}")


def _raise_for_outside_change(code: int, group_id: str, partition: str) -> None:
    if code == ErrorCode.UNKNOWN_MEMBER_ID:
        raise BrokerError(
            error_code(code), "its consumers run; stop them first, then change its offsets", subject=f"group {group_id}"
        )
    raise_for(code, subject=f"group {group_id}, partition {partition}")


def _offset_fetch(group_id: str, wanted: Mapping[str, list[int]] | None, version: int) -> OffsetFetchRequest:
    if version >= _SEVERAL_GROUPS_FROM:
        topics = (
            None
            if wanted is None
            else [OffsetFetchRequestTopics(name=topic, partition_indexes=rows) for topic, rows in wanted.items()]
        )
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=topics)])
    old_topics = (
        None
        if wanted is None
        else [OffsetFetchRequestTopic(name=topic, partition_indexes=rows) for topic, rows in wanted.items()]
    )
    return OffsetFetchRequest(group_id=group_id, topics=old_topics)


def _committed_rows(
    response: OffsetFetchResponse, group_id: str
) -> Iterable[tuple[str, OffsetFetchResponsePartition | OffsetFetchResponsePartitions]]:
    """Topic and row, from either form of the answer."""
    raise_for(response.error_code, subject=f"group {group_id}")
    for topic in response.topics:
        yield from ((topic.name, row) for row in topic.partitions)
    for group in response.groups:
        raise_for(group.error_code, subject=f"group {group_id}")
        for named in group.topics:
            yield from ((named.name, row) for row in named.partitions)


# Descriptions


def _describe_consumer_group(
    connection: Connection, node_id: int, group_id: str, with_history: bool
) -> GroupDescription | None:
    """A group of the new protocol; None when the group is not one."""
    request = ConsumerGroupDescribeRequest(group_ids=[group_id], include_history=with_history)
    response = connection.request(CONSUMER_GROUP_DESCRIBE, request, ConsumerGroupDescribeResponse)
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


def _describe_classic_group(
    connection: Connection, node_id: int, group_id: str, with_history: bool
) -> GroupDescription:
    request = DescribeGroupsRequest(groups=[group_id], include_history=with_history)
    response = connection.request(DESCRIBE_GROUPS, request, DescribeGroupsResponse)
    for row in response.groups:
        raise_for(row.error_code, row.error_message, subject=f"group {group_id}")
        if row.group_state == DEAD:  # how brokers before 4.0 say that there is none
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
    """What a member told the others; one that can't be read is shown without it."""
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
