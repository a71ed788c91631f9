"""The measurement of transactions measures what it says, and gives no figure for what is not in the logs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tidelog.bench import comparison, transactions_bench
from tidelog.bench.brokers import BrokerProcess, TidelogBroker
from tidelog.bench.comparison import Samples
from tidelog.bench.errors import MeasurementError
from tidelog.bench.stage import led_topic
from tidelog.bench.transactions_bench import Plan, TransactionalProducer

SMALL = Plan(megabytes=2, commit_interval_ms=5)


def test_every_step_is_measured_and_the_logs_are_held_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker: BrokerProcess = TidelogBroker(tmp_path, settings={"transaction.state.log.num.partitions": "3"})
    broker.start()
    try:
        samples = Samples()
        transactions_bench._measure(broker, "measured", SMALL, samples, small_transactions=20)
        quantities = transactions_bench.quantities(SMALL)
        assert {name: len(samples[name]) for name in samples} == {quantity.name: 1 for quantity in quantities}
        assert {row.ratio for row in comparison.rows(quantities, samples, samples)} == {1.0}
        monkeypatch.setattr(transactions_bench, "_DEADLINE_S", 0.1)
        with (
            led_topic(broker, "lossy", partitions=transactions_bench.PARTITIONS),
            closing(TransactionalProducer(broker, "lossy")) as producer,
        ):
            producer.make_frames(4, 1)  # and none of them is sent
            with pytest.raises(MeasurementError, match="holds 0 records and markers of 4"):
                producer.check_logs()
            with pytest.raises(MeasurementError, match="EndTxn with INVALID_TXN_STATE"):
                producer.commit()
    finally:
        broker.kill()


def test_odd_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="even"):
        Plan(runs=3)
