"""Probes: whether records can be written, and how long that takes, at any time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from tidelog.torture.workers import prober
from tidelog.torture.workers.prober import ProberOrders
from tidelog.torture.workloads.driving import DrivenWorkload

_PARTITIONS: Final = 3  # so that each of three brokers leads one


class ProbeWorkload(DrivenWorkload):
    """A prober for each partition: one record at a time, acks=all, given up after two seconds."""

    name: ClassVar[str] = "probe"
    about: ClassVar[str] = "one record at a time with little patience, for availability and latency"
    default_rate: ClassVar[float] = 60.0

    def topics(self) -> Mapping[str, int]:
        return {self.topic(): _PARTITIONS}

    def add_posts(self) -> None:
        for partition in range(_PARTITIONS):
            orders = ProberOrders(
                **self.common_orders(f"{partition}"),
                topic=self.topic(),
                partition=partition,
                rate=self.place.rate / _PARTITIONS,
            )
            self.add_sender(self.python_post(orders, prober.__name__))
