"""The queue: what is sent is read by everyone, once and in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from tidelog.torture.workers import member, poller, sender
from tidelog.torture.workers.member import MemberOrders
from tidelog.torture.workers.poller import PollerOrders
from tidelog.torture.workers.sender import SenderOrders
from tidelog.torture.workloads.driving import DrivenWorkload

_PARTITIONS: Final = 4
_SENDERS = _MEMBERS = 2


class QueueWorkload(DrivenWorkload):
    """Idempotent senders; pollers that assign themselves partitions and seek; members of a group."""

    name: ClassVar[str] = "queue"
    about: ClassVar[str] = "idempotent sends with acks=all in bursts; pollers by assign that seek, and by subscribe"
    default_rate: ClassVar[float] = 8_000.0

    def topics(self) -> Mapping[str, int]:
        return {self.topic(): _PARTITIONS}

    def add_posts(self) -> None:
        place, topic = self.place, self.topic()
        for number in range(_SENDERS):
            orders = self.common_orders(f"send-{number}")
            sending = SenderOrders(**orders, topic=topic, partitions=_PARTITIONS, rate=place.rate / _SENDERS)
            self.add_sender(self.python_post(sending, sender.__name__))
        for role, isolation in (("assign", "read_committed"), ("assign-uncommitted", "read_uncommitted")):
            reading = PollerOrders(
                **self.common_orders(f"{role}-0"),
                topic=topic,
                partitions=_PARTITIONS,
                isolation=isolation,
                looks_up=isolation == "read_uncommitted",  # or it would be told the last stable offset
            )
            self.add_poller(self.python_post(reading, poller.__name__))
        for number in range(_MEMBERS):
            joining = MemberOrders(
                **self.common_orders(f"subscribe-{number}"),
                topic=topic,
                group=topic,
                assignor="cooperative-sticky",
                commit_interval_s=1.0,
                stay_s=(10.0, 40.0),
            )
            self.add_member(self.python_post(joining, member.__name__), topic, topic)
