"""Versions of tables beside each other: what differs, and the pointer that moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelog.pipeline import DeltaOutput, Json, ParquetOutput, Pipeline, SqliteOutput, TableOutput, TopicInput
from tidelog.pipeline.tables.delta_table import DeltaStore
from tidelog.pipeline.tables.parquet_table import ParquetTable
from tidelog.pipeline.tables.sqlite_table import SqliteTable
from tidelog.pipeline.versions.contents import Counts
from tidelog.pipeline.versions.diff import Comparison, Diff, Sample
from tidelog.pipeline.versions.switch_outputs import SwitchOutputs
from tidelog.pipeline.versions.switching import Position

NOWHERE = "127.0.0.1:1"  # tables need no broker
KEY = ["minute"]
OLD = [{"minute": 1, "revenue": 10.5}, {"minute": 2, "revenue": 20.0}, {"minute": 3, "revenue": 30.0}]
NEW = [{"minute": 2, "revenue": 20.0}, {"minute": 3, "revenue": 33.0}, {"minute": 4, "revenue": 40.0}]
Write = Callable[[Any, int, list[dict[str, Any]]], None]


def _write_parquet(output: ParquetOutput, version: int, rows: list[dict[str, Any]]) -> None:
    table = ParquetTable(output.live(version).place)
    table.open()
    if output.key:
        table.upsert(pa.Table.from_pylist(rows), output.key, "query", 0)
        return
    file = table.place / "staged.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    table.append([file], "query", 0)


def _write_delta(output: DeltaOutput, version: int, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    store = DeltaStore(output.live(version).place, table.schema)
    store.open()
    store.upsert(table, output.key, "query", 0)


def _write_sqlite(output: SqliteOutput, version: int, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    with SqliteTable(output) as database:
        database.open(version, table.schema)
        database.write(version, table, f"query{version}", 0, is_upsert=bool(output.key))


def _tables(tmp_path: Path) -> dict[str, tuple[TableOutput, Write]]:
    return {
        "parquet": (ParquetOutput(tmp_path / "revenue", key=KEY, mode="upsert"), _write_parquet),
        "delta": (DeltaOutput(tmp_path / "revenue", key=KEY, mode="upsert"), _write_delta),
        "sqlite": (SqliteOutput(tmp_path / "shop.db", "revenue", key=KEY), _write_sqlite),
    }


def _pipeline(version: int, *outputs: TableOutput) -> Pipeline:
    return Pipeline(
        name="revenue",
        version=version,
        inputs={"orders": TopicInput("orders", format=Json("amount long"))},
        transform=lambda orders: orders,
        outputs=outputs,
        output_mode="update" if all(output.key for output in outputs) else "append",
    )


def _compare(tmp_path: Path, old: Pipeline, new: Pipeline, at: dict[int, int] | None = None) -> Diff:
    def position(version: int) -> Position:
        offsets = {"orders": {0: (at or {}).get(version, 5)}}
        return Position(offsets, offsets, is_clean=True)

    return Comparison(NOWHERE, tmp_path / "diff", old, new, position).run(samples=10, patience_s=0)


@pytest.mark.parametrize("kind", ["parquet", "delta", "sqlite"])
def test_rows_are_compared_by_their_key(tmp_path: Path, kind: str) -> None:
    output, write = _tables(tmp_path)[kind]
    write(output, 1, OLD)
    write(output, 2, NEW)
    found = _compare(tmp_path, _pipeline(1, output), _pipeline(2, output))
    (compared,) = found.outputs
    assert compared.counts == Counts(added=1, changed=1, missing=1, equal=1)
    assert compared.compared == "rows by minute"
    assert compared.samples == [
        Sample("added", [4], None, {"minute": 4, "revenue": 40.0}),
        Sample("changed", [3], {"minute": 3, "revenue": 30.0}, {"minute": 3, "revenue": 33.0}),
        Sample("missing", [1], {"minute": 1, "revenue": 10.5}, None),
    ]
    assert not found.is_equal
    assert found.is_same_position


@pytest.mark.parametrize("kind", ["parquet", "delta", "sqlite"])
def test_readers_are_pointed_to_the_new_version_and_back(tmp_path: Path, kind: str) -> None:
    output, write = _tables(tmp_path)[kind]
    write(output, 1, OLD)
    output.switch_to(1)
    write(output, 2, NEW)
    assert output.current_version() == 1
    outputs = SwitchOutputs(NOWHERE, tmp_path / "switch", _pipeline(1, output), _pipeline(2, output))
    outputs.read()
    assert outputs.write("token") == {"revenue": {"pointer": 2}}
    assert outputs.write("token") == {"revenue": {"pointer": 2}}
    assert output.current_version() == 2
    assert outputs.keep() == {}
    outputs.undo("token")
    assert output.current_version() == 1
    assert output.live(1).read_arrow().num_rows == output.live(2).read_arrow().num_rows == 3


def test_rows_without_a_key_are_counted(tmp_path: Path) -> None:
    output = ParquetOutput(tmp_path / "clicks")
    _write_parquet(output, 1, [{"page": "a"}, {"page": "a"}, {"page": "b"}])
    _write_parquet(output, 2, [{"page": "a"}, {"page": "c"}, {"page": "c"}])
    (compared,) = _compare(tmp_path, _pipeline(1, output), _pipeline(2, output)).outputs
    assert compared.counts == Counts(added=2, changed=0, missing=2, equal=1)
    assert compared.compared == "whole rows"
    assert Sample("added", None, None, {"page": "c"}) in compared.samples
    assert Sample("missing", None, {"page": "b"}, None) in compared.samples


def test_an_output_that_the_new_version_brings_is_all_added(tmp_path: Path) -> None:
    known, write = _tables(tmp_path)["parquet"]
    brought, write_brought = _tables(tmp_path / "other")["sqlite"]
    (tmp_path / "other").mkdir()
    brought = SqliteOutput(tmp_path / "other" / "shop.db", "totals", key=KEY)
    write(known, 1, OLD)
    write(known, 2, OLD)
    write_brought(brought, 2, NEW)
    found = _compare(tmp_path, _pipeline(1, known), _pipeline(2, known, brought))
    assert [output.counts for output in found.outputs] == [Counts(0, 0, 0, 3), Counts(3, 0, 0, 0)]


def test_equal_tables_at_different_offsets_are_told_so(tmp_path: Path) -> None:
    output, write = _tables(tmp_path)["parquet"]
    write(output, 1, OLD)
    write(output, 2, list(reversed(OLD)))
    found = _compare(tmp_path, _pipeline(1, output), _pipeline(2, output), {1: 5, 2: 4})
    assert found.is_equal
    assert not found.is_same_position
    assert (found.old_at, found.new_at) == ({"orders": {0: 5}}, {"orders": {0: 4}})
