"""The quotas of throttled replication (KIP-73): what they apply to, and how long they make copiers pause."""

from __future__ import annotations

import pytest

from tidelog.broker.replication_throttle import (
    PAUSE_MAX_S,
    ReplicationQuota,
    ReplicationThrottles,
    throttled_partitions,
)
from tidelog.common.clock import VirtualClock
from tidelog.controller.image import EMPTY_IMAGE
from tidelog.protocol.config_values import ConfigResource, ResourceType
from tidelog.server.settings_load import load

TOPIC = ConfigResource(ResourceType.TOPIC, "t")
BROKER, OTHER_BROKER, ALL_BROKERS = (ConfigResource(ResourceType.BROKER, name) for name in ("1", "2", ""))


def quota(clock: VirtualClock, rate: float) -> ReplicationQuota:
    return ReplicationQuota(clock, samples=11, sample_ms=1000, rate=rate)


def test_without_a_rate_nothing_pauses() -> None:
    unlimited = ReplicationQuota(VirtualClock(), samples=11, sample_ms=1000)
    unlimited.record(2**60)
    assert unlimited.pause_s() == 0


def test_a_pause_lasts_until_the_rate_is_met() -> None:
    clock = VirtualClock()
    limited = quota(clock, 1000)
    limited.record(1000)
    assert limited.pause_s() == 0
    limited.record(500)
    assert limited.pause_s() == pytest.approx(1.0)
    clock.advance(seconds=1.4)
    assert limited.pause_s() == pytest.approx(0.1)
    clock.advance(seconds=0.1)
    assert limited.pause_s() == 0


def test_what_was_copied_before_the_window_no_longer_counts() -> None:
    clock = VirtualClock()
    limited = quota(clock, 1)
    limited.record(1_000_000)
    clock.advance(seconds=10)
    assert limited.pause_s() == PAUSE_MAX_S
    clock.advance(seconds=1)
    assert limited.pause_s() == 0


def test_over_time_the_rate_is_kept() -> None:
    clock = VirtualClock()
    limited = quota(clock, 1000)
    copied = 0
    for _ in range(600):
        while limited.pause_s() == 0:
            limited.record(130)
            copied += 130
        clock.advance(seconds=0.1)
    assert 60_000 * 0.97 <= copied <= 60_000 * 1.05


def test_a_rate_of_zero_lets_nothing_more_pass() -> None:
    limited = quota(VirtualClock(), 0)
    limited.record(1)
    assert limited.pause_s() == PAUSE_MAX_S


@pytest.mark.parametrize(
    ("text", "partitions"),
    [("*", None), ("0:1,1:2, 2:1", {0, 2}), ("0:2", set()), ("", set())],
)
def test_partitions_throttled_on_broker_1(text: str, partitions: set[int] | None) -> None:
    assert throttled_partitions(text, 1) == partitions


def test_quotas_follow_the_settings_of_this_broker_and_of_topics() -> None:
    throttles = ReplicationThrottles(load(options={"node.id": 1}), VirtualClock())
    rate, replicas = "leader.replication.throttled.rate", "leader.replication.throttled.replicas"
    configs = {ALL_BROKERS: {rate: "700"}, OTHER_BROKER: {rate: "5"}, TOPIC: {replicas: "3:1,4:2"}}
    throttles.follow(EMPTY_IMAGE.with_configs(configs))
    assert throttles.leader.rate == 700
    assert throttles.leader.applies_to("t", 3)
    assert not throttles.leader.applies_to("t", 4)
    assert not throttles.leader.applies_to("u", 3)
    assert not throttles.follower.applies_to("t", 3)
    throttles.follow(EMPTY_IMAGE.with_configs({BROKER: {rate: "900"}, TOPIC: {replicas: "*"}}))
    assert throttles.leader.rate == 900
    assert throttles.leader.applies_to("t", 4)
    throttles.follow(EMPTY_IMAGE)
    throttles.leader.record(2**40)
    assert throttles.leader.pause_s() == 0
    assert not throttles.leader.applies_to("t", 4)
