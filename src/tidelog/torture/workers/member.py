"""A member of a group: it polls, commits synchronously, and notes what the group gives it and takes from it.

With a `stay`, it leaves after some time and comes back as a new consumer. It commits in the callback, too, when
partitions are taken from it, as applications should.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tidelog.client.consumer.consumer import Consumer
from tidelog.client.errors import ClientError, CommitFailedError, FatalError, RetriableError
from tidelog.client.types import OffsetAndMetadata, TopicPartition
from tidelog.torture.history import FAIL, OK, UNKNOWN
from tidelog.torture.workers.progress_page import Phase
from tidelog.torture.workers.reading import NotedRebalances, poll_events
from tidelog.torture.workers.worker import REQUEST_TIMEOUT_MS, Orders, Worker, run_worker, say

_POLL_S: Final = 0.2
_COMMIT_S: Final = 10.0
_SESSION_MS: Final = 8_000
_HEARTBEAT_MS: Final = 1_000
_AWAY_S: Final = (0.0, 2.0)
_BACKOFF_S: Final = 0.5


@dataclass(frozen=True)
class MemberOrders(Orders):
    """Which group, and how."""

    topic: str = ""
    group: str = ""
    protocol: str = "classic"
    assignor: str = ""  # of a classic group
    instance_id: str = ""
    commit_interval_s: float = 0.0  # 0: after each poll
    stay_s: tuple[float, float] = (0.0, 0.0)  # how long it stays at least and at most; 0: for ever


class Member(Worker):
    """Comes, reads, goes and comes again, until it is told to end."""

    orders_class: ClassVar[type[Orders]] = MemberOrders

    def __init__(self, orders: MemberOrders, **others: Any) -> None:
        super().__init__(orders, **others)
        self._orders = orders
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}

    def run(self) -> None:
        while not self.lead.is_over:
            try:
                self._stay()
            except (FatalError, RetriableError) as error:
                say(f"starts over with a new consumer: {error}")
                self.lead.back_off(_BACKOFF_S)
            else:
                self.lead.pause(self.random.uniform(*_AWAY_S))

    def _stay(self) -> None:
        self._committed = {}
        least_s, most_s = self._orders.stay_s
        leave_s = time.monotonic() + self.random.uniform(least_s, most_s) if most_s > 0 else float("inf")
        with self._consumer() as consumer:
            consumer.subscribe([self._orders.topic], listener=_Rebalances(self, consumer))
            self.enter(Phase.WORKING)
            next_commit_s = time.monotonic()
            # Once all is written, nobody leaves any more, so that the rest is read.
            while not self.lead.is_over and (self.lead.is_quiet or time.monotonic() < leave_s):
                if self.lead.is_quiet:
                    self.enter(Phase.QUIET)
                self._poll(consumer)
                if self.lead.is_quiet or time.monotonic() >= next_commit_s:
                    next_commit_s = time.monotonic() + self._orders.commit_interval_s
                    self.commit(consumer)

    def _consumer(self) -> Consumer:
        orders = self._orders
        settings: dict[str, Any] = {}
        if orders.protocol == "classic":
            settings |= {"session_timeout_ms": _SESSION_MS, "heartbeat_interval_ms": _HEARTBEAT_MS}
            settings |= {"partition_assignment_strategy": orders.assignor} if orders.assignor else {}
        if orders.instance_id:
            settings |= {"group_instance_id": orders.instance_id}
        return Consumer(
            bootstrap_servers=orders.bootstrap,
            client_id=orders.name,
            group_id=orders.group,
            group_protocol=orders.protocol,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            max_poll_records=1_000,
            **settings,
        )

    def _poll(self, consumer: Consumer) -> None:
        start_ns = time.monotonic_ns()
        try:
            records = consumer.poll(_POLL_S)
        except RetriableError as error:
            self.note("poll", UNKNOWN, start_ns, [], error)
            return
        except ClientError as error:
            self.note("poll", FAIL, start_ns, [], error)
            raise
        if records:
            self.note("poll", OK, start_ns, poll_events(records))
            self.page.read += len(records)
            self.page.moved()

    def commit(self, consumer: Consumer, only: Sequence[TopicPartition] | None = None) -> None:
        """Commit what it has read, if that is news."""
        positions = consumer.positions()
        news = {
            place: position
            for place, position in positions.items()
            if self._committed.get(place) != position and (only is None or place in only)
        }
        if not news:
            return
        events = [["commit", str(place), position.offset] for place, position in sorted(news.items())]
        start_ns = time.monotonic_ns()
        self.announce("commit", start_ns, events)
        try:
            consumer.commit_sync(news, _COMMIT_S)
        except (CommitFailedError, RetriableError) as error:
            # An attempt before the last may have been carried out.
            self.note("commit", UNKNOWN, start_ns, events, error)
        except ClientError as error:
            self.note("commit", UNKNOWN, start_ns, events, error)
            raise
        else:
            self.note("commit", OK, start_ns, events)
            self._committed.update(news)
            self.page.moved()

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        """Others may commit for these from now on."""
        for place in partitions:
            self._committed.pop(place, None)


class _Rebalances(NotedRebalances):
    """Commits before partitions go."""

    def __init__(self, member: Member, consumer: Consumer) -> None:
        super().__init__(member)
        self._member = member
        self._consumer = consumer

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        # Noted as taken only afterwards: until this returns, nobody else may have them.
        try:
            self._member.commit(self._consumer, partitions)
        finally:
            self._member.forget(partitions)
            super().on_partitions_revoked(partitions)

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._member.forget(partitions)
        super().on_partitions_lost(partitions)


if __name__ == "__main__":
    sys.exit(run_worker(Member))
