"""The members of a classic group: who they are, who leads, and which protocol all of them speak.

What always holds: the leader is one of the members, and there is one unless there are no members; an instance id
belongs to one member; all members have a protocol in common. It answers nobody and knows no time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tidelog.coordinator.actions import Client
from tidelog.coordinator.classic_member import ClassicMember, Protocols
from tidelog.protocol import ErrorCode


class ClassicMembers:
    """All members of one group, in the order in which they came."""

    def __init__(self) -> None:
        self.leader_id: str | None = None
        # Ids that were given out (KIP-394) and not used yet, with whom they were given to.
        self.pending_join: dict[str, Client] = {}
        # Members of the current generation that did not ask for their assignment yet.
        self.pending_sync: set[str] = set()
        self.joining_count = 0
        self._members: dict[str, ClassicMember] = {}
        self._static_ids: dict[str, str] = {}
        self._speakers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(tuple(self._members.values()))

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> ClassicMember | None:
        return self._members.get(member_id)

    def static_id(self, group_instance_id: str) -> str | None:
        """The id of the member that is this instance."""
        return self._static_ids.get(group_instance_id)

    def is_leader(self, member_id: str) -> bool:
        return self.leader_id == member_id

    @property
    def have_all_joined(self) -> bool:
        """Whether everybody waits for the join phase to end, those with a fresh id included."""
        return self.joining_count == len(self._members) and not self.pending_join

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that a member may take to join again; everybody waits for the slowest."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def find(self, member_id: str, group_instance_id: str | None) -> ClassicMember | ErrorCode:
        """The member of this id; an error where there is none, or where the instance is another member by now."""
        if group_instance_id is not None:
            current_id = self._static_ids.get(group_instance_id)
            if current_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return self._members.get(member_id, ErrorCode.UNKNOWN_MEMBER_ID)

    def add(self, member: ClassicMember) -> None:
        if member.group_instance_id is not None:
            if member.group_instance_id in self._static_ids:
                raise ValueError(f"instance {member.group_instance_id} is a member already")
            self._static_ids[member.group_instance_id] = member.member_id
        self._members[member.member_id] = member
        self._speakers.update(name for name, _ in member.protocols)
        self.joining_count += member.joining is not None
        self.pending_join.pop(member.member_id, None)
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: ClassicMember) -> None:
        """The member is gone; where it led, the longest-standing one leads now."""
        del self._members[member.member_id]
        self._speakers.subtract(name for name, _ in member.protocols)
        self.joining_count -= member.joining is not None
        self.pending_sync.discard(member.member_id)
        if member.group_instance_id is not None:
            del self._static_ids[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._members), None)

    def replace(self, old: ClassicMember, new: ClassicMember) -> None:
        """The same instance under a new id; it keeps its place, and leads if it did."""
        led = self.leader_id == old.member_id
        order = list(self._members)
        self.remove(old)
        self.add(new)
        self._members = {
            kept.member_id: kept
            for kept in (new if member_id == old.member_id else self._members[member_id] for member_id in order)
        }
        if led:
            self.leader_id = new.member_id

    def update(self, member: ClassicMember, protocols: Protocols) -> None:
        """The member speaks other protocols now."""
        self._speakers.subtract(name for name, _ in member.protocols)
        member.protocols = protocols
        self._speakers.update(name for name, _ in protocols)

    def set_joining(self, member: ClassicMember, exchange: int | None) -> None:
        """The member waits with this exchange for the join phase to end, or no longer."""
        self.joining_count += (exchange is not None) - (member.joining is not None)
        member.joining = exchange

    def elect_joined_leader(self) -> bool:
        """Have somebody lead who joined again; False when nobody did."""
        leader = None if self.leader_id is None else self._members[self.leader_id]
        if leader is not None and leader.joining is not None:
            return True
        joined = next((member for member in self._members.values() if member.joining is not None), None)
        if joined is not None:
            self.leader_id = joined.member_id
        return joined is not None

    def speak_one_of(self, names: Iterable[str]) -> bool:
        """Whether all members speak one of these protocols."""
        return any(self._speakers[name] == len(self._members) for name in names)

    def choose_protocol(self, changed: Mapping[str, Protocols] | None = None) -> str:
        """The protocol most members like best among those that all speak; of equals, the earlier member's.

        `changed` has the protocols of members, by id, as they would be.
        """
        changed = changed or {}
        spoken = [changed.get(member.member_id, member.protocols) for member in self._members.values()]
        common = frozenset.intersection(*(frozenset(name for name, _ in protocols) for protocols in spoken))
        votes = Counter(next(name for name, _ in protocols if name in common) for protocols in spoken)
        return votes.most_common(1)[0][0]
