"""Brokers, partitions and a controller in any order of events: no committed record is lost, and epochs tell the truth.

The controller's decisions are the real ones. Brokers and their logs are a model of the rules that leaders and followers
keep: each knows the cluster as of some earlier moment, requests of leaders arrive late, twice or never, and brokers
crash with or without the end of their logs. A record is committed once its leader has moved the high watermark over it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.settings import Settings
from tidelog.common.steps import run_through
from tidelog.controller import changes
from tidelog.controller.changes import Change
from tidelog.controller.image import NO_LEADER, BrokerInfo, ClusterImage, LeaderRecoveryState, PartitionState
from tidelog.controller.requests import (
    ConfigAlteration,
    ElectionType,
    IsrChange,
    IsrMember,
    IsrResult,
    NewTopic,
    Reassignment,
)
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import AlterOperation, ConfigChange, ConfigResource, ResourceType
from tidelog.server.settings_table import TABLE

BROKERS = range(4)
# Whatever happens to one happens to all of them, each with replicas of its own.
PARTITIONS = range(3)
TOPIC = ConfigResource(ResourceType.TOPIC, "t")

# A record: the epoch of the leader that wrote it, and its number.
Log = list[tuple[int, int]]


@dataclass
class Leadership:
    """What a leader knows of one partition, from its election on."""

    state: PartitionState
    min_isr: int
    start_offset: int
    high_watermark: int = 0
    # Log end offset and broker epoch of each follower, from its fetches.
    followers: dict[int, tuple[int, int]] = field(default_factory=dict)
    pending: IsrChange | None = None


@dataclass
class Broker:
    node_id: int
    directory: uuid.UUID
    logs: list[Log] = field(default_factory=lambda: [[] for _ in PARTITIONS])
    # A process runs; whether it is fenced, it need not know.
    is_running: bool = False
    stopped_cleanly: bool = True
    epoch: int = -1
    # The cluster as this process knows it.
    image: ClusterImage | None = None
    led: dict[int, Leadership] = field(default_factory=dict)

    def forget(self) -> None:
        self.image, self.led = None, {}


def common_prefix(one: Log, other: Log) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


class ClusterModel(RuleBasedStateMachine):
    """`committed` is what the high watermarks of all leaders there ever were have passed, by partition."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings(TABLE)
        self.brokers = [Broker(node_id, uuid.UUID(int=1 + node_id)) for node_id in BROKERS]
        self.image = ClusterImage(cluster_id="c", controller_id=0)
        self.committed: list[Log] = [[] for _ in PARTITIONS]
        # Replicas that lost or may have lost committed records, until they are back in the ISR.
        self.unsure: set[tuple[int, int]] = set()
        # Those of them whose disks were replaced.
        self.emptied: set[tuple[int, int]] = set()
        # What leaders of older epochs than these commit is given up, too: they were replaced uncleanly.
        self.given_up = [0 for _ in PARTITIONS]
        self.in_flight: list[tuple[int, int, IsrChange]] = []
        self.records = 0
        self.disks = len(BROKERS)

    # The controller

    def carry_out(
        self, plan: Callable[[ClusterImage], Change[Any]], *, unclean: bool = False, joining: Collection[int] = ()
    ) -> Any:
        """Commit a change, and check what it did to every partition; `joining` are replicas that caught up."""
        before = self.image
        change = plan(before)
        assert bool(change.writes) == (change.image != before)
        self.image = replace(change.image, revision=before.revision + 1)
        for index in PARTITIONS if "t" in before.topics else ():
            old, new = before.topics["t"].partitions[index], self.image.topics["t"].partitions[index]
            self.check(new)
            self.check_epochs(before, index, old, new)
            self.check_elr(index, old, new)
            if new.leader != NO_LEADER and new.leader_epoch != old.leader_epoch:
                members = {*old.isr, *old.elr, *joining}
                last_leader = old.last_leader if old.leader == NO_LEADER else old.leader
                self.check_leader(index, new, members, last_leader, unclean=unclean or self.is_unclean_allowed)
        return change.results

    @property
    def is_unclean_allowed(self) -> bool:
        return self.image.topic_configs("t").get("unclean.leader.election.enable") == "true"

    def check(self, state: PartitionState) -> None:
        assert len(set(state.replicas)) == len(state.replicas) > 0
        assert len(set(state.isr)) == len(state.isr)
        assert set(state.isr) | set(state.elr) <= set(state.replicas)
        assert set(state.isr).isdisjoint(state.elr)
        assert set(state.adding) | set(state.removing) <= set(state.replicas)
        assert set(state.adding).isdisjoint(state.removing)
        assert set(state.adding) != set(state.replicas)
        assert all(not self.image.brokers[member].fenced for member in state.isr)
        assert (state.leader in state.isr) == bool(state.isr)
        assert state.recovery is LeaderRecoveryState.RECOVERED or len(state.isr) <= 1
        assert not state.elr or len(state.isr) < min(self.min_isr, len(state.replicas))
        target = set(state.replicas) - set(state.removing)
        assert not state.is_reassigned or not target <= {each for each in state.isr if self.is_active(each)}

    def check_elr(self, index: int, old: PartitionState, new: PartitionState) -> None:
        """Whoever has all that is committed stays eligible, unless there are enough others or the leader is unclean."""
        has_few = len(new.isr) < min(self.min_isr, len(new.replicas))
        if has_few and new.recovery is LeaderRecoveryState.RECOVERED:
            complete = {each for each in (*old.isr, *old.elr) if (each, index) not in self.unsure}
            assert set(new.elr) | set(new.isr) >= complete & set(new.replicas)

    @property
    def min_isr(self) -> int:
        return int(self.image.topic_configs("t")["min.insync.replicas"])

    def is_active(self, node_id: int) -> bool:
        return node_id in self.image.brokers and self.image.brokers[node_id].is_active

    def check_epochs(self, before: ClusterImage, index: int, old: PartitionState, new: PartitionState) -> None:
        assert new.partition_epoch == old.partition_epoch + (new != old)
        has_restarted = (
            old.leader != NO_LEADER and self.image.brokers[old.leader].epoch != before.brokers[old.leader].epoch
        )
        is_new = new.leader != old.leader or not set(old.replicas) <= set(new.replicas) or has_restarted
        assert new.leader_epoch == old.leader_epoch + is_new

    def check_leader(
        self, index: int, new: PartitionState, members: set[int], last_leader: int, *, unclean: bool
    ) -> None:
        """A new leader has all that is committed, unless records may be given up, or nobody can have them."""
        if not self.brokers[new.leader].is_running:
            # Nobody has noticed that it is gone. It leads only once it has registered again, under another epoch.
            return
        log, committed = self.brokers[new.leader].logs[index], self.committed[index]
        is_unsure = (new.leader, index) in self.unsure
        gives_up = new.leader not in members or is_unsure
        # A sole replica is trusted even with new disks: nobody else could have what it lacks.
        has_files = (new.leader, index) not in self.emptied or len(new.replicas) == 1
        nobody_is_sure = all((member, index) in self.unsure for member in members)
        is_last = has_files and nobody_is_sure and (new.leader == last_leader or members == {new.leader})
        if gives_up and not is_last:
            assert unclean
            assert new.recovery is LeaderRecoveryState.RECOVERING
        if gives_up:
            del committed[common_prefix(committed, log) :]
            self.trust(index, {new.leader})
            self.given_up[index] = new.leader_epoch
        assert log[: len(committed)] == committed, f"{new.leader} lacks committed records of {index}: {new}"

    def trust(self, index: int, node_ids: Collection[int]) -> None:
        """These have all that is committed."""
        self.unsure -= {(node_id, index) for node_id in node_ids}
        self.emptied -= {(node_id, index) for node_id in node_ids}

    # Brokers come and go

    @initialize(
        min_isr=st.integers(1, 3),
        factor=st.integers(1, 3),
        replicas=st.lists(st.permutations(BROKERS), min_size=len(PARTITIONS), max_size=len(PARTITIONS)),
    )
    def create(self, min_isr: int, factor: int, replicas: list[list[int]]) -> None:
        for broker in self.brokers:
            self.start(broker)
        assignments = {index: replicas[index][:factor] for index in PARTITIONS}
        new = NewTopic("t", assignments=assignments, configs={"min.insync.replicas": str(min_isr)})
        (result,) = self.carry_out(lambda image: run_through(changes.create_topics([new], image, self.settings, 0)))
        assert result.error is ErrorCode.NONE
        self.unsure.clear()
        self.emptied.clear()
        for broker in self.brokers:
            self.learn(broker)

    def start(self, broker: Broker) -> None:
        """Register, after a start or after the session was lost."""
        is_clean = broker.is_running or broker.stopped_cleanly
        registered = self.image.brokers.get(broker.node_id)
        info = BrokerInfo(broker.node_id, -1, (Endpoint(PLAINTEXT, "host", 9092),), directories=(broker.directory,))
        if not is_clean or registered is None:
            self.unsure |= {(broker.node_id, index) for index in PARTITIONS}
        if registered is None:
            # The controller can't tell, so it assumes the worst.
            self.emptied |= {(broker.node_id, index) for index in PARTITIONS}
        broker.forget()
        broker.is_running, broker.stopped_cleanly = True, False
        broker.epoch = self.carry_out(
            lambda image: changes.register_broker(info, image, self.settings, clean_shutdown=is_clean)
        )

    @rule(node_id=st.sampled_from(BROKERS))
    def registers(self, node_id: int) -> None:
        self.start(self.brokers[node_id])

    @rule(node_id=st.sampled_from(BROKERS), is_back=st.booleans(), lost=st.integers(0, 3))
    def crashes(self, node_id: int, is_back: bool, lost: int) -> None:
        """A process ends, or the machine, which loses what was not on the disk yet."""
        broker = self.brokers[node_id]
        if broker.is_running:
            broker.is_running = False
            broker.forget()
            for log in broker.logs:
                del log[max(0, len(log) - lost) :]
            if is_back:
                self.start(broker)

    @rule(node_ids=st.sets(st.sampled_from(BROKERS), min_size=1, max_size=3))
    def are_fenced(self, node_ids: set[int]) -> None:
        """Sessions end: of brokers that are gone, and of some that are only slow."""
        self.carry_out(lambda image: changes.fence_brokers(node_ids, image, self.settings))

    @rule(node_id=st.sampled_from(BROKERS), is_patient=st.booleans())
    def shuts_down(self, node_id: int, is_patient: bool) -> None:
        broker = self.brokers[node_id]
        registered = self.image.brokers.get(node_id)
        if broker.is_running and registered is not None and registered.epoch == broker.epoch:
            may_stop = self.carry_out(
                lambda image: changes.shut_down_broker(node_id, broker.epoch, image, self.settings)
            )
            for state in self.image.topics["t"].partitions:
                others = [each for each in state.isr if each != node_id and self.is_active(each)]
                assert node_id not in state.isr or not others
            if may_stop or not is_patient:
                broker.is_running, broker.stopped_cleanly = False, True
                broker.forget()

    # What administrators do

    @rule(wanted=st.none() | st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True))
    def are_reassigned(self, wanted: list[int] | None) -> None:
        asked = [Reassignment("t", index, wanted) for index in PARTITIONS]
        results = self.carry_out(lambda image: changes.alter_reassignments(asked, image, self.settings))
        for result, state in zip(results, self.image.topics["t"].partitions, strict=True):
            if result.error is ErrorCode.NONE and wanted is not None:
                assert [each for each in state.replicas if each not in state.removing] == wanted

    @rule(
        what=st.sampled_from(["disks", "unregister", "elect", "elect uncleanly", "balance", "min isr", "unclean"]),
        node_id=st.sampled_from(BROKERS),
    )
    def something_rare_happens(self, what: str, node_id: int) -> None:
        """One rule, so that the others come up more often."""
        if what == "disks":
            self.lose_disks(node_id)
        elif what == "unregister":
            broker = self.image.brokers.get(node_id)
            if broker is not None and broker.fenced:
                self.carry_out(lambda image: changes.unregister_broker(node_id, image))
        elif what == "elect":
            self.elect(ElectionType.PREFERRED)
        elif what == "elect uncleanly":
            self.elect(ElectionType.UNCLEAN)
        elif what == "balance":
            self.carry_out(lambda image: changes.balance_leaders(image, self.settings))
        elif what == "min isr":
            self.set_config("min.insync.replicas", str(min(1 + node_id, 3)))
        elif what == "unclean":
            self.set_config("unclean.leader.election.enable", str(node_id == 3).lower())

    def lose_disks(self, node_id: int) -> None:
        broker = self.brokers[node_id]
        if not broker.is_running:
            self.disks += 1
            broker.logs, broker.directory = [[] for _ in PARTITIONS], uuid.UUID(int=1 + self.disks)
            broker.stopped_cleanly = False
            self.emptied |= {(node_id, index) for index in PARTITIONS}

    def elect(self, election_type: ElectionType) -> None:
        asked = [("t", index) for index in PARTITIONS]
        results = self.carry_out(
            lambda image: changes.elect_leaders(election_type, asked, image, self.settings),
            unclean=election_type is ElectionType.UNCLEAN,
        )
        for result, state in zip(results, self.image.topics["t"].partitions, strict=True):
            assert result.error is not ErrorCode.NONE or state.leader != NO_LEADER

    def set_config(self, name: str, value: str) -> None:
        asked = [ConfigAlteration(TOPIC, [ConfigChange(name, AlterOperation.SET, value)])]
        self.carry_out(lambda image: run_through(changes.alter_configs(asked, image, self.settings)))

    # Leaders and followers

    def learn(self, broker: Broker) -> None:
        """Take over the newest image."""
        broker.image = self.image
        for index in PARTITIONS:
            state = self.image.topics["t"].partitions[index]
            known = broker.led.get(index)
            if state.leader != broker.node_id:
                broker.led.pop(index, None)
            elif known is None or known.state.leader_epoch != state.leader_epoch:
                broker.led[index] = Leadership(state, self.min_isr, len(broker.logs[index]))
            else:
                if known.state.partition_epoch != state.partition_epoch:
                    known.pending = None
                known.state, known.min_isr = state, self.min_isr

    @rule(node_ids=st.sets(st.sampled_from(BROKERS), min_size=1))
    def learn_the_news(self, node_ids: Collection[int]) -> None:
        for node_id in node_ids:
            broker, registered = self.brokers[node_id], self.image.brokers.get(node_id)
            # Somebody who has to register anew is told nothing else.
            is_known = registered is not None and registered.epoch == broker.epoch and not registered.fenced
            if broker.is_running and is_known:
                self.learn(broker)

    def leaders(self, node_ids: Collection[int]) -> Iterator[tuple[Broker, int, Leadership]]:
        """Those of these brokers that take themselves for leaders, with the partitions and what they know of them."""
        for node_id in sorted(node_ids):
            for index, led in list(self.brokers[node_id].led.items()):
                yield self.brokers[node_id], index, led

    @rule(apart=st.sets(st.sampled_from(BROKERS), max_size=3))
    def work_goes_on(self, apart: set[int]) -> None:
        """What happens most of the time, with some brokers cut off from the others."""
        together = set(BROKERS) - apart
        self.learn_the_news(together)
        self.write(together, 1)
        for _ in range(2):
            for node_id in together:
                self.fetch(node_id, 9)
        self.commit(together)

    @rule(node_ids=st.sets(st.sampled_from(BROKERS), min_size=1), count=st.integers(1, 2))
    def write(self, node_ids: Collection[int], count: int) -> None:
        for broker, index, led in self.leaders(node_ids):
            for _ in range(count):
                self.records += 1
                broker.logs[index].append((led.state.leader_epoch, self.records))

    @rule(node_id=st.sampled_from(BROKERS), count=st.integers(0, 3))
    def fetch(self, node_id: int, count: int) -> None:
        for index in PARTITIONS:
            self.fetch_partition(self.brokers[node_id], index, count)

    def fetch_partition(self, follower: Broker, index: int, count: int) -> None:
        if follower.image is None:
            return
        state = follower.image.topics["t"].partitions[index]
        if state.leader in (NO_LEADER, follower.node_id):
            return
        leader = self.brokers[state.leader]
        led = leader.led.get(index)
        if led is None or led.state.leader_epoch != state.leader_epoch or follower.node_id not in led.state.replicas:
            return
        assert leader.image is not None
        registered = leader.image.brokers.get(follower.node_id)
        if registered is None or registered.epoch != follower.epoch:
            return
        log = follower.logs[index]
        del log[common_prefix(log, leader.logs[index]) :]
        led.followers[follower.node_id] = (len(log), follower.epoch)
        log.extend(leader.logs[index][len(log) : len(log) + count])

    @rule(node_ids=st.sets(st.sampled_from(BROKERS), min_size=1))
    def commit(self, node_ids: Collection[int]) -> None:
        """Leaders move their high watermarks."""
        for broker, index, led in self.leaders(node_ids):
            state, committed, log = led.state, self.committed[index], broker.logs[index]
            # The ELR tells that the controller counts on its members: it may have another minimum in mind.
            if state.elr or len(state.isr) < min(led.min_isr, len(state.replicas)):
                continue
            if state.leader_epoch < self.given_up[index]:
                continue
            members = {*state.isr, *(member.node_id for member in (led.pending.isr if led.pending else ()))}
            ends = [len(log) if each == broker.node_id else led.followers.get(each, (0, -1))[0] for each in members]
            led.high_watermark = max(led.high_watermark, min(ends))
            length = min(len(committed), led.high_watermark)
            assert log[:length] == committed[:length], f"two records of {index} were committed at one offset"
            committed.extend(log[len(committed) : led.high_watermark])

    @rule(
        node_ids=st.sets(st.sampled_from(BROKERS), min_size=1),
        member=st.sampled_from(BROKERS),
        is_prompt=st.booleans(),
        is_repeated=st.booleans(),
    )
    def ask_for_another_isr(self, node_ids: Collection[int], member: int, is_prompt: bool, is_repeated: bool) -> None:
        """Leaders ask for one replica to join or to leave."""
        for broker, index, led in self.leaders(node_ids):
            isr = set(led.state.isr)
            if led.pending is not None or member == broker.node_id:
                continue
            end_offset, _ = led.followers.get(member, (-1, -1))
            if member not in isr and end_offset < max(led.high_watermark, led.start_offset):
                continue
            assert broker.image is not None
            epochs = {broker.node_id: broker.epoch, **{each: epoch for each, (_, epoch) in led.followers.items()}}
            members = [IsrMember(each, epochs.get(each, -1)) for each in sorted(isr ^ {member})]
            topic_id = broker.image.topics["t"].topic_id
            led.pending = IsrChange(topic_id, index, led.state.leader_epoch, led.state.partition_epoch, members)
            self.in_flight.append((broker.node_id, broker.epoch, led.pending))
            if is_prompt:
                self.alter_isr(len(self.in_flight) - 1, is_repeated, is_answered=True)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), is_repeated=st.booleans(), is_answered=st.booleans())
    def request_arrives(self, data: st.DataObject, is_repeated: bool, is_answered: bool) -> None:
        self.alter_isr(data.draw(st.integers(0, len(self.in_flight) - 1)), is_repeated, is_answered)

    def alter_isr(self, number: int, is_repeated: bool, is_answered: bool) -> None:
        """The controller gets a request; one that is repeated will come again."""
        node_id, epoch, asked = self.in_flight[number]
        if not is_repeated:
            del self.in_flight[number]
        old = self.image.topics["t"].partitions[asked.index]

        def plan(image: ClusterImage) -> Change[list[IsrResult]]:
            return changes.alter_partition(node_id, epoch, [asked], image, self.settings)

        registered = self.image.brokers.get(node_id)
        if registered is None or registered.epoch != epoch:
            with pytest.raises(KafkaError):
                plan(self.image)
            return
        joining = {member.node_id for member in asked.isr} - set(old.isr)
        if plan(self.image).results[0].error in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED):
            self.trust(asked.index, joining)
        (result,) = self.carry_out(plan, joining=joining)
        led = self.brokers[node_id].led.get(asked.index)
        if is_answered and result.error is ErrorCode.INELIGIBLE_REPLICA and led is not None and led.pending is asked:
            led.pending = None


ClusterModel.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=60, deadline=None)
TestAnyOrder = ClusterModel.TestCase
