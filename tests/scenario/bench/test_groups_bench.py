"""The measurement of consumer groups measures what it says, on a broker with few of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidelog.bench import comparison, groups_bench
from tidelog.bench.brokers import BrokerProcess, TidelogBroker
from tidelog.bench.comparison import Samples
from tidelog.bench.errors import MeasurementError
from tidelog.bench.group_members import Crowd
from tidelog.bench.groups_bench import Plan
from tidelog.protocol import ErrorCode
from tidelog.protocol.messages.k10_find_coordinator import (
    FIND_COORDINATOR,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.testing import Broker
from tidelog.testing.raw_client import RawClient

SMALL = Plan(
    groups=3, members=40, seconds=1, high_rate=100, group_size=5, rebalances=2, commits=100, warm_up_commits=10
)


def test_every_step_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_bench, "_WARM_UP_REBALANCES", 1)
    # Whether this machine is quiet enough to measure is of no matter here.
    monkeypatch.setattr(groups_bench, "_ANSWERED_LEAST", 0.2)
    samples = Samples()
    broker: BrokerProcess = TidelogBroker(tmp_path, settings={"group.initial.rebalance.delay.ms": "0"})
    try:
        groups_bench._measure(broker, SMALL, samples, lambda _: None)
    finally:
        broker.kill()
    quantities = groups_bench.quantities(SMALL)
    assert {name: len(samples[name]) for name in samples} == {quantity.name: 1 for quantity in quantities}
    assert {row.ratio for row in comparison.rows(quantities, samples, samples)} == {1.0}


def test_commits_can_be_measured_alone(tmp_path: Path) -> None:
    plan = replace(SMALL, rows=["commits"])
    samples = Samples()
    broker: BrokerProcess = TidelogBroker(tmp_path)
    try:
        groups_bench._measure(broker, plan, samples, lambda _: None)
    finally:
        broker.kill()
    assert sorted(samples) == sorted(quantity.name for quantity in groups_bench.quantities(plan))


def test_a_member_that_is_thrown_out_spoils_the_measurement(
    start_broker: Callable[..., Broker], connect: Callable[[Broker], RawClient]
) -> None:
    broker = start_broker(settings={"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1})
    found = connect(broker).ask(FIND_COORDINATOR, FindCoordinatorRequest(key="group"), FindCoordinatorResponse, 3)
    assert found.error_code == ErrorCode.NONE
    with closing(Crowd(broker.port)) as crowd:
        one, other = crowd.add(["group", "group"])
        for member in (one, other):
            member.join()
        crowd.run(crowd.all_stable, "both have their parts", 20)
        other.member_id = one.member_id
        other.leave()
        one_is_gone = "a member of group that was STABLE got UNKNOWN_MEMBER_ID"
        with pytest.raises(MeasurementError, match=one_is_gone):
            crowd.run(lambda: False, "nothing", 20, beats_per_s=100)


def test_too_few_answers_spoil_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_bench, "_ANSWERED_LEAST", 1.5)
    broker: BrokerProcess = TidelogBroker(tmp_path, settings={"group.initial.rebalance.delay.ms": "0"})
    try:
        with pytest.raises(MeasurementError, match=r"Tidelog answered .* were due"):
            groups_bench._measure(broker, SMALL, Samples(), lambda _: None)
    finally:
        broker.kill()


def test_a_broker_that_does_not_answer_is_named(broker: Broker) -> None:
    with closing(Crowd(broker.port)) as crowd:
        crowd.add(["group"])
        with pytest.raises(MeasurementError, match=r"gave up after .*: a join that nobody sent"):
            crowd.run(crowd.all_stable, "a join that nobody sent", 0.05)


@pytest.mark.parametrize(("plan", "reason"), [({"runs": 3}, "even"), ({"members": 10, "groups": 11}, "members")])
def test_plans_that_make_no_sense(plan: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Plan(**plan)
