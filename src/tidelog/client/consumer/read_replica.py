"""Chooses the replica to read a partition from: its leader, or the follower that the leader named (KIP-392).

What always holds: a follower is used for a limited time only, then the leader is asked again. After a failure only the
leader is used for a while, which grows while failures continue. Pure: the caller passes in the time.
"""

from __future__ import annotations

from typing import Final

NO_REPLICA: Final = -1

_LEADER_ONLY_S = 10.0


class ReadReplica:
    """The choice for one partition. Used on the event loop alone."""

    __slots__ = ("_failures", "_leader_only_until_s", "_node_id", "_until_s")

    def __init__(self) -> None:
        self._node_id = NO_REPLICA
        self._until_s = 0.0
        self._leader_only_until_s = 0.0
        self._failures = 0

    @property
    def node_id(self) -> int:
        """The follower to read from; NO_REPLICA: none."""
        return self._node_id

    def prefer(self, node_id: int, now_s: float, lease_s: float) -> None:
        """The leader has named a follower, for a limited time."""
        if not self.is_leader_only(now_s):
            self._node_id = node_id
            self._until_s = now_s + lease_s

    def expire(self, now_s: float) -> bool:
        """Whether it is time to ask the leader again; True only once."""
        if self._node_id == NO_REPLICA or now_s < self._until_s:
            return False
        self._node_id = NO_REPLICA
        return True

    def served(self) -> None:
        """The follower has answered normally."""
        self._failures = 0

    def leave(self) -> None:
        """The follower is not the right one any more: the leader may name another."""
        self._node_id = NO_REPLICA

    def give_up(self, now_s: float, longest_s: float) -> None:
        """The follower could not be read from: go back to the leader, and stay there for a while."""
        if self._node_id == NO_REPLICA:
            return
        self._node_id = NO_REPLICA
        self._leader_only_until_s = now_s + min(_LEADER_ONLY_S * 2**self._failures, longest_s)
        self._failures = min(self._failures + 1, 30)

    def is_leader_only(self, now_s: float) -> bool:
        """Whether the leader has to serve it itself, so it must not learn the client's rack."""
        return now_s < self._leader_only_until_s
