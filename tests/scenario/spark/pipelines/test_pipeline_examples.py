"""The examples of the documentation, run as they are: windows, joins, tables, state, functions over rows."""

from __future__ import annotations

import itertools
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipeline_place import Place
from tidelog.pipeline import Pipeline
from tidelog.pipeline.loading import load
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


EXAMPLES = Path(__file__).parents[4] / "docs" / "examples"

pytestmark = pytest.mark.tidelog_only


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Iterator[Place]:
    """A broker for each example: they have topics of the same names."""
    with Broker() as broker:
        yield Place(broker.bootstrap, tmp_path / "state", spark)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Pipeline]]:
    """Loads an example; its files are written below the test's own directory."""
    monkeypatch.chdir(tmp_path)
    loaded = []

    def load_example(name: str) -> Pipeline:
        loaded.append(name)
        return load(EXAMPLES / f"{name}.py")

    yield load_example
    for name in loaded:
        sys.modules.pop(name, None)


def test_windows(place: Place, example: Callable[[str], Pipeline]) -> None:
    place.create("orders")
    pipeline = example("revenue")

    def order(number: int, category: str, minute: int) -> dict[str, object]:
        return {"order_id": number, "category": category, "price": 2.0, "at": f"2026-01-01T00:{minute:02d}:30Z"}

    place.send("orders", [order(number, "ab"[number % 2], number % 3) for number in range(12)])
    place.run(pipeline)
    place.send("orders", [order(20, "a", 2), order(21, "a", 59)])
    place.run(pipeline)
    place.send("orders", [order(22, "a", 1)])  # later than the watermark allows
    place.run(pipeline)
    found = {(row["minute"][11:16], row["category"]): row["revenue"] for row in place.table("revenue").values()}
    assert found == {
        **{(f"00:{minute:02d}", category): 4.0 for minute in range(3) for category in "ab"},
        ("00:02", "a"): 6.0,
        ("00:59", "a"): 2.0,
    }


def test_two_streams(place: Place, example: Callable[[str], Pipeline], tmp_path: Path) -> None:
    place.create("orders")
    place.create("payments")
    place.send("orders", [{"order_id": n, "price": 1.0, "at": "2026-01-01T00:00:00Z"} for n in range(10)])
    place.send("payments", [{"order_id": n, "amount": 1.0, "paid_at": "2026-01-01T00:30:00Z"} for n in range(5)])
    place.send("payments", [{"order_id": 7, "amount": 1.0, "paid_at": "2026-01-01T03:00:00Z"}])
    pipeline = example("paid_orders")
    place.run(pipeline)
    place.send("payments", [{"order_id": 8, "amount": 1.0, "paid_at": "2026-01-01T00:59:00Z"}])
    place.run(pipeline)
    found = pq.read_table(tmp_path / "out" / "paid_orders")["order_id"].to_pylist()
    # The watermark is the slower stream's: an order of midnight is still waited for.
    assert sorted(found) == [0, 1, 2, 3, 4, 8]


def test_a_stream_and_a_table(place: Place, example: Callable[[str], Pipeline], tmp_path: Path) -> None:
    place.create("orders")
    place.create("customers", 2, cleanup_policy="compact")
    place.send("customers", [{"customer_id": n, "name": f"old {n}"} for n in range(4)], ["0", "1", "2", "3"])
    place.send("customers", [{"customer_id": 1, "name": "Ada"}, None, b"?"], ["1", "2", "3"])
    place.send("orders", [{"order_id": n, "customer_id": n, "price": 1.0} for n in range(4)])
    pipeline = example("named_orders")
    place.run(pipeline)

    def shown() -> list[tuple[int, str | None]]:
        with sqlite3.connect(tmp_path / "out" / "shop.db") as database:
            return database.execute("SELECT order_id, name FROM named_orders ORDER BY 1").fetchall()

    assert shown() == [(0, "old 0"), (1, "Ada"), (2, None), (3, None)]
    # A run that goes on sees what changes meanwhile.
    run = place.make_run(pipeline)
    run.start()
    try:
        place.send("customers", [{"customer_id": 9, "name": "Bo"}], ["9"])
        numbers = itertools.count(100)
        deadline_s = time.monotonic() + 60
        while shown()[-1][1] != "Bo":
            assert time.monotonic() < deadline_s, shown()
            place.send("orders", [{"order_id": next(numbers), "customer_id": 9, "price": 1.0}])
            time.sleep(0.5)
    finally:
        assert run.stop(60)


def test_state(place: Place, example: Callable[[str], Pipeline]) -> None:
    place.create("clicks")
    pipeline = example("visits")
    place.send("clicks", [{"visitor": "ab"[n % 2], "page": "/"} for n in range(11)])
    place.run(pipeline)
    place.send("clicks", [{"visitor": "a", "page": "/"}])
    place.run(pipeline)
    assert {row["visitor"]: row["clicks"] for row in place.table("visits").values()} == {"a": 7, "b": 5}


def test_a_function_over_rows(place: Place, example: Callable[[str], Pipeline], tmp_path: Path) -> None:
    place.create("payments")
    rows = [{"payment_id": n, "amount": float(n), "currency": "EUR" if n % 2 else "USD"} for n in range(6)]
    place.send("payments", [*rows, {"payment_id": 7, "amount": 1.0, "currency": "XXX"}, b"{}"])
    place.run(example("checked_payments"))
    found = DeltaTable(tmp_path / "out" / "payments").to_pyarrow_table().sort_by("payment_id").to_pylist()
    assert [row["euro"] for row in found] == [1.0, 1.8, 3.0, 3.6, 5.0]
    assert len(place.read("payments.refused")) == 3
