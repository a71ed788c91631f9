"""Handing over partitions: members of groups come, go and are killed, and each partition has one owner at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from tidelog.torture.workers import member, sender, watcher
from tidelog.torture.workers.member import MemberOrders
from tidelog.torture.workers.sender import SenderOrders
from tidelog.torture.workers.watcher import WatcherOrders
from tidelog.torture.workloads.driving import DrivenWorkload

_PARTITIONS: Final = 4
_MEMBERS: Final = 3
_STAY_S: Final = (3.0, 20.0)
_CLASSIC, _CONSUMER = "classic", "consumer"
_CONSUMER_FEATURE: Final = "group.version"  # 1: the consumer protocol


class HandoverWorkload(DrivenWorkload):
    """A group of each protocol; the first member of each is a static one."""

    name: ClassVar[str] = "handover"
    about: ClassVar[str] = "members of groups of both protocols that come, go and are killed"
    default_rate: ClassVar[float] = 800.0

    def __init__(self) -> None:
        super().__init__()
        self._protocols: tuple[str, ...] = (_CLASSIC, _CONSUMER)

    def check_place(self) -> None:
        super().check_place()
        if self.errand("features").get(_CONSUMER_FEATURE, 0) < 1:
            self._protocols = (_CLASSIC,)
            self.notes.left_out["consumer protocol"] = f"the cluster has not enabled it ({_CONSUMER_FEATURE}=1)"

    def topics(self) -> Mapping[str, int]:
        return {self.topic(protocol): _PARTITIONS for protocol in self._protocols}

    def add_posts(self) -> None:
        assignor = "cooperative-sticky" if self.place.seed % 2 else "range"
        for protocol in self._protocols:
            topic = self.topic(protocol)
            sending = SenderOrders(
                **self.common_orders(f"send-{protocol}-0"),
                topic=topic,
                partitions=_PARTITIONS,
                rate=self.place.rate / len(self._protocols),
            )
            self.add_sender(self.python_post(sending, sender.__name__))
            for number in range(_MEMBERS):
                joining = MemberOrders(
                    **self.common_orders(f"{protocol}-{number}"),
                    topic=topic,
                    group=topic,
                    protocol=protocol,
                    assignor=assignor if protocol == _CLASSIC else "",
                    instance_id=f"{topic}-static" if number == 0 else "",
                    stay_s=_STAY_S,
                )
                self.add_member(self.python_post(joining, member.__name__), topic, topic)
        looking = WatcherOrders(
            **self.common_orders("watch-0"),
            topics={topic: topic for topic in self.topics()},
            partitions=_PARTITIONS,
        )
        self.add_member(self.python_post(looking, watcher.__name__))
