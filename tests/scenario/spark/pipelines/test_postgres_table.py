"""A table in PostgreSQL: a writer that dies at any step, types, and the view that is its name."""

from __future__ import annotations

import datetime
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from tidelog.pipeline import PipelineError, PostgresOutput
from tidelog.pipeline.tables.postgres_table import PostgresTable

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.string())])


class DiedError(Exception):
    """The writer's process is gone."""


def _rows(batch_id: int) -> pa.Table:
    return pa.table({"key": [batch_id, batch_id + 1], "value": [f"{batch_id}", f"{batch_id}"]}, schema=SCHEMA)


@pytest.mark.parametrize("is_upsert", [False, True])
def test_a_writer_dies_at_every_step(postgres_url: str, is_upsert: bool) -> None:
    table = f"died_{is_upsert}".lower()
    output = PostgresOutput(
        postgres_url, table, key=["key"] if is_upsert else [], mode="upsert" if is_upsert else "append"
    )
    app = table
    steps = ["mark", "rows", "removed", "commit"]
    for batch_id, deadly in enumerate(steps):

        def die(step: str, deadly: str = deadly) -> None:
            if step == deadly:
                raise DiedError(step)

        with PostgresTable(output, die) as writer:
            writer.open(1, SCHEMA)
            with pytest.raises(DiedError):
                writer.write(1, _rows(batch_id), app, batch_id, is_upsert=is_upsert)
        with PostgresTable(output) as writer:
            # Only the last step lies behind the commit.
            assert writer.is_committed(app, batch_id) == (deadly == "commit")
            writer.write(1, _rows(batch_id), app, batch_id, is_upsert=is_upsert)
            assert not writer.write(1, _rows(batch_id), app, batch_id, is_upsert=is_upsert)
    output.switch_to(1)
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute(f"SELECT key, value FROM {table} ORDER BY 1, 2").fetchall()
    if is_upsert:
        assert found == [(0, "0"), (1, "1"), (2, "2"), (3, "3"), (4, "3")]
    else:
        assert found == sorted((key, str(batch)) for batch in range(4) for key in (batch, batch + 1))


def test_types_and_deletions(postgres_url: str) -> None:
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    rows = pa.table(
        {
            "key": ["a", "b"],
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "at": pa.array([at, None], pa.timestamp("us", "UTC")),
            "day": pa.array([at.date(), None], pa.date32()),
            "raw": pa.array([b"\x00\xff", None], pa.binary()),
            "ok": [True, None],
            "tags": pa.array([["x", "y"], None], pa.list_(pa.string())),
            "share": pa.array([0.5, None], pa.float64()),
        }
    )
    output = PostgresOutput(postgres_url, "kinds", key="key")
    app = "kinds"
    with output.connect() as table:
        table.open(1, rows.schema)
        table.write(1, rows, app, 0, is_upsert=True)
        table.write(1, rows.slice(0, 0), app, 1, is_upsert=True, removed=rows.slice(1))
        table.open(2, pa.schema([("key", pa.string()), ("other", pa.int32())]))
    assert output.switch_to(1) is None
    with psycopg.connect(postgres_url) as connection:
        [row] = connection.execute("SELECT * FROM kinds").fetchall()
    assert row == ("a", Decimal("1.50"), at, at.date(), b"\x00\xff", True, ["x", "y"], 0.5)
    # Other columns: the view has to be made anew.
    assert output.switch_to(2) == 1
    assert output.current_version() == 2
    assert output.live(2).read_arrow().num_rows == 0


def test_a_table_of_somebody_else(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE mine (a int)")
    output = PostgresOutput(postgres_url, "mine", key="key")
    with output.connect() as table:
        table.open(1, SCHEMA)
    with pytest.raises(PipelineError, match="rename it, or choose another name"):
        output.switch_to(1)
    with pytest.raises(PipelineError, match="PostgreSQL table mine"):
        PostgresOutput("postgresql://nobody@127.0.0.1:1/none", "mine", key="key").connect()
