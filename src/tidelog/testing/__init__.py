"""For tests of programs that talk to Kafka: real brokers inside the test process, as `with Broker() as broker:` or
`with Cluster(brokers=3) as cluster:`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.common.clock import VirtualClock
    from tidelog.testing.broker import Broker
    from tidelog.testing.cluster import Cluster

__all__ = ["Broker", "Cluster", "VirtualClock"]


def __getattr__(name: str) -> object:
    # Every pytest run on the machine imports this package for its plugin, so the broker is imported on first use.
    if name == "Broker":
        from tidelog.testing.broker import Broker

        return Broker
    if name == "Cluster":
        from tidelog.testing.cluster import Cluster

        return Cluster
    if name == "VirtualClock":
        from tidelog.common.clock import VirtualClock

        return VirtualClock
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
