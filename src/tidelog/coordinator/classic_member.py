"""One member of a classic group: its details, its assignment, and which of its requests are waiting.

What always holds: a member waits with at most one JoinGroup and one SyncGroup. It does not know its group.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class, though its name is not written like one
from sys import getsizeof
from typing import Final

from tidelog.common.light_dataclass import dataclass
from tidelog.coordinator.group import CONSUMER_PROTOCOL_TYPE
from tidelog.coordinator.memory import MEMBER_BYTES, text_bytes
from tidelog.coordinator.rebalance_history import RebalanceCause, RebalanceTrigger
from tidelog.protocol.messages.k11_join_group import JoinGroupRequestProtocol

Protocols = tuple[tuple[str, bytes], ...]
"""What a member can speak, the one it likes best first: names with what it says of itself in each."""

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """A member, from its first JoinGroup with its own id until it leaves."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    # The exchanges that wait for the end of the join phase, and for the leader's assignment.
    joining: int | None = None
    syncing: int | None = None
    # Until its first join is answered, a member can't send heartbeats, and may disappear unnoticed.
    is_new: bool = False
    # When the member counts as dead, and when the coordinator checks next; heartbeats move only the former.
    session_due_ms: float = 0.0
    timer_due_ms: float | None = None

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def size_bytes(self) -> int:
        """Roughly how much memory it takes, not counting its assignment."""
        names = text_bytes((self.member_id, self.group_instance_id, self.client_id))
        return MEMBER_BYTES + names + sum(getsizeof(name) + getsizeof(data) for name, data in self.protocols)

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for this protocol."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(f"member {self.member_id} does not support {protocol_name}")

    def trigger(self, cause: RebalanceCause, reason: str | None = None) -> RebalanceTrigger:
        """This member as the one that triggered a rebalance."""
        return RebalanceTrigger(
            cause, self.member_id, self.group_instance_id, self.client_id, self.client_host, reason or ""
        )


def protocols_of(announced: Iterable[JoinGroupRequestProtocol]) -> Protocols:
    """The protocols of a request; if one is named twice, the first counts."""
    by_name: dict[str, bytes] = {}
    for protocol in announced:
        by_name.setdefault(protocol.name, bytes(protocol.metadata))
    return tuple(by_name.items())


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in a consumer's subscription; None if these bytes are not a subscription.

    The names come first in every version, and only they are read, so later versions are understood as well.
    """
    try:
        (count,) = _INT32.unpack_from(metadata, _INT16.size)
        position = _INT16.size + _INT32.size
        if not 0 <= count <= (len(metadata) - position) // _INT16.size:
            return None
        topics = set()
        for _ in range(count):
            (size,) = _INT16.unpack_from(metadata, position)
            position += _INT16.size
            if not 0 <= size <= len(metadata) - position:
                return None
            topics.add(metadata[position : position + size].decode())
            position += size
    except (StructError, UnicodeDecodeError):
        return None
    return frozenset(topics)


def same_subscription(protocol_type: str, protocol_name: str | None, before: Protocols, after: Protocols) -> bool:
    """Whether a member's subscription is unchanged.

    Consumers also report what they own, which changes all the time, so only their topics are compared.
    """
    old, new = dict(before), dict(after)
    if protocol_name is None or protocol_name not in old or protocol_name not in new:
        return old.keys() == new.keys()
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return old[protocol_name] == new[protocol_name]
    return subscribed_topics(old[protocol_name]) == subscribed_topics(new[protocol_name])
