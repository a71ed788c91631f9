"""Heartbeats, lost answers, silence, new coordinators and growing topics in any order, against stated invariants."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidelog.coordinator.config import GroupConfig
from tidelog.protocol import ErrorCode

_spec = importlib.util.spec_from_file_location("consumer_bench", Path(__file__).with_name("conftest.py"))
assert _spec is not None
assert _spec.loader is not None
_support = importlib.util.module_from_spec(_spec)
sys.modules["consumer_bench"] = _support
_spec.loader.exec_module(_support)

NAMES = ("a", "b", "c", "d")
who = st.sampled_from(NAMES)


class ConsumerGroupRules(RuleBasedStateMachine):
    """Four consumers, two of them static, and one coordinator after another."""

    def __init__(self) -> None:
        super().__init__()
        topics = _support.Topics()
        topics.put("orders", 4)
        topics.put("prices", 3)
        self.bench = _support.Bench(topics, GroupConfig(group_consumer_assignment_interval_ms=0))
        self.consumers: dict[str, Any] = {}
        self.epoch = 0
        self.serial = 0

    @initialize(interval=st.sampled_from([0, 1_000]))
    def configure(self, interval: int) -> None:
        self.bench.config = GroupConfig(group_consumer_assignment_interval_ms=interval)
        self.bench.restart()

    @rule(name=who, topics=st.sampled_from([["orders"], ["prices"], ["orders", "prices"]]))
    def start(self, name: str, topics: list[str]) -> None:
        if name in self.consumers:
            return
        self.serial += 1
        instance = name if name in "cd" else None
        consumer = _support.Consumer(self.bench, f"{name}-{self.serial}", topics, instance_id=instance)
        if consumer.beat() is ErrorCode.NONE:
            self.consumers[name] = consumer

    @rule(name=who)
    def beat(self, name: str) -> None:
        consumer = self.consumers.get(name)
        if consumer is not None:
            assert consumer.beat() in (
                ErrorCode.NONE,
                ErrorCode.FENCED_MEMBER_EPOCH,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.UNRELEASED_INSTANCE_ID,
                ErrorCode.FENCED_INSTANCE_ID,
                ErrorCode.GROUP_ID_NOT_FOUND,
            )
            if consumer.last_error in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
                del self.consumers[name]

    @rule(name=who)
    def lose_an_answer(self, name: str) -> None:
        if name in self.consumers:
            self.bench.ask(self.consumers[name].request())
            self.consumers[name].says_all = True

    @rule(name=who)
    def fail_a_write(self, name: str) -> None:
        if name in self.consumers:
            self.bench.fails_with = ErrorCode.NOT_ENOUGH_REPLICAS
            self.consumers[name].beat()
            self.bench.fails_with = ErrorCode.NONE

    @rule(name=who)
    def leave(self, name: str) -> None:
        if name in self.consumers:
            self.consumers.pop(name).leave()

    @rule(name=st.sampled_from(("c", "d")))
    def go_away_for_a_while(self, name: str) -> None:
        if name in self.consumers:
            self.consumers.pop(name).leave(-2)

    @rule(name=who)
    def die(self, name: str) -> None:
        self.consumers.pop(name, None)

    @rule(ms=st.sampled_from([500, 5_000, 11_000]))
    def wait(self, ms: int) -> None:
        """Time passes, in which consumers that live say so every five seconds."""
        while ms > 0:
            self.bench.advance(min(ms, 5_000))
            ms -= 5_000
            for name in list(self.consumers):
                self.beat(name)

    @rule()
    def everybody_is_silent(self) -> None:
        # A consumer that hears nothing for a session has given up what it had: its own clock tells it.
        self.consumers.clear()
        self.bench.advance(46_000)

    @rule(count=st.integers(1, 8))
    def grow(self, count: int) -> None:
        if count > self.bench.topics.counts["orders"]:
            self.bench.change_topics(lambda topics: topics.put("orders", count))

    @rule()
    def another_coordinator(self) -> None:
        described = self._described()
        self.bench.restart()
        assert self._described() == described

    def _described(self) -> Any:
        described = self.bench.shard.describe_consumer_group("group")
        described.members.sort(key=lambda member: member.member_id)
        return described

    @precondition(lambda self: self.consumers)
    @rule()
    def settles(self) -> None:
        """Whoever is there and keeps talking ends up with all partitions of what it subscribes to."""
        for _ in range(30):
            self.bench.advance(5_000)
            for name in list(self.consumers):
                self.beat(name)
        owned = [consumer.partitions for consumer in self.consumers.values()]
        subscribed = {topic for consumer in self.consumers.values() for topic in consumer.topics}
        counts = self.bench.topics.counts
        assert set().union(*owned) == {(topic, n) for topic in subscribed for n in range(counts[topic])}
        if self.consumers:
            assert self._described().group_state == "Stable"

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        seen: set[tuple[str | None, int]] = set()
        for consumer in self.consumers.values():
            assert not consumer.partitions & seen
            seen |= consumer.partitions

    @invariant()
    def the_epoch_never_goes_back(self) -> None:
        described = self.bench.shard.describe_consumer_group("group")
        if not described.error_code:
            assert described.group_epoch >= self.epoch
        # A group that was empty for long enough is gone, and begins anew.
        self.epoch = described.group_epoch


ConsumerGroupRules.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestConsumerGroupRules = ConsumerGroupRules.TestCase
