"""Joins, losses, long polls, deaths, moves of the coordinator in any order: never two owners, and all ends well."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TOPICS = {"t": 4, "u": 3}
EXAMPLES = int(os.environ.get("TIDELOG_GROUP_EXAMPLES", "40"))
SUBSCRIPTIONS = [("t",), ("u",), ("t", "u")]

# What happens, to which of up to five consumers, and by how much.
_STEPS = st.tuples(
    st.sampled_from(
        [
            "add",
            "add_static",
            "send",
            "send",
            "send",
            "receive",
            "receive",
            "receive",
            "begin_turn",
            "begin_turn",
            "end_turn",
            "end_turn",
            "lose_request",
            "lose_answer",
            "advance",
            "round",
            "round",
            "leave",
            "crash",
            "stop_polling",
            "subscribe",
            "rejoin",
            "grow",
            "restart_coordinator",
        ]
    ),
    st.integers(0, 4),
    st.integers(0, 9),
)


class _Run:
    """Carries the steps out on a group."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.instances: set[str] = set()

    def do(self, what: str, index: int, amount: int) -> None:
        group = self.group
        topics = SUBSCRIPTIONS[amount % len(SUBSCRIPTIONS)]
        present = [each for each in group.members if not each.is_gone]
        match what:
            case "add" if len(present) < 5:
                group.add(topics)
            case "add_static" if len(present) < 5:
                self._add_static(f"static-{index % 2}", topics)
            case "advance":
                group.advance([10, 100, 1_000, 3_000, 5_000, 9_000, 11_000, 31_000, 46_000, 120_000][amount])
            case "grow":
                topic = "tu"[amount % 2]
                group.grow(topic, min(group.topics.counts[topic] + 1, 9))
            case "restart_coordinator":
                group.restart_coordinator()
            case "round":
                group.step_all()
            case _ if present:
                self._do_to(what, present[index % len(present)], topics)

    def _add_static(self, instance_id: str, topics: tuple[str, ...]) -> None:
        """Static consumers are restarted, never run twice at once: that is another test.

        The consumer protocol lets nobody in while the one before has not left, so there it always leaves.
        """
        for each in self.group.members:
            if not each.is_gone and each.member.config.instance_id == instance_id:
                if self.group.kind == "consumer":
                    self.group.leave(each)
                else:
                    self.group.crash(each)
        self.group.add(topics, instance_id)

    def _do_to(self, what: str, each: Any, topics: tuple[str, ...]) -> None:
        group = self.group
        match what:
            case "send":
                group.send(each)
            case "receive":
                group.receive(each)
            case "begin_turn":
                group.begin_turn(each)
            case "end_turn":
                group.end_turn(each)
            case "lose_request":
                group.send(each, is_lost=True)
            case "lose_answer":
                group.receive(each, is_lost=True)
            case "leave":
                group.leave(each)
            case "crash" if each.member.config.instance_id is None:
                group.crash(each)
            case "stop_polling":
                group.stop_polling(each)
            case "subscribe":
                each.member.subscribe(frozenset(topics), None)
            case "rejoin":
                each.member.request_rejoin("the user asked for it")


@pytest.mark.parametrize("kind", ["range", "sticky", "cooperative-sticky", "consumer"])
def test_any_order(simulate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    numbers = itertools.count(1)
    # Ids decide who gets what: with random ones no failure could be found again.
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers) * 7919 % 104729))

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(_STEPS, min_size=20, max_size=120))
    def run(steps: list[tuple[str, int, int]]) -> None:
        nonlocal numbers
        numbers = itertools.count(1)
        group = simulate(kind, TOPICS)
        run = _Run(group)
        for what, index, amount in steps:
            run.do(what, index, amount)
            group.check_one_owner()
        group.settle(150_000, 2_000)
        check_all_ended_well(group)

    run()


def check_all_ended_well(group: Any) -> None:
    """With everybody well, each topic that somebody reads is read whole, by exactly one member each."""
    present = [each for each in group.members if not each.is_gone]
    assert all(each.member.error is None for each in present)
    read = {topic for each in present for topic in each.member._topics}
    wanted = {partition for partition in group.wanted() if partition.topic in read}
    assert group.owned() == dict.fromkeys(wanted, 1)
    for each in present:
        assert {partition.topic for partition in each.member.owned} <= each.member._topics
        told: set[Any] = set()
        for event, partitions in each.told:
            if event == "assigned":
                assert not told & set(partitions)
                told |= set(partitions)
            else:
                assert told >= set(partitions)
                told -= set(partitions)
        assert told == each.member.owned
