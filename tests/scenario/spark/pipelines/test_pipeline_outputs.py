"""Tables and topics behind one query: what readers see, and that a batch that is repeated changes nothing."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import psycopg
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as sf

from pipeline_place import Place
from tidelog.pipeline import (
    DeclarationError,
    DeltaOutput,
    Json,
    ParquetOutput,
    Pipeline,
    PostgresOutput,
    QueryFailedError,
    SqliteOutput,
    TopicInput,
    TopicOutput,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def totals(orders: DataFrame) -> DataFrame:
    by_category = orders.groupBy("category").agg(sf.sum("price").alias("total"), sf.count("*").alias("orders"))
    return by_category.withColumn("gone", sf.col("total") > 1000)


@pytest.fixture
def orders(place: Place, fresh_name: Callable[[str], str]) -> str:
    name = fresh_name("orders")
    place.create(name)
    place.send(name, [{"category": "abc"[number % 3], "price": 1.0} for number in range(30)])
    return name


def test_all_kinds_of_tables_by_key(place: Place, orders: str, postgres_url: str, tmp_path: Path) -> None:
    outputs = [
        TopicOutput(f"{orders}-totals", key="category", mode="upsert", deleted="gone"),
        ParquetOutput(tmp_path / "parquet", key="category", mode="upsert", deleted="gone"),
        DeltaOutput(tmp_path / "delta", key="category", mode="upsert", deleted="gone"),
        PostgresOutput(postgres_url, "totals", key="category", deleted="gone"),
        SqliteOutput(tmp_path / "totals.db", "totals", key="category", deleted="gone"),
    ]
    pipeline = Pipeline(
        name=orders,
        version=1,
        inputs={"orders": TopicInput(orders, format=Json("category string, price double"))},
        transform=totals,
        outputs=outputs,
        output_mode="update",
    )
    place.run(pipeline)
    expected = [("a", 10.0, 10), ("b", 10.0, 10), ("c", 10.0, 10)]

    def everywhere() -> list[list[tuple[str, float, int]]]:
        with psycopg.connect(postgres_url) as connection:
            in_postgres = connection.execute("SELECT category, total, orders FROM totals ORDER BY 1").fetchall()
        with sqlite3.connect(tmp_path / "totals.db") as database:
            in_sqlite = database.execute("SELECT category, total, orders FROM totals ORDER BY 1").fetchall()
        with duckdb.connect() as duck:
            in_parquet = duck.execute(f"SELECT * FROM '{tmp_path}/parquet/*.parquet' ORDER BY 1").fetchall()
        in_delta = sorted(tuple(row.values()) for row in DeltaTable(tmp_path / "delta").to_pyarrow_table().to_pylist())
        in_topic = sorted(tuple(row.values()) for row in place.table(f"{orders}-totals").values())
        return [in_postgres, in_sqlite, in_parquet, in_delta, in_topic]

    assert everywhere() == [expected] * 5

    # Nothing new: nothing changes. Then one category grows, and one is marked as gone.
    place.run(pipeline)
    assert everywhere() == [expected] * 5
    place.send(orders, [{"category": "a", "price": 5.0}, {"category": "b", "price": 2000.0}])
    place.run(pipeline)
    assert everywhere() == [[("a", 15.0, 11), ("c", 10.0, 10)]] * 5
    [tombstone] = [record.key for record in place.read(f"{orders}-totals") if record.value is None]
    assert tombstone == b"b"


def test_batches_that_are_repeated(place: Place, orders: str, tmp_path: Path) -> None:
    """The checkpoint says that the last batch was planned but not that it is done, as when a driver is killed."""
    outputs = [
        ParquetOutput(tmp_path / "parquet", compact_files=2),
        DeltaOutput(tmp_path / "delta", compact_files=2),
        SqliteOutput(tmp_path / "rows.db", "rows", mode="append"),
        TopicOutput(f"{orders}-copy"),
    ]
    pipeline = Pipeline(
        name=orders,
        version=1,
        inputs={"orders": TopicInput(orders, format=Json("category string, price double NOT NULL"))},
        transform=lambda orders: orders,
        outputs=outputs,
    )
    commits = place.state_dir / orders / "v1" / "checkpoint" / "main" / "commits"
    sent = 30
    for turn in range(2):
        place.send(orders, [{"category": "z", "price": float(turn)}, b"broken"])
        sent += 1
        place.run(pipeline)
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
        if turn % 2:
            (place.state_dir / orders / "v1" / "dead-letters.json").unlink()
    place.run(pipeline)

    assert pq.read_table(tmp_path / "parquet").num_rows == sent
    assert place.spark is not None
    assert place.spark.read.parquet(str(tmp_path / "parquet")).count() == sent
    assert DeltaTable(tmp_path / "delta").to_pyarrow_table().num_rows == sent
    with sqlite3.connect(tmp_path / "rows.db") as database:
        assert database.execute("SELECT count(*) FROM rows").fetchone() == (sent,)
    assert len(place.read(f"{orders}-copy")) == sent
    assert len(place.read(f"{orders}.dead-letters")) == 2
    # Small files are joined.
    assert len(os.listdir(tmp_path / "parquet")) <= 2
    assert len(DeltaTable(tmp_path / "delta").file_uris()) <= 2


def test_a_second_version_beside_the_first(place: Place, orders: str, tmp_path: Path) -> None:
    def pipeline(version: int, factor: float) -> Pipeline:
        return Pipeline(
            name=orders,
            version=version,
            inputs={"orders": TopicInput(orders, format=Json("category string, price double"))},
            transform=lambda orders: orders.groupBy("category").agg((sf.sum("price") * factor).alias("total")),
            outputs=[
                SqliteOutput(tmp_path / "t.db", "totals", key="category"),
                TopicOutput(f"{orders}-t", key="category", mode="upsert"),
            ],
            output_mode="update",
        )

    place.run(pipeline(1, 1.0))
    place.run(pipeline(2, 2.0), role="shadow")

    def shown() -> list[tuple[str, float]]:
        with sqlite3.connect(tmp_path / "t.db") as database:
            return database.execute("SELECT * FROM totals ORDER BY 1").fetchall()

    assert shown() == [("a", 10.0), ("b", 10.0), ("c", 10.0)]
    table = pipeline(2, 2.0).outputs[0].live(2)
    assert isinstance(table, SqliteOutput)
    assert table.switch_to(2) == 1
    assert shown() == [("a", 20.0), ("b", 20.0), ("c", 20.0)]
    assert {row["total"] for row in place.table(f"{orders}-t").values()} == {10.0}
    assert {row["total"] for row in place.table(f"{orders}-t.v2").values()} == {20.0}


def test_what_goes_wrong_is_told_by_the_line(place: Place, orders: str) -> None:
    source = TopicInput(orders, format=Json("category string, price double"))

    def no_such_column(orders: DataFrame) -> DataFrame:
        return orders.select("colour")

    def fails_in_a_row(orders: DataFrame) -> DataFrame:
        return orders.select(sf.udf(lambda price: 1 / (price - 1.0), "double")("price"))

    def run(transform: Callable[[DataFrame], DataFrame], output: TopicOutput) -> None:
        place.run(Pipeline(name=orders, version=1, inputs={"orders": source}, transform=transform, outputs=[output]))

    here = f"{Path(__file__)}:"
    with pytest.raises(QueryFailedError, match="colour") as missing:
        run(no_such_column, TopicOutput(f"{orders}-x"))
    assert str(missing.value).startswith(here)
    with pytest.raises(QueryFailedError, match="ZeroDivisionError") as failed:
        run(fails_in_a_row, TopicOutput(f"{orders}-x"))
    assert str(failed.value).startswith(here)
    assert "TopicInput(map=...)" in str(failed.value)
    assert "\n" not in str(failed.value)
    with pytest.raises(DeclarationError, match="key uses the column 'colour'"):
        run(lambda orders: orders, TopicOutput(f"{orders}-x", key="colour"))
