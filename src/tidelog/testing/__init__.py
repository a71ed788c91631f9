"""For tests of programs that talk to a broker: `with Broker() as broker:` gives a real one inside the test process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.common.clock import VirtualClock
    from tidelog.testing.broker import Broker

__all__ = ["Broker", "VirtualClock"]


def __getattr__(name: str) -> object:
    # Every pytest run on the machine imports this package for its plugin, so the broker is imported on first use.
    if name == "Broker":
        from tidelog.testing.broker import Broker

        return Broker
    if name == "VirtualClock":
        from tidelog.common.clock import VirtualClock

        return VirtualClock
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
