"""How fast replicas may be copied (KIP-73): a quota for what this broker sends as leader, one as follower.

What always holds: only partitions that their topic's settings name on this broker are throttled, and only for replicas
that are not in sync, so that no throttle drives a replica out of the ISR or delays an acknowledgement; what all of them
copied together stays, measured over the window, about the rate. What has been sent can't be taken back, so an answer
may exceed the rate by its size, and the pause after it makes up for that. It keeps no timer: who copies asks how long
to pause. A third quota is for copies between the broker's own data directories (KIP-113).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Final

from tidelog.broker.topic_config import broker_value
from tidelog.common.clock import Clock
from tidelog.common.settings import Settings
from tidelog.controller.image import ClusterImage
from tidelog.protocol.config_values import ResourceType

UNLIMITED: Final = 2**63 - 1

PAUSE_MAX_S: Final = 1.0
"""A pause is taken in parts of this length, so that a throttle that was raised or removed is soon forgotten."""

MOVES_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
_MOVES_SAMPLES: Final = 11
_MOVES_SAMPLE_MS: Final = 1000

_ALL: Final = "*"


class ReplicationQuota:
    """A rate in bytes per second, measured over a sliding window of samples as Kafka's is."""

    def __init__(self, clock: Clock, *, samples: int, sample_ms: int, rate: float = UNLIMITED) -> None:
        self.rate = rate
        self._clock = clock
        self._samples_max = samples
        self._sample_ms = sample_ms
        # When each sample began, and its bytes.
        self._samples: deque[list[float]] = deque()
        self._total_bytes = 0.0
        # The partitions it applies to, by topic; None stands for all of a topic.
        self.partitions: Mapping[str, frozenset[int] | None] = {}

    def applies_to(self, topic: str, partition: int) -> bool:
        if topic not in self.partitions:
            return False
        indexes = self.partitions[topic]
        return indexes is None or partition in indexes

    def record(self, size_bytes: int) -> None:
        """So much was copied just now."""
        now_ms = self._clock.monotonic_ms()
        self._forget_old(now_ms)
        if not self._samples or now_ms - self._samples[-1][0] >= self._sample_ms:
            self._samples.append([now_ms, 0.0])
        self._samples[-1][1] += size_bytes
        self._total_bytes += size_bytes

    def pause_s(self) -> float:
        """How long to copy nothing, at most `PAUSE_MAX_S`; 0 while the rate is not exceeded."""
        if self.rate >= UNLIMITED:
            return 0.0
        now_ms = self._clock.monotonic_ms()
        self._forget_old(now_ms)
        if not self._samples:
            return 0.0
        # A rate over less than a sample says nothing.
        elapsed_ms = max(now_ms - self._samples[0][0], self._sample_ms)
        if self._total_bytes * 1000 <= self.rate * elapsed_ms:
            return 0.0
        due_ms = self._total_bytes * 1000 / self.rate if self.rate > 0 else math.inf
        return min(max(due_ms - (now_ms - self._samples[0][0]), 1.0) / 1000, PAUSE_MAX_S)

    def _forget_old(self, now_ms: float) -> None:
        window_ms = self._samples_max * self._sample_ms
        while self._samples and now_ms - self._samples[0][0] >= window_ms:
            self._total_bytes -= self._samples.popleft()[1]


class ReplicationThrottles:
    """The quotas of one broker, kept in line with the settings in the image."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self.leader, self.follower = (
            ReplicationQuota(
                clock,
                samples=settings.get_int("replication.quota.window.num"),
                sample_ms=settings.get_int("replication.quota.window.size.seconds") * 1000,
                rate=settings.get_int(f"{side}.replication.throttled.rate"),
            )
            for side in ("leader", "follower")
        )
        # For all copies between the broker's own data directories, whichever topics they are of.
        self.moves = ReplicationQuota(
            clock, samples=_MOVES_SAMPLES, sample_ms=_MOVES_SAMPLE_MS, rate=settings.get_int(MOVES_RATE)
        )

    def follow(self, image: ClusterImage) -> None:
        """The settings of brokers or topics have changed."""
        self.moves.rate = broker_value(self._settings, image, MOVES_RATE)
        node_id = self._settings.get_int("node.id")
        for side, quota in (("leader", self.leader), ("follower", self.follower)):
            quota.rate = broker_value(self._settings, image, f"{side}.replication.throttled.rate")
            setting = f"{side}.replication.throttled.replicas"
            quota.partitions = {
                resource.name: throttled_partitions(values[setting], node_id)
                for resource, values in image.configs.items()
                if resource.type is ResourceType.TOPIC and values.get(setting)
            }


def throttled_partitions(replicas: str, node_id: int) -> frozenset[int] | None:
    """The partitions of a topic that are throttled on a broker, from `*` (all, None) or `PARTITION:BROKER,...`."""
    items = [item.strip() for item in replicas.split(",") if item.strip()]
    if items == [_ALL]:
        return None
    pairs = (item.split(":") for item in items)
    return frozenset(int(partition) for partition, broker in pairs if int(broker) == node_id)
