"""Joins, syncs, heartbeats, leaves, bounces, time-outs, failed writes and crashes in any order.

What must hold: the generation never falls while one coordinator lives, and never below what it handed out parts of; a
group that has members has one leader, who is one of them; in a stable group everybody joined this very generation; an
assignment is only handed out in the generation it was made for, and only once; a bounce in a stable group moves
nothing; nobody waits for ever; and what is restored from the records is what was written last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tidelog.coordinator.classic_group import ClassicGroup
from tidelog.coordinator.config import GroupConfig
from tidelog.coordinator.group_records import GroupMetadataValue, decode_record
from tidelog.coordinator.memory import GROUP_BYTES
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k11_join_group import JoinGroupResponse
from tidelog.protocol.messages.k13_leave_group import MemberIdentity
from tidelog.protocol.messages.k14_sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from tests.unit.coordinator.classic.conftest import Coordinator

INSTANCES = ("one", "two", "three")
SESSION_MS = 10_000
REBALANCE_MS = 20_000
WRITE_ERRORS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER)
# Nobody waits longer than the slowest time-out of the group, a few times over: the first join phase is prolonged, and
# members are given up one after the other.
PATIENCE_MS = 6 * (REBALANCE_MS + SESSION_MS) + 300_000


@dataclass
class Actor:
    """A client as it sees itself."""

    instance: str | None = None
    member_id: str = ""
    generation_id: int = -1
    is_leader: bool = False
    skips_assignment: bool = False
    members: list[str] = field(default_factory=list)
    joining: int | None = None
    syncing: int | None = None


class AnyOrder(RuleBasedStateMachine):
    actors = Bundle("actors")

    def __init__(self, new_coordinator: type[Coordinator]) -> None:
        super().__init__()
        self.new_coordinator = new_coordinator
        self.all_actors: list[Actor] = []
        # Every answer that was looked at, and what each generation was assigned by its leader.
        self.seen: set[int] = set()
        self.assigned: dict[tuple[int, str], bytes] = {}
        self.highest_generation = 0
        self.promised_generation = 0

    @initialize(max_size=st.sampled_from([2, 3, 1_000]))
    def start(self, max_size: int) -> None:
        config = GroupConfig(group_max_size=max_size, group_initial_rebalance_delay_ms=3_000)
        self.coordinator = self.new_coordinator(config, {"t": 4})

    # What clients do

    @rule(target=actors)
    def dynamic_client(self) -> Actor:
        return self._actor(Actor())

    @rule(target=actors, instance=st.sampled_from(INSTANCES))
    def static_client(self, instance: str) -> Actor:
        return self._actor(Actor(instance))

    @rule(actor=actors, speaks=st.sampled_from([("range",), ("range", "sticky")]), version=st.sampled_from([3, 5, 9]))
    def join(self, actor: Actor, speaks: tuple[str, ...], version: int) -> None:
        """Join, or join again while the first still waits."""
        if actor.instance is not None:
            version = max(version, 5)
        actor.joining = self.coordinator.join(
            actor.member_id,
            instance=actor.instance,
            protocols=dict.fromkeys(speaks, b""),
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            version=version,
        )
        self._look()

    @rule(actor=actors, part=st.binary(min_size=1, max_size=4))
    def sync(self, actor: Actor, part: bytes) -> None:
        """Ask for a part; a leader hands in parts for all, marked with their generation."""
        if actor.generation_id < 0:
            return
        parts: dict[str, bytes] = {}
        if actor.is_leader and not actor.skips_assignment:
            parts = {member_id: f"{actor.generation_id}:".encode() + part for member_id in actor.members}
        actor.syncing = self.coordinator.sync(actor.member_id, actor.generation_id, parts, instance=actor.instance)
        self._look()

    @rule(actor=actors)
    def send_heartbeat(self, actor: Actor) -> None:
        self._heartbeat(actor)

    @rule(actor=consumes(actors))
    def leave(self, actor: Actor) -> None:
        self.coordinator.leave(MemberIdentity(member_id=actor.member_id, group_instance_id=actor.instance))
        self._look()

    @rule(actor=actors)
    def bounce(self, actor: Actor) -> None:
        """The process dies and comes back as the same instance, or as another client."""
        actor.member_id, actor.generation_id, actor.joining, actor.syncing = "", -1, None, None
        if actor.instance is None or not self.coordinator.has_group:
            return
        group = self.coordinator.group
        before = _parts(group) if group.state == "Stable" and group.members.static_id(actor.instance) else None
        generation_id = group.generation_id
        self.join(actor, ("range",), 9)
        if before is not None and actor.generation_id >= 0:
            assert (group.state, group.generation_id, _parts(group)) == ("Stable", generation_id, before)

    @rule(actor=actors)
    def lose_connection(self, actor: Actor) -> None:
        """Whoever waits is not there any more to be answered, and asks again."""
        for exchange in (actor.joining, actor.syncing):
            if exchange is not None:
                self.coordinator.abandon(exchange)
        actor.joining = actor.syncing = None
        self._look()

    @rule()
    def all_do_as_they_should(self) -> None:
        """Clients that join and sync as they are told, so that interesting things happen to stable groups too."""
        for _ in range(3):
            for actor in self.all_actors:
                if actor.joining is None and (actor.generation_id < 0 or self._must_join_again(actor)):
                    self.join(actor, ("range",), 9)
            self.wait(3_000)
            for actor in self.all_actors:
                if actor.syncing is None:
                    self.sync(actor, b"part")

    # What happens to the coordinator

    @rule(ms=st.sampled_from([1, 1_000, 3_000, 9_000, 15_000, 25_000]))
    def wait(self, ms: int) -> None:
        self.coordinator.advance(ms)
        self._look()

    @rule(hold=st.booleans())
    def writes_take_time(self, hold: bool) -> None:
        self.coordinator.holds_writes = hold
        while self.coordinator.writes and not hold:
            self.coordinator.decide_write()
        self._look()

    @rule(error=st.sampled_from((ErrorCode.NONE, *WRITE_ERRORS)))
    def write(self, error: ErrorCode) -> None:
        if self.coordinator.writes:
            self.coordinator.decide_write(error)
            self._look()

    @rule()
    def crash(self) -> None:
        self.coordinator.crash()
        for actor in self.all_actors:
            actor.joining = actor.syncing = None
        group = self._group()
        self.highest_generation = 0 if group is None else group.generation_id
        assert self.highest_generation >= self.promised_generation
        self._restored_is_what_was_written()

    # What must hold

    @invariant()
    def generations_only_grow(self) -> None:
        group = self._group()
        if group is not None:
            assert group.generation_id >= self.highest_generation
            self.highest_generation = group.generation_id

    @invariant()
    def one_leader_who_is_a_member(self) -> None:
        group = self._group()
        if group is not None:
            assert (group.members.leader_id is not None) == (len(group.members) > 0)
            assert group.members.leader_id is None or group.members.leader_id in group.members

    @invariant()
    def states_fit_members(self) -> None:
        group = self._group()
        if group is None:
            return
        waiting = [member for member in group.members if member.joining is not None]
        assert len(waiting) == group.members.joining_count
        if group.state in ("Stable", "CompletingRebalance"):
            assert len(group.members) > 0
            assert not waiting
        if group.state == "Stable":
            assert not [member for member in group.members if member.syncing is not None]
        if group.state == "Empty":
            assert not len(group.members)
        assert set(group.members.pending_sync) <= {member.member_id for member in group.members}
        assert not set(group.members.pending_join) & {member.member_id for member in group.members}

    @invariant()
    def whoever_waits_is_known_to_wait(self) -> None:
        """An exchange that nobody remembers would never be answered."""
        group = self._group()
        remembered: set[int] = set()
        if group is not None:
            remembered |= {member.joining for member in group.members if member.joining is not None}
            remembered |= {member.syncing for member in group.members if member.syncing is not None}
            remembered |= {waiting.exchange for waiting in group.coming_back}
        if hasattr(self, "coordinator"):
            assert self.coordinator.waiting <= remembered

    @invariant()
    def memory_is_that_of_the_members(self) -> None:
        if not hasattr(self, "coordinator"):
            return
        group, state = self._group(), self.coordinator.shard.state
        members = [] if group is None else list(group.members)
        base_bytes = 0 if group is None else GROUP_BYTES + len(group.group_id)
        assert state.memory.used_bytes == base_bytes + sum(member.size_bytes for member in members)
        assert len(state.pending_ids) == (0 if group is None else len(group.members.pending_join))

    def teardown(self) -> None:
        """Whatever was going on, time and writes alone bring it to an end."""
        if not hasattr(self, "coordinator"):
            return
        self.coordinator.holds_writes = False
        while self.coordinator.writes:
            self.coordinator.decide_write()
        for _ in range(PATIENCE_MS // 10_000):
            self.coordinator.advance(10_000)
        assert not self.coordinator.waiting, "somebody waits for ever"
        assert self._group() is None or self.coordinator.group.state == "Empty"
        assert {key[0] for key in self.coordinator.timers} == {""}, "timers of members that are gone"
        self._restored_is_what_was_written()

    # Reading answers

    def _must_join_again(self, actor: Actor) -> bool:
        return self._heartbeat(actor) != ErrorCode.NONE

    def _heartbeat(self, actor: Actor) -> ErrorCode:
        error = self.coordinator.heartbeat(actor.member_id, actor.generation_id, instance=actor.instance)
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            actor.member_id, actor.generation_id = "", -1
        return error

    def _actor(self, actor: Actor) -> Actor:
        self.all_actors.append(actor)
        return actor

    def _group(self) -> ClassicGroup | None:
        return self.coordinator.group if hasattr(self, "coordinator") and self.coordinator.has_group else None

    def _look(self) -> None:
        for actor in self.all_actors:
            if actor.joining is not None and actor.joining in self.coordinator.answers:
                self._on_joined(actor, self.coordinator.joined(actor.joining))
                actor.joining = None
            if actor.syncing is not None and actor.syncing in self.coordinator.answers:
                self._on_synced(actor, self.coordinator.synced(actor.syncing))
                actor.syncing = None

    def _on_joined(self, actor: Actor, answer: JoinGroupResponse) -> None:
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            actor.member_id = answer.member_id
        elif answer.error_code == ErrorCode.NONE:
            actor.member_id, actor.generation_id = answer.member_id, answer.generation_id
            actor.is_leader = answer.leader == answer.member_id
            actor.skips_assignment = answer.skip_assignment
            actor.members = [member.member_id for member in answer.members]
            assert bool(actor.members) == actor.is_leader
            assert answer.leader or answer.error_code
        elif answer.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            actor.member_id, actor.generation_id = "", -1

    def _on_synced(self, actor: Actor, answer: SyncGroupResponse) -> None:
        if answer.error_code != ErrorCode.NONE:
            return
        if answer.assignment:
            made_for = int(answer.assignment.split(b":")[0])
            assert made_for == actor.generation_id
        key = (actor.generation_id, actor.instance or actor.member_id)
        assert self.assigned.setdefault(key, answer.assignment) == answer.assignment
        self.promised_generation = max(self.promised_generation, actor.generation_id)

    def _restored_is_what_was_written(self) -> None:
        """A coordinator that loads the log now finds the last record, and would write it again as it is."""
        written: GroupMetadataValue | None = None
        for record in self.coordinator.log:
            decoded = decode_record(record)
            assert decoded is not None
            written = decoded.value
        fresh = self.new_coordinator(self.coordinator.config, {"t": 4})
        fresh.log = list(self.coordinator.log)
        fresh.crash()
        if written is None:
            assert not fresh.has_group
            return
        group = fresh.group
        assert (group.generation_id, group.protocol_name, group.protocol_type) == (
            written.generation,
            written.protocol,
            written.protocol_type,
        )
        if written.members:
            assert group.members.leader_id == written.leader
        assert _parts(group) == {
            stored.group_instance_id or stored.member_id: stored.assignment for stored in written.members
        }
        mine = self._group()
        if mine is not None and mine.state == "Stable" and not self.coordinator.writes:
            assert (mine.generation_id, mine.members.leader_id) == (group.generation_id, group.members.leader_id)
            assert [member.member_id for member in mine.members] == [member.member_id for member in group.members]
            assert _parts(mine) == _parts(group)


def _parts(group: ClassicGroup) -> dict[str, bytes]:
    return {member.group_instance_id or member.member_id: member.assignment for member in group.members}


def test_in_any_order(new_coordinator: type[Coordinator]) -> None:
    class Bound(AnyOrder):
        def __init__(self) -> None:
            super().__init__(new_coordinator)

    run_state_machine_as_test(
        Bound,
        settings=settings(
            max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )
