"""What the members of a classic consumer group send one another inside JoinGroup and SyncGroup.

To the broker these are opaque bytes; clients, and tools that show a group's assignment, decode them. Each starts with
its version as an int16. A reader may get a version newer than it knows and then reads the fields it knows, so new
fields are only ever added at the end.

Changes by version:

- v1: the partitions that a member owns, for cooperative rebalancing (KIP-429)
- v2: the generation in which it owned them (KIP-792)
- v3: the member's rack (KIP-881)
"""

from __future__ import annotations

import struct as binary
from typing import TypeVar

from tidelog.protocol.codec import decode
from tidelog.protocol.declare import declaration_of, message, struct, v
from tidelog.protocol.errors import ProtocolError
from tidelog.protocol.types import Bytes, Int32, String


@struct
class ConsumerProtocolSubscriptionTopicPartition:
    topic: String = v("1+", default="")
    partitions: list[Int32] = v("1+", factory=list)


@message(versions="0-3")
class ConsumerProtocolSubscription:
    topics: list[String] = v(factory=list)
    user_data: Bytes | None = None
    owned_partitions: list[ConsumerProtocolSubscriptionTopicPartition] = v("1+", factory=list, ignorable=True)
    generation_id: Int32 = v("2+", default=-1, ignorable=True)
    rack_id: String | None = v("3+", default=None, ignorable=True)


@struct
class ConsumerProtocolAssignmentTopicPartition:
    topic: String = ""
    partitions: list[Int32] = v(factory=list)


@message(versions="0-3")
class ConsumerProtocolAssignment:
    assigned_partitions: list[ConsumerProtocolAssignmentTopicPartition] = v(factory=list)
    user_data: Bytes | None = None


MessageT = TypeVar("MessageT", ConsumerProtocolSubscription, ConsumerProtocolAssignment)

_VERSION = binary.Struct(">h")


def read_member_bytes(cls: type[MessageT], data: bytes) -> MessageT:
    """Decode what a member wrote, in any version. It may be anything: raises ProtocolError if it is not valid."""
    if len(data) < _VERSION.size:
        raise ProtocolError(f"{cls.__name__} has {len(data)} bytes, too few for its version")
    (version,) = _VERSION.unpack_from(data)
    first, last = declaration_of(cls).versions
    if version < first:
        raise ProtocolError(f"{cls.__name__} has version {version}")
    return decode(cls, data, min(version, last), _VERSION.size, allow_more=version > last)
