"""The brokers that benchmarks start and stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.bench.brokers import BrokerProcess
from tidelog.bench.errors import MeasurementError


class Stubborn(BrokerProcess):
    """A process that doesn't stop when it is told to."""

    name = "the stubborn one"

    def command(self) -> list[str]:
        return ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]


def test_a_broker_that_does_not_stop_is_killed_and_named(tmp_path: Path) -> None:
    broker = Stubborn(tmp_path / "broker")
    broker.launch()
    while not broker.log_path.read_bytes():
        assert broker.is_running
    with pytest.raises(MeasurementError, match=r"the stubborn one did not stop within 0\.1 s"):
        broker.stop(0.1)
    assert not broker.is_running
