"""Encodes what members of a classic group send each other: subscriptions to the leader, assignments from it.

Written in the newest version, as Apache Kafka's Java client does; readers of older versions skip what they don't know.
Another member's bytes may be anything: unreadable ones count as empty, and are logged.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable

from tidelog.client.consumer.assignors import MemberSubscription
from tidelog.client.types import TopicPartition, group_by_topic
from tidelog.protocol import ProtocolError, encode
from tidelog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
    read_member_bytes,
)

logger = logging.getLogger(__name__)

_VERSION = struct.Struct(">h")
_NEWEST = 3


def write_subscription(subscription: MemberSubscription) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[
            ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in group_by_topic(sorted(subscription.owned)).items()
        ],
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return _VERSION.pack(_NEWEST) + encode(message, _NEWEST)


def read_subscription(member_id: str, data: bytes, instance_id: str | None) -> MemberSubscription:
    try:
        message = read_member_bytes(ConsumerProtocolSubscription, bytes(data))
    except ProtocolError as error:
        logger.warning("member %s is given no partitions, its subscription can't be read: %s", member_id, error)
        return MemberSubscription(frozenset(), instance_id=instance_id)
    return MemberSubscription(
        topics=frozenset(message.topics),
        owned=tuple(TopicPartition(row.topic, number) for row in message.owned_partitions for number in row.partitions),
        generation=message.generation_id,
        user_data=None if message.user_data is None else bytes(message.user_data),
        instance_id=instance_id,
        rack=message.rack_id,
    )


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in group_by_topic(sorted(partitions)).items()
        ]
    )
    return _VERSION.pack(_NEWEST) + encode(message, _NEWEST)


def read_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Raises ProtocolError. No bytes mean no partitions: some leaders leave out members that get nothing."""
    if not data:
        return frozenset()
    message = read_member_bytes(ConsumerProtocolAssignment, bytes(data))
    return frozenset(
        TopicPartition(row.topic, number) for row in message.assigned_partitions for number in row.partitions
    )
