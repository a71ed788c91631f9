"""Real clients copy in transactions, some of them aborted, and lose copiers on the way: each record is copied once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from copiers.report import SESSION_MS
from copy_scenario import PARTITIONS, SOURCE, TARGET, CopyScenario
from tidelog.testing import Broker

RECORDS = 60
SETTINGS = {
    # Short sessions, so that the death of a copier is noticed within a test.
    "group.min.session.timeout.ms": SESSION_MS,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as running:
        for topic in (SOURCE, TARGET):
            running.create_topic(topic, PARTITIONS)
        yield running


@pytest.mark.parametrize("family", ["confluent", "aiokafka", "kafka-python"])
def test_each_record_is_copied_once(family: str, broker: Broker, tmp_path: Path) -> None:
    # See the copier on aiokafka for why it needs them.
    shares = ([0, 1], [2, 3]) if family == "aiokafka" else (None, None)
    with CopyScenario(broker.bootstrap, family, tmp_path) as scenario:
        copy_with_one_killed_and_one_fenced(scenario, *shares)


def copy_with_one_killed_and_one_fenced(
    scenario: CopyScenario, one_share: list[int] | None = None, other_share: list[int] | None = None
) -> None:
    scenario.write(RECORDS)
    scenario.start("one", "id of one", one_share)
    scenario.start("other", "id of other", other_share)
    scenario.wait_until_assigned("one", "other")
    for name in ("one", "other"):
        scenario.lead(name, "stall")
    scenario.write(RECORDS)
    scenario.wait_until_said("stalled", "one", "other")

    scenario.kill("one")
    scenario.start("one again", "id of one", one_share)
    scenario.start("other again", "id of other", other_share)
    scenario.lead("other", "go")
    scenario.wait_until_said("fenced", "other")
    scenario.leave("other")

    scenario.write(RECORDS)
    scenario.wait_until_assigned("one again", "other again")
    scenario.wait_until_copied()
    for name in ("one again", "other again"):
        scenario.leave(name)
    scenario.check()
