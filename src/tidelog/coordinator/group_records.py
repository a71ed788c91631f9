"""The records of __consumer_offsets: keys and values as Kafka 4.3 writes and reads them.

A key starts with an int16 that says what the record is about, a value with one that gives its version. Values are
written in the versions that Kafka writes, so that its tools, and a broker of it, read what is written here.

What always holds: whatever the bytes, `decode_record` gives a key and a value, None for a kind of record that is not
known here, or raises ProtocolError. A value of None is a tombstone.
"""

from __future__ import annotations

import logging
import struct as structs
from typing import Any, Final, NamedTuple

from tidelog.common.ids import ZERO_UUID
from tidelog.coordinator.actions import GroupRecord
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.declare import declaration_of, message, struct, v
from tidelog.protocol.errors import ProtocolError
from tidelog.protocol.types import Bytes, Int8, Int32, Int64, String, Uuid

logger = logging.getLogger(__name__)

# Offsets, of groups of every kind


@message(versions="0")
class OffsetCommitKey:
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


@message(versions="0-4", flexible="4+")
class OffsetCommitValue:
    offset: Int64 = 0
    leader_epoch: Int32 = v("3+", default=-1, ignorable=True)
    metadata: String = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Int64 = v("1", default=-1, ignorable=True)
    topic_id: Uuid = v("4+", default=ZERO_UUID, tag=0, ignorable=True)


# Classic groups


@message(versions="0")
class GroupMetadataKey:
    group: String = ""


@struct
class GroupMetadataMember:
    member_id: String = ""
    group_instance_id: String | None = v("3+", default=None, ignorable=True)
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout: Int32 = v("1+", default=-1, ignorable=True)
    session_timeout: Int32 = 0
    subscription: Bytes = b""
    assignment: Bytes = b""


@message(versions="0-4", flexible="4+")
class GroupMetadataValue:
    protocol_type: String = ""
    generation: Int32 = 0
    protocol: String | None = None
    leader: String | None = None
    current_state_timestamp: Int64 = v("2+", default=-1, ignorable=True)
    members: list[GroupMetadataMember] = v(factory=list)


# Groups of the new consumer protocol (KIP-848)


@message(versions="0")
class ConsumerGroupMetadataKey:
    group_id: String = ""


@message(versions="0", flexible="0+")
class ConsumerGroupMetadataValue:
    epoch: Int32 = 0
    metadata_hash: Int64 = v(default=0, tag=0)


@message(versions="0")
class ConsumerGroupPartitionMetadataKey:
    """Written before Kafka 4.1; read, and deleted by a tombstone, never written anew."""

    group_id: String = ""


@struct
class PartitionRacks:
    partition: Int32 = 0
    racks: list[String] = v(factory=list)


@struct
class SubscribedTopicMetadata:
    topic_id: Uuid = ZERO_UUID
    topic_name: String = ""
    num_partitions: Int32 = 0
    partition_metadata: list[PartitionRacks] = v(factory=list)


@message(versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue:
    topics: list[SubscribedTopicMetadata] = v(factory=list)


@message(versions="0")
class ConsumerGroupMemberMetadataKey:
    group_id: String = ""
    member_id: String = ""


@struct
class ClassicProtocol:
    name: String = ""
    metadata: Bytes = b""


@struct
class ClassicMemberMetadata:
    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = v(factory=list)


@message(versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    instance_id: String | None = None
    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = v(factory=list)
    subscribed_topic_regex: String | None = None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None = None
    # Of a member that still uses the classic protocol, in a group that was upgraded; null is written for all others.
    classic_member_metadata: ClassicMemberMetadata | None = v(factory=ClassicMemberMetadata, tag=0)


@message(versions="0")
class ConsumerGroupTargetAssignmentMetadataKey:
    group_id: String = ""


@message(versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: Int32 = 0
    assignment_timestamp: Int64 = v(default=0, tag=0)


@message(versions="0")
class ConsumerGroupTargetAssignmentMemberKey:
    group_id: String = ""
    member_id: String = ""


@struct
class TargetTopicPartitions:
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = v(factory=list)


@message(versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: list[TargetTopicPartitions] = v(factory=list)


@message(versions="0")
class ConsumerGroupCurrentMemberAssignmentKey:
    group_id: String = ""
    member_id: String = ""


@struct
class AssignedTopicPartitions:
    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = v(factory=list)
    assignment_epochs: list[Int32] = v(factory=list, tag=0)


@message(versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[AssignedTopicPartitions] = v(factory=list)
    partitions_pending_revocation: list[AssignedTopicPartitions] = v(factory=list)


@message(versions="0")
class ConsumerGroupRegularExpressionKey:
    group_id: String = ""
    regular_expression: String = ""


@message(versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    topics: list[String] = v(factory=list)
    version: Int64 = 0
    timestamp: Int64 = 0


class RecordType(NamedTuple):
    """One kind of record: the number its key starts with, its key and value, and the version that is written."""

    number: int
    key: type
    value: type
    version: int = 0


_LEGACY_OFFSET_COMMIT: Final = 0  # Kafka before 0.8.3; the key's fields are the same

RECORD_TYPES: Final = (
    RecordType(1, OffsetCommitKey, OffsetCommitValue, 4),
    RecordType(2, GroupMetadataKey, GroupMetadataValue, 3),
    RecordType(3, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    RecordType(4, ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    RecordType(5, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    RecordType(6, ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    RecordType(7, ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    RecordType(8, ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    RecordType(16, ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
)
_BY_NUMBER: Final = {kind.number: kind for kind in RECORD_TYPES} | {_LEGACY_OFFSET_COMMIT: RECORD_TYPES[0]}
_BY_KEY: Final = {kind.key: kind for kind in RECORD_TYPES}
_INT16: Final = structs.Struct(">h")


def encode_record(key: object, value: object | None, version: int | None = None) -> GroupRecord:
    """The record of this key and value, in the version that Kafka writes; without a value it is a tombstone."""
    kind = _BY_KEY[type(key)]
    key_bytes = _INT16.pack(kind.number) + encode(key, 0)
    if value is None:
        return GroupRecord(key_bytes, None)
    if type(value) is not kind.value:
        raise TypeError(f"a {type(key).__name__} needs a {kind.value.__name__}, not a {type(value).__name__}")
    version = kind.version if version is None else version
    return GroupRecord(key_bytes, _INT16.pack(version) + encode(value, version))


class DecodedRecord(NamedTuple):
    """A key and its value as the classes above."""

    key: Any
    value: Any | None


def decode_record(record: GroupRecord) -> DecodedRecord | None:
    """The key and value of a record; None for kinds that are not kept here, as those of share and streams groups."""
    kind = _BY_NUMBER.get(record_number(record.key))
    if kind is None:
        return None
    key: Any = decode(kind.key, record.key, 0, _INT16.size)
    if record.value is None:
        return DecodedRecord(key, None)
    if len(record.value) < _INT16.size:
        raise ProtocolError(f"the value of a {kind.key.__name__} has no version")
    (version,) = _INT16.unpack_from(record.value)
    if not declaration_of(kind.value).versions.holds(version):
        raise ProtocolError(f"a {kind.value.__name__} has version {version}, which is unknown")
    return DecodedRecord(key, decode(kind.value, record.value, version, _INT16.size))


def record_number(key: bytes) -> int:
    """The number that says what a record is about."""
    if len(key) < _INT16.size:
        raise ProtocolError("the key of a record has no type")
    number: int = _INT16.unpack_from(key)[0]
    return number


class UnknownRecords:
    """Warns of records that a newer broker wrote into a coordinator's partition, once for each type."""

    def __init__(self, topic_partition: str) -> None:
        self._topic_partition = topic_partition
        self._numbers: set[int] = set()

    def warn(self, key: bytes, offset: int) -> None:
        number = record_number(key)
        if number not in self._numbers:
            self._numbers.add(number)
            logger.warning(
                "ignoring records in %s of type %d, which this broker does not know; the first is at offset %d",
                self._topic_partition,
                number,
                offset,
            )
