"""Migrates running groups from the classic protocol to the new one, and back (KIP-848).

What always holds: the records that end the group of one kind and start the one of the other are written in one batch,
so exactly one of them exists; members keep what they own until they give it up; epochs continue from the generations
(and vice versa), and the history is carried over. Members that use the classic protocol in a group of the new one keep
the details they sent when they joined.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidelog.coordinator.actions import Action, GroupRecord, Now
from tidelog.coordinator.assignors import Partitions
from tidelog.coordinator.classic_group import ClassicGroup, ClassicState
from tidelog.coordinator.classic_member import ClassicMember
from tidelog.coordinator.classic_records import group_record
from tidelog.coordinator.consumer_draft import GroupDraft
from tidelog.coordinator.consumer_group import ConsumerGroup, metadata_hash
from tidelog.coordinator.consumer_member import ConsumerMember, target_value
from tidelog.coordinator.group import CONSUMER_PROTOCOL_TYPE
from tidelog.coordinator.group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    encode_record,
)
from tidelog.coordinator.member_bytes import assigned_partitions, assignment_bytes, owned_partitions, subscription_of
from tidelog.protocol import ProtocolError

if TYPE_CHECKING:
    from tidelog.coordinator.config import GroupConfigs, GroupImage
    from tidelog.coordinator.shard_state import ShardState

logger = logging.getLogger(__name__)

_UPGRADING: Final = frozenset({"upgrade", "bidirectional"})
_DOWNGRADING: Final = frozenset({"downgrade", "bidirectional"})


# To the new protocol


def upgrade(group: ClassicGroup, configs: GroupConfigs, image: GroupImage) -> GroupDraft | None:
    """The draft of the group of the new protocol that this one becomes; None if that isn't allowed or possible."""
    if group.is_empty:
        return GroupDraft(ConsumerGroup(group.group_id, configs), image, group.tombstones())
    config = configs.common
    if config.group_consumer_migration_policy not in _UPGRADING or group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    if len(group.members) > config.group_consumer_max_size:
        return None
    try:
        owned = _owned_by_each(group, image)
        members = [_to_consumer_member(group, member, owned[member.member_id]) for member in group.members]
    except ProtocolError as error:
        logger.warning("group %s can't be upgraded: a member's subscription can't be read: %s", group.group_id, error)
        return None
    upgraded = ConsumerGroup(group.group_id, configs)
    upgraded.history = group.history
    records = [*group.tombstones(), *_adopt(upgraded, members, group.generation_id, image)]
    logger.info("upgraded group %s to the new consumer protocol", group.group_id)
    return GroupDraft(upgraded, image, records)


def _protocols_of(group: ClassicGroup, member: ClassicMember) -> list[tuple[str, bytes]]:
    """Its preferred protocol comes first, as when it joins."""
    name = group.protocol_name or member.protocols[0][0]
    return sorted(member.protocols, key=lambda protocol: protocol[0] != name)


def _owned_by_each(group: ClassicGroup, image: GroupImage) -> Mapping[str, Partitions]:
    """What each member was assigned, and what it said that it still owned when it joined.

    In the middle of a rebalance nobody has an assignment, but members of cooperative protocols go on with what they
    own. Where two say that they own a partition, the one that heard of a later generation does.
    """
    owned = {each.member_id: dict(assigned_partitions(each.assignment, image)) for each in group.members}
    taken = {(topic_id, number) for each in owned.values() for topic_id, numbers in each.items() for number in numbers}
    claims = [(subscription_of(_protocols_of(group, each)[0][1]), each.member_id) for each in group.members]
    for subscription, member_id in sorted(claims, key=lambda claim: -claim[0].generation_id):
        for topic_id, numbers in owned_partitions(subscription, image).items():
            free = frozenset(number for number in numbers if (topic_id, number) not in taken)
            if free:
                taken |= {(topic_id, number) for number in free}
                owned[member_id][topic_id] = owned[member_id].get(topic_id, frozenset()) | free
    return owned


def _to_consumer_member(group: ClassicGroup, member: ClassicMember, owned: Partitions) -> ConsumerMember:
    protocols = _protocols_of(group, member)
    subscription = subscription_of(protocols[0][1])
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=frozenset(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMemberMetadata(
            session_timeout_ms=member.session_timeout_ms,
            supported_protocols=[ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols],
        ),
        member_epoch=group.generation_id,
        previous_member_epoch=group.generation_id,
        assigned=owned,
    )


def _adopt(group: ConsumerGroup, members: list[ConsumerMember], epoch: int, image: GroupImage) -> list[GroupRecord]:
    """Create a new group of these members, each with its current partitions as its target; returns the records."""
    group_id = group.group_id
    topics: frozenset[str] = frozenset().union(*(member.subscribed_topic_names for member in members))
    changes: list[tuple[object, object]] = []
    for member in members:
        metadata = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
        changes.append((metadata, member.metadata_value()))
    changes.append(
        (
            ConsumerGroupMetadataKey(group_id=group_id),
            ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash(topics, image)),
        )
    )
    for member in members:
        target = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member.member_id)
        changes.append((target, target_value(member.assigned)))
    changes.append(
        (
            ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch),
        )
    )
    for member in members:
        current = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
        changes.append((current, member.assignment_value()))
    for key, value in changes:
        group.apply(key, value)
    return [encode_record(key, value) for key, value in changes]


# To the classic protocol


def downgrade(draft: GroupDraft, state: ShardState, now: Now) -> ClassicGroup | None:
    """The classic group that remains when a draft removes the last member of the new protocol; None otherwise.

    The draft then writes the end of one group and the start of the other.
    """
    members = list(draft.members.values())
    if not members or any(member.classic is None for member in members):
        return None
    if state.config.group_consumer_migration_policy not in _DOWNGRADING:
        return None
    if len(members) > state.config.group_max_size:
        return None
    group = ClassicGroup(draft.group.group_id, state, now.wall_ms)
    group.history = draft.group.history
    group.protocol_type = CONSUMER_PROTOCOL_TYPE
    # The members' epoch, not that of the change in progress: they may still commit what they have read.
    group.generation_id = draft.group.epoch
    for member in members:
        group.members.add(_to_classic_member(member, state.image))
    group.protocol_name = group.members.choose_protocol()
    group.state = ClassicState.STABLE
    group.partition_counts = group.count_partitions()
    assignments = {member.member_id: member.assignment for member in group.members}
    # Without a leader: a coordinator that takes over before the members have rejoined makes them rejoin.
    record = group_record(group, group.members, None, assignments)
    draft.end_group([*draft.group.tombstones(), record])
    logger.info("downgraded group %s to the classic protocol", group.group_id)
    return group


def _to_classic_member(member: ConsumerMember, image: GroupImage) -> ClassicMember:
    """It keeps what it has, not what it was about to get or to give up: if the group is upgraded again before it has
    rejoined, nobody else may be given any of that."""
    classic = member.classic
    assert classic is not None  # the caller looked
    topic_ids = {*member.assigned, *member.pending_revocation}
    nothing: frozenset[int] = frozenset()
    owned = {
        each: member.assigned.get(each, nothing) | member.pending_revocation.get(each, nothing) for each in topic_ids
    }
    protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in classic.supported_protocols)
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        protocols=protocols,
        assignment=assignment_bytes(owned, protocols[0][1], image),
    )


def rebalance_downgraded(group: ClassicGroup, draft: GroupDraft, now: Now) -> list[Action]:
    """The classic group exists now: have its members rejoin, because one they shared partitions with has left."""
    out: list[Action] = []
    for member in group.members:
        group.expect_heartbeat(member, now, out)
    trigger = draft.trigger
    assert trigger is not None  # somebody was removed or replaced
    group.prepare_rebalance(trigger, now, out)
    return out
