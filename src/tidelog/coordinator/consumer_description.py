"""What ConsumerGroupDescribe reports about a group of the new protocol."""

from __future__ import annotations

from tidelog.coordinator.assignors import Partitions
from tidelog.coordinator.config import GroupImage
from tidelog.coordinator.consumer_group import ConsumerGroup
from tidelog.coordinator.consumer_member import ConsumerMember
from tidelog.protocol.messages.k69_consumer_group_describe import Assignment, DescribedGroup, Member, TopicPartitions

_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1


def describe_group(group: ConsumerGroup, image: GroupImage) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.preferred_assignor(group.members.values()),
        members=[_member(group, member, image) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, image: GroupImage) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        subscribed_topic_regex=member.subscribed_topic_regex or "",
        assignment=_assignment(member.assigned, image),
        target_assignment=_assignment(group.target_of(member), image),
        member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
    )


def _assignment(partitions: Partitions, image: GroupImage) -> Assignment:
    """Topics that have been deleted in the meantime no longer have a name and are left out."""
    rows = []
    for topic_id, numbers in sorted(partitions.items()):
        name = image.topic_name(topic_id)
        if name is not None:
            rows.append(TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(numbers)))
    return Assignment(topic_partitions=rows)
