"""A shard without a broker: actions are carried out at once, by a log that is a list and timers that are a dict."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain

import pytest

from tidelog.coordinator.actions import (
    Action,
    ActionSteps,
    Answer,
    Append,
    CancelTimer,
    Client,
    GroupRecord,
    Now,
    SetTimer,
    TimerKey,
    Work,
)
from tidelog.coordinator.config import GroupConfig
from tidelog.coordinator.shard import GroupShard
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)

START_MS = 1_800_000_000_000


@dataclass
class Topics:
    """A cluster's topics by name, with their partition counts."""

    counts: dict[str, int] = field(default_factory=dict)
    ids: dict[str, uuid.UUID] = field(default_factory=dict)

    def put(self, name: str, count: int) -> None:
        self.counts[name] = count
        self.ids.setdefault(name, uuid.uuid5(uuid.NAMESPACE_DNS, name))

    def copy(self) -> Topics:
        return Topics(dict(self.counts), dict(self.ids))

    def topic_id(self, name: str) -> uuid.UUID | None:
        return self.ids.get(name) if name in self.counts else None

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return next((name for name in self.counts if self.ids[name] == topic_id), None)

    def partition_count(self, name: str) -> int:
        return self.counts.get(name, 0)

    def partition_racks(self, name: str) -> tuple[frozenset[str], ...]:
        return tuple(frozenset() for _ in range(self.partition_count(name)))

    def topic_names(self) -> Collection[str]:
        return self.counts.keys()


class Bench:
    """One shard with its surroundings."""

    def __init__(self, topics: Topics, config: GroupConfig) -> None:
        self.topics = topics
        self.config = config
        self.monotonic_ms = 0.0
        self.log: list[GroupRecord] = []
        self.timers: dict[TimerKey, float] = {}
        self.answers: dict[int, ConsumerGroupHeartbeatResponse] = {}
        self.held: list[Append] = []
        self.holds_appends = False
        # While set, long work goes on only when the test takes a step of it.
        self.holds_work = False
        self.works: list[ActionSteps] = []
        self.fails_with = ErrorCode.NONE
        self._exchange = 0
        self.shard = GroupShard(0, config, topics.copy())
        self.run(chain.from_iterable(self.shard.on_loaded(self.now)))

    @property
    def now(self) -> Now:
        return Now(self.monotonic_ms, START_MS + int(self.monotonic_ms))

    def run(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Work(steps):
                    self.works.append(steps)
                    while not self.holds_work and self.step():
                        pass
                case Answer(exchange, response):
                    assert exchange not in self.answers, "answered twice"
                    assert isinstance(response, ConsumerGroupHeartbeatResponse)
                    self.answers[exchange] = response
                case Append() if self.holds_appends:
                    self.held.append(action)
                case Append():
                    self.finish(action)
                case SetTimer(key, due_ms):
                    self.timers[key] = due_ms
                case CancelTimer(key):
                    self.timers.pop(key, None)

    def step(self) -> bool:
        """Take one step of the oldest long work; False when none is left."""
        while self.works:
            actions = next(self.works[0], None)
            if actions is not None:
                self.run(actions)
                return True
            self.works.pop(0)
        return False

    def finish(self, append: Append) -> None:
        error, self.fails_with = self.fails_with, ErrorCode.NONE
        if not error:
            self.log += append.records
        self.run(self.shard.on_appended(append.token, error, self.now))

    def release(self) -> None:
        while self.held:
            self.finish(self.held.pop(0))

    def send(self, request: ConsumerGroupHeartbeatRequest, version: int = 1) -> int:
        self._exchange += 1
        client = Client("client", "/127.0.0.1", version)
        self.run(self.shard.consumer_heartbeat(request, client, self.now, self._exchange))
        return self._exchange

    def ask(self, request: ConsumerGroupHeartbeatRequest, version: int = 1) -> ConsumerGroupHeartbeatResponse:
        return self.answers[self.send(request, version)]

    def advance(self, ms: float) -> None:
        end_ms = self.monotonic_ms + ms
        while True:
            due = [(due_ms, key) for key, due_ms in self.timers.items() if due_ms <= end_ms]
            if not due:
                break
            due_ms, key = min(due, key=lambda pair: pair[0])
            self.monotonic_ms = max(self.monotonic_ms, due_ms)
            del self.timers[key]
            self.run(self.shard.on_timer(key, self.now))
        self.monotonic_ms = end_ms

    def change_topics(self, change: Callable[[Topics], None]) -> None:
        change(self.topics)
        self.run(self.shard.on_topics_changed(self.topics.copy(), self.now))

    def restart(self) -> None:
        """Another coordinator takes over what is in the log; what was not written is lost, and nobody is answered."""
        self.held.clear()
        self.timers.clear()
        self.shard = GroupShard(0, self.config, self.topics.copy())
        for offset, record in enumerate(self.log):
            self.shard.replay(record, offset)
        self.run(chain.from_iterable(self.shard.on_loaded(self.now)))


class Consumer:
    """A client of the protocol as the specification has it: it owns what it was given until it gave it up."""

    def __init__(
        self,
        bench: Bench,
        member_id: str,
        topics: list[str] | None = None,
        *,
        regex: str | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
    ) -> None:
        self.bench = bench
        self.member_id = member_id
        self.topics = topics
        self.regex = regex
        self.instance_id = instance_id
        self.assignor = assignor
        self.epoch = 0
        self.owned: dict[uuid.UUID, set[int]] = {}
        self.last_error = ErrorCode.NONE
        # After an answer that did not come a client says everything again, as when it joins.
        self.says_all = False

    def request(self, *, epoch: int | None = None) -> ConsumerGroupHeartbeatRequest:
        epoch = self.epoch if epoch is None else epoch
        is_joining = epoch == 0
        rows = [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in self.owned.items()
            if numbers
        ]
        return ConsumerGroupHeartbeatRequest(
            group_id="group",
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=10_000 if is_joining or self.says_all else -1,
            subscribed_topic_names=(self.topics or []) if is_joining or self.says_all else None,
            subscribed_topic_regex=self.regex if is_joining or self.says_all else None,
            server_assignor=self.assignor if is_joining or self.says_all else None,
            topic_partitions=[] if is_joining else rows,
        )

    def beat(self) -> ErrorCode:
        return self.take(self.bench.ask(self.request()))

    def take(self, response: ConsumerGroupHeartbeatResponse) -> ErrorCode:
        self.last_error = ErrorCode(response.error_code)
        self.says_all = bool(self.last_error)
        if self.last_error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.owned, self.epoch = {}, 0
        elif not self.last_error:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.owned = {row.topic_id: set(row.partitions) for row in response.assignment.topic_partitions}
        return self.last_error

    def leave(self, epoch: int = -1) -> ErrorCode:
        response = self.bench.ask(self.request(epoch=epoch))
        self.owned, self.epoch = {}, 0
        return ErrorCode(response.error_code)

    def change(self, topics: list[str]) -> ErrorCode:
        self.topics = topics
        request = self.request()
        request.subscribed_topic_names = topics
        request.rebalance_timeout_ms = 10_000
        return self.take(self.bench.ask(request))

    @property
    def partitions(self) -> set[tuple[str | None, int]]:
        return {
            (self.bench.topics.topic_name(topic_id), number)
            for topic_id, numbers in self.owned.items()
            for number in numbers
        }


@pytest.fixture
def topics() -> Topics:
    there = Topics()
    there.put("orders", 6)
    there.put("prices", 3)
    there.put("__consumer_offsets", 50)
    return there


@pytest.fixture
def bench(topics: Topics) -> Bench:
    return Bench(topics, GroupConfig(group_consumer_assignment_interval_ms=0))


@pytest.fixture
def make_consumer(bench: Bench) -> type[Consumer]:
    return Consumer


@pytest.fixture
def make_bench() -> Callable[[GroupConfig], Bench]:
    def make(config: GroupConfig) -> Bench:
        there = Topics()
        there.put("orders", 6)
        there.put("prices", 3)
        return Bench(there, config)

    return make
