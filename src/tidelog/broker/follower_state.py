"""What a leader knows about one follower: how far it has copied the log, and since when it has not kept up.

What always holds: an offset is one that the follower itself named in a fetch of the current leadership, from the broker
epoch that is remembered with it (KIP-903). A follower counts as caught up at the time of a fetch that reached what was
then the end of the log, or what was the end at its previous fetch: under constant load no fetch reaches the end of the
moment. Times are monotonic milliseconds. It decides nothing: `partition` does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final

from tidelog.common.clock import Clock
from tidelog.controller.image import BrokerInfo

UNKNOWN_OFFSET: Final = -1
UNKNOWN_EPOCH: Final = -1

REPLICA_LAG_TIME_MAX_MS: Final = 30_000


class ReplicationTerms:
    """What all partitions of a broker need to judge followers by; `brokers` are those of the newest image."""

    __slots__ = ("_fetched_ms", "_parked", "broker_epoch", "brokers", "clock", "lag_max_ms")

    def __init__(self, clock: Clock, lag_max_ms: float = REPLICA_LAG_TIME_MAX_MS) -> None:
        self.clock = clock
        self.lag_max_ms = lag_max_ms
        # Of this broker, from its own registration: an image may still have that of its previous process, for which
        # its leaders would take it.
        self.broker_epoch = UNKNOWN_EPOCH
        self.brokers: Mapping[int, BrokerInfo] = {}
        # When each follower fetched last, whatever it named, and how many of its fetches wait for news.
        self._fetched_ms: dict[int, float] = {}
        self._parked: Counter[int] = Counter()

    def note_fetch(self, node_id: int, parked: int = 0) -> None:
        """A broker has fetched from this one; `parked`: a fetch begins (1) or ends (-1) to wait for news."""
        self._parked[node_id] += parked
        self._fetched_ms[node_id] = self.clock.monotonic_ms()

    def seen_ms(self, node_id: int) -> float:
        """When the broker was last in touch."""
        now_ms = self.clock.monotonic_ms()
        return now_ms if self._parked[node_id] else self._fetched_ms.get(node_id, now_ms)

    def is_eligible(self, node_id: int, broker_epoch: int) -> bool:
        """Whether the broker may be in an ISR: it is alive, stays, and is the process that fetched (KIP-903)."""
        broker = self.brokers.get(node_id)
        return broker is not None and broker.is_active and broker.epoch == broker_epoch

    def epoch_of(self, node_id: int) -> int:
        broker = self.brokers.get(node_id)
        return UNKNOWN_EPOCH if broker is None else broker.epoch


class FollowerState:
    """One follower in one leadership."""

    __slots__ = (
        "_end_offset_at_fetch",
        "_fetched_ms",
        "broker_epoch",
        "caught_up_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, now_ms: float, *, is_in_sync: bool) -> None:
        """A follower in the ISR has all its time from now on; any other has to catch up first."""
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.broker_epoch = UNKNOWN_EPOCH
        self.caught_up_ms = now_ms if is_in_sync else -math.inf
        self._fetched_ms = -math.inf
        # Where the leader's log ended when the follower last fetched.
        self._end_offset_at_fetch = UNKNOWN_OFFSET

    def on_fetch(
        self, fetch_offset: int, log_start_offset: int, broker_epoch: int, leader_end_offset: int, now_ms: float
    ) -> None:
        """It fetched from this offset, so it has everything before."""
        if fetch_offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif self._end_offset_at_fetch != UNKNOWN_OFFSET and fetch_offset >= self._end_offset_at_fetch:
            self.caught_up_ms = max(self.caught_up_ms, self._fetched_ms)
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self._end_offset_at_fetch = max(self._end_offset_at_fetch, leader_end_offset)
        self._fetched_ms = now_ms

    def forget(self) -> None:
        """It has left the ISR of its own accord: whatever it held, it counts for nothing until it fetches again."""
        self.log_end_offset = self._end_offset_at_fetch = UNKNOWN_OFFSET
        self.caught_up_ms = self._fetched_ms = -math.inf

    def is_caught_up(self, leader_end_offset: int, now_ms: float, lag_max_ms: float, *, seen_ms: float) -> bool:
        """Whether it has all, or had all within this time.

        A follower at the end of an idle log fetches without naming the partition, so being there counts as of the time
        that its broker was last in touch. One that is cut off leaves before the next record has to wait for it.
        """
        if self.log_end_offset == leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, seen_ms)
        return now_ms - self.caught_up_ms <= lag_max_ms
