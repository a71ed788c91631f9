"""The members of a classic group: who they are, who leads, and which protocols they have in common.

What always holds: a group with members has a leader, who is one of them; an instance id belongs to one member; all
members share a protocol. It neither answers requests nor knows the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from tidelog.coordinator.classic_member import ClassicMember, Protocols
from tidelog.coordinator.memory import Footprint, PendingIds
from tidelog.protocol import ErrorCode


class ClassicMembers:
    """All members of one group, in the order in which they came."""

    def __init__(self, group_id: str, footprint: Footprint, pending_ids: PendingIds) -> None:
        self.leader_id: str | None = None
        # Members of the current generation that have not asked for their assignment yet.
        self.pending_sync: set[str] = set()
        self._group_id = group_id
        self._footprint = footprint
        # Ids that were assigned (KIP-394) but not used yet; the shard knows those of all groups.
        self._pending_join: dict[str, None] = {}
        self._pending_ids = pending_ids
        # Members that wait for the join phase to end, by the exchange that they wait with.
        self._joining: dict[int, ClassicMember] = {}
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
        """Whether everyone is waiting for the join phase to end, including those with a fresh id."""
        return len(self._joining) == len(self._members) and not self._pending_join

    @property
    def joining_count(self) -> int:
        return len(self._joining)

    def joining_with(self, exchange: int) -> ClassicMember | None:
        """The member that waits with this exchange for the join phase to end."""
        return self._joining.get(exchange)

    # Assigned ids

    @property
    def pending_join(self) -> Collection[str]:
        return self._pending_join.keys()

    def give_id(self, member_id: str) -> None:
        """This id was assigned to a client to join with."""
        is_first = not self._members and not self._pending_join
        self._pending_join[member_id] = None
        self._pending_ids.add(self._group_id, member_id, group_is_new=is_first)

    def take_back_id(self, member_id: str) -> bool:
        """The id was used or is no longer valid; False if it was never assigned."""
        if member_id not in self._pending_join:
            return False
        del self._pending_join[member_id]
        self._pending_ids.discard(self._group_id, member_id)
        return True

    def take_back_ids(self) -> None:
        """The group is given up."""
        for member_id in tuple(self._pending_join):
            self.take_back_id(member_id)

    # Members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest time a member may take to rejoin; everyone waits for the slowest."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    def find(self, member_id: str, group_instance_id: str | None) -> ClassicMember | ErrorCode:
        """The member with this id; an error if there is none, or if the instance is now another member."""
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
                raise ValueError(f"instance {member.group_instance_id} is already a member")
            self._static_ids[member.group_instance_id] = member.member_id
        self._members[member.member_id] = member
        self._footprint.add(member.size_bytes)
        self._speakers.update(name for name, _ in member.protocols)
        if member.joining is not None:
            self._joining[member.joining] = member
        self.take_back_id(member.member_id)
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: ClassicMember) -> None:
        """Remove the member; if it was the leader, the longest-standing member takes over."""
        del self._members[member.member_id]
        self._footprint.add(-member.size_bytes)
        self._forget_protocols(member)
        if member.joining is not None:
            del self._joining[member.joining]
        self.pending_sync.discard(member.member_id)
        if member.group_instance_id is not None:
            del self._static_ids[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._members), None)

    def replace(self, old: ClassicMember, new: ClassicMember) -> None:
        """Give an instance a new id; it keeps its place, and stays leader if it was."""
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
        """The member supports other protocols now."""
        self._forget_protocols(member)
        self._footprint.add(-member.size_bytes)
        member.protocols = protocols
        self._footprint.add(member.size_bytes)
        self._speakers.update(name for name, _ in protocols)

    def _forget_protocols(self, member: ClassicMember) -> None:
        for name, _ in member.protocols:
            self._speakers[name] -= 1
            if not self._speakers[name]:
                del self._speakers[name]

    def set_joining(self, member: ClassicMember, exchange: int | None) -> None:
        """The member waits with this exchange for the join phase to end, or no longer."""
        if member.joining is not None:
            del self._joining[member.joining]
        member.joining = exchange
        if exchange is not None:
            self._joining[exchange] = member

    def elect_joined_leader(self) -> bool:
        """Make a member that has rejoined the leader; False if none has."""
        leader = None if self.leader_id is None else self._members[self.leader_id]
        if leader is not None and leader.joining is not None:
            return True
        joined = next((member for member in self._members.values() if member.joining is not None), None)
        if joined is not None:
            self.leader_id = joined.member_id
        return joined is not None

    def speak_one_of(self, names: Iterable[str]) -> bool:
        """Whether all members support one of these protocols."""
        return any(self._speakers[name] == len(self._members) for name in names)

    def choose_protocol(self, changed: Mapping[str, Protocols] | None = None) -> str:
        """The protocol that most members prefer among those that all support; in a tie, the earlier member's.

        `changed` has the protocols of members, by id, as they would be.
        """
        changed = changed or {}
        spoken = [changed.get(member.member_id, member.protocols) for member in self._members.values()]
        common = frozenset.intersection(*(frozenset(name for name, _ in protocols) for protocols in spoken))
        votes = Counter(next(name for name, _ in protocols if name in common) for protocols in spoken)
        return votes.most_common(1)[0][0]
