"""The measurement with many partitions measures what it says, on a broker with few of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.bench import comparison, partitions_bench
from tidelog.bench.brokers import BrokerProcess, TidelogBroker
from tidelog.bench.comparison import Samples
from tidelog.bench.errors import MeasurementError
from tidelog.bench.partitions_bench import Plan


def test_every_step_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_bench, "_IDLE_S", 0.2)
    monkeypatch.setattr(partitions_bench, "WARM_UP_REQUESTS", 3)
    samples = Samples()
    broker: BrokerProcess = TidelogBroker(tmp_path)
    try:
        partitions_bench._measure(broker, Plan(partitions=30), samples, lambda _: None)
    finally:
        broker.kill()
    assert [(name, len(samples[name])) for name in samples] == [(row.name, 1) for row in partitions_bench.QUANTITIES]
    rows = comparison.rows(partitions_bench.QUANTITIES, samples, samples)
    assert {row.ratio for row in rows} == {1.0}


def test_a_partition_that_lost_a_record_spoils_the_measurement(tmp_path: Path) -> None:
    requests = partitions_bench._Requests(partitions_bench.TOPIC, 3)
    broker: BrokerProcess = TidelogBroker(tmp_path)
    broker.start()
    try:
        partitions_bench._create(broker, partitions_bench.TOPIC, 3)
        partitions_bench._produce(broker, [requests.produce_at_once, requests.produce_singly[1]])
        with pytest.raises(MeasurementError, match=r"end at \[1, 2\], not all at 1"):
            partitions_bench._check_all_have(broker, requests, 1)
    finally:
        broker.kill()


def test_runs_must_be_even() -> None:
    with pytest.raises(ValueError, match="even"):
        Plan(runs=3)
