"""No acknowledged record is lost: short histories of one partition, with its real leaders and its real controller.

What leads is `Partition`, and what the controller decides comes from `changes`; only the logs, the network and the
brokers' ends are made up here. Each history is a walk from a seed over what may happen: images come late, fetches and
AlterPartition requests arrive late, twice or never, processes are killed, machines lose what was not yet on the disk,
min.insync.replicas changes, replicas move. A record is acknowledged once the leader would answer its producer. A leader
that may serve must then have it at its offset, as long as no more is lost than the rules of the ELR allow for.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from tidelog.broker.follower_state import ReplicationTerms
from tidelog.broker.partition import ACKS_ALL, IsrOutcome, Partition, PendingIsr
from tidelog.common.clock import VirtualClock
from tidelog.common.endpoint import PLAINTEXT, Endpoint
from tidelog.common.settings import Settings
from tidelog.common.steps import run_through
from tidelog.controller import changes
from tidelog.controller.changes import Change
from tidelog.controller.image import NO_LEADER, BrokerInfo, ClusterImage, PartitionState
from tidelog.controller.requests import ConfigAlteration, IsrChange, NewTopic, Reassignment
from tidelog.log import AppendResult, LogConfig, PartitionLog
from tidelog.protocol import ErrorCode, KafkaError
from tidelog.protocol.config_values import AlterOperation, ConfigChange, ConfigResource, ResourceType
from tidelog.server.settings_table import TABLE

BROKERS = range(4)
LAG_MS = 1000
STEPS = 45
SETTINGS = Settings(TABLE)
TOPIC = ConfigResource(ResourceType.TOPIC, "t")

Record = tuple[int, int]
"""The epoch of the leader that wrote it, and its number."""


@dataclass
class ModelLog:
    """As much of a log as leading and following take."""

    records: list[Record] = field(default_factory=list)
    config: LogConfig = field(default_factory=LogConfig)
    high_watermark: int = 0
    log_start_offset: int = 0
    flush_is_due: bool = False
    written: int = 0

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    def append_as_leader(self, records: object, *, leader_epoch: int, **_: object) -> AppendResult:
        # Numbers that no other log gives out tell the records of different leaders of one epoch apart, too.
        self.written += 1
        self.records.append((leader_epoch, self.written))
        return AppendResult(self.log_end_offset - 1, self.log_end_offset - 1, -1, 0, False)

    def advance_high_watermark(self, offset: int) -> None:
        assert self.high_watermark < offset <= self.log_end_offset
        self.high_watermark = offset

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.high_watermark = min(self.high_watermark, offset)


@dataclass
class Process:
    """One run of a broker under one broker epoch."""

    partition: Partition
    terms: ReplicationTerms
    epoch: int
    image: ClusterImage


@dataclass
class Node:
    node_id: int
    log: ModelLog
    process: Process | None = None
    stopped_cleanly: bool = True


@dataclass(frozen=True)
class SentFetch:
    leader: int
    follower: int
    process: Process
    leader_epoch: int
    records: tuple[Record, ...]


@dataclass(frozen=True)
class SentChange:
    process: Process
    node_id: int
    pending: PendingIsr


def common_length(one: list[Record], other: tuple[Record, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), min(len(one), len(other)))


class History:
    """One walk."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.steps: list[str] = []
        self.image = ClusterImage(cluster_id="c", controller_id=0)
        self.nodes = [Node(each, ModelLog(written=1000 * each)) for each in BROKERS]
        self.fetches: list[SentFetch] = []
        self.changes: list[SentChange] = []
        # What waits to be acknowledged: who appended it, under which epoch, and where it ends.
        self.produced: list[tuple[Process, int, int, Record]] = []
        self.acknowledged: dict[int, Record] = {}
        # Nodes that lost acknowledged records with their power, until they have them again.
        self.lossy: set[int] = set()
        for node in self.nodes:
            self.register(node)
        factor, min_isr = self.random.randint(2, 3), self.random.randint(1, 3)
        new = NewTopic("t", assignments={0: list(range(factor))}, configs={"min.insync.replicas": str(min_isr)})
        self.commit(lambda image: run_through(changes.create_topics([new], image, SETTINGS, 0)))
        for node in self.nodes:
            self.learn(node)

    @property
    def state(self) -> PartitionState:
        return self.image.topics["t"].partitions[0]

    def commit(self, plan: Callable[[ClusterImage], Change[Any]]) -> Any:
        change = plan(self.image)
        self.image = replace(change.image, revision=self.image.revision + 1)
        return change.results

    def walk(self) -> None:
        actions = [
            (self.work, 6),
            (self.produce, 3),
            (self.send_fetch, 3),
            (self.deliver_fetch, 4),
            (self.learn_something, 4),
            (self.lag, 2),
            (self.ask, 3),
            (self.deliver_change, 3),
            (self.fence, 2),
            (self.kill, 2),
            (self.lose_power, 2),
            (self.come_back, 4),
            (self.shut_down, 1),
            (self.change_min_isr, 2),
            (self.reassign, 1),
        ]
        for _ in range(STEPS):
            (action,) = self.random.choices([each for each, _ in actions], [weight for _, weight in actions])
            action()
            # What it lost may also be acknowledged later, by a fetch that was on its way.
            self.lossy = {each for each in self.lossy if self.nodes[each].process is None or not self.has_all(each)}
            if {*self.state.isr, *self.state.elr} <= self.lossy:
                # The last that may be elected is a machine that lost power before anybody noticed: others left in good
                # order meanwhile, or min.insync.replicas says that one is enough.
                return
            self.check()

    def note(self, text: str) -> None:
        self.steps.append(f"{text}: {self.state.isr} elr {self.state.elr} leader {self.state.leader}")

    def some(self, *, running: bool | None = None) -> Node | None:
        found = [node for node in self.nodes if running is None or running == (node.process is not None)]
        return self.random.choice(found) if found else None

    def leaders(self) -> list[Node]:
        return [node for node in self.nodes if node.process is not None and node.process.partition.is_leader]

    def check(self) -> None:
        for process, epoch, end_offset, record in tuple(self.produced):
            if process.partition.acknowledgement(end_offset, epoch, ACKS_ALL) is ErrorCode.NONE:
                self.acknowledged[end_offset - 1] = record
                self.produced.remove((process, epoch, end_offset, record))
        leader = None if self.state.leader == NO_LEADER else self.nodes[self.state.leader]
        if leader is None or leader.process is None or not self.is_current(leader):
            return  # nobody leads before it has registered
        records = leader.log.records
        for offset, record in self.acknowledged.items():
            assert records[offset : offset + 1] == [record], "\n".join(
                [*self.steps, f"{leader.node_id} leads without {record} at {offset}"]
            )

    def is_current(self, node: Node) -> bool:
        assert node.process is not None
        return self.image.brokers[node.node_id].epoch == node.process.epoch

    def has_all(self, node_id: int) -> bool:
        records = self.nodes[node_id].log.records
        return all(offset < len(records) and records[offset] == each for offset, each in self.acknowledged.items())

    # Brokers come and go

    def register(self, node: Node) -> None:
        is_clean = node.process is not None or node.stopped_cleanly
        info = BrokerInfo(
            node.node_id,
            -1,
            (Endpoint(PLAINTEXT, "host", 9092),),
            directories=(uuid.UUID(int=node.node_id + 1),),
        )
        epoch = self.commit(lambda image: changes.register_broker(info, image, SETTINGS, clean_shutdown=is_clean))
        node.stopped_cleanly = False
        if node.process is not None:
            # The same process goes on under a new epoch.
            node.process.partition.fence()
            node.process.terms.broker_epoch = node.process.epoch = epoch
            return
        terms = ReplicationTerms(VirtualClock(), LAG_MS)
        terms.broker_epoch = epoch
        partition = Partition("t", 0, uuid.UUID(int=99), cast(PartitionLog, node.log), node.node_id, terms)
        node.process = Process(partition, terms, epoch, self.image)

    def come_back(self) -> None:
        fenced = [node for node in self.nodes if node.process is None or self.image.brokers[node.node_id].fenced]
        if fenced:
            node = self.random.choice(fenced)
            self.register(node)
            if self.random.random() < 0.8:
                self.learn(node)
            self.note(f"{node.node_id} registers")

    def fence(self) -> None:
        """A session ends: of a broker that is gone, or of one that is only slow and does not know it."""
        gone = [node.node_id for node in self.nodes if node.process is None]
        node_id = self.random.choice(gone or list(BROKERS))
        self.commit(lambda image: changes.fence_brokers([node_id], image, SETTINGS))
        self.note(f"{node_id} is fenced")

    def kill(self) -> None:
        if (node := self.some(running=True)) is not None:
            self.end(node, is_clean=False)
            self.note(f"{node.node_id} is killed")

    def end(self, node: Node, *, is_clean: bool) -> None:
        self.produced = [each for each in self.produced if each[0] is not node.process]
        node.process, node.stopped_cleanly = None, is_clean

    def lose_power(self) -> None:
        """A machine loses the end of its log, while somebody else who may be elected has everything."""
        node = self.some()
        assert node is not None
        others = {*self.state.isr, *self.state.elr} - {node.node_id}
        if node.process is not None and all(map(self.has_all, others)) and others:
            node.log.truncate(max(0, node.log.log_end_offset - self.random.randint(1, 3)))
            self.lossy.add(node.node_id)
            self.end(node, is_clean=False)
            if self.random.random() < 0.6:
                self.register(node)
                self.learn(node)
            self.note(f"{node.node_id} loses power")

    def shut_down(self) -> None:
        node = self.some(running=True)
        if node is None or not self.is_current(node):
            return
        epoch = self.image.brokers[node.node_id].epoch
        may_stop = self.commit(lambda image: changes.shut_down_broker(node.node_id, epoch, image, SETTINGS))
        if may_stop:
            self.end(node, is_clean=True)
        self.note(f"{node.node_id} shuts down")

    # What administrators do

    def change_min_isr(self) -> None:
        value = str(self.random.randint(1, 3))
        asked = [ConfigAlteration(TOPIC, [ConfigChange("min.insync.replicas", AlterOperation.SET, value)])]
        self.commit(lambda image: run_through(changes.alter_configs(asked, image, SETTINGS)))
        self.note(f"min.insync.replicas = {value}")

    def reassign(self) -> None:
        target = self.random.sample(list(BROKERS), self.random.randint(2, 3))
        asked = [Reassignment("t", 0, target)]
        self.commit(lambda image: changes.alter_reassignments(asked, image, SETTINGS))
        self.note(f"moves to {target}")

    # Leaders and followers

    def learn_something(self) -> None:
        for node in self.nodes:
            if self.random.random() < 0.5:
                self.learn(node)

    def learn(self, node: Node) -> None:
        """Take over the newest image, in the order of the replica manager: brokers, states, settings."""
        process = node.process
        if process is None or not self.is_current(node) or self.image.brokers[node.node_id].fenced:
            return
        process.image = self.image
        process.terms.brokers = self.image.brokers
        if node.node_id in self.state.replicas:
            process.partition.apply(self.state)
        else:
            process.partition.stop(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            node.log.truncate(0)
            terms = process.terms
            process.partition = Partition("t", 0, uuid.UUID(int=99), cast(PartitionLog, node.log), node.node_id, terms)
        node.log.config = LogConfig(min_insync_replicas=int(self.image.topic_configs("t")["min.insync.replicas"]))
        if process.partition.is_leader:
            process.partition.advance_high_watermark()

    def produce(self) -> None:
        for node in self.leaders():
            assert node.process is not None
            partition = node.process.partition
            try:
                partition.append(cast(memoryview, b"record"), ACKS_ALL)
            except KafkaError:
                continue
            end_offset = node.log.log_end_offset
            self.produced.append((node.process, partition.leader_epoch, end_offset, node.log.records[-1]))
            self.note(f"{node.node_id} appends {node.log.records[-1]}")

    def work(self) -> None:
        """What happens most of the time, with some brokers cut off from the others."""
        together = self.random.sample(self.nodes, self.random.randint(2, len(self.nodes)))
        for node in together:
            self.learn(node)
        self.produce()
        for _ in range(2):
            for node in together:
                self.fetch_from_leader(node)
                if self.fetches and self.fetches[-1].follower == node.node_id:
                    self.answer_fetch(self.fetches.pop())

    def send_fetch(self) -> None:
        if (node := self.some(running=True)) is not None:
            self.fetch_from_leader(node)

    def fetch_from_leader(self, node: Node) -> None:
        process = node.process
        if process is None or not process.partition.is_follower:
            return
        partition = process.partition
        sent = SentFetch(partition.leader, node.node_id, process, partition.leader_epoch, tuple(node.log.records))
        self.fetches.append(sent)

    def deliver_fetch(self) -> None:
        if self.fetches:
            at = self.random.randrange(len(self.fetches))
            self.answer_fetch(self.fetches[at] if self.random.random() < 0.2 else self.fetches.pop(at))

    def answer_fetch(self, sent: SentFetch) -> None:
        leader, follower = self.nodes[sent.leader], self.nodes[sent.follower]
        process = leader.process
        if process is None or not process.partition.is_leader or process.partition.leader_epoch != sent.leader_epoch:
            return
        if sent.follower not in process.partition.followers:
            return
        if process.terms.epoch_of(sent.follower) != sent.process.epoch:
            return
        is_there = (
            follower.process is sent.process
            and tuple(follower.log.records) == sent.records
            and sent.process.partition.leader_epoch == sent.leader_epoch
            and sent.process.partition.is_follower
        )
        length = common_length(leader.log.records, sent.records)
        if length < len(sent.records):
            if is_there:
                follower.log.truncate(length)
            return
        process.partition.update_follower(sent.follower, length, 0, sent.process.epoch)
        if is_there:
            follower.log.records += leader.log.records[length : length + self.random.randint(1, 3)]
            follower.log.high_watermark = max(
                follower.log.high_watermark, min(leader.log.high_watermark, follower.log.log_end_offset)
            )

    # ISRs

    def lag(self) -> None:
        for node in self.leaders():
            assert node.process is not None
            cast(VirtualClock, node.process.terms.clock).advance(ms=LAG_MS + 1)
            if node.process.partition.propose_shrink():
                self.submit(node)

    def ask(self) -> None:
        for node in self.leaders():
            assert node.process is not None
            if node.process.partition.propose_expansion():
                self.submit(node)

    def submit(self, node: Node) -> None:
        process = node.process
        assert process is not None
        assert process.partition.pending_isr is not None
        self.changes.append(SentChange(process, node.node_id, process.partition.pending_isr))
        self.note(f"{node.node_id} asks for {[member.node_id for member in process.partition.pending_isr.members]}")
        if self.random.random() < 0.4:
            self.answer_change(self.changes.pop())

    def deliver_change(self) -> None:
        if self.changes:
            at = self.random.randrange(len(self.changes))
            self.answer_change(self.changes[at] if self.random.random() < 0.2 else self.changes.pop(at))

    def answer_change(self, sent: SentChange) -> None:
        pending = sent.pending
        topic_id = self.image.topics["t"].topic_id
        change = IsrChange(topic_id, 0, pending.leader_epoch, pending.partition_epoch, pending.members)
        # The epoch that the request was sent with: that of its leadership.
        epoch = next(member.broker_epoch for member in pending.members if member.node_id == sent.node_id)
        try:
            (result,) = self.commit(
                lambda image: changes.alter_partition(sent.node_id, epoch, [change], image, SETTINGS)
            )
        except KafkaError:
            return
        if result.error is ErrorCode.NONE:
            for member in result.state.isr:
                joined = self.nodes[member]
                if joined.process is not None and self.is_current(joined) and joined is not self.nodes[sent.node_id]:
                    assert self.has_all(member), "\n".join([*self.steps, f"{member} is in the ISR and lacks records"])
        self.note(f"{sent.node_id} gets {result.error.name} for {[member.node_id for member in pending.members]}")
        node = self.nodes[sent.node_id]
        if node.process is sent.process and self.random.random() < 0.7:
            partition, state = sent.process.partition, result.state or self.state
            outcome = partition.decide_isr(
                pending, result.error, leader_epoch=state.leader_epoch, partition_epoch=state.partition_epoch
            )
            assert outcome is not IsrOutcome.UNKNOWN


@pytest.mark.parametrize("first_seed", range(0, 2000, 500))
def test_no_acknowledged_record_is_lost(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 500):
        try:
            History(seed).walk()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
