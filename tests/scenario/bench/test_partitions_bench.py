"""The measurement with many partitions measures what it says, on a broker with few of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.bench import comparison, partitions_bench
from tidelog.bench.brokers import BrokerProcess, TidelogBroker
from tidelog.bench.comparison import Samples
from tidelog.bench.errors import MeasurementError, PlanError
from tidelog.bench.partitions_bench import QUANTITIES, Plan


def test_every_step_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_bench, "_IDLE_S", 0.2)
    monkeypatch.setattr(partitions_bench, "WARM_UP_REQUESTS", 3)
    samples = _measured(tmp_path, Plan(partitions=30))
    quantities = [each for quantities in QUANTITIES.values() for each in quantities]
    assert [(name, len(samples[name])) for name in samples] == [(each.name, 1) for each in quantities]
    rows = comparison.rows(quantities, samples, samples)
    assert {row.ratio for row in rows} == {1.0}


def test_rows_can_be_measured_without_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_bench, "WARM_UP_REQUESTS", 3)
    samples = _measured(tmp_path, Plan(partitions=5, rows=["crash"]))
    names = [each.name for name in ("create", "crash") for each in QUANTITIES[name]]
    assert [(name, len(samples[name])) for name in samples] == [(name, 1) for name in names]


def test_a_row_that_is_unknown_is_refused() -> None:
    with pytest.raises(PlanError, match="no rows called speed; choose from create, produce"):
        Plan(rows=["create", "speed"])


def _measured(directory: Path, plan: Plan) -> Samples:
    samples = Samples()
    broker: BrokerProcess = TidelogBroker(directory)
    try:
        partitions_bench._measure(broker, plan, samples, lambda _: None)
    finally:
        broker.kill()
    return samples


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
