"""The measurement of clusters measures what it says, on a small scale; and ends all brokers it has started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.bench import cluster_bench, comparison
from tidelog.bench.cluster_bench import MEASUREMENTS, Plan
from tidelog.bench.clusters import MEMBERS, TidelogCluster
from tidelog.bench.comparison import Samples
from tidelog.bench.errors import MeasurementError, PlanError

QUANTITIES = [quantity for each in MEASUREMENTS.values() for quantity in each.quantities]


@pytest.fixture
def little_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_bench, "WARM_UP_ROUND_TRIPS", 10)
    monkeypatch.setattr(cluster_bench, "WARM_UP_BATCHES", 3)
    monkeypatch.setattr(cluster_bench, "touch_free_memory", lambda progress: None)


@pytest.mark.usefixtures("little_warm_up")
def test_every_row_is_measured(tmp_path: Path) -> None:
    samples = Samples()
    told: list[str] = []
    cluster = TidelogCluster(tmp_path / "cluster")
    plan = Plan(megabytes=6, round_trips=100, failovers=1, partitions=6)
    cluster_bench.measure(cluster, plan, samples, told.append)
    assert set(samples) == {quantity.name for quantity in QUANTITIES}
    assert {row.ratio for row in comparison.rows(QUANTITIES, samples, samples)} == {1.0}
    assert [step.strip() for step in told[1:]] == list(MEASUREMENTS)
    assert cluster.running == []
    assert not (tmp_path / "cluster").exists()


@pytest.mark.usefixtures("little_warm_up")
def test_a_measurement_that_fails_ends_all_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []
    cluster = TidelogCluster(tmp_path / "cluster")

    def fail(*_: object) -> None:
        pids.extend(member.pid for member in cluster.running)
        # What was acknowledged and is missing makes figures worthless.
        cluster_bench._check_end(cluster, cluster_bench._WARM_UP_TOPIC, 10**9)

    monkeypatch.setitem(MEASUREMENTS, "latency", cluster_bench.Measurement((), fail))
    with pytest.raises(MeasurementError, match="records of 1000000000 that it acknowledged"):
        cluster_bench.measure(cluster, Plan(rows=["latency"]), Samples(), lambda _: None)
    assert len(pids) == MEMBERS
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_a_row_that_is_unknown_is_refused() -> None:
    with pytest.raises(PlanError, match="no rows called speed; choose from memory, latency"):
        Plan(rows=["latency", "speed"])


def test_rows_come_in_the_order_of_the_table() -> None:
    assert Plan(rows=["failover", "memory"]).chosen == ["memory", "failover"]
    assert Plan().chosen == list(MEASUREMENTS)
