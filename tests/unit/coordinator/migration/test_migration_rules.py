"""Members of both protocols in one group, in any order, with new coordinators and refused writes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidelog.coordinator.memory import GROUP_BYTES

_spec = importlib.util.spec_from_file_location("migration_bench", Path(__file__).with_name("conftest.py"))
assert _spec is not None
assert _spec.loader is not None
_support = importlib.util.module_from_spec(_spec)
sys.modules["migration_bench"] = _support
_spec.loader.exec_module(_support)

NAMES = ("a", "b", "c", "d")
who = st.sampled_from(NAMES)
what = st.sampled_from([["orders"], ["prices"], ["orders", "prices"]])


class MigrationRules(RuleBasedStateMachine):
    """Four places, each taken by a consumer of either protocol; d is static."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = _support.Bench()
        self.consumers: dict[str, Any] = {}
        self.serial = 0

    @rule(name=who, topics=what)
    def start_new(self, name: str, topics: list[str]) -> None:
        if name not in self.consumers:
            self.serial += 1
            instance = name if name == "d" else None
            consumer = _support.NewConsumer(self.bench, f"{name}-{self.serial}", topics, instance)
            if not consumer.beat():
                self.consumers[name] = consumer

    @rule(name=who, topics=what)
    def start_old(self, name: str, topics: list[str]) -> None:
        if name not in self.consumers:
            instance = name if name == "d" else None
            self.consumers[name] = _support.OldConsumer(self.bench, name, topics, instance, cooperative=True)
            self.consumers[name].step()

    @rule(name=who)
    def step(self, name: str) -> None:
        if name in self.consumers:
            self.consumers[name].step()

    @rule(name=who)
    def fail_a_write(self, name: str) -> None:
        if name in self.consumers:
            self.bench.fails = True
            self.consumers[name].step()
            self.bench.fails = False

    @rule(name=who)
    def leave(self, name: str) -> None:
        if name in self.consumers:
            self.consumers.pop(name).leave()

    @rule()
    def a_second_passes(self) -> None:
        self.bench.advance(1_000)
        for consumer in self.consumers.values():
            consumer.step()

    @rule()
    def everybody_dies(self) -> None:
        self.consumers.clear()
        self.bench.advance(400_000)

    @rule()
    def another_coordinator(self) -> None:
        kind = self.bench.kind
        for consumer in self.consumers.values():
            if isinstance(consumer, _support.OldConsumer) and (consumer.joining or consumer.syncing):
                # Whoever waited is told by the end of its connection, and joins again as it was.
                consumer.joining = consumer.syncing = None
                consumer.generation = -1
        self.bench.restart()
        assert kind in (self.bench.kind, "classic")  # a classic group that never got a generation is not written

    @rule()
    def settles(self) -> None:
        for _ in range(80):
            self.bench.advance(1_000)
            for consumer in self.consumers.values():
                consumer.step()
        subscribed = {topic for consumer in self.consumers.values() for topic in consumer.topics}
        owned = [consumer.partitions for consumer in self.consumers.values()]
        counts = self.bench.topics.counts
        assert set().union(*owned) == {(topic, n) for topic in subscribed for n in range(counts[topic])}

    @invariant()
    def memory_is_that_of_the_members(self) -> None:
        state = self.bench.shard.state
        groups = state.groups.values()
        assert state.memory.used_bytes == sum(group.footprint.size_bytes for group in groups)
        for group in groups:
            members = list(group.members.values() if group.type == "consumer" else group.members)
            base_bytes = GROUP_BYTES + len(group.group_id)
            assert group.footprint.size_bytes == base_bytes + sum(member.size_bytes for member in members)

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        seen: set[Any] = set()
        for consumer in self.consumers.values():
            assert not consumer.partitions & seen
            seen |= consumer.partitions


MigrationRules.TestCase.settings = settings(
    max_examples=200, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMigrationRules = MigrationRules.TestCase
